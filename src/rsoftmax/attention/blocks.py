"""Attention block by block, in torch: scores, weights and output of some queries at a time.

A block is small enough for the processor's cache. The backward pass recomputes the weights of a block, so memory grows
with the number of queries and keys, not with their product, and a mapping needs nothing but its row function.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax.attention.arguments import Call
from rsoftmax.attention.reference import combine, dropout_factors, map_scores, matrices, scores, separate_non_finite
from rsoftmax.attention.reference import weights as weights_of

BLOCK, BLOCK_ELSEWHERE = 1 << 18, 1 << 24  # scores in a block: on the CPU a megabyte for each core, as its cache
ALL = slice(None)


def block_size(call: Call) -> int:
    """How many scores a block may have; backward uses the blocks of forward."""
    return BLOCK * torch.get_num_threads() if call.q.is_cpu else BLOCK_ELSEWHERE


def forward(call: Call, size: int) -> Tensor:
    """The output, in memory as [B, Q, heads, Dv] like that of torch's own attention: the next layer joins the heads."""
    call, bad = separate_non_finite(call.wide())
    batch, heads, groups, rows, _ = call.q.shape
    o = call.v.new_empty(batch, rows, heads, groups, call.v.shape[-1]).permute(0, 2, 3, 1, 4)
    for block in _blocks(call, size):
        part = block.of(call)
        p = weights_of(part, block.rows.start)
        if call.dropped:
            p *= _factors(call, block)
        o[block.batch, block.heads, :, block.rows] = combine(p, part.v, None if bad is None else block.keys_of(bad))
    return o


def backward(call: Call, g: Tensor, needed: tuple[bool, ...], size: int) -> tuple[Tensor | None, ...]:
    """The gradients that are needed; o = p v, p = mapping(s)."""
    given, (call, bad) = call, separate_non_finite(call.wide())
    zeros = (_zeros(tensor, need) for tensor, need in zip(given.wide().tensors, needed, strict=True))
    d = Call(*zeros, *call.settings)  # the gradients, in the layout of the call
    for block in _blocks(call, size):
        part = g[block.batch, block.heads, :, block.rows]
        factors = _factors(call, block) if call.dropped else None
        _add_gradients(block.of(call), block.of(d), block.rows.start, part, factors, bad is not None)
    return tuple(a if a is None or b is None else a.to(b.dtype) for a, b in zip(d.tensors, given.tensors, strict=True))


class _Block(NamedTuple):
    batch: slice
    heads: slice
    rows: slice
    keys: slice

    def of(self, call: Call) -> Call:
        """The block's part of the tensors: views, and whole dimensions where they broadcast."""
        return call._replace(
            q=self._cut(call.q, self.rows, ALL),
            k=self.keys_of(call.k),
            v=self.keys_of(call.v),
            bias=self._cut(call.bias, self.rows, self.keys),
            parameter=self._cut(call.parameter, self.rows, ALL),
            mask=self._cut(call.mask, self.rows, self.keys),
        )

    def keys_of(self, x: Any) -> Any:
        """The block's keys of [B, H, 1, L, D]."""
        return self._cut(x, self.keys, ALL)

    def _cut(self, x: Any, rows: slice, entries: slice) -> Any:
        if x is None:
            return None
        parts = zip(x.shape, (self.batch, self.heads, ALL, rows, entries), strict=True)
        return x[tuple([ALL if n == 1 else part for n, part in parts])]


def _blocks(call: Call, size: int) -> Iterator[_Block]:
    """Blocks of about ``size`` scores: some rows of a head, some whole heads, or some whole batches."""
    batch, heads, groups, rows, _ = call.q.shape
    length = call.k.shape[-2]
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
    """The size of the parts when ``count`` is divided into equal ones of at most ``most``."""
    parts = -(-count // max(min(count, most), 1))
    return -(-count // max(parts, 1)) or 1


def _zeros(tensor: Any, needed: bool) -> Any:
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format) if needed else None


def _factors(call: Call, block: _Block) -> Tensor:
    batch, heads, rows, keys = block
    full = (*call.q.shape[:-1], call.k.shape[-2])
    return dropout_factors(call.seed, call.dropped, full, call.q, (batch, heads, ALL, rows, keys))


def _add_gradients(call: Call, d: Call, first: int, g: Tensor, factors: Tensor | None, overflows: bool) -> None:
    """Add the contribution of a block to the gradients ``d`` in place; products with removed values may overflow."""
    with torch.enable_grad():
        s = scores(call).detach().requires_grad_()
        if call.parameter is not None:
            call = call._replace(parameter=call.parameter.detach().requires_grad_(d.parameter is not None))
        p = map_scores(call, s, first)
    rows = matrices(g)
    if d.v is not None:
        kept = p.detach() if factors is None else p.detach() * factors
        matrices(d.v).baddbmm_(matrices(kept).mT, rows)
    dp = torch.bmm(rows, matrices(call.v).mT).reshape(p.shape)
    if overflows:
        dp = dp.where(p != 0, 0)
    if factors is not None:
        dp *= factors
    wanted = [s] if call.parameter is None or d.parameter is None else [s, call.parameter]
    ds, *dparameter = torch.autograd.grad(p, wanted, dp, materialize_grads=True)
    if d.bias is not None:
        d.bias.add_(ds.sum_to_size(d.bias.shape))
    if d.parameter is not None:
        d.parameter.add_(dparameter[0])
    ds = matrices(ds)
    if d.q is not None:
        d.q.add_(torch.bmm(ds, matrices(call.k)).reshape(d.q.shape), alpha=call.scale)
    if d.k is not None:
        matrices(d.k).baddbmm_(ds.mT, matrices(call.q), alpha=call.scale)
