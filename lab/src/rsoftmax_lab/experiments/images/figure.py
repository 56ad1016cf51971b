"""The paper's Figure 3: F1 on val after each epoch, for each method."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rsoftmax_lab.comparison import LINE_STYLES, Comparison, LineStyle, Predictor
from rsoftmax_lab.report.figure import legend, panels, save, tidy

SHOWN = {one: line for one, line in LINE_STYLES.items() if one.method != "softmax"} | {
    Predictor("softmax", f"p0={p0}"): LineStyle(grey, style, "4")  # darker for higher thresholds
    for p0, grey, style in (
        (0.05, "0.75", "-"), (0.1, "0.65", "--"), (0.15, "0.5", "-"), (0.2, "0.35", "--"), (0.3, "0.15", ":")
    )
}  # fmt: skip


def draw(comparison: Comparison, titles: dict[str, str], path: Path) -> None:
    """A panel for each dataset: lines are means over seeds, at the best learning rate of each seed."""
    figure, (axes,) = panels(1, len(titles), width=6.2, height=5.4)
    for axis, (point, title) in zip(axes, titles.items(), strict=True):
        _panel(axis, list(comparison.records[point].values()))
        axis.set_title(title, fontsize=11)
    axes[0].set_ylabel("micro-F1 on val", fontsize=9)
    legend(figure, axes, columns=2 * len(titles))
    save(figure, path)


def _panel(axis: Axes, seeds: list[dict[str, Any]]) -> None:
    highest = 0.0
    for one, line in SHOWN.items():
        curves = [curve for methods in seeds if (curve := _curve(methods, one))]
        known = [curve for curve in curves if len(curve) == max(map(len, curves))]
        if known:
            mean = np.mean(known, axis=0)
            highest = max(highest, mean.max())
            style: dict[str, Any] = {"color": line.color, "linewidth": line.width, "label": one.legend}
            axis.plot(range(1, len(mean) + 1), mean, line.style, **style)
    axis.set_xlabel("epoch", fontsize=9)
    axis.set_ylim(0.45 * highest, 1.03 * highest)
    tidy(axis)


def _curve(methods: dict[str, Any], one: Predictor) -> list[float] | None:
    row = methods.get(one.method)
    curve: list[float] | None = row["rules"].get(one.rule, {}).get("curve") if row else None
    return curve
