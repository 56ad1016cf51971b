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


class AttentionCall(NamedTuple):
    """One call of an attention module: the weights of some of its queries."""

    module: nn.Module  # the calling attention module
    weights: Tensor  # [batch, heads, queries, keys]
    mask: Tensor | None  # True = keep, broadcasts to the weights; None: nothing is masked
    queries: Tensor  # the indices of the queries
    query_count: int  # of the call
    value: Tensor  # [batch, key heads, keys, width]


class Observer(NamedTuple):
    """Receives the weights of attention calls."""

    observe: Callable[[AttentionCall], None] | None  # called with blocks of the weights of each call
    step: int = 1  # observe every step-th query
    replace: Callable[[nn.Module, Tensor], Tensor] | None = None  # of each output [batch, heads, queries, width]

    def show(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        causal: bool,
        setting: dict[str, Any],
    ) -> None:
        """Call ``observe`` with the weights of a call, in blocks that fit in memory."""
        count, keys, device = query.shape[2], key.shape[2], query.device
        first, step = (self.step - 1, self.step) if count >= self.step else (0, 1)  # the last query of each sees most
        size = max(BLOCK // max(query.shape[0] * query.shape[1] * keys, 1), 1)
        for queries in torch.arange(first, count, step, device=device).split(size) if self.observe else ():
            part = mask[..., queries, :] if mask is not None and mask.shape[-2] > 1 else mask
            if causal:
                visible = torch.arange(keys, device=device) <= queries[:, None]
                part = visible if part is None else _add_bias(visible, part)
            weights = attention_weights(query[:, :, queries], key, part, **setting)
            keep = part if part is None or part.dtype == torch.bool else part != -math.inf
            self.observe(AttentionCall(module, weights, keep, queries, count, value))  # type: ignore[misc]


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
        query, key, value: ``[batch, heads, length, width]``; each key head serves a group of query heads.
        attention_mask: True = keep, or a bias added to the scores; broadcasts to ``[batch, heads, queries, keys]``.
        scaling, dropout: as in :func:`sparse_attention`.
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
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]]
    if mask is not None and mask.dtype != torch.bool:  # large negative biases mask a key
        mask = mask.masked_fill(mask <= adapter.MASKED, -math.inf)
    mask = _add_bias(mask, position_bias)
    setting: dict[str, Any] = {"scale": scaling, "enable_gqa": True, "mapping": mapping}
    setting |= _parameter(mapping, module, key.shape[2])
    head_parameter = parameter_of(module)
    is_used = head_parameter is not None and head_parameter.name == mapping  # not that of a mapping set before
    if is_used and (log_scale := head_parameter.log_scale) is not None:  # type: ignore[union-attr]
        usual = 1.0 if scaling is None else scaling * math.sqrt(query.shape[-1])
        query = (query * (usual * log_scale)[:, None, None]).to(query.dtype)
        setting |= {"scale": None, "log_n_scale": True}
    output = sparse_attention(query, key, value, mask, dropout, causal, **setting)
    for observer in () if torch.compiler.is_compiling() else _observers.get():  # Dynamo cannot trace a ContextVar
        observer.show(module, query, key, value, mask, causal, setting)
        output = observer.replace(module, output) if observer.replace else output
    asked = adapter.weights_wanted(options)
    weights = attention_weights(query, key, mask, causal, **setting) if asked else None
    return output.transpose(1, 2).contiguous(), weights


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Observe every eager call of :func:`attend` in the current thread."""
    before = _observers.get()
    try:
        _observers.set((*before, observer))
        yield
    finally:
        _observers.set(before)


def _parameter(mapping: str, module: nn.Module, keys: int) -> dict[str, Any]:
    """The parameter of the mapping and its options, as arguments of :func:`sparse_attention`."""
    parameter, head_parameter = MAPPINGS[mapping].parameter, parameter_of(module)
    if parameter is None:
        return {}
    if head_parameter is None or head_parameter.name != mapping:
        name = parameter.name
        raise ValueError(
            f"{type(module).__name__} has no {name}: attn_implementation={mapping!r} alone does not set it;"
            f" call set_attention(model, {mapping!r}, {name}=...)"
        )
    head_parameter.check_length(keys)
    return {parameter.name: head_parameter.loaded_value(), **head_parameter.options}


def _add_bias(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask
