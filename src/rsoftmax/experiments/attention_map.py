"""The attention of a model to one sentence, drawn: who looks at whom, and who is exactly zero."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from rsoftmax.experiments.figure1 import MASS, ZERO
from rsoftmax.huggingface import attention_weights, layers, rates, set_attention
from rsoftmax.huggingface.saving import ENTRY as HOLDER
from rsoftmax.mappings import MAPPINGS

MOST_TOKENS = 64
PER_LINE = 4
COLOURS = LinearSegmentedColormap.from_list("mass", ["#d6e6f2", MASS, "#0d2438"])  # the least weight is not yet white
REMOVED = "#e4e4e4"


@dataclass(frozen=True)
class AttentionMap:
    """The weights of some heads of one layer for one sentence.

    Attributes:
        title: mapping and layer.
        tokens: the sentence as the model reads it.
        weights: ``[tokens, tokens]`` for each head, queries first; NaN where the mask removes.
    """

    title: str
    tokens: list[str]
    weights: dict[int, Tensor]

    def zeros(self, head: int) -> float:
        """The share of exact zeros among what the mask keeps."""
        kept = self.weights[head][~self.weights[head].isnan()]
        return float((kept == 0).float().mean())


def look(
    source: str,
    text: str,
    layer: int = -1,
    heads: list[int] | None = None,
    mapping: str | None = None,
    parameter: dict[str, float] | None = None,
) -> AttentionMap:
    """Run a model on one sentence and keep the weights of one layer.

    Args:
        source: a folder or a hub id with a model and its tokenizer.
        text: the sentence.
        layer: its number, from 0, or from the end if negative.
        heads: their numbers, from 0; all if not given.
        mapping: the mapping to use, or None for the model's own: what it was saved with, softmax if with none.
        parameter: the mapping's parameter under its letter.

    Returns:
        The map. A decoder beside an encoder reads the same sentence.
    """
    tokenizer, model = _read(source)
    given: dict[str, Any] = parameter or {}
    if mapping is not None or given:
        set_attention(model, mapping or "r_softmax", **given)
    elif model.config._attn_implementation not in MAPPINGS:
        set_attention(model, "softmax")
    batch = dict(tokenizer(text, return_tensors="pt"))
    tokens: list[str] = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    if len(tokens) > MOST_TOKENS:
        raise ValueError(f"a picture has room for {MOST_TOKENS} tokens, the text has {len(tokens)}")
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch["input_ids"]
    names = layers(model)
    name = names[_checked("layer", layer, len(names))]
    weights = attention_weights(model, batch, removed=torch.nan)[name][0]
    chosen = range(len(weights)) if not heads else [_checked("head", head, len(weights)) for head in heads]
    return AttentionMap(f"{_called(model)}    {name}", tokens, {head: weights[head] for head in chosen})


def draw(found: AttentionMap, path: Path) -> None:
    """Draw a map and save it in the format that the path's ending names."""
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
    figure.savefig(path, dpi=150)


def _read(source: str) -> tuple[Any, Any]:
    """Tokenizer and model, quietly: that a head that classifies is left out is as it should be."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"{source!r} is no folder or hub id with a model and its tokenizer: {why}") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _called(model: Any) -> str:
    mapping = model.config._attn_implementation
    if not hasattr(model.config, HOLDER):
        return str(mapping)
    used = rates(model)
    values = used.values[~used.values.isnan()].unique().tolist()
    return f"{mapping}, {used.title} = {' to '.join(f'{value:.3g}' for value in sorted({min(values), max(values)}))}"


def _checked(what: str, number: int, count: int) -> int:
    if not -count <= number < count:
        raise ValueError(f"there is no {what} {number}; the model has {count}, from 0 to {count - 1}")
    return number % count
