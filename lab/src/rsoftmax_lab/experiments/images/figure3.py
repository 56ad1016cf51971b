"""The paper's Figure 3: F1 on val after each epoch, for each method."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from rsoftmax_lab.contest.results import Contest, Contestant
from rsoftmax_lab.experiments.synthetic.figure2 import LOOKS, Look, label
from rsoftmax_lab.report.section import save

SHOWN = {one: look for one, look in LOOKS.items() if one.method != "softmax"} | {
    Contestant("softmax", f"p0={p0}"): Look(grey, style, "4")  # the higher the threshold, the darker
    for p0, grey, style in (
        (0.05, "0.75", "-"), (0.1, "0.65", "--"), (0.15, "0.5", "-"), (0.2, "0.35", "--"), (0.3, "0.15", ":")
    )
}  # fmt: skip


def draw(contest: Contest, titles: dict[str, str], path: Path) -> None:
    """A panel for each set: lines are means over seeds, at the learning rate that was best for that seed."""
    figure, axes = plt.subplots(1, len(titles), figsize=(6.2 * len(titles), 5.4), squeeze=False, layout="constrained")
    for axis, (point, title) in zip(axes[0], titles.items(), strict=True):
        highest = 0.0
        for one, look in SHOWN.items():
            curves = [_curve(methods, one) for methods in contest.rows[point].values()]
            known = [curve for curve in curves if curve]
            if known:
                mean = np.mean(known, axis=0)
                highest = max(highest, mean.max())
                axis.plot(range(1, len(mean) + 1), mean, look.style, color=look.color, linewidth=look.width,
                          label=label(one))  # fmt: skip
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("epoch", fontsize=9)
        axis.set_ylim(0.45 * highest, 1.03 * highest)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("micro-F1 on val", fontsize=9)
    lines = {name: line for axis in axes[0] for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(lines.values()), list(lines), loc="outside lower center", ncols=2 * len(titles), fontsize=9, frameon=False
    )
    save(figure, path)
    plt.close(figure)


def _curve(methods: dict[str, Any], one: Contestant) -> list[float] | None:
    row = methods.get(one.method)
    curve: list[float] | None = row["rules"].get(one.rule, {}).get("curve") if row else None
    return curve
