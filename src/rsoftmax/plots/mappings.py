"""The paper's Figure 1 in spirit: one row of scores through every mapping, zeros shown as zeros."""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from rsoftmax.mappings import MAPPINGS

ZERO, MASS = "#c44536", "#2f6690"
PER_LINE = 5


def compare_mappings(logits: list[float], parameters: dict[str, float]) -> dict[str, Tensor]:
    """The probabilities of each mapping, keyed by its call; a parameter not given takes the table's example."""
    x = torch.tensor(logits, dtype=torch.float64)
    rows = {}
    for name, mapping in MAPPINGS.items():
        if mapping.parameter is None:
            rows[name] = mapping.function(x)
        elif mapping.parameter.per_row:
            value = parameters.get(mapping.parameter.name, mapping.parameter.example)
            rows[f"{name}, {mapping.parameter.name} = {value:g}"] = mapping.function(x, value)
        # weighted_softmax needs a weight for each entry; with equal ones it is softmax, and there is nothing to see
    return rows


def draw_mappings(rows: dict[str, Tensor], logits: list[float], path: Path) -> None:
    """Draw the rows side by side and save them in the format that the path's ending names."""
    lines = -(-len(rows) // PER_LINE)
    figure = Figure(figsize=(2.6 * PER_LINE, 2.3 * lines), layout="constrained")
    axes = figure.subplots(lines, PER_LINE, sharex=True, sharey=True, squeeze=False)
    places = range(len(logits))
    for axis, (title, p) in zip(axes.flat, rows.items(), strict=False):
        axis.bar(places, p.tolist(), color=MASS)
        zeros = [i for i in places if p[i] == 0]
        (marks,) = axis.plot(zeros, [0] * len(zeros), "o", markersize=5, color=ZERO, clip_on=False, zorder=3)
        marks.set_in_layout(False)
        axis.set_title(f"{title}\n{len(zeros)} of {len(logits)} zero", fontsize=9)
        axis.set_xticks(places, [f"{score:g}" for score in logits], fontsize=8 if len(logits) <= 8 else 5)
        axis.tick_params(labelbottom=True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylim(0, 1)
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    figure.supxlabel("score", fontsize=9)
    figure.supylabel("probability", fontsize=9)
    figure.savefig(path, dpi=150)
