"""Error against time, one panel for each model, kind of text and length."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from rsoftmax_lab.experiments.pretrained.grid import CALIBRATED
from rsoftmax_lab.report.figure import legend, panels, save, tidy

COLUMNS = 3
FLOOR = 1e-5  # smaller errors are drawn here
HEIGHT = 0.055  # of a label, as a fraction of its panel
LINE = {"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6, "shrinkB": 4}
KINDS = {
    "calibrated": ("#c1121f", "*"),
    "distance t, edge 0 or 1": ("#1d4e89", "o"),
    "rate r or count k, edge 0": ("#e09f3e", "s"),
    "the paper's mappings": ("#6b705c", "D"),
    "softmax, this library's kernel": ("#555555", "x"),
}


def draw(found: Mapping[str, tuple[str, Mapping[str, Mapping[str, Any]]]], path: Path) -> None:
    """Draw the panels.

    Args:
        found: by title, what the error is, and the measurements by setting.
        path: the file to write.
    """
    columns = min(COLUMNS, len(found))
    figure, rows = panels(-(-len(found) // columns), columns, width=4.6, height=0.6 + 3.6 * -(-len(found) // columns))
    axes = [axis for row in rows for axis in row]
    for axis, (title, (metric, settings)) in zip(axes, found.items(), strict=False):
        _panel(axis, settings)
        axis.set_title(title, fontsize=9)
        axis.set_ylabel(metric, fontsize=8)
        axis.set_xlabel("time of the whole model relative to sdpa", fontsize=8)
    for axis in axes[len(found) :]:
        axis.set_axis_off()
    legend(figure, axes[: len(found)], columns=COLUMNS)
    save(figure, path)


def _panel(axis: Axes, settings: Mapping[str, Mapping[str, Any]]) -> None:
    for name, row in settings.items():
        colour, marker = KINDS[kind_of(name)]
        error = max(row["error"], FLOOR)
        axis.plot(row["time"], error, marker, color=colour, label=kind_of(name), markersize=11 if marker == "*" else 6)
    axis.axvline(1.0, color="#999999", linestyle=":", linewidth=1)
    axis.set_yscale("log")
    axis.margins(0.15)
    tidy(axis)
    _label(axis, settings)


def _label(axis: Axes, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """A column of texts at the right, in the order of the errors, with a line from each to its point."""
    axis.autoscale_view()
    ordered = sorted(settings.items(), key=lambda item: float(item[1]["error"]))
    points = [(row["time"], max(row["error"], FLOOR)) for _, row in ordered]
    heights = [y for _, y in (axis.transScale + axis.transLimits).transform(points)]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + HEIGHT)
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], 1 - HEIGHT * (len(heights) - 1 - i))
    for (name, row), point, height in zip(ordered, points, heights, strict=True):
        text = f"{name.split(',')[0].split('_softmax ')[-1]}, {row['zeros']:.0%}"
        axis.annotate(text, point, (1.02, height), textcoords="axes fraction", fontsize=7, va="center", arrowprops=LINE)


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
