"""The picture of an attention map: weights as colours, exact zeros as dots."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure

from rsoftmax.plots.mappings import MASS, ZERO

if TYPE_CHECKING:  # a picture needs no transformers
    from rsoftmax.huggingface.attention_map import AttentionMap

PER_LINE = 4
COLOURS = LinearSegmentedColormap.from_list("mass", ["#d6e6f2", MASS, "#0d2438"])  # the least weight is not yet white
REMOVED = "#e4e4e4"


def draw_attention_map(found: "AttentionMap", path: Path) -> None:
    """Draw a map of some heads and save it in the format that the path's ending names."""
    attention_figure(found).savefig(path, dpi=150)


def attention_figure(found: "AttentionMap") -> Figure:
    """A map of some heads, a panel for each."""
    count, columns = len(found.tokens), min(PER_LINE, len(found.weights))
    lines = -(-len(found.weights) // columns)
    side = max(3.0, 0.24 * count)  # of a panel, in inches
    figure = Figure(figsize=(columns * side + 2.2, lines * side + 1.6), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    top = max(float(weights.nan_to_num().max()) for weights in found.weights.values())
    small = max(4.0, min(9.0, 52 * side / count))
    for axis, (head, weights) in zip(axes.flat, found.weights.items(), strict=False):
        zero = weights == 0
        axis.set_facecolor(REMOVED)
        axis.imshow(torch.where(zero, 1.0, torch.nan).numpy(), ListedColormap(["white"]))
        image = axis.imshow(weights.masked_fill(zero, torch.nan).numpy(), COLOURS, PowerNorm(0.5, 0, top))
        queries, keys = torch.where(zero)
        axis.scatter(keys.numpy(), queries.numpy(), s=(0.2 * 72 * side / count) ** 2, c=ZERO, linewidths=0)
        axis.set_title(f"head {head}: {found.zeros(head):.0%} zero", fontsize=10)
        axis.set_xticks(range(count), found.tokens, rotation=90, fontsize=small)
        axis.set_yticks(range(count), found.tokens, fontsize=small)
        axis.tick_params(length=0)
    for axis in axes.flat[len(found.weights) :]:
        axis.set_axis_off()
    figure.colorbar(image, ax=axes, shrink=0.6, pad=0.01, label="weight (dot: exactly zero)")
    figure.suptitle(found.title, fontsize=11)
    figure.supxlabel("looked at", fontsize=9)
    figure.supylabel("looking", fontsize=9)
    return figure
