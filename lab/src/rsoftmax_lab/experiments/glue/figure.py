"""Accuracy on dev against the final rate, one panel per task."""

from pathlib import Path

from rsoftmax_lab.report.figure import legend, panels, save
from rsoftmax_lab.report.mean import Mean


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
            softmax, error = points[0.0].value, errors[task]
            axis.axhline(softmax, color="#555555", linestyle="--", label="softmax")
            band = axis.axhspan(softmax - error, softmax + error, color="#555555", alpha=0.12, linewidth=0)
            band.set_label("softmax's standard error")
        axis.axvline(papers[task], color="#c1121f", linestyle=":", label="best r in the paper")
        axis.set_title(task, fontsize=11)
        axis.set_xlabel("final rate r", fontsize=9)
    axes[0].set_ylabel("accuracy on dev, %", fontsize=9)
    legend(figure, axes[:1], columns=4)
    save(figure, path)
