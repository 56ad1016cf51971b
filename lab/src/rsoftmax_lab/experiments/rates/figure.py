"""Quality against time, one panel for each fine-tuned task and each pretrained model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from rsoftmax_lab.experiments.pretrained.grid import CALIBRATED
from rsoftmax_lab.report.figure import legend, panels, save, tidy

COLUMNS = 2
FLOOR = 1e-5  # smaller errors are drawn here
HEIGHT = 0.055  # of a label, as a fraction of its panel
LINE = {"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6, "shrinkB": 4}
KINDS = {
    "calibrated": ("#c1121f", "*"),
    "distance t with an edge": ("#1d4e89", "o"),
    "rate r or count k with an edge": ("#e09f3e", "s"),
    "the paper's mappings": ("#6b705c", "D"),
    "softmax, this library's kernel": ("#555555", "x"),
}


class Point(NamedTuple):
    """A setting: time relative to torch's attention, accuracy or error, share of zeros, standard error over seeds."""

    time: float
    quality: float
    zeros: float
    spread: float | None = None


class Panel(NamedTuple):
    """The points of one model by setting, the titles of the axes, and the band of softmax's standard error."""

    title: str
    quality: str
    time: str
    points: Mapping[str, Point]
    logarithmic: bool = False
    band: tuple[float, float] | None = None


def draw(found: Sequence[Panel], path: Path) -> None:
    """Draw the panels."""
    columns = min(COLUMNS, len(found))
    height = -(-len(found) // columns)
    figure, rows = panels(height, columns, width=5.4, height=0.6 + 3.6 * height)
    axes = [axis for row in rows for axis in row]
    for axis, panel in zip(axes, found, strict=False):
        _draw(axis, panel)
    for axis in axes[len(found) :]:
        axis.set_axis_off()
    legend(figure, axes[: len(found)], columns=3)
    save(figure, path)


def _draw(axis: Axes, panel: Panel) -> None:
    points = panel.points
    if panel.logarithmic:
        axis.set_yscale("log")
        points = {name: point._replace(quality=max(point.quality, FLOOR)) for name, point in points.items()}
    if panel.band is not None:
        axis.axhspan(*panel.band, color="#555555", alpha=0.12, linewidth=0)
    for name, point in points.items():
        colour, marker = KINDS[kind_of(name)]
        size = 11 if marker == "*" else 6
        spread = 0.0 if point.spread is None else point.spread
        axis.errorbar(point.time, point.quality, spread, color=colour, elinewidth=0.8, capsize=2, linestyle="")
        axis.plot(point.time, point.quality, marker, color=colour, label=kind_of(name), markersize=size)
    axis.axvline(1.0, color="#999999", linestyle=":", linewidth=1)
    axis.margins(0.15)
    axis.set_title(panel.title, fontsize=9)
    axis.set_ylabel(panel.quality, fontsize=8)
    axis.set_xlabel(panel.time, fontsize=8)
    tidy(axis)
    _label(axis, points)


def _label(axis: Axes, points: Mapping[str, Point]) -> None:
    """A column of texts at the right, from bottom to top as the points, with a line from each to its point."""
    axis.autoscale_view()
    ordered = sorted(points.items(), key=lambda item: item[1].quality)
    places = [(point.time, point.quality) for _, point in ordered]
    heights = [y for _, y in (axis.transScale + axis.transLimits).transform(places)]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + HEIGHT)
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], 1 - HEIGHT * (len(heights) - 1 - i))
    for (name, point), place, height in zip(ordered, places, heights, strict=True):
        text = f"{name.split(',')[0].split('_softmax ')[-1]}, {point.zeros:.0%}"
        axis.annotate(text, place, (1.02, height), textcoords="axes fraction", fontsize=7, va="center", arrowprops=LINE)


def kind_of(setting: str) -> str:
    """The kind of a setting in the legend."""
    calibrated, distance, share, paper, dense = KINDS
    if setting.startswith(CALIBRATED):
        return calibrated
    if setting == "softmax":
        return dense
    if "edge" not in setting or setting.endswith("edge=inf"):
        return paper
    return distance if setting.startswith("t_softmax") else share
