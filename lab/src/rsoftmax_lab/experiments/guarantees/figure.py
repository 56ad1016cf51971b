"""What was promised and what was found, over the resplits of each dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rsoftmax_lab.experiments.guarantees.grid import GUARANTEES, HOEFFDING, MAPIE, OURS
from rsoftmax_lab.report.figure import panels, save, tidy

COLOURS = {OURS: "#c1121f", MAPIE: "#444444", HOEFFDING: "#9a9a9a"}
Levels = Mapping[str, Mapping[str, Sequence[float]]]  # by dataset and method


def draw(found: Mapping[str, Levels], path: Path) -> None:
    """Draw a panel for each guarantee: a box per dataset and method, whiskers from the 5th to the 95th percentile.

    Where nothing can be guaranteed, there is no box.

    Args:
        found: the levels of all resplits, by guarantee.
        path: the file to write.
    """
    figure, rows = panels(len(found), 1, width=10.0, height=2.5 * len(found))
    for (axis,), (name, levels) in zip(rows, found.items(), strict=True):
        _panel(axis, levels)
        axis.axhline(GUARANTEES[name].level, color="black", linewidth=1)
        axis.set_title(f"{GUARANTEES[name].title} (line: guaranteed)", fontsize=10, loc="left")
    lines = [Line2D([], [], color=colour, linewidth=3) for colour in COLOURS.values()]
    rows[0][0].legend(
        lines, list(COLOURS), fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False
    )
    save(figure, path)


def _panel(axis: Axes, levels: Levels) -> None:
    tidy(axis)
    for place, methods in enumerate(levels.values()):
        for turn, (name, values) in enumerate(methods.items()):
            shift = 0.26 * (turn - (len(methods) - 1) / 2)
            box = axis.boxplot([values], positions=[place + shift], widths=0.22, whis=(5, 95), sym="", showmeans=True,
                               meanprops={"marker": "o", "markersize": 3, "markeredgecolor": COLOURS[name],
                                          "markerfacecolor": COLOURS[name]})  # fmt: skip
            for line in (*box["boxes"], *box["whiskers"], *box["caps"], *box["medians"]):
                line.set_color(COLOURS[name])
    axis.set_xticks(range(len(levels)), list(levels), fontsize=8)
    axis.set_xlim(-0.5, len(levels) - 0.5)
