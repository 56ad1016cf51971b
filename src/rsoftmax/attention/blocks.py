"""Attention block by block, in torch: scores, weights and output of some queries at a time.

A block is small enough for the processor's cache. The backward pass recomputes the weights of a block, so memory grows
with the number of queries and keys, not with their product, and a mapping needs nothing but its row function.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax.attention import reference
from rsoftmax.attention.reference import matrices
from rsoftmax.kernels.attention_args import AttentionArgs

BLOCK, BLOCK_ELSEWHERE = 1 << 18, 1 << 24  # scores in a block: on the CPU a megabyte for each core, as its cache
ALL = slice(None)


def block_size(args: AttentionArgs) -> int:
    """How many scores a block may have; backward uses the blocks of forward."""
    return BLOCK * torch.get_num_threads() if args.q.is_cpu else BLOCK_ELSEWHERE


def forward(args: AttentionArgs, size: int) -> Tensor:
    """The output, in memory as [B, Q, heads, Dv] like that of torch's own attention: the next layer joins the heads."""
    args, non_finite = reference.separate_non_finite(args.wide())
    batch, heads, groups, queries, _ = args.q.shape
    o = args.v.new_empty(batch, queries, heads, groups, args.v.shape[-1]).permute(0, 2, 3, 1, 4)
    for block in _blocks(args, size):
        part = block.of(args)
        p = reference.weights(part, block.queries.start)
        if args.dropped:
            p *= block.dropout_factors(args)
        o[block.batch, block.heads, :, block.queries] = reference.combine(p, part.v, block.keys_of(non_finite))
    return o


def backward(args: AttentionArgs, g: Tensor, needed: tuple[bool, ...], size: int) -> tuple[Tensor | None, ...]:
    """The gradients that are needed; o = p v, p = mapping(s)."""
    inputs, (args, non_finite) = args, reference.separate_non_finite(args.wide())
    like = zip(inputs.wide().tensors, needed, strict=True)
    zeros = [torch.zeros_like(x, memory_format=torch.contiguous_format) if need else None for x, need in like]  # type: ignore[arg-type]
    d = AttentionArgs(*zeros, *args.settings)  # type: ignore[arg-type] # the gradients, in the layout of the arguments
    for block in _blocks(args, size):
        part = g[block.batch, block.heads, :, block.queries]
        factors = block.dropout_factors(args) if args.dropped else None
        _add_gradients(block.of(args), block.of(d), block.queries.start, part, factors, non_finite is not None)
    return tuple(x if x is None or y is None else x.to(y.dtype) for x, y in zip(d.tensors, inputs.tensors, strict=True))


class _Block(NamedTuple):
    batch: slice
    heads: slice
    queries: slice
    keys: slice

    def of(self, args: AttentionArgs) -> AttentionArgs:
        """The block's part of the tensors: views, and whole dimensions where they broadcast."""
        return args._replace(
            q=self._cut(args.q, self.queries, ALL),
            k=self.keys_of(args.k),
            v=self.keys_of(args.v),
            bias=self._cut(args.bias, self.queries, self.keys),
            parameter=self._cut(args.parameter, self.queries, ALL),
            mask=self._cut(args.mask, self.queries, self.keys),
        )

    def keys_of(self, x: Any) -> Any:
        """The block's keys of [B, H, 1, L, D]."""
        return self._cut(x, self.keys, ALL)

    def dropout_factors(self, args: AttentionArgs) -> Tensor:
        """The factors of dropout for the block's weights."""
        full = (*args.q.shape[:-1], args.k.shape[-2])
        part = (self.batch, self.heads, ALL, self.queries, self.keys)
        return reference.dropout_factors(args.seed or 0, args.dropped, full, args.q, part)

    def _cut(self, x: Any, length: slice, last: slice) -> Any:
        """A part of [B, H, G, length, last]."""
        if x is None:
            return None
        parts = zip(x.shape, (self.batch, self.heads, ALL, length, last), strict=True)
        return x[tuple([ALL if n == 1 else part for n, part in parts])]


def _blocks(args: AttentionArgs, size: int) -> Iterator[_Block]:
    """Blocks of about ``size`` scores: some queries of a head, some whole heads, or some whole batches."""
    batch, heads, groups, queries, _ = args.q.shape
    keys = args.k.shape[-2]
    room = size // max(groups * keys, 1)
    few_queries = _part_size(queries, room)
    few_heads = _part_size(heads, room // max(few_queries, 1))
    few_batches = _part_size(batch, room // max(few_queries * few_heads, 1)) if few_heads == heads else 1
    for b in range(0, batch, few_batches):
        for h in range(0, heads, few_heads):
            for query in range(0, queries, few_queries):
                end = min(query + few_queries, queries)
                visible = min(end, keys) if args.is_causal else keys  # no query of the block sees a later key
                yield _Block(slice(b, b + few_batches), slice(h, h + few_heads), slice(query, end), slice(0, visible))


def _part_size(count: int, largest: int) -> int:
    """The size of the parts when ``count`` is divided into equal ones of at most ``largest``."""
    parts = -(-count // max(min(count, largest), 1))
    return -(-count // max(parts, 1)) or 1


def _add_gradients(
    args: AttentionArgs, d: AttentionArgs, first: int, g: Tensor, factors: Tensor | None, overflows: bool
) -> None:
    """Add the contribution of a block to the gradients ``d`` in place; products with masked values may overflow."""
    with torch.enable_grad():
        s = reference.scores(args).detach().requires_grad_()
        if args.parameter is not None:
            args = args._replace(parameter=args.parameter.detach().requires_grad_(d.parameter is not None))
        p = reference.map_scores(args, s, first)
    g = matrices(g)
    if d.v is not None:
        dropped = p.detach() if factors is None else p.detach() * factors
        matrices(d.v).baddbmm_(matrices(dropped).mT, g)
    dp = torch.bmm(g, matrices(args.v).mT).reshape(p.shape)
    if overflows:
        dp = dp.where(p != 0, 0)
    if factors is not None:
        dp *= factors
    inputs = [s] if args.parameter is None or d.parameter is None else [s, args.parameter]
    ds, *dparameter = torch.autograd.grad(p, inputs, dp, materialize_grads=True)
    if d.bias is not None:
        d.bias.add_(ds.sum_to_size(d.bias.shape))
    if d.parameter is not None:
        d.parameter.add_(dparameter[0])
    ds = matrices(ds)
    if d.q is not None:
        d.q.add_(torch.bmm(ds, matrices(args.k)).reshape(d.q.shape), alpha=args.scale)
    if d.k is not None:
        matrices(d.k).baddbmm_(ds.mT, matrices(args.q), alpha=args.scale)
