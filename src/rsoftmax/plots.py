"""Plots of mappings, attention maps, predicted labels and evaluations.

Needs ``pip install 'rsoftmax[plots]'``.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING

try:
    import matplotlib
except ImportError as missing:
    raise ImportError(f"rsoftmax.plots needs {missing.name}: pip install 'rsoftmax[plots]'") from missing

import torch
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from torch.autograd import grad

from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.models.card import printable, readable
from rsoftmax.mappings import MAPPINGS

if TYPE_CHECKING:  # plotting does not need transformers
    from rsoftmax.attention.transformers.measure import AttentionMap
    from rsoftmax.attention.transformers.sparsify import SparsifyReport

__all__ = [
    "attention_figure",
    "compare_mappings",
    "draw_attention_map",
    "draw_evaluation",
    "draw_labels",
    "draw_mappings",
    "draw_sparsified_heads",
    "formats",
    "labels_figure",
    "mapping_gradients",
    "mappings_figure",
]

# --------------------------------------------------------------------------- mappings and attention
# These figures mark exact zeros. The one of mappings is after the paper's Figure 1.

ZERO, MASS, MASKED = "#c44536", "#2f6690", "#e4e4e4"
COLOURS = LinearSegmentedColormap.from_list("mass", ["#d6e6f2", MASS, "#0d2438"])  # small weights differ from white
MAPPINGS_PER_LINE, HEADS_PER_LINE = 6, 4


def compare_mappings(logits: list[float], parameters: dict[str, float]) -> dict[str, Tensor]:
    """The probabilities under each mapping, keyed by title; parameters default to the table's examples."""
    x = torch.tensor(logits, dtype=torch.float64)
    return {title: mapping(x) for title, mapping in _with_parameters(parameters).items()}


def mapping_gradients(logits: list[float], parameters: dict[str, float]) -> dict[str, Tensor]:
    r"""The gradient of the largest logit's probability under each mapping, keyed by title.

    .. math:: \partial p_m / \partial x_j, \qquad m = \arg\max_i x_i
    """
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    return {title: grad(mapping(x)[x.argmax()], x)[0] for title, mapping in _with_parameters(parameters).items()}


def _with_parameters(parameters: dict[str, float]) -> dict[str, Callable[[Tensor], Tensor]]:
    """The mappings, with their parameters filled in, by title."""
    mappings: dict[str, Callable[[Tensor], Tensor]] = {}
    for name, spec in MAPPINGS.items():
        values = {option.name: parameters[option.name] for option in spec.options if option.name in parameters}
        if spec.parameter is not None:
            values = {spec.parameter.name: parameters.get(spec.parameter.name, spec.parameter.example)} | values
        title = ", ".join([name, *(f"{parameter} = {value:g}" for parameter, value in values.items())])
        mappings[title] = partial(spec.function, **values)
    return mappings


def draw_mappings(results: dict[str, Tensor], logits: list[float], path: Path) -> None:
    """Save :func:`mappings_figure` in the format of the path's extension."""
    mappings_figure(results, logits).savefig(path, dpi=150)


def mappings_figure(results: dict[str, Tensor], logits: list[float], quantity: str = "probability") -> Figure:
    """A bar chart for each mapping, with exact zeros as dots. Probabilities are plotted on an axis from 0 to 1."""
    lines = -(-len(results) // MAPPINGS_PER_LINE)
    figure = Figure(figsize=(2.2 * MAPPINGS_PER_LINE, 2.3 * lines), layout="constrained")
    axes = figure.subplots(lines, MAPPINGS_PER_LINE, sharex=True, sharey=True, squeeze=False)
    bars = range(len(logits))
    for axis, (title, p) in zip(axes.flat, results.items(), strict=False):
        axis.bar(bars, p.tolist(), color=MASS)
        zeros = [i for i in bars if p[i] == 0]
        (marks,) = axis.plot(zeros, [0] * len(zeros), "o", markersize=5, color=ZERO, clip_on=False, zorder=3)
        marks.set_in_layout(False)
        axis.set_title(f"{title}\n{len(zeros)} of {len(logits)} zero", fontsize=9)
        axis.set_xticks(bars, [f"{logit:g}" for logit in logits], fontsize=8 if len(logits) <= 8 else 5)
        axis.tick_params(labelbottom=True)
        axis.spines[["top", "right"]].set_visible(False)
    if quantity == "probability":
        axes[0, 0].set_ylim(0, 1)
    for axis in axes.flat[len(results) :]:
        axis.set_axis_off()
    figure.supxlabel("logit", fontsize=9)
    figure.supylabel(quantity, fontsize=9)
    return figure


def draw_attention_map(attention: "AttentionMap", path: Path) -> None:
    """Save :func:`attention_figure` in the format of the path's extension."""
    attention_figure(attention).savefig(path, dpi=150)


def attention_figure(attention: "AttentionMap") -> Figure:
    """A heat map for each head, with exact zeros as dots and masked keys in grey."""
    count, columns = len(attention.tokens), min(HEADS_PER_LINE, len(attention.weights))
    lines = -(-len(attention.weights) // columns)
    side = max(3.0, 0.24 * count)  # of a heat map, in inches
    figure = Figure(figsize=(columns * side + 2.2, lines * side + 1.6), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    top = max(float(weights.nan_to_num().max()) for weights in attention.weights.values())
    small = max(4.0, min(9.0, 52 * side / count))
    for axis, (head, weights) in zip(axes.flat, attention.weights.items(), strict=False):
        zero = weights == 0
        axis.set_facecolor(MASKED)
        axis.imshow(torch.where(zero, 1.0, torch.nan).numpy(), ListedColormap(["white"]))
        image = axis.imshow(weights.masked_fill(zero, torch.nan).numpy(), COLOURS, PowerNorm(0.5, 0, top))
        queries, keys = torch.where(zero)
        axis.scatter(keys.numpy(), queries.numpy(), s=(0.2 * 72 * side / count) ** 2, c=ZERO, linewidths=0)
        axis.set_title(f"head {head}: {attention.zeros(head):.0%} zero", fontsize=10)
        axis.set_xticks(range(count), attention.tokens, rotation=90, fontsize=small)
        axis.set_yticks(range(count), attention.tokens, fontsize=small)
        axis.tick_params(length=0)
    for axis in axes.flat[len(attention.weights) :]:
        axis.set_axis_off()
    figure.colorbar(image, ax=axes, shrink=0.6, pad=0.01, label="weight (dot: exactly zero)")
    figure.suptitle(attention.title, fontsize=11)
    figure.supxlabel("key", fontsize=9)
    figure.supylabel("query", fontsize=9)
    return figure


def draw_sparsified_heads(report: "SparsifyReport", path: Path) -> None:
    """Save zeros and distance from softmax per layer and head, and the error by number of keys."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    *maps, lengths = figure.subplots(1, 3)
    for axis, table, top in zip(maps, (report.zeros, report.total_variation), (1, None), strict=True):
        image = axis.imshow(table.values.numpy(), cmap="Blues", vmin=0, vmax=top, aspect="auto")
        figure.colorbar(image, ax=axis)
        axis.set(xlabel="head", ylabel="layer", title=f"{table.title}: {table.mean():.1%}")
        axis.locator_params(integer=True)
    rows, (mean, deviation) = report.by_length, (report.error, report.standard_error)
    errors, bars = [row[2] for row in rows], [row[3] for row in rows]
    lengths.errorbar(range(len(rows)), errors, bars, marker="o", color=MASS, capsize=3, label="measured")
    lengths.axhline(mean, color=MASS, linewidth=1, label="mean over all")
    lengths.axhline(report.max_error, color=ZERO, linestyle="--", label="requested limit of the mean")
    lengths.set_xticks(range(len(rows)), [f"{first + 1}-{last}" for first, last, *_ in rows], fontsize=8)
    title = f"{mean:.2g} \u00b1 {deviation:.1g} on {report.texts} held-out texts"
    lengths.set(xlabel="keys", ylabel=report.metric, title=title)
    lengths.set_ylim(0, 1.15 * max(report.max_error, *errors))
    lengths.legend(loc="lower right")
    figure.savefig(path, dpi=150)


# --------------------------------------------------------------------------- labels
# An image or a text with its labels, and an evaluation.

PREDICTED, THRESHOLD, DIAGONAL, UNPREDICTED = "#2f6690", "#c44536", "#aaaaaa", "#c5ccd3"
NO_THRESHOLDS: Mapping[str, float] = MappingProxyType({})
MOST_BARS, MOST_LABELS = 15, 40  # that remain legible: beside an image, and in an evaluation
NUMBER = 0.12  # the width of a number beside its bar


def formats() -> list[str]:
    """The file extensions that can be written."""
    return sorted(f".{ending}" for ending in FigureCanvasBase.get_supported_filetypes())


def draw_labels(
    item: Image.Image | str, marginals: Mapping[str, float], predicted: Collection[str], path: Path, name: str
) -> None:
    """Plot an image or a text beside a bar chart of its labels.

    Args:
        item: the image or text.
        marginals: by label, in descending order.
        predicted: the predicted labels, the most probable first; the bars of the others are grey.
        path: the file to write, in the format of its extension.
        name: the caption of an image.
    """
    with _figure(9, 4, path) as figure:
        left, right = figure.subplots(1, 2)
        left.set_axis_off()
        left.set_title(", ".join(map(printable, list(predicted)[:6])) or "no label", fontsize=12, wrap=True)
        placement = {"transform": left.transAxes, "va": "top"}
        if isinstance(item, str):
            lines = wrap(printable(item), width=52, max_lines=16, placeholder=" …")
            left.text(0, 0.96, "\n".join(lines), fontsize=10, **placement)
        else:
            left.imshow(item)
            left.text(0.5, -0.02, printable(name), ha="center", fontsize=8, color="#777", **placement)
        first = {label: marginals[label] for label in predicted}
        _draw_bars(right, {**first, **marginals}, predicted)


def labels_figure(
    marginals: Mapping[str, float], predicted: Collection[str], thresholds: Mapping[str, float]
) -> Figure:
    """A bar for each label, the most probable first, with a mark at its threshold.

    Args:
        marginals: by label, in descending order.
        predicted: the predicted labels; the bars of the others are grey.
        thresholds: by label; empty for a rule without fixed thresholds.
    """
    with _figure(6, max(2.0, 0.3 * min(len(marginals), MOST_BARS) + 0.8)) as figure:
        axes = figure.subplots()
        _draw_bars(axes, marginals, predicted, thresholds)
        marks = [thresholds.get(label, math.nan) for label in list(marginals)[:MOST_BARS]]
        if thresholds:
            axes.plot(marks, range(len(marks)), "|", color=THRESHOLD, markersize=14, markeredgewidth=2)
            axes.set_xlabel("probability (red: threshold)")
    return figure


def draw_evaluation(scores: Evaluation, path: Path) -> None:
    """Plot the F1 of each label that occurs, the best first, beside the calibration curve."""
    labels = sorted((label for label in scores.labels if label.support), key=lambda label: -label.f1)[:MOST_LABELS]
    with _figure(10, max(4, 0.22 * len(labels) + 1), path) as figure:
        left, right = figure.subplots(1, 2)
        names, f1 = [printable(label.label) for label in labels], [label.f1 for label in labels]
        left.barh(names, f1, color=PREDICTED, height=0.7)
        left.set(xlim=(0, 1), xlabel="F1")
        left.invert_yaxis()
        left.set_title(f"micro {scores.micro:.3f}, macro {scores.macro:.3f}, samples {scores.samples:.3f}", fontsize=10)
        right.plot([0, 1], [0, 1], color=DIAGONAL, linewidth=1)
        right.plot(scores.curve.predicted, scores.curve.observed, "o-", color=PREDICTED)
        right.set(xlabel="predicted probability", ylabel="observed frequency")
        right.set_title(f"calibration error {scores.calibration_error:.3f}", fontsize=10)


@contextmanager
def _figure(width: float, height: float, path: Path | None = None) -> Iterator[Figure]:
    """A figure to draw in, saved to ``path`` after the block; dollar signs in names are not parsed as maths."""
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        if path is not None:
            figure.savefig(path, dpi=150)


def _draw_bars(
    axes: Axes,
    marginals: Mapping[str, float],
    predicted: Collection[str],
    thresholds: Mapping[str, float] = NO_THRESHOLDS,
) -> None:
    """Horizontal bars of the first labels; grey for labels that are not predicted. Numbers avoid the thresholds."""
    shown = dict(list(marginals.items())[:MOST_BARS])
    colours = [PREDICTED if label in predicted else UNPREDICTED for label in shown]
    axes.barh(range(len(shown)), list(shown.values()), color=colours, height=0.6)
    axes.set_yticks(range(len(shown)), list(map(printable, shown)))
    for y, (label, p) in enumerate(shown.items()):
        mark = thresholds.get(label, p)
        axes.text((mark if p < mark < p + NUMBER else p) + 0.01, y, readable(p), va="center", fontsize=9)
    axes.set(xlim=(0, 1.12), ylim=(max(len(shown), 4) - 0.4, -0.6), xlabel="probability")  # the first on top
    if len(marginals) > MOST_BARS:
        axes.set_title(f"the first {MOST_BARS} of {len(marginals)}", fontsize=9)
