"""Plots of predicted labels: an image or a text with its labels, and an evaluation."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from PIL import Image

from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.models.card import printable, readable

PREDICTED, THRESHOLD, DIAGONAL, UNPREDICTED = "#2f6690", "#c44536", "#aaaaaa", "#c5ccd3"
NO_THRESHOLDS: Mapping[str, float] = MappingProxyType({})
MOST_BARS, MOST_LABELS = 15, 40  # that remain legible: beside an image, and in an evaluation
NUMBER = 0.12  # the width of a number beside its bar


def formats() -> list[str]:
    """The file extensions that can be written."""
    return sorted(f".{ending}" for ending in FigureCanvasBase.get_supported_filetypes())


def draw_labels(
    item: Image.Image | str, marginals: Mapping[str, float], predicted: Collection[str], path: Path, name: str
) -> None:
    """Plot an image or a text beside a bar chart of its labels.

    Args:
        item: the image or text.
        marginals: by label, in descending order.
        predicted: the predicted labels, the most probable first; the bars of the others are grey.
        path: the file to write, in the format of its extension.
        name: the caption of an image.
    """
    with _figure(9, 4, path) as figure:
        left, right = figure.subplots(1, 2)
        left.set_axis_off()
        left.set_title(", ".join(map(printable, list(predicted)[:6])) or "no label", fontsize=12, wrap=True)
        placement = {"transform": left.transAxes, "va": "top"}
        if isinstance(item, str):
            lines = wrap(printable(item), width=52, max_lines=16, placeholder=" …")
            left.text(0, 0.96, "\n".join(lines), fontsize=10, **placement)
        else:
            left.imshow(item)
            left.text(0.5, -0.02, printable(name), ha="center", fontsize=8, color="#777", **placement)
        first = {label: marginals[label] for label in predicted}
        _draw_bars(right, {**first, **marginals}, predicted)


def labels_figure(
    marginals: Mapping[str, float], predicted: Collection[str], thresholds: Mapping[str, float]
) -> Figure:
    """A bar for each label, the most probable first, with a mark at its threshold.

    Args:
        marginals: by label, in descending order.
        predicted: the predicted labels; the bars of the others are grey.
        thresholds: by label; empty for a rule without fixed thresholds.
    """
    with _figure(6, max(2.0, 0.3 * min(len(marginals), MOST_BARS) + 0.8)) as figure:
        axes = figure.subplots()
        _draw_bars(axes, marginals, predicted, thresholds)
        marks = [thresholds.get(label, math.nan) for label in list(marginals)[:MOST_BARS]]
        if thresholds:
            axes.plot(marks, range(len(marks)), "|", color=THRESHOLD, markersize=14, markeredgewidth=2)
            axes.set_xlabel("probability (red: threshold)")
    return figure


def draw_evaluation(scores: Evaluation, path: Path) -> None:
    """Plot the F1 of each label that occurs, the best first, beside the calibration curve."""
    labels = sorted((label for label in scores.labels if label.support), key=lambda label: -label.f1)[:MOST_LABELS]
    with _figure(10, max(4, 0.22 * len(labels) + 1), path) as figure:
        left, right = figure.subplots(1, 2)
        names, f1 = [printable(label.label) for label in labels], [label.f1 for label in labels]
        left.barh(names, f1, color=PREDICTED, height=0.7)
        left.set(xlim=(0, 1), xlabel="F1")
        left.invert_yaxis()
        left.set_title(f"micro {scores.micro:.3f}, macro {scores.macro:.3f}, samples {scores.samples:.3f}", fontsize=10)
        right.plot([0, 1], [0, 1], color=DIAGONAL, linewidth=1)
        right.plot(scores.curve.predicted, scores.curve.observed, "o-", color=PREDICTED)
        right.set(xlabel="predicted probability", ylabel="observed frequency")
        right.set_title(f"calibration error {scores.calibration_error:.3f}", fontsize=10)


@contextmanager
def _figure(width: float, height: float, path: Path | None = None) -> Iterator[Figure]:
    """A figure to draw in, saved to ``path`` after the block; dollar signs in names are not parsed as maths."""
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        if path is not None:
            figure.savefig(path, dpi=150)


def _draw_bars(
    axes: Axes,
    marginals: Mapping[str, float],
    predicted: Collection[str],
    thresholds: Mapping[str, float] = NO_THRESHOLDS,
) -> None:
    """Horizontal bars of the first labels; grey for labels that are not predicted. Numbers avoid the thresholds."""
    shown = dict(list(marginals.items())[:MOST_BARS])
    colours = [PREDICTED if label in predicted else UNPREDICTED for label in shown]
    axes.barh(range(len(shown)), list(shown.values()), color=colours, height=0.6)
    axes.set_yticks(range(len(shown)), list(map(printable, shown)))
    for y, (label, p) in enumerate(shown.items()):
        mark = thresholds.get(label, p)
        axes.text((mark if p < mark < p + NUMBER else p) + 0.01, y, readable(p), va="center", fontsize=9)
    axes.set(xlim=(0, 1.12), ylim=(max(len(shown), 4) - 0.4, -0.6), xlabel="probability")  # the first on top
    if len(marginals) > MOST_BARS:
        axes.set_title(f"the first {MOST_BARS} of {len(marginals)}", fontsize=9)
