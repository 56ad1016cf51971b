"""The paper's Figure 1 in spirit: one row of scores through every mapping, zeros shown as zeros."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.autograd import grad

from rsoftmax.mappings import MAPPINGS

ZERO, MASS = "#c44536", "#2f6690"
PER_LINE = 5


def compare_mappings(logits: list[float], parameters: dict[str, float]) -> dict[str, Tensor]:
    """The probabilities of each mapping, keyed by its call; a parameter not given takes the table's example."""
    x = torch.tensor(logits, dtype=torch.float64)
    return {title: call(x) for title, call in _calls(parameters).items()}


def mapping_gradients(logits: list[float], parameters: dict[str, float]) -> dict[str, Tensor]:
    r"""How the probability of the highest score changes with each score, likewise for each mapping.

    .. math:: \partial p_m / \partial x_j, \qquad m = \arg\max_i x_i
    """
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    return {title: grad(call(x)[x.argmax()], x)[0] for title, call in _calls(parameters).items()}


def _calls(parameters: dict[str, float]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Each mapping with its parameter filled in."""
    calls: dict[str, Callable[[Tensor], Tensor]] = {}
    for name, mapping in MAPPINGS.items():
        if mapping.parameter is None:
            calls[name] = mapping.function
        elif mapping.parameter.per_row:
            letter = mapping.parameter.name
            value = parameters.get(letter, mapping.parameter.example)
            calls[f"{name}, {letter} = {value:g}"] = partial(mapping.function, **{letter: value})
        # weighted_softmax needs a weight for each entry; with equal ones it is softmax, and there is nothing to see
    return calls


def draw_mappings(rows: dict[str, Tensor], logits: list[float], path: Path) -> None:
    """Draw the rows side by side and save them in the format that the path's ending names."""
    mappings_figure(rows, logits).savefig(path, dpi=150)


def mappings_figure(rows: dict[str, Tensor], logits: list[float], quantity: str = "probability") -> Figure:
    """The rows side by side as bars, exact zeros as dots. The axis of a probability goes from 0 to 1."""
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
    if quantity == "probability":
        axes[0, 0].set_ylim(0, 1)
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    figure.supxlabel("score", fontsize=9)
    figure.supylabel(quantity, fontsize=9)
    return figure
