"""Attention with any mapping of the table in place of softmax, without ever holding its whole matrix of weights.

Queries are taken a block at a time, small enough for the processor's cache: scores, weights and output of a block, and
on to the next. The backward pass computes the weights of a block anew. So memory grows with the number of queries and
keys and not with their product, and a mapping needs nothing but its row function.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.kernels import chosen, use_kernels
from rsoftmax.mappings import Mapping
from rsoftmax.rows import broadcast, inside_domain
from rsoftmax.table import ROW_MAPPINGS as ROW_MAPPINGS
from rsoftmax.tensors import FLOATS, at_least_float32, ordinary, savable, shape_of

__all__ = ["sparse_attention"]

NAME = "sparse_attention"
BLOCK, BLOCK_ELSEWHERE = 1 << 18, 1 << 24  # scores in a block: on the CPU a megabyte for each core, as its cache
DROPOUT_STEPS = 1 << 16  # dropout draws 16 bits for each weight: its probability is a multiple of 1 / 65536
EVERY = slice(None)
Value = float | Tensor


@overload
def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: str = ...,
    r: Value | None = ...,
    mask: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    scale: float | None = ...,
    return_weights: Literal[False] = ...,
    **parameter: Value,
) -> Tensor: ...


@overload
def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: str = ...,
    r: Value | None = ...,
    mask: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    scale: float | None = ...,
    *,
    return_weights: Literal[True],
    **parameter: Value,
) -> tuple[Tensor, Tensor]: ...


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: str = "r_softmax",
    r: Value | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    return_weights: bool = False,
    **parameter: Value,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention in which a mapping of the table takes the place of softmax.

    .. math:: o = \mathrm{dropout}(p)\, v, \qquad p = \mathrm{mapping}(\mathrm{scale} \cdot q k^T + \mathrm{mask})

    with the conventions of :func:`torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query: [..., Hq, Q, D].
        key: [..., Hkv, L, D], where Hq is a multiple of Hkv: neighbouring heads of queries share keys and values.
        value: [..., Hkv, L, Dv].
        mapping: a name in ``MAPPINGS``, except ``weighted_softmax``, which wants a weight for each entry.
        r: the rate of ``r_softmax``. The parameter of another mapping comes under its own letter: ``t=2.0``. Each may
            be a number, a tensor [Hq] with one value for each head, or a tensor that broadcasts to [..., Hq, Q, 1],
            and is differentiable.
        mask: broadcasts to [..., Hq, Q, L]; bool, True = keep, or float, added to the scores, with ``-inf`` = removed.
            A float mask gets its gradient. Finite numbers remove nothing, however low: they count as scores.
        is_causal: query i sees the keys 0 to i only; together with ``mask``, those that both keep.
        dropout_p: the share of weights to drop, to a 65536th, at every call: there is no training mode here.
        scale: 1 / sqrt(D) if None.
        return_weights: return the weights too, before dropout, and hold the whole matrix for it.

    Returns:
        [..., Hq, Q, Dv] in the dtype of ``query``; with ``return_weights`` that and the weights [..., Hq, Q, L].

    Example:
        >>> q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
        >>> output, weights = sparse_attention(q, k, v, r=0.4, return_weights=True)
        >>> output.shape, (weights == 0).sum(-1).unique()
        (torch.Size([2, 4, 5, 8]), tensor([2]))
        >>> sparse_attention(q, k, v, "t_softmax", t=torch.tensor([0.5, 1.0, 2.0, 4.0])).shape
        torch.Size([2, 4, 5, 8])

    A query with nothing kept gets zeros, with zero gradient. Padding, as masked keys, never changes a result. Half
    precision is computed in float32. In code that is compiled, exported or transformed, and for second derivatives, the
    whole matrix is held. Backward uses the blocks, the kernels and the dropped weights of forward, whatever number of
    threads, :func:`rsoftmax.use_kernels` or autocast is in force by then; a tensor that was changed in place since is
    torch's usual error. On the meta device only shapes and dtypes are computed.

    Reference: Bałazy et al., r-softmax (2023), section 4.3.
    """
    chosen, given = _mapping_and_parameter(mapping, {"r": r, **parameter})
    query, key, value = _as_autocast_asks(query, key, value)
    sizes = _checked_sizes(query, key, value)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{NAME}: dropout_p must be in [0, 1], got {dropout_p!r}; 0.1 drops a tenth of the weights")
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    call = _Call(chosen, None if isinstance(given, Tensor) else given, scale, is_causal, dropout_p)
    inputs = _inputs(sizes, query, key, value, mask, chosen, given)
    with _without_autocast(query):
        if return_weights or query.is_meta or not all(ordinary(tensor) for tensor in inputs if tensor is not None):
            p = _weights(call, inputs)
            weights = p.to(query.dtype).reshape(*query.shape[:-1], key.shape[-2])
            o = _output(F.dropout(p, dropout_p) if dropout_p else p, inputs.v)
        else:
            o = _Blocks.apply(_decided(call, inputs), *inputs)  # type: ignore[no-untyped-call]
    o = o.to(query.dtype).reshape(*query.shape[:-1], value.shape[-1])
    return (o, weights) if return_weights else o


# ------------------------------------------------------------------------------------------------ what came in


def _mapping_and_parameter(name: str, given: dict[str, Value | None]) -> tuple[Mapping, Value | None]:
    """The row of the table, and the value of its parameter, inside its domain."""
    if name not in ROW_MAPPINGS:
        raise ValueError(f"{NAME}: mapping must be one of {', '.join(ROW_MAPPINGS)}, got {name!r}")
    mapping = ROW_MAPPINGS[name]
    value = mapping.bind(NAME, given)
    if mapping.parameter is None:
        return mapping, None
    letter = mapping.parameter.name
    if isinstance(value, Tensor) and value.dtype not in FLOATS:
        raise TypeError(f"{NAME}: {letter} must be floating point, got {value.dtype}; use {letter}.float()")
    return mapping, inside_domain(NAME, mapping.parameter, value)


def _as_autocast_asks(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What torch does to the arguments of its own attention under autocast."""
    for what, tensor in zip(("query", "key", "value"), tensors, strict=True):
        if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{NAME}: {what} must be a tensor of floats, got {got}")
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        tensors = tuple(t if t.dtype == torch.float64 else t.to(torch.get_autocast_dtype(device)) for t in tensors)
    if len({t.dtype for t in tensors}) > 1:
        found = ", ".join(str(t.dtype) for t in tensors)
        raise TypeError(f"{NAME}: query, key and value must have one dtype, got {found}; cast them to the same")
    return tensors


def _without_autocast(like: Tensor) -> AbstractContextManager[None]:
    """Within it, autocast changes no dtype; the meta device has no autocast."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


class _Sizes(NamedTuple):
    lead: tuple[int, ...]
    heads: int  # of keys and values
    groups: int  # heads of queries for each
    rows: int
    length: int


def _checked_sizes(query: Tensor, key: Tensor, value: Tensor) -> _Sizes:
    shapes = f"query {shape_of(query)}, key {shape_of(key)}, value {shape_of(value)}"
    if not query.dim() == key.dim() == value.dim() >= 3:
        raise ValueError(f"{NAME}: {shapes} must be [..., heads, length, features], all alike")
    lead, heads = query.shape[:-3], key.shape[-3]
    if key.shape[:-1] != value.shape[:-1] or key.shape[:-3] != lead or key.shape[-1] != query.shape[-1]:
        raise ValueError(f"{NAME}: {shapes} do not fit; use [..., Hq, Q, D], [..., Hkv, L, D] and [..., Hkv, L, Dv]")
    if heads == 0 or query.shape[-3] % heads:
        raise ValueError(f"{NAME}: {shapes}: the heads of query must be a multiple of those of key and value")
    return _Sizes(tuple(lead), heads, query.shape[-3] // heads, query.shape[-2], key.shape[-2])


class _Inputs(NamedTuple):
    """All tensors, in one layout: [batch, head of keys, head of queries for it, row, entry].

    The last three have size 1 where one value serves all.
    """

    q: Tensor  # [B, H, G, Q, D]
    k: Tensor  # [B, H, 1, L, D]
    v: Tensor  # [B, H, 1, L, Dv]
    bias: Tensor | None  # [B, H, G, Q, L]
    parameter: Tensor | None  # [B, H, G, Q, 1]
    mask: Tensor | None  # [B, H, G, Q, L]


def _inputs(
    sizes: _Sizes,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    mapping: Mapping,
    parameter: Value | None,
) -> _Inputs:
    batch = math.prod(sizes.lead)
    wide = at_least_float32(query.dtype)
    q = query.to(wide).reshape(batch, sizes.heads, sizes.groups, *query.shape[-2:])
    k, v = (t.to(wide).reshape(batch, sizes.heads, 1, *t.shape[-2:]) for t in (key, value))
    keep, bias = (None, None) if mask is None else _keep_or_bias(mask, sizes, q)
    if not isinstance(parameter, Tensor):
        return _Inputs(q, k, v, bias, None, keep)
    assert mapping.parameter is not None
    if parameter.dim() == 1 and parameter.shape[0] == query.shape[-3]:
        parameter = parameter[:, None, None]
    return _Inputs(q, k, v, bias, _aligned(mapping.parameter.name, parameter.to(q.device), sizes, 1), keep)


def _keep_or_bias(mask: Tensor, sizes: _Sizes, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A mask is one of the two: which scores to keep, or what to add to them."""
    if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, *FLOATS):
        found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{NAME}: mask must be bool, True = keep, or float, added to the scores, got {found}")
    mask = _aligned("mask", mask.to(q.device), sizes, sizes.length)
    return (mask, None) if mask.dtype == torch.bool else (None, mask.to(q.dtype))


def _aligned(what: str, tensor: Tensor, sizes: _Sizes, entries: int) -> Tensor:
    """A tensor that broadcasts to [..., Hq, Q, entries], in the layout of the inputs, not expanded."""
    full = torch.Size((*sizes.lead, sizes.heads * sizes.groups, sizes.rows, entries))
    broadcast(NAME, what, tensor, full)
    tensor = tensor[(None,) * (len(full) - tensor.dim())]
    if len(sizes.lead) > 1 and any(size != 1 for size in tensor.shape[:-3]):
        tensor = tensor.expand(*sizes.lead, *tensor.shape[-3:])
    heads = (1, 1) if tensor.shape[-3] == 1 else (sizes.heads, sizes.groups)
    return tensor.reshape(math.prod(tensor.shape[:-3]), *heads, *tensor.shape[-2:])


# ------------------------------------------------------------------------------------------------ the equations


@dataclass(frozen=True)
class _Call:
    """Everything that is not a tensor: what to do with the inputs."""

    mapping: Mapping
    number: float | None  # the parameter, if it is a number
    scale: float
    is_causal: bool
    dropout_p: float
    block: int = 0  # how many scores a block may have
    kernels: str = ""  # which ones compute the mapping
    seed: int = 0  # of the dropout


def _scores(call: _Call, x: _Inputs) -> Tensor:
    """scale q k^T + bias."""
    # Heads that share keys are further rows of one product, so keys are never repeated; beta = 0 leaves the first out.
    product = torch.baddbmm(x.q.new_empty(()), _matrices(x.q), _matrices(x.k).mT, beta=0, alpha=call.scale)
    scores = product.reshape(*x.q.shape[:-1], x.k.shape[-2])
    return scores if x.bias is None else scores + x.bias


def _mapped(call: _Call, scores: Tensor, x: _Inputs, first: int) -> Tensor:
    """The weights of rows, of which the first is query number ``first``."""
    mask = x.mask
    if call.is_causal:
        query = torch.arange(first, first + scores.shape[-2], device=scores.device)
        seen = torch.arange(scores.shape[-1], device=scores.device) <= query[:, None]
        mask = seen if mask is None else mask & seen
    if call.mapping.parameter is None:
        return call.mapping.function(scores, mask=mask)
    return call.mapping.function(scores, call.number if x.parameter is None else x.parameter, mask=mask)


def _weights(call: _Call, x: _Inputs, first: int = 0) -> Tensor:
    return _mapped(call, _scores(call, x), x, first)


def _output(p: Tensor, v: Tensor) -> Tensor:
    """p v."""
    return torch.bmm(_matrices(p), _matrices(v)).reshape(*p.shape[:-1], v.shape[-1])


def _matrices(x: Tensor) -> Tensor:
    """[B, H, G, rows, n] as [B H, G rows, n]."""
    batch, heads, groups, rows, n = x.shape
    return x.reshape(batch * heads, groups * rows, n)


# ----------------------------------------------------------------------------------------------- block by block


class _Block(NamedTuple):
    batch: slice
    heads: slice
    rows: slice
    keys: slice

    def of(self, x: _Inputs) -> _Inputs:
        """The block's part of the inputs: views, and whole where one value serves all."""
        b, h, rows, keys = self

        def cut(tensor: Tensor | None, last: slice) -> Tensor | None:
            if tensor is None:
                return None
            parts = zip(tensor.shape, (b, h, EVERY, rows, last), strict=True)
            return tensor[tuple([EVERY if n == 1 else part for n, part in parts])]

        return _Inputs(
            x.q if x.q is None else x.q[b, h, :, rows],
            x.k if x.k is None else x.k[b, h, :, keys],
            x.v if x.v is None else x.v[b, h, :, keys],
            cut(x.bias, keys),
            cut(x.parameter, EVERY),
            cut(x.mask, keys),
        )


def _blocks(call: _Call, x: _Inputs) -> Iterator[_Block]:
    """All of it in blocks of about ``call.block`` scores: some rows of a head, some whole heads, or whole batches."""
    batch, heads, groups, rows, _ = x.q.shape
    length = x.k.shape[-2]
    room = call.block // max(groups * length, 1)
    few_rows = _part_size(rows, room)
    few_heads = _part_size(heads, room // max(few_rows, 1))
    few_batches = _part_size(batch, room // max(few_rows * few_heads, 1)) if few_heads == heads else 1
    for b in range(0, batch, few_batches):
        for h in range(0, heads, few_heads):
            for row in range(0, rows, few_rows):
                end = min(row + few_rows, rows)
                seen = min(end, length) if call.is_causal else length  # no query of the block sees a later key
                yield _Block(slice(b, b + few_batches), slice(h, h + few_heads), slice(row, end), slice(0, seen))


def _part_size(count: int, most: int) -> int:
    """The size of the parts when ``count`` is cut into equal ones that are no larger than ``most``."""
    parts = -(-count // max(min(count, most), 1))
    return -(-count // max(parts, 1)) or 1


def _decided(call: _Call, x: _Inputs) -> _Call:
    """With all that depends on the state of the process, which may be another one when backward runs.

    The seed is a number from torch's generator: from it backward draws the same weights to drop as forward.
    """
    block = BLOCK * torch.get_num_threads() if x.q.is_cpu else BLOCK_ELSEWHERE
    seed = int(torch.randint(1 << 62, (), device="cpu")) if call.dropout_p else 0
    return replace(call, block=block, kernels=chosen(), seed=seed)


def _noise(call: _Call, number: int, like: Tensor) -> Tensor:
    """What dropout multiplies the weights of a block with: 0, or the factor that keeps their mean.

    Drawing is most of what dropout costs, so one draw of 64 bits decides about four weights, 16 bits for each.
    """
    generator = torch.Generator(like.device).manual_seed(call.seed + number)
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
    draws.random_(-(1 << 63), None, generator=generator)
    steps, dropped = DROPOUT_STEPS, round(call.dropout_p * DROPOUT_STEPS)
    keep = draws.view(torch.int16)[: like.numel()].reshape(like.shape) >= min(dropped, steps - 1) - steps // 2
    return keep.to(like.dtype).mul_(steps / (steps - dropped) if dropped < steps else 0)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor | None) -> Tensor:
        x = _Inputs(*tensors)  # type: ignore[arg-type]
        ctx.call = call
        ctx.save_for_backward(*(savable(tensor) for tensor in x))
        batch, heads, groups, rows, _ = x.q.shape
        # Laid out as [B, Q, heads, Dv], like torch's own attention: what follows joins the heads.
        o = x.v.new_empty(batch, rows, heads, groups, x.v.shape[-1]).permute(0, 2, 3, 1, 4)
        for number, block in enumerate(_blocks(call, x)):
            part = block.of(x)
            p = _weights(call, part, block.rows.start)
            if call.dropout_p:
                p *= _noise(call, number, p)
            o[block.batch, block.heads, :, block.rows] = _output(p, part.v)
        return o

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        call, x, needed = ctx.call, _Inputs(*ctx.saved_tensors), ctx.needs_input_grad[1:]
        with _without_autocast(g), use_kernels(call.kernels):
            if torch.is_grad_enabled() or not ordinary(g):  # the gradient is to be differentiated, or is transformed
                return None, *_gradients_by_definition(call, x, g, needed)
            d = _Inputs(*(_zeros(tensor, need) for tensor, need in zip(x, needed, strict=True)))
            for number, block in enumerate(_blocks(call, x)):
                part = g[block.batch, block.heads, :, block.rows]
                _add_gradients(call, number, block, block.of(x), block.of(d), part)
            return None, *d


def _zeros(tensor: Any, needed: bool) -> Any:
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format) if needed else None


def _add_gradients(call: _Call, number: int, block: _Block, x: _Inputs, d: _Inputs, g: Tensor) -> None:
    """Add what a block contributes to the gradients ``d`` that are wanted, in place; o = p v, p = mapping(s)."""
    with torch.enable_grad():
        s = _scores(call, x).detach().requires_grad_()
        x = x._replace(
            parameter=None if x.parameter is None else x.parameter.detach().requires_grad_(d.parameter is not None)
        )
        p = _mapped(call, s, x, block.rows.start)
    noise = _noise(call, number, p) if call.dropout_p else None
    rows = _matrices(g)
    if d.v is not None:
        kept = p.detach() if noise is None else p.detach() * noise
        _matrices(d.v).baddbmm_(_matrices(kept).mT, rows)
    dp = torch.bmm(rows, _matrices(x.v).mT).reshape(p.shape)
    if noise is not None:
        dp *= noise
    wanted = [s] if x.parameter is None or d.parameter is None else [s, x.parameter]
    ds, *dparameter = torch.autograd.grad(p, wanted, dp, materialize_grads=True)
    if d.bias is not None:
        d.bias.add_(ds.sum_to_size(d.bias.shape))
    if d.parameter is not None:
        d.parameter.add_(dparameter[0])
    ds = _matrices(ds)
    if d.q is not None:
        d.q.add_(torch.bmm(ds, _matrices(x.k)).reshape(d.q.shape), alpha=call.scale)
    if d.k is not None:
        _matrices(d.k).baddbmm_(ds.mT, _matrices(x.q), alpha=call.scale)


def _gradients_by_definition(call: _Call, x: _Inputs, g: Tensor, needed: tuple[bool, ...]) -> Iterator[Tensor | None]:
    """The same, by differentiating the equations: in a form that can be differentiated again."""
    with torch.enable_grad():
        p = _weights(call, x)
        if call.dropout_p:
            noise = torch.ones_like(p)
            for number, (b, h, rows, keys) in enumerate(_blocks(call, x)):
                part = noise[b, h, :, rows, keys]
                part.copy_(_noise(call, number, part))
            p = p * noise
        o = _output(p, x.v)
    wanted = [tensor for tensor, need in zip(x, needed, strict=True) if need and tensor is not None]
    options = {"create_graph": torch.is_grad_enabled(), "materialize_grads": True}
    found = iter(torch.autograd.grad(o, wanted, g, **options))
    return (next(found) if need else None for need in needed)
