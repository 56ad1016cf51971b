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
        weights: ``[batch, heads, queries, keys]``.
        mask: True = keep, broadcastable to the weights; None if nothing is masked.
        queries: the indices of the queries.
        query_count: how many queries the call has.
        value: ``[batch, key heads, keys, width]``.
    """

    module: nn.Module
    weights: Tensor
    mask: Tensor | None
    queries: Tensor
    query_count: int
    value: Tensor


class Observer(NamedTuple):
    """Receives the weights of attention calls.

    Attributes:
        observe: called with blocks of the weights of each call; None observes no weights.
        step: observe every ``step``-th query.
        replace: replaces the output ``[batch, heads, queries, width]`` of each call.
    """

    observe: Callable[[Observed], None] | None
    step: int = 1
    replace: Callable[[nn.Module, Tensor], Tensor] | None = None


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


def register(mapping: str) -> None:
    """Register a mapping with transformers under its own name; idempotent."""
    adapter.register(mapping, partial(attend, mapping))


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
        module: the calling attention module, with the mapping's parameter.
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
    if refused := [name for name in adapter.UNSUPPORTED if options.get(name) is not None]:
        raise ValueError(
            f"{mapping} attention does not support {refused[0]!r}, which {type(module).__name__} passes;"
            " use the model's own attention: model.set_attn_implementation('eager')"
        )
    causal = attention_mask is None and adapter.is_causal(module, is_causal, query.shape[2])
    mask = _add_bias(_neg_inf_where_masked(attention_mask, key.shape[2]), position_bias)
    setting: dict[str, Any] = {"scale": scaling, "enable_gqa": True, "mapping": mapping}
    setting |= _parameter(mapping, module, key.shape[2])
    own = parameter_of(module)
    if own is not None and own.name == mapping and own.log_scale is not None:  # the mapping that is in use now
        usual = 1.0 if scaling is None else scaling * math.sqrt(query.shape[-1])
        query = (query * (usual * own.log_scale)[:, None, None]).to(query.dtype)
        setting |= {"scale": None, "log_n_scale": True}
    output = sparse_attention(query, key, value, mask, dropout, causal, **setting)
    for observer in () if torch.compiler.is_compiling() else _observers.get():  # Dynamo cannot trace a ContextVar
        for queries in _query_blocks(query, key, observer.step) if observer.observe else ():
            part = _mask_of(mask, causal, queries, key.shape[2])
            weights = attention_weights(query[:, :, queries], key, part, **setting)
            keep = part if part is None or part.dtype == torch.bool else part != -math.inf
            observer.observe(Observed(module, weights, keep, queries, query.shape[2], value))  # type: ignore[misc]
        output = observer.replace(module, output) if observer.replace else output
    wanted = adapter.weights_wanted(options)
    weights_or_none = attention_weights(query, key, mask, causal, **setting) if wanted else None
    return output.transpose(1, 2).contiguous(), weights_or_none


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Observe every eager call of :func:`attend` in the current thread."""
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


def _parameter(mapping: str, module: nn.Module, keys: int) -> dict[str, Any]:
    """The parameter of the mapping and its options, as arguments of :func:`sparse_attention`."""
    parameter, own = MAPPINGS[mapping].parameter, parameter_of(module)
    if parameter is None:
        return {}
    if own is None or own.name != mapping:
        name = parameter.name
        raise ValueError(
            f"{type(module).__name__} has no {name}: attn_implementation={mapping!r} alone does not set it;"
            f" call set_attention(model, {mapping!r}, {name}=...)"
        )
    own.check_length(keys)
    return {parameter.name: own.loaded_value(), **own.options}


def _neg_inf_where_masked(mask: Tensor | None, keys: int) -> Tensor | None:
    """The mask of the first ``keys`` keys. Large negative biases become ``-inf``: the key is masked."""
    if mask is None or mask.dtype == torch.bool:
        return mask if mask is None else mask[..., :keys]
    mask = mask[..., :keys]
    return mask.masked_fill(mask <= adapter.MASKED, -math.inf)


def _add_bias(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask


def _query_blocks(query: Tensor, key: Tensor, step: int) -> Iterator[Tensor]:
    """The indices of every ``step``-th query, in blocks whose weights fit in memory."""
    count = query.shape[2]
    first, step = (step - 1, step) if count >= step else (0, 1)  # the last query of each step sees most
    size = max(BLOCK // max(query.shape[0] * query.shape[1] * key.shape[2], 1), 1)
    yield from torch.arange(first, count, step, device=query.device).split(size)


def _mask_of(mask: Tensor | None, causal: bool, queries: Tensor, keys: int) -> Tensor | None:
    """The mask of some queries, which includes the causal one."""
    if mask is not None and mask.shape[-2] > 1:
        mask = mask[..., queries, :]
    if not causal:
        return mask
    visible = torch.arange(keys, device=queries.device) <= queries[:, None]
    return visible if mask is None else _add_bias(visible, mask)
