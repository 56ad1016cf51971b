"""Measure a model's attention: the share of exact zeros, the weights, and the map of one sentence."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from rsoftmax._transformers import check_unicode, load_pretrained
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.api import (
    HeadTable,
    attention_layers,
    head_parameters,
    pretrained_model,
    set_attention,
)
from rsoftmax.attention.transformers.attend import AttentionCall, Observer, observing
from rsoftmax.attention.transformers.saving import register_attention
from rsoftmax.mappings import MAPPINGS

MAX_TOKENS = 64  # more would not be legible in a plot


def sparsity(model: nn.Module, batch: Mapping[str, Any]) -> HeadTable:
    """The share of attention weights that are exactly zero, per layer and head.

    Args:
        model: after :func:`set_attention`. It runs in evaluation mode and without gradients.
        batch: the model's inputs; it is called as ``model(**batch)``.

    Returns:
        A table ``[layers, heads]``; see :class:`HeadTable`. Only unmasked pairs of real tokens count: padding is left
        out, both as key and as query, and so are future keys.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> from rsoftmax.attention.transformers import set_attention
        >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=8, image_size=32)
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, **sizes))
        >>> set_attention(model, "r_softmax", r=[0.2, 0.4])
        >>> print(sparsity(model, {"pixel_values": torch.randn(1, 3, 32, 32)}))
        zeros                mean      0      1
        layers.0.attention  0.200  0.200  0.200
        layers.1.attention  0.400  0.400  0.400

    A module shared by several layers counts all of its calls. Modules that are not called are left out.
    """
    return zeros_of(model, [batch])[0]


def zeros_of(model: nn.Module, batches: Iterable[Mapping[str, Any]], step: int = 1) -> tuple[HeadTable, int]:
    """The share of zeros over several batches, on every ``step``-th query, and the largest number of keys."""
    zeros: dict[nn.Module, Tensor] = {}
    pairs: dict[nn.Module, Tensor] = {}
    called: dict[str, nn.Module] = {}
    lengths = {0}

    def count(batch: Mapping[str, Any], call: AttentionCall) -> None:
        module, keep, weights = call.module, real_pairs(model, call, batch), call.weights
        zeros[module] = zeros.get(module, 0) + ((weights == 0) & keep).sum((0, 2, 3))
        pairs[module] = pairs.get(module, 0) + keep.sum((0, 2, 3))
        lengths.add(weights.shape[-1])

    for batch in batches:
        called |= run_observed(model, batch, Observer(partial(count, batch), step))
    return HeadTable.of("zeros", {name: zeros[module] / pairs[module] for name, module in called.items()}), max(lengths)


def attention_maps(model: nn.Module, batch: Mapping[str, Any], *, masked: float = 0.0) -> dict[str, Tensor]:
    """The attention weights of each layer.

    Args:
        model: after :func:`set_attention`. It runs in evaluation mode and without gradients.
        batch: the model's inputs; it is called as ``model(**batch)``.
        masked: the value of masked entries; NaN distinguishes them from the zeros of the mapping.

    Returns:
        ``[batch, heads, queries, keys]`` by the names of :func:`attention_layers`; for a module shared by several
        layers, the weights of its last call.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> from rsoftmax.attention.transformers import set_attention
        >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=8, image_size=32)
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, **sizes))
        >>> set_attention(model, "r_softmax", r=0.4)
        >>> weights = attention_maps(model, {"pixel_values": torch.randn(1, 3, 32, 32)})["layers.1.attention"]
        >>> weights.shape, (weights == 0).sum(-1).unique()
        (torch.Size([1, 2, 5, 5]), tensor([2]))
    """
    maps: dict[nn.Module, Tensor] = {}

    def collect(call: AttentionCall) -> None:
        weights = call.weights if call.mask is None else call.weights.masked_fill(~call.mask, masked)
        first = int(call.queries[0]) == 0  # of a further call of a shared module
        maps[call.module] = weights if first else torch.cat([maps[call.module], weights], -2)

    return {name: maps[module] for name, module in run_observed(model, batch, Observer(collect)).items()}


def real_pairs(model: nn.Module, call: AttentionCall, batch: Mapping[str, Any]) -> Tensor:
    """Which weights belong to pairs of real tokens that see each other: not masked, and no padding as query."""
    keep = torch.ones_like(call.weights, dtype=torch.bool) if call.mask is None else call.mask.expand_as(call.weights)
    host = pretrained_model(model)
    in_decoder = host.config.is_encoder_decoder and any(call.module is part for part in host.get_decoder().modules())
    tokens = batch.get("decoder_attention_mask" if in_decoder else "attention_mask")
    if tokens is None or tokens.shape != (len(keep), call.query_count):
        return keep
    real: Tensor = tokens.bool().to(keep.device)
    return keep & real[:, None, call.queries, None]


def run_observed(model: nn.Module, batch: Mapping[str, Any], observer: Observer) -> dict[str, nn.Module]:
    """Run the model, observe every attention call, and return the modules that were called."""
    called = set()

    def observe(call: AttentionCall) -> None:
        called.add(call.module)
        if observer.observe:
            observer.observe(call)

    with torch.no_grad(), evaluating(model), UNCOMPILED, observing(observer._replace(observe=observe)):
        model(**adapter.without_logits(model, batch))
    host = pretrained_model(model)
    if not called:
        implementation = adapter.implementation(host.config)
        raise ValueError(f"{implementation!r} attention cannot be measured; call set_attention first")
    return {name: module for name, module in adapter.attention_modules(host).items() if module in called}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, and restore the mode of each module afterwards."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True


class _Uncompiled:
    """Context manager that runs compiled models eagerly, because compiled code calls no observer.

    torch has one such setting for all threads: the first to enter changes it, the last to leave restores it.
    """

    def __init__(self) -> None:
        self.lock, self.inside = Lock(), 0

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.stance = torch.compiler.set_stance("force_eager")
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.stance.__exit__(*error)


UNCOMPILED = _Uncompiled()


@dataclass(frozen=True)
class AttentionMap:
    """The weights of some heads of one layer for one sentence."""

    title: str  # the mapping and the layer
    tokens: list[str]
    weights: dict[int, Tensor]  # by head: [queries, keys], NaN where masked

    def zeros(self, head: int) -> float:
        """The share of exact zeros among the unmasked weights."""
        unmasked = self.weights[head][~self.weights[head].isnan()]
        return float((unmasked == 0).float().mean())


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
        text: the sentence; the decoder of an encoder-decoder model gets the same one.
        layer: its index; negative indices count from the end.
        heads: their indices; all heads by default.
        mapping: the mapping to use; by default the one the model was saved with, or else softmax.
        parameter: the mapping's parameter by its name.
    """
    check_unicode(text)
    register_attention()
    tokenizer, model = load_pretrained(source)
    setting: dict[str, Any] = parameter or {}
    if mapping is not None or setting:
        set_attention(model, mapping or "r_softmax", **setting)
    elif adapter.implementation(model.config) not in MAPPINGS:
        set_attention(model, "softmax")
    batch = dict(tokenizer(text, return_tensors="pt"))
    tokens: list[str] = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"a plot has room for {MAX_TOKENS} tokens, but the text has {len(tokens)}")
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch["input_ids"]
    names = attention_layers(model)
    name = names[_index("layer", layer, len(names))]
    weights = attention_maps(model, batch, masked=torch.nan)[name][0]
    chosen = range(len(weights)) if not heads else [_index("head", head, len(weights)) for head in heads]
    title = str(adapter.implementation(model.config))
    if MAPPINGS[title].parameter is not None:
        table = head_parameters(model)
        values = table.values[~table.values.isnan()].unique().tolist()
        ends = sorted({min(values), max(values)})
        title += f", {table.title} = {' to '.join(f'{value:.3g}' for value in ends)}"
    return AttentionMap(f"{title}    {name}", tokens, {head: weights[head] for head in chosen})


def _index(what: str, number: int, count: int) -> int:
    if not -count <= number < count:
        raise ValueError(f"there is no {what} {number}; the model has {count}, from 0 to {count - 1}")
    return number % count
