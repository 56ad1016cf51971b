"""Attention block by block, in torch: scores, weights and output of some queries, and on to the next.

A block is small enough for the processor's cache. The backward pass computes the weights of a block anew, so memory
grows with the number of queries and keys and not with their product, and a mapping needs nothing but its row function.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax.attention.equations import Call, mapped, matrices, output_of, scores_of, weights_of
from rsoftmax.attention.inputs import Inputs
from rsoftmax.attention.noise import noise

BLOCK, BLOCK_ELSEWHERE = 1 << 18, 1 << 24  # scores in a block: on the CPU a megabyte for each core, as its cache
EVERY = slice(None)


def size_for(x: Inputs) -> int:
    """How many scores a block of these inputs may have; backward needs the blocks of forward."""
    return BLOCK * torch.get_num_threads() if x.q.is_cpu else BLOCK_ELSEWHERE


def forward(call: Call, x: Inputs, size: int) -> Tensor:
    """The output, in memory as [B, Q, heads, Dv], like that of torch's own attention: what follows joins the heads."""
    x = x.wide()
    batch, heads, groups, rows, _ = x.q.shape
    o = x.v.new_empty(batch, rows, heads, groups, x.v.shape[-1]).permute(0, 2, 3, 1, 4)
    for block in _blocks(call, x, size):
        part = block.of(x)
        p = weights_of(call, part, block.rows.start)
        if call.dropped:
            p *= _factors(call, x, block)
        o[block.batch, block.heads, :, block.rows] = output_of(p, part.v)
    return o


def backward(call: Call, x: Inputs, g: Tensor, needed: tuple[bool, ...], size: int) -> tuple[Tensor | None, ...]:
    """The gradients that are needed; o = p v, p = mapping(s)."""
    given, x = x, x.wide()
    d = Inputs(*(_zeros(tensor, need) for tensor, need in zip(x, needed, strict=True)))
    for block in _blocks(call, x, size):
        part = g[block.batch, block.heads, :, block.rows]
        factors = _factors(call, x, block) if call.dropped else None
        _add_gradients(call, block, block.of(x), block.of(d), part, factors)
    return tuple(a if a is None or b is None else a.to(b.dtype) for a, b in zip(d, given, strict=True))


def _factors(call: Call, x: Inputs, block: "_Block") -> Tensor:
    batch, heads, rows, keys = block
    full = (*x.q.shape[:-1], x.k.shape[-2])
    return noise(call.seed, call.dropped, full, x.q, (batch, heads, EVERY, rows, keys))


class _Block(NamedTuple):
    batch: slice
    heads: slice
    rows: slice
    keys: slice

    def of(self, x: Inputs) -> Inputs:
        """The block's part of the inputs: views, and whole where one value serves all."""
        b, h, rows, keys = self

        def cut(tensor: Tensor | None, last: slice) -> Tensor | None:
            if tensor is None:
                return None
            parts = zip(tensor.shape, (b, h, EVERY, rows, last), strict=True)
            return tensor[tuple([EVERY if n == 1 else part for n, part in parts])]

        return Inputs(
            x.q if x.q is None else x.q[b, h, :, rows],
            x.k if x.k is None else x.k[b, h, :, keys],
            x.v if x.v is None else x.v[b, h, :, keys],
            cut(x.bias, keys),
            cut(x.parameter, EVERY),
            cut(x.mask, keys),
        )


def _blocks(call: Call, x: Inputs, size: int) -> Iterator[_Block]:
    """All of it in blocks of about ``size`` scores: some rows of a head, some whole heads, or whole batches."""
    batch, heads, groups, rows, _ = x.q.shape
    length = x.k.shape[-2]
    room = size // max(groups * length, 1)
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


def _zeros(tensor: Any, needed: bool) -> Any:
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format) if needed else None


def _add_gradients(call: Call, block: _Block, x: Inputs, d: Inputs, g: Tensor, factors: Tensor | None) -> None:
    """Add what a block contributes to the gradients ``d`` that are wanted, in place; o = p v, p = mapping(s)."""
    with torch.enable_grad():
        s = scores_of(call, x).detach().requires_grad_()
        x = x._replace(
            parameter=None if x.parameter is None else x.parameter.detach().requires_grad_(d.parameter is not None)
        )
        p = mapped(call, s, x, block.rows.start)
    rows = matrices(g)
    if d.v is not None:
        kept = p.detach() if factors is None else p.detach() * factors
        matrices(d.v).baddbmm_(matrices(kept).mT, rows)
    dp = torch.bmm(rows, matrices(x.v).mT).reshape(p.shape)
    if factors is not None:
        dp *= factors
    wanted = [s] if x.parameter is None or d.parameter is None else [s, x.parameter]
    ds, *dparameter = torch.autograd.grad(p, wanted, dp, materialize_grads=True)
    if d.bias is not None:
        d.bias.add_(ds.sum_to_size(d.bias.shape))
    if d.parameter is not None:
        d.parameter.add_(dparameter[0])
    ds = matrices(ds)
    if d.q is not None:
        d.q.add_(torch.bmm(ds, matrices(x.k)).reshape(d.q.shape), alpha=call.scale)
    if d.k is not None:
        matrices(d.k).baddbmm_(ds.mT, matrices(x.q), alpha=call.scale)
