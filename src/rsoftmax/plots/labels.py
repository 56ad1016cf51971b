"""Plots of predicted labels: an image or a text with its labels, F1 by label, calibration curves."""

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

from rsoftmax.labels.evaluation import CalibrationCurve, Evaluation
from rsoftmax.labels.models.card import printable, readable

COLOURS = ("#2f6690", "#c44536", "#2d8659", "#f08a24", "#6a4c93", "#555555")
DIAGONAL, UNPREDICTED = "#aaaaaa", "#c5ccd3"
NOTHING: Mapping[str, float] = MappingProxyType({})
MOST_BARS, MOST_LABELS = 15, 40  # that remain legible: beside an image, and in an evaluation
NUMBER = 0.12  # the width of a number beside its bar


def formats() -> list[str]:
    """The file extensions that can be written."""
    return sorted(f".{ending}" for ending in FigureCanvasBase.get_supported_filetypes())


@contextmanager
def _saved(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure that is saved to ``path`` after the block; dollar signs in names are not parsed as maths."""
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=150)


def draw_labels(
    item: Image.Image | str, found: dict[str, float], path: Path, name: str, runners_up: Mapping[str, float] = NOTHING
) -> None:
    """Plot an image or a text beside a bar chart of its labels.

    Args:
        item: the image or text.
        found: predicted labels with their probabilities, the most probable first.
        path: the file to write, in the format of its extension.
        name: the caption of an image.
        runners_up: labels that are not predicted, the most probable first; shown in grey if there is room.
    """
    with _saved(path, 9, 4) as figure:
        left, right = figure.subplots(1, 2)
        left.set_axis_off()
        left.set_title(", ".join(map(printable, list(found)[:6])) or "no label", fontsize=12, wrap=True)
        placement = {"transform": left.transAxes, "va": "top"}
        if isinstance(item, str):
            lines = wrap(printable(item), width=52, max_lines=16, placeholder=" …")
            left.text(0, 0.96, "\n".join(lines), fontsize=10, **placement)
        else:
            left.imshow(item)
            left.text(0.5, -0.02, printable(name), ha="center", fontsize=8, color="#777", **placement)
        _draw_bars(right, {**found, **runners_up}, set(found))


def labels_figure(
    probabilities: Mapping[str, float], predicted: Collection[str], thresholds: Mapping[str, float]
) -> Figure:
    """A bar for each label, the most probable first, with a mark at its threshold.

    Args:
        probabilities: by label, in descending order.
        predicted: the predicted labels; the bars of the others are grey.
        thresholds: by label; empty for a rule without fixed thresholds.
    """
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(6, max(2.0, 0.3 * min(len(probabilities), MOST_BARS) + 0.8)), layout="constrained")
        axes = figure.subplots()
        _draw_bars(axes, probabilities, predicted, thresholds)
        marks = [thresholds.get(label, math.nan) for label in list(probabilities)[:MOST_BARS]]
        if thresholds:
            axes.plot(marks, range(len(marks)), "|", color=COLOURS[1], markersize=14, markeredgewidth=2)
            axes.set_xlabel("probability (red: threshold)")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_bars(
    axes: Axes,
    probabilities: Mapping[str, float],
    predicted: Collection[str],
    thresholds: Mapping[str, float] = NOTHING,
) -> None:
    """Horizontal bars of the first labels; grey for labels that are not predicted. Numbers avoid the thresholds."""
    shown = dict(list(probabilities.items())[:MOST_BARS])
    colours = [COLOURS[0] if label in predicted else UNPREDICTED for label in shown]
    axes.barh(range(len(shown)), list(shown.values()), color=colours, height=0.6)
    axes.set_yticks(range(len(shown)), list(map(printable, shown)))
    for place, (label, p) in enumerate(shown.items()):
        mark = thresholds.get(label, p)
        axes.text((mark if p < mark < p + NUMBER else p) + 0.01, place, readable(p), va="center", fontsize=9)
    axes.set(xlim=(0, 1.12), ylim=(max(len(shown), 4) - 0.4, -0.6), xlabel="probability")  # the first on top
    if len(probabilities) > MOST_BARS:
        axes.set_title(f"the first {MOST_BARS} of {len(probabilities)}", fontsize=9)


def draw_evaluation(scores: Evaluation, path: Path) -> None:
    """Plot the F1 of each label that a row has, the best first, beside the calibration curve."""
    labels = sorted((one for one in scores.labels if one.support), key=lambda one: -one.f1)[:MOST_LABELS]
    with _saved(path, 10, max(4, 0.22 * len(labels) + 1)) as figure:
        left, right = figure.subplots(1, 2)
        left.barh([printable(one.label) for one in labels], [one.f1 for one in labels], color=COLOURS[0], height=0.7)
        left.set(xlim=(0, 1), xlabel="F1")
        left.invert_yaxis()
        left.set_title(f"micro {scores.micro:.3f}, macro {scores.macro:.3f}, samples {scores.samples:.3f}", fontsize=10)
        right.plot([0, 1], [0, 1], color=DIAGONAL, linewidth=1)
        right.plot(scores.curve.predicted, scores.curve.observed, "o-", color=COLOURS[0])
        right.set(xlabel="predicted probability", ylabel="observed frequency")
        right.set_title(f"calibration error {scores.calibration_error:.3f}", fontsize=10)


def draw_calibration(curves: Mapping[str, CalibrationCurve], path: Path) -> None:
    """Plot calibration curves by name: observed against predicted frequency, and the number of entries per bin."""
    with _saved(path, 5.2, 6.4) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        above.plot([0, 1], [0, 1], color=DIAGONAL, linewidth=1)
        for place, (name, curve) in enumerate(curves.items()):
            _draw_curve(above, below, curve, printable(name), COLOURS[place % len(COLOURS)])
        above.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="observed frequency")
        figure.legend(fontsize=9, frameon=False, loc="outside upper left")
        below.set(yscale="log", ylim=_decades(curves), xlabel="predicted probability", ylabel="entries")
        below.minorticks_off()


def _decades(curves: Mapping[str, CalibrationCurve]) -> tuple[float, float]:
    """The powers of ten that enclose all counts."""
    counts = [count for curve in curves.values() for count in curve.entries.tolist()]
    return 10 ** math.floor(math.log10(min(counts))), 10 ** (math.floor(math.log10(max(counts))) + 1)


def _draw_curve(above: Axes, below: Axes, curve: CalibrationCurve, name: str, colour: str) -> None:
    """One curve; error bars are two standard errors of the observed frequency."""
    predicted, observed, entries = (values.double().numpy() for values in curve[:3])
    spread = 2 * (observed * (1 - observed) / entries) ** 0.5
    title = f"{name}: calibration error {100 * curve.error:.1f} %, Brier score {100 * curve.brier:.1f} %"
    above.errorbar(predicted, observed, spread, color=colour, marker="o", markersize=4, linewidth=1.4, label=title)
    below.plot(predicted, entries, color=colour, marker="o", markersize=3, linewidth=1)
