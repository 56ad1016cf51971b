"""Critical difference diagrams: mean ranks on a line, with bars over groups without significant differences."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes

from rsoftmax_lab.report.figure import panels, save
from rsoftmax_lab.report.mean_ranks import Ranks

OURS, OTHERS = "#c1121f", "#444444"
STEP = 0.05  # of the height of a panel, between two names


def draw(ranks: Mapping[str, Ranks], ours: set[str], path: Path) -> None:
    """Draw a panel for each F1.

    Args:
        ranks: by the kind of F1.
        ours: the names to highlight.
        path: the file to write.
    """
    figure, rows = panels(len(ranks), 1, width=10.5, height=4.2 * len(ranks))
    for (axis,), (average, found) in zip(rows, ranks.items(), strict=True):
        _panel(axis, found, ours)
        axis.set_title(f"{average}-F1: mean rank over {found.sets} datasets (1 is best)", fontsize=11, pad=14)
    save(figure, path)


def _panel(axis: Axes, found: Ranks, ours: set[str]) -> None:
    """Draw ranks from left to right, with the names of the better half on the left and of the others on the right."""
    several = len(found.means)
    half = -(-several // 2)
    axis.set_axis_off()
    axis.set(xlim=(1 - 0.45 * several, several + 0.45 * several), ylim=(-STEP * (half + 7), 0.12))
    axis.plot([1, several], [0, 0], color="black", linewidth=1)
    for tick in range(1, several + 1):
        axis.plot([tick, tick], [0, 0.02], color="black", linewidth=1)
        axis.text(tick, 0.035, str(tick), ha="center", fontsize=8)
    low = -STEP * (len(found.groups()) + 1.5)
    for place, (name, rank) in enumerate(found.means.items()):
        left = place < half
        level = low - STEP * (place if left else several - 1 - place)
        side, colour = 0.98 if left else 1.02 * several, OURS if name in ours else OTHERS
        axis.plot([rank, rank, side], [0, level, level], color=colour, linewidth=1)
        text = f"{name}  {rank:.1f}" if left else f"{rank:.1f}  {name}"
        axis.text(side, level, f"{text} " if left else f" {text}", ha="right" if left else "left", va="center",
                  fontsize=9, color=colour)  # fmt: skip
    for place, (first, last) in enumerate(found.groups()):
        level = -STEP * (place + 0.8)
        ends = [found.means[first] - 0.1, found.means[last] + 0.1]
        axis.plot(ends, [level, level], color="black", linewidth=3.5, solid_capstyle="round", zorder=3)
    axis.plot([1, 1 + found.critical], [0.1, 0.1], color="black", linewidth=1.5, marker="|")
    axis.text(1 + found.critical, 0.1, f"  critical difference {found.critical:.1f}", fontsize=9, va="center")
