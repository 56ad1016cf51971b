"""The paper's Figure 2: F1 against the number of labels (a) and the document length (b), for 10, 20 and 30 classes."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from rsoftmax_lab.comparison import LINE_STYLES, Comparison
from rsoftmax_lab.experiments.synthetic.grid import LENGTH, Draw
from rsoftmax_lab.report.figure import legend, panels, save, tidy


def draw(comparison: Comparison, split: str, path: Path, average: str = "micro") -> None:
    """Draw the six panels: lines are means over seeds, bands one standard deviation."""
    classes = sorted({point.classes for point in comparison.points()})
    figure, (above, below) = panels(2, len(classes), width=4.3, height=7.6)
    for k, by_labels, by_length in zip(classes, above, below, strict=True):
        points = sorted(point for point in comparison.points() if point.classes == k)
        same_length = [point for point in points if point.length == LENGTH]
        _panel(by_labels, comparison, same_length, [point.labels for point in same_length], split, average)
        by_labels.set_title(f"{k} classes", fontsize=11)
        by_labels.set_xlabel(f"average number of labels (length {LENGTH})", fontsize=9)
        same_labels = [point for point in points if point.labels == k // 2]
        lengths = [point.length for point in same_labels]
        _panel(by_length, comparison, same_labels, lengths, split, average)
        by_length.set_xlabel(f"average document length ({k // 2} labels)", fontsize=9)
        by_length.set_xscale("log")
        by_length.set_xticks(lengths, [str(length) for length in lengths])
        by_length.minorticks_off()
    for row, letter in ((above, "a"), (below, "b")):
        row[0].set_ylabel(f"({letter})   {average}-F1, {split.replace('_', ', ')}", fontsize=9)
    legend(figure, above[:1], columns=4)
    save(figure, path)


def _panel(axis: Axes, comparison: Comparison, points: list[Draw], places: list[int], split: str, average: str) -> None:
    lows, highs = [], []
    for one, line in LINE_STYLES.items():
        means = [comparison.mean(one, [point], split, average) for point in points]
        known = [(x, mean) for x, mean in zip(places, means, strict=True) if mean is not None]
        x, y = np.array([x for x, _ in known]), np.array([mean.value for _, mean in known])
        spread = np.array([mean.spread or 0.0 for _, mean in known])
        axis.plot(
            x,
            y,
            line.style,
            color=line.color,
            marker=line.marker,
            markersize=5,
            linewidth=line.width,
            zorder=2 + line.width,
            label=one.legend,
        )
        axis.fill_between(x, y - spread, y + spread, color=line.color, alpha=0.13, linewidth=0)
        highs += [mean.value for _, mean in known]
        lows += [mean.value for _, mean in known if one.method != "softmax"]
    low, top = min(lows, default=0.0), max(highs, default=100.0)
    room = max(top - low, 1.0)
    axis.set_ylim(low - 0.08 * room, top + 0.05 * room)  # as in the paper, softmax at poor thresholds is cut off
    tidy(axis)
