"""The attention weights of a model on one sentence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from rsoftmax.huggingface.attention.adapter import implementation, quiet
from rsoftmax.huggingface.attention.api import layers, parameters, set_attention
from rsoftmax.huggingface.attention.measure import attention_weights
from rsoftmax.huggingface.attention.saving import ENTRY
from rsoftmax.mappings import MAPPINGS

MAX_TOKENS = 64  # more would not be legible in a plot


@dataclass(frozen=True)
class AttentionMap:
    """The weights of some heads of one layer for one sentence.

    Attributes:
        title: the mapping and the layer.
        tokens: the tokens of the sentence.
        weights: ``[queries, keys]`` by head; NaN where masked.
    """

    title: str
    tokens: list[str]
    weights: dict[int, Tensor]

    def zeros(self, head: int) -> float:
        """The share of exact zeros among the unmasked weights."""
        kept = self.weights[head][~self.weights[head].isnan()]
        return float((kept == 0).float().mean())


def attention_map(
    source: str,
    text: str,
    layer: int = -1,
    heads: list[int] | None = None,
    mapping: str | None = None,
    parameter: dict[str, float] | None = None,
) -> AttentionMap:
    """Run a model on one sentence and return the weights of one layer.

    Args:
        source: a folder or a hub id with a model and its tokenizer.
        text: the sentence.
        layer: its index; negative indices count from the end.
        heads: their indices; all heads by default.
        mapping: the mapping to use; by default the one the model was saved with, or else softmax.
        parameter: the mapping's parameter by its letter.

    Returns:
        The weights. In an encoder-decoder model, the decoder gets the same sentence.
    """
    tokenizer, model = _load(source)
    given: dict[str, Any] = parameter or {}
    if mapping is not None or given:
        set_attention(model, mapping or "r_softmax", **given)
    elif implementation(model.config) not in MAPPINGS:
        set_attention(model, "softmax")
    batch = dict(tokenizer(text, return_tensors="pt"))
    tokens: list[str] = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"a plot has room for {MAX_TOKENS} tokens, but the text has {len(tokens)}")
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch["input_ids"]
    names = layers(model)
    name = names[_index("layer", layer, len(names))]
    weights = attention_weights(model, batch, masked=torch.nan)[name][0]
    chosen = range(len(weights)) if not heads else [_index("head", head, len(weights)) for head in heads]
    return AttentionMap(f"{_title(model)}    {name}", tokens, {head: weights[head] for head in chosen})


@quiet()
def _load(source: str) -> tuple[Any, Any]:
    """Load the tokenizer and the model without its task head, from safetensors only and without remote code."""
    if not Path(source).is_dir() and _is_path(source):
        raise ValueError(f"{source!r} is not a folder or hub id with a model and its tokenizer: no such folder")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        return tokenizer, AutoModel.from_pretrained(source, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"{source!r} is not a folder or hub id with a model and its tokenizer: {why}") from error


def _is_path(source: str) -> bool:
    """Whether a name cannot be a hub id, or is in an existing folder: a mistyped path is not looked up on the hub."""
    parent = Path(source).parent
    return source.count("/") > 1 or source.startswith((".", "/", "~")) or (parent != Path() and parent.is_dir())


def _title(model: Any) -> str:
    mapping = implementation(model.config)
    if not hasattr(model.config, ENTRY):
        return str(mapping)
    used = parameters(model)
    values = used.values[~used.values.isnan()].unique().tolist()
    return f"{mapping}, {used.title} = {' to '.join(f'{value:.3g}' for value in sorted({min(values), max(values)}))}"


def _index(what: str, number: int, count: int) -> int:
    if not -count <= number < count:
        raise ValueError(f"there is no {what} {number}; the model has {count}, from 0 to {count - 1}")
    return number % count
