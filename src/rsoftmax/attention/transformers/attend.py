"""The attention function that transformers calls, one for each mapping."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rsoftmax.attention.functional import attention_weights, sparse_attention
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.parameters import parameter_of
from rsoftmax.registry import MAPPINGS

BLOCK = 1 << 24  # weights that are observed at a time


class Observed(NamedTuple):
    """The attention weights of some queries of one call.

    Attributes:
        module: the calling attention module.
        weights: ``[batch, heads, rows, keys]``.
        kept: the mask as booleans, broadcastable to the weights; None if nothing is masked.
        rows: the indices of the queries.
        queries: how many queries the call has.
        value: ``[batch, key heads, keys, width]``.
    """

    module: nn.Module
    weights: Tensor
    kept: Tensor | None
    rows: Tensor
    queries: int
    value: Tensor


class Observer(NamedTuple):
    """Receives the weights of attention calls.

    Attributes:
        see: called with blocks of the weights of each call; None observes no weights.
        step: observe every ``step``-th query.
        tap: replaces the output ``[batch, heads, queries, width]`` of each call.
    """

    see: Callable[[Observed], None] | None
    step: int = 1
    tap: Callable[[nn.Module, Tensor], Tensor] | None = None


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


def register(name: str) -> None:
    """Register a mapping with transformers under its own name; idempotent."""
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
    """Attention with the signature that transformers calls.

    Args:
        mapping: the mapping's name.
        module: the calling attention module, which holds the mapping's parameter.
        query: ``[batch, heads, queries, width]``.
        key: ``[batch, key heads, keys, width]``; each key head serves a group of query heads.
        value: like ``key``.
        attention_mask: True = keep, or a bias added to the scores; broadcasts to ``[batch, heads, queries, keys]``.
        scaling: the factor of the scores; ``1 / sqrt(width)`` by default.
        dropout: the probability of dropping a weight.
        is_causal: whether queries see only earlier keys, used without a mask; ``module.is_causal`` by default.
        position_bias: a bias added to the scores.
        options: further arguments of the model's call.

    Returns:
        The output ``[batch, queries, heads, width]``, and the weights if requested.
    """
    _refuse_unsupported(mapping, module, options)
    causal = attention_mask is None and adapter.is_causal(module, is_causal, query.shape[2])
    mask = _add_bias(_crop(attention_mask, key.shape[2]), position_bias)
    query, scale = _scale(mapping, module, query, scaling)
    given = {"scale": scale, "enable_gqa": True, "mapping": mapping, **_parameter(mapping, module, key.shape[2])}
    output = sparse_attention(query, key, value, mask, dropout, causal, **given)
    for observer in _current_observers():
        _show(observer, module, query, key, value, mask, causal, given)
        output = observer.tap(module, output) if observer.tap else output
    wanted = adapter.weights_wanted(options)
    weights = attention_weights(query, key, mask, causal, **given) if wanted else None
    return output.transpose(1, 2).contiguous(), weights


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Observe every eager call of :func:`attend` in the current thread."""
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


def _show(
    observer: Observer,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    given: dict[str, Any],
) -> None:
    """Call an observer with the weights of a call, in blocks of queries."""
    for rows in _row_blocks(query, key, observer.step) if observer.see else ():
        kept = _rows_of(mask, causal, rows, key.shape[2])
        weights = attention_weights(query[:, :, rows], key, kept, **given)
        observer.see(Observed(module, weights, _kept(kept), rows, query.shape[2], value))  # type: ignore[misc]


def _current_observers() -> tuple[Observer, ...]:
    return () if torch.compiler.is_compiling() else _observers.get()  # Dynamo cannot trace a ContextVar


def _refuse_unsupported(mapping: str, module: nn.Module, options: dict[str, Any]) -> None:
    for name in adapter.UNSUPPORTED:
        if options.get(name) is not None:
            raise ValueError(
                f"{mapping} attention does not support {name!r}, which {type(module).__name__} passes;"
                " use the model's own attention: model.set_attn_implementation('eager')"
            )


def _parameter(mapping: str, module: nn.Module, keys: int) -> dict[str, Any]:
    parameter = MAPPINGS[mapping].parameter
    if parameter is None:
        return {}
    held = parameter_of(module)
    if held is None or held.name != mapping:
        letter = parameter.name
        raise ValueError(
            f"{type(module).__name__} has no {letter}: attn_implementation={mapping!r} alone does not set it;"
            f" call set_attention(model, {mapping!r}, {letter}=...)"
        )
    held.check_length(keys)
    return {parameter.name: held.loaded_value(), **held.options}


def _scale(mapping: str, module: nn.Module, query: Tensor, scaling: float | None) -> tuple[Tensor, float | str | None]:
    """The query and the scale; with ``scale="log n"`` the factors of the heads are multiplied into the query."""
    held = parameter_of(module)
    if held is None or held.log_scale is None or held.name != mapping:  # a mapping that is not in use now
        return query, scaling
    usual = 1.0 if scaling is None else scaling * math.sqrt(query.shape[-1])
    return (query * (usual * held.log_scale)[:, None, None]).to(query.dtype), "log n"


def _crop(mask: Tensor | None, keys: int) -> Tensor | None:
    """The mask of the first ``keys`` keys. Large negative biases become ``-inf``: the key is removed."""
    if mask is None or mask.dtype == torch.bool:
        return mask if mask is None else mask[..., :keys]
    mask = mask[..., :keys]
    return mask.masked_fill(mask <= adapter.HIDDEN, -math.inf)


def _add_bias(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask


def _row_blocks(query: Tensor, key: Tensor, step: int) -> Iterator[Tensor]:
    """The indices of every ``step``-th query, in blocks whose weights fit in memory."""
    rows = torch.arange(step - 1, query.shape[2], step, device=query.device)  # the last query of each step sees most
    size = max(BLOCK // max(query.shape[0] * query.shape[1] * key.shape[2], 1), 1)
    yield from (rows if len(rows) else torch.arange(query.shape[2], device=query.device)).split(size)


def _rows_of(mask: Tensor | None, causal: bool, rows: Tensor, keys: int) -> Tensor | None:
    """The mask of some queries, which includes the causal one."""
    if mask is not None and mask.shape[-2] > 1:
        mask = mask[..., rows, :]
    if not causal:
        return mask
    seen = torch.arange(keys, device=rows.device) <= rows[:, None]
    return seen if mask is None else _add_bias(seen, mask)


def _kept(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or mask.dtype == torch.bool else mask != -math.inf
