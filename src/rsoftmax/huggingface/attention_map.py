"""The attention of a model to one sentence: who looks at whom, and who is exactly zero."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from rsoftmax.huggingface.adapter import implementation, quiet
from rsoftmax.huggingface.measure import attention_weights
from rsoftmax.huggingface.rates import layers, rates, set_attention
from rsoftmax.huggingface.saving import ENTRY
from rsoftmax.mappings import MAPPINGS

MOST_TOKENS = 64  # that can still be read in a picture


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


def attention_map(
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
    elif implementation(model.config) not in MAPPINGS:
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


@quiet()
def _read(source: str) -> tuple[Any, Any]:
    """Tokenizer and model, in safetensors; a classifier that it was saved with is left out, and no code is run."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        return tokenizer, AutoModel.from_pretrained(source, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"{source!r} is no folder or hub id with a model and its tokenizer: {why}") from error


def _called(model: Any) -> str:
    mapping = implementation(model.config)
    if not hasattr(model.config, ENTRY):
        return str(mapping)
    used = rates(model)
    values = used.values[~used.values.isnan()].unique().tolist()
    return f"{mapping}, {used.title} = {' to '.join(f'{value:.3g}' for value in sorted({min(values), max(values)}))}"


def _checked(what: str, number: int, count: int) -> int:
    if not -count <= number < count:
        raise ValueError(f"there is no {what} {number}; the model has {count}, from 0 to {count - 1}")
    return number % count
