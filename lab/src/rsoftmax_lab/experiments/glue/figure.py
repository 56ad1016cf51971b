"""Accuracy on dev against the final rate, and against the time of a step, one panel per task."""

from pathlib import Path

from matplotlib.axes import Axes

from rsoftmax_lab.experiments.glue.results import SOFTMAX, Method, Point
from rsoftmax_lab.report.figure import legend, panels, save
from rsoftmax_lab.report.mean import Mean

COLORS = {"softmax": "#555555", "r_softmax": "#1d4e89", "t_softmax": "#c1121f", "k_softmax": "#f08a24"}


def draw(curves: dict[str, dict[float, Mean]], errors: dict[str, float], papers: dict[str, float], path: Path) -> None:
    """Draw the panels: points are means over seeds, bars one standard deviation.

    Args:
        curves: by task, accuracy by r; 0 is softmax.
        errors: by task, the standard error of an accuracy: the width of the band around softmax.
        papers: by task, the best r in the paper.
        path: the file to write.
    """
    figure, (axes,) = panels(1, len(curves), width=3.4, height=3.4)
    for axis, (task, points) in zip(axes, curves.items(), strict=True):
        rates = [r for r in points if r > 0]
        means = [points[r] for r in rates]
        axis.errorbar(
            rates,
            [mean.value for mean in means],
            [mean.spread or 0.0 for mean in means],
            color="#1d4e89",
            marker="D",
            capsize=3,
            label="r-softmax",
        )
        if 0.0 in points:
            axis.axhline(points[0.0].value, color="#555555", linestyle="--", label="softmax")
            _error_band(axis, points[0.0].value, errors[task])
        axis.axvline(papers[task], color="#c1121f", linestyle=":", label="best r in the paper")
        axis.set_title(task, fontsize=11)
        axis.set_xlabel("final rate r", fontsize=9)
    axes[0].set_ylabel("accuracy on dev, %", fontsize=9)
    legend(figure, axes[:1], columns=4)
    save(figure, path)


def draw_times(points: dict[str, dict[Method, Point]], errors: dict[str, float], path: Path) -> None:
    """Draw the panels: points are means over seeds labelled by the parameter, bars one standard deviation.

    Args:
        points: by task, the results of each method.
        errors: by task, the standard error of an accuracy, as in :func:`draw`.
        path: the file to write.
    """
    figure, (axes,) = panels(1, len(points), width=4.2, height=3.6)
    for axis, (task, by_method) in zip(axes, points.items(), strict=True):
        for method, (accuracy, time, _) in by_method.items():
            name, _, parameter = str(method).partition(", ")
            axis.errorbar(
                time.value,
                accuracy.value,
                accuracy.spread or 0.0,
                time.spread or 0.0,
                color=COLORS.get(method.mapping, "#2d8659"),
                marker="D",
                capsize=3,
                linestyle="",
                label=name,
            )
            axis.annotate(parameter, (time.value, accuracy.value), (5, 5), textcoords="offset points", fontsize=8)
        if SOFTMAX in by_method:
            _error_band(axis, by_method[SOFTMAX].accuracy.value, errors[task])
        axis.axvline(1.0, color="#c1121f", linestyle=":", label="torch's attention")
        axis.margins(0.2)
        axis.set_title(task, fontsize=11)
        axis.set_xlabel("time of a training step relative to torch's attention", fontsize=9)
    axes[0].set_ylabel("accuracy on dev, %", fontsize=9)
    legend(figure, axes, columns=2 * len(points))
    save(figure, path)


def _error_band(axis: Axes, softmax: float, error: float) -> None:
    axis.axhspan(
        softmax - error, softmax + error, color="#555555", alpha=0.12, linewidth=0, label="softmax's standard error"
    )
