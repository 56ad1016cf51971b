"""Accuracy against the length of the context, one panel per task."""

from pathlib import Path

from rsoftmax_lab.experiments.lengths.data import TASKS
from rsoftmax_lab.experiments.lengths.results import Curves
from rsoftmax_lab.report.figure import legend, panels, save, tidy

COLORS = {
    "softmax": "#555555",
    "r_softmax": "#1d4e89",
    "t_softmax": "#c1121f",
    "k_softmax": "#f08a24",
    "entmax15": "#2d8659",
    "sparsemax": "#6fa8dc",
}


def draw(curves: dict[str, Curves], path: Path) -> None:
    """Draw the panels: points are means over seeds, bars one standard deviation; solid lines have the scale log n."""
    figure, (axes,) = panels(1, len(curves), width=4.4, height=4.6)
    for axis, (task, lines) in zip(axes, curves.items(), strict=True):
        for (mapping, scale), points in lines.items():
            axis.errorbar(
                list(points),
                [mean.value for mean in points.values()],
                [mean.spread or 0.0 for mean in points.values()],
                color=COLORS[mapping],
                linestyle="-" if scale else "--",
                marker="o" if scale else "x",
                markersize=4,
                capsize=2,
                label=mapping.replace("_", "-") + (", log n" if scale else ""),
            )
        axis.axvspan(TASKS[task].shortest, TASKS[task].longest, color="#555555", alpha=0.12, linewidth=0)
        axis.set_xscale("log", base=2)
        axis.set_title(TASKS[task].title, fontsize=11)
        axis.set_xlabel("items (grey: in training)", fontsize=9)
        tidy(axis)
    axes[0].set_ylabel("accuracy, %", fontsize=9)
    legend(figure, axes, columns=6)
    save(figure, path)
