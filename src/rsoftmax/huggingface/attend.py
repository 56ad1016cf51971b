"""The attention function that transformers calls, one for each mapping."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rsoftmax.attention import ROW_MAPPINGS, sparse_attention
from rsoftmax.huggingface import adapter
from rsoftmax.huggingface.head_parameter import held_by

Observer = Callable[[nn.Module, Tensor, Tensor | None], None]
"""Called with an attention module, its weights and what its mask keeps."""

_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


def register(name: str) -> None:
    """Make a mapping known to transformers under its own name; again changes nothing."""
    adapter.register(name, partial(attend, name))


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
    _refuse_unsupported(mapping, module, options)
    causal = attention_mask is None and adapter.is_causal(module, is_causal, query.shape[2])
    mask = _with_bias(_cut(attention_mask, key.shape[2]), position_bias)
    call = partial(
        sparse_attention, query, key, value, mapping, mask=mask, is_causal=causal, dropout_p=dropout, scale=scaling
    )
    observers = _current_observers()
    if not (observers or adapter.weights_wanted(options)):
        return call(**_parameter(mapping, module)).transpose(1, 2).contiguous(), None
    output, weights = call(return_weights=True, **_parameter(mapping, module))
    for observe in observers:
        observe(module, weights, _kept(mask, causal, weights))
    return output.transpose(1, 2).contiguous(), weights


@contextmanager
def observing(observe: Observer) -> Iterator[None]:
    """Within it, every call of :func:`attend` in the same thread calls ``observe``, unless it is compiled."""
    token = _observers.set((*_observers.get(), observe))
    try:
        yield
    finally:
        _observers.reset(token)


def _current_observers() -> tuple[Observer, ...]:
    return () if torch.compiler.is_compiling() else _observers.get()  # Dynamo cannot trace a ContextVar


def _refuse_unsupported(mapping: str, module: nn.Module, options: dict[str, Any]) -> None:
    for name in adapter.UNSUPPORTED:
        if options.get(name) is not None:
            raise ValueError(
                f"{mapping} attention cannot do {name!r}, which {type(module).__name__} asks for;"
                " this model needs its own attention: model.set_attn_implementation('eager')"
            )


def _parameter(mapping: str, module: nn.Module) -> dict[str, Tensor]:
    parameter = ROW_MAPPINGS[mapping].parameter
    if parameter is None:
        return {}
    held = held_by(module)
    if held is None or held.name != mapping:
        letter = parameter.name
        raise ValueError(
            f"{type(module).__name__} has no {letter}: attn_implementation={mapping!r} alone does not give it one;"
            f" call set_attention(model, {mapping!r}, {letter}=...)"
        )
    return {parameter.name: held.checked_values()}


def _cut(mask: Tensor | None, keys: int) -> Tensor | None:
    """The mask of these keys; a key with a large negative number added is removed, as with False in a boolean mask."""
    if mask is None or mask.dtype == torch.bool:
        return mask if mask is None else mask[..., :keys]
    mask = mask[..., :keys]
    return mask.masked_fill(mask <= adapter.HIDDEN, -math.inf)


def _with_bias(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask


def _kept(mask: Tensor | None, causal: bool, weights: Tensor) -> Tensor | None:
    """What the mask keeps, as booleans; None is everything."""
    if mask is not None:
        return mask if mask.dtype == torch.bool else mask != -math.inf
    return torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril() if causal else None
