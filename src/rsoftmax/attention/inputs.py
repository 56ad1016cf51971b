"""Queries, keys, values, mask and parameter in one layout, as views: what broadcasts stays small."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rsoftmax.rows import broadcast
from rsoftmax.table import Mapping
from rsoftmax.tensors import FLOATS, at_least_float32, shape_of

NAME = "sparse_attention"
Value = float | Tensor


class Sizes(NamedTuple):
    """How many there are of everything but features."""

    lead: tuple[int, ...]
    heads: int  # of keys and values
    groups: int  # heads of queries for each
    rows: int
    length: int


def checked_sizes(query: Tensor, key: Tensor, value: Tensor) -> Sizes:
    """The sizes, if the shapes fit."""

    def misfit(why: str) -> ValueError:
        shapes = f"query {shape_of(query)}, key {shape_of(key)}, value {shape_of(value)}"
        return ValueError(f"{NAME}: {shapes} {why}")

    if not query.dim() == key.dim() == value.dim() >= 3:
        raise misfit("must be [..., heads, length, features], all alike")
    lead, heads = query.shape[:-3], key.shape[-3]
    if key.shape[:-1] != value.shape[:-1] or key.shape[:-3] != lead or key.shape[-1] != query.shape[-1]:
        raise misfit("do not fit; use [..., Hq, Q, D], [..., Hkv, L, D] and [..., Hkv, L, Dv]")
    if heads == 0 or query.shape[-3] % heads:
        raise misfit("do not fit: the heads of query must be a multiple of those of key and value")
    return Sizes(tuple(lead), heads, query.shape[-3] // heads, query.shape[-2], key.shape[-2])


class Inputs(NamedTuple):
    """All tensors, in one layout: [batch, head of keys, head of queries for it, row, entry].

    The last three have size 1 where one value serves all.
    """

    q: Tensor  # [B, H, G, Q, D]
    k: Tensor  # [B, H, 1, L, D]
    v: Tensor  # [B, H, 1, L, Dv]
    bias: Tensor | None  # [B, H, G, Q, L]
    parameter: Tensor | None  # [B, H, G, Q, 1]
    mask: Tensor | None  # [B, H, G, Q, L]

    def wide(self) -> "Inputs":
        """With queries, keys and values in the dtype that is computed in."""
        q, k, v = (x.to(at_least_float32(x.dtype)) for x in self[:3])
        return self._replace(q=q, k=k, v=v)


def inputs(
    sizes: Sizes,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    mapping: Mapping,
    parameter: Value | None,
) -> Inputs:
    """Everything as views, in the dtype it came in but for the bias, which has the dtype that is computed in."""
    batch = math.prod(sizes.lead)
    q = query.reshape(batch, sizes.heads, sizes.groups, *query.shape[-2:])
    k, v = (t.reshape(batch, sizes.heads, 1, *t.shape[-2:]) for t in (key, value))
    keep, bias = (None, None) if mask is None else _keep_or_bias(mask, sizes, q)
    if not isinstance(parameter, Tensor):
        return Inputs(q, k, v, bias, None, keep)
    assert mapping.parameter is not None
    if parameter.dim() == 1 and parameter.shape[0] == query.shape[-3]:
        parameter = parameter[:, None, None]
    return Inputs(q, k, v, bias, _aligned(mapping.parameter.name, parameter.to(q.device), sizes, 1), keep)


def _keep_or_bias(mask: Tensor, sizes: Sizes, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A mask is one of the two: which scores to keep, or what to add to them."""
    if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, *FLOATS):
        found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{NAME}: mask must be bool, True = keep, or float, added to the scores, got {found}")
    mask = _aligned("mask", mask.to(q.device), sizes, sizes.length)
    return (mask, None) if mask.dtype == torch.bool else (None, mask.to(at_least_float32(q.dtype)))


def _aligned(what: str, tensor: Tensor, sizes: Sizes, entries: int) -> Tensor:
    """A tensor that broadcasts to [..., Hq, Q, entries], in the layout of the inputs, not expanded."""
    full = torch.Size((*sizes.lead, sizes.heads * sizes.groups, sizes.rows, entries))
    broadcast(NAME, what, tensor, full)
    tensor = tensor[(None,) * (len(full) - tensor.dim())]
    if len(sizes.lead) > 1 and any(size != 1 for size in tensor.shape[:-3]):
        tensor = tensor.expand(*sizes.lead, *tensor.shape[-3:])
    heads = (1, 1) if tensor.shape[-3] == 1 else (sizes.heads, sizes.groups)
    return tensor.reshape(math.prod(tensor.shape[:-3]), *heads, *tensor.shape[-2:])
