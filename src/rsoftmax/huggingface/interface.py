"""The attention function and the mask function that transformers calls, one pair for each mapping."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.utils import output_capturing

from rsoftmax.attention import ROW_MAPPINGS, sparse_attention
from rsoftmax.huggingface.rate import Rate

HOLDER = "rsoftmax"
"""The submodule of an attention module, and the entry of a configuration, that hold the mapping's parameter."""

HIDDEN = -1000.0
"""What is added to a score to hide it is this or less: softmax gives such a key exactly nothing in any precision."""

Observer = Callable[[nn.Module, Tensor, Tensor | None], None]
_observers: list[Observer] = []


def register() -> None:
    """Make every mapping known to transformers, under its own name.

    A function without a mask function would be called without any mask: they are always registered together.
    """
    for name in ROW_MAPPINGS:
        AttentionInterface.register(name, partial(attend, name))
        AttentionMaskInterface.register(name, keep_mask)


def keep_mask(*args: Any, **options: Any) -> Tensor | None:
    """The mask as booleans, True = keep, and never left out because some kernel could guess it."""
    options.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    mask: Tensor | None = sdpa_mask(*args, **options)
    return mask


def attend(
    mapping: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it.

    Args:
        mapping: which one.
        module: the attention module that calls; it holds the mapping's parameter.
        query: ``[batch, heads, queries, width]``.
        key: ``[batch, key heads, keys, width]``; each serves a group of heads.
        value: like ``key``.
        attention_mask: True = keep, or what to add to the scores; broadcasts to ``[batch, heads, queries, keys]``.
        scaling: what the scores are multiplied with; ``1 / sqrt(width)`` if not given.
        dropout: the share of weights to drop.
        is_causal: whether a query sees no later key; asked only if there is no mask, else ``module.is_causal``.
        position_bias: what to add to the scores.
        options: what else the model says.

    Returns:
        ``[batch, queries, heads, width]``, and the weights if they were asked for.
    """
    for unknown in ("softcap", "s_aux", "cache", "indices", "block_indices"):
        if options.get(unknown) is not None:
            raise ValueError(
                f"{mapping} attention cannot do {unknown!r}, which {type(module).__name__} asks for;"
                " this model needs its own attention: model.set_attn_implementation('eager')"
            )
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        is_causal = bool(causal) and query.shape[2] > 1  # a single query comes last: it sees everything
    else:
        is_causal = False
    mask = _with_bias(_cut(attention_mask, key.shape[2]), position_bias)
    call = partial(
        sparse_attention, query, key, value, mapping, mask=mask, is_causal=is_causal, dropout_p=dropout, scale=scaling
    )
    if not (_observers or _wanted(options)):
        return call(**_parameter(mapping, module)).transpose(1, 2).contiguous(), None
    output, weights = call(return_weights=True, **_parameter(mapping, module))
    for observe in _observers:
        observe(module, weights, _kept(mask, is_causal, weights))
    return output.transpose(1, 2).contiguous(), weights


@contextmanager
def observing(observe: Observer) -> Iterator[None]:
    """Within it, every call of :func:`attend` shows its module, its weights and what its mask keeps."""
    _observers.append(observe)
    try:
        yield
    finally:
        _observers.remove(observe)


def _wanted(options: dict[str, Any]) -> bool:
    """Whether the caller of the model asked for its attentions; some models do not pass the question on."""
    if options.get("output_attentions") or torch.compiler.is_compiling():
        return bool(options.get("output_attentions"))
    collected = output_capturing._active_collector.get()
    return collected is not None and any("attentions" in key for key in collected)


def _parameter(mapping: str, module: nn.Module) -> dict[str, Tensor]:
    parameter = ROW_MAPPINGS[mapping].parameter
    if parameter is None:
        return {}
    rate = getattr(module, HOLDER, None)
    if not isinstance(rate, Rate) or rate.mapping.mapping.name != mapping:
        letter = parameter.name
        raise ValueError(
            f"{type(module).__name__} has no {letter}: attn_implementation={mapping!r} alone does not give it one;"
            f" call set_attention(model, {mapping!r}, {letter}=...)"
        )
    return {parameter.name: rate.value}


def _cut(mask: Tensor | None, keys: int) -> Tensor | None:
    """The mask of these keys; what models of the older kind subtract a large number from is removed, not just small."""
    if mask is None or mask.dtype == torch.bool:
        return mask if mask is None else mask[..., :keys]
    mask = mask[..., :keys]
    return mask.masked_fill(mask <= HIDDEN, -math.inf)


def _with_bias(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask


def _kept(mask: Tensor | None, is_causal: bool, weights: Tensor) -> Tensor | None:
    if mask is not None:
        return mask if mask.dtype == torch.bool else mask != -math.inf
    return torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril() if is_causal else None
