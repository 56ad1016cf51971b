"""What all figures of the report share."""

from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows of axes; the width is that of one column, the height that of the whole figure."""
    size = (width * columns, height)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    return figure, axes.tolist()


def tidy(axis: Axes) -> None:
    """Small numbers, a pale grid, no frame above and to the right."""
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
    """Write the figure and close it: a picture of 256 colours, enough for lines, and a third of the size."""
    figure.savefig(path, dpi=130)
    plt.close(figure)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(256)
    few.save(path, optimize=True)
