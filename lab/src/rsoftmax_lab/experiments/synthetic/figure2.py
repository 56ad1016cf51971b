"""The paper's Figure 2: F1 against the number of labels (a) and the document length (b), for 10, 20 and 30 classes."""

from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from rsoftmax_lab.contest.results import OURS, PAPERS, Contest, Contestant
from rsoftmax_lab.experiments.synthetic.run import LENGTH, Draw
from rsoftmax_lab.report.section import save


class Look(NamedTuple):
    """A line's look: what belongs together has one colour."""

    color: str
    style: str
    marker: str
    width: float = 1.3


LOOKS = {
    Contestant("r_softmax_expected_f1"): Look("#c1121f", "-", "o", 2.4),
    Contestant("t_softmax_threshold"): Look("#f08a24", "-", "s", 1.8),
    Contestant("r_softmax_count"): Look("#1d4e89", "-", "D", 2.0),
    Contestant("sparsemax_huber"): Look("#6fa8dc", "--", "v"),
    Contestant("sparsemax_hinge"): Look("#6fa8dc", ":", "^"),
    Contestant("sparsehourglass"): Look("#6fa8dc", "-.", "x"),
    Contestant("bce"): Look("#2d8659", "--", "P"),
    Contestant("zlpr"): Look("#2d8659", ":", "*"),
    Contestant("softmax", "tuned"): Look("#555555", "-", ".", 1.6),
    Contestant("softmax", "p0=0.02"): Look("#8a8a8a", "--", "1"),
    Contestant("softmax", "p0=0.05"): Look("#8a8a8a", "-.", "2"),
    Contestant("softmax", "p0=0.1"): Look("#8a8a8a", ":", "3"),
}


def draw(contest: Contest, split: str, path: Path, average: str = "micro") -> None:
    """Draw the six panels: lines are means over seeds, bands one standard deviation."""
    classes = sorted({point.classes for point in contest.points()})
    figure, axes = plt.subplots(2, len(classes), figsize=(4.3 * len(classes), 7.6), squeeze=False, layout="constrained")
    for column, k in enumerate(classes):
        by_labels = sorted(point for point in contest.points() if point.classes == k and point.length == LENGTH)
        by_length = sorted(point for point in contest.points() if point.classes == k and point.labels == k // 2)
        _panel(axes[0, column], contest, by_labels, [p.labels for p in by_labels], split, average)
        _panel(axes[1, column], contest, by_length, [p.length for p in by_length], split, average)
        axes[0, column].set_title(f"{k} classes", fontsize=11)
        axes[0, column].set_xlabel(f"average number of labels (length {LENGTH})", fontsize=9)
        axes[1, column].set_xlabel(f"average document length ({k // 2} labels)", fontsize=9)
        axes[1, column].set_xscale("log")
        lengths = [p.length for p in by_length]
        axes[1, column].set_xticks(lengths, [str(length) for length in lengths])
        axes[1, column].minorticks_off()
    for row, letter in enumerate("ab"):
        axes[row, 0].set_ylabel(f"({letter})   {average}-F1, {split.replace('_', ', ')}", fontsize=9)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    save(figure, path)
    plt.close(figure)


def label(one: Contestant) -> str:
    """Its name in a legend, and whose it is."""
    whose = " (ours)" if one in OURS else " (the paper's)" if one == PAPERS else ""
    return one.title + whose


def _panel(axis: Axes, contest: Contest, points: list[Draw], places: list[int], split: str, average: str) -> None:
    lows, highs = [], []
    for one, look in LOOKS.items():
        means = [contest.mean(one, [point], split, average) for point in points]
        known = [(x, mean) for x, mean in zip(places, means, strict=True) if mean is not None]
        x, y = np.array([x for x, _ in known]), np.array([mean.value for _, mean in known])
        spread = np.array([mean.spread or 0.0 for _, mean in known])
        axis.plot(
            x,
            y,
            look.style,
            color=look.color,
            marker=look.marker,
            markersize=5,
            linewidth=look.width,
            zorder=2 + look.width,
            label=label(one),
        )
        axis.fill_between(x, y - spread, y + spread, color=look.color, alpha=0.13, linewidth=0)
        highs += [mean.value for _, mean in known]
        lows += [mean.value for _, mean in known if one.method != "softmax"]
    low, top = min(lows, default=0.0), max(highs, default=100.0)
    room = max(top - low, 1.0)
    axis.set_ylim(low - 0.08 * room, top + 0.05 * room)  # like the paper: bad thresholds fall out
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
