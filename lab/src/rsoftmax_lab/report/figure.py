"""Helpers shared by all figures of the report."""

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from rsoftmax.labels.models.folders import replacing


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of axes; ``width`` is that of a column, ``height`` that of the figure."""
    size = (width * columns, height)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    return figure, axes.tolist()


def tidy(axis: Axes) -> None:
    """Small tick labels, a light grid, no top and right spines."""
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def legend(figure: Figure, axes: Iterable[Axes], columns: int) -> None:
    """One legend for all axes, below them; each name once."""
    lines = {name: line for axis in axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(lines.values()), list(lines), loc="outside lower center", ncols=columns, fontsize=9, frameon=False
    )


def save(figure: Figure, path: Path) -> None:
    """Save and close the figure, reduced to 256 colours: enough for lines, at a third of the file size."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=130)
    plt.close(figure)
    with Image.open(drawn) as image, replacing(path) as unfinished:
        image.convert("RGB").quantize(256).save(unfinished, optimize=True)
