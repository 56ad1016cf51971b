"""The equations of attention in plain torch, for all queries or some of them: the definition of the result."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax._tensors import all_or_none
from rsoftmax.kernels.attention_args import STEPS, AttentionArgs
from rsoftmax.registry import MAPPINGS

WORD = 0xFFFFFFFF  # 32-bit numbers in int64


def output(args: AttentionArgs) -> Tensor:
    """o = dropout(p) v, [B, H, G, Q, Dv], with the whole matrix p in memory."""
    args, non_finite = separate_non_finite(args.wide())
    p = weights(args)
    if args.dropped and args.seed is None:
        p = F.dropout(p, args.dropout_p)
    elif args.dropped:
        p = p * dropout_factors(args.seed, args.dropped, p.shape, p)  # type: ignore[arg-type]
    return combine(p, args.v, non_finite)


def weights(args: AttentionArgs, first: int = 0) -> Tensor:
    """p = mapping(s), [B, H, G, Q, L]; the first query has the index ``first``."""
    return map_scores(args, scores(args), first)


def scores(args: AttentionArgs) -> Tensor:
    """s = scale q k^T + bias, [B, H, G, Q, L]."""
    # Query heads that share keys are further rows of one product: keys are never repeated. beta = 0 ignores the first
    # argument.
    product = torch.baddbmm(args.q.new_empty(()), matrices(args.q), matrices(args.k).mT, beta=0, alpha=args.scale)
    s: Tensor = product.reshape(*args.q.shape[:-1], args.k.shape[-2])
    return s if args.bias is None else s + args.bias


def map_scores(args: AttentionArgs, s: Tensor, first: int = 0) -> Tensor:
    """The weights of the queries with these scores, of which the first has the index ``first``."""
    mask = args.mask
    if args.is_causal:
        query = torch.arange(first, first + s.shape[-2], device=s.device)
        visible = torch.arange(s.shape[-1], device=s.device) <= query[:, None]
        mask = visible if mask is None else mask & visible
    spec = MAPPINGS[args.mapping]
    options = {option.name: value for option, value in zip(spec.options, args.options, strict=True)}
    return spec.function(s, *([] if spec.parameter is None else [args.value]), mask=mask, **options)


def combine(p: Tensor, v: Tensor, non_finite: Tensor | None) -> Tensor:
    """p v; NaN where a weight meets a value that was not finite. Weights of zero get no gradient from large values."""
    if non_finite is None:
        return _product(p, v)
    bad = _product((p != 0).to(v.dtype), non_finite) > 0
    return _product(torch.where(p != 0, p, 0), v).masked_fill(bad, math.nan)


def _product(p: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(matrices(p), matrices(v)).reshape(*p.shape[:-1], v.shape[-1])


def matrices(x: Tensor) -> Tensor:
    """[B, H, G, rows, n] as [B H, G rows, n]."""
    batch, heads, groups, rows, n = x.shape
    return x.reshape(batch * heads, groups * rows, n)


def separate_non_finite(args: AttentionArgs) -> tuple[AttentionArgs, Tensor | None]:
    """Keep masked keys out of products, whatever their values: 0 times NaN or infinity is NaN, and products overflow.

    What is not finite becomes zero, keys that were not finite get a bias of NaN, so that a query that sees one gets
    NaN, and a mask replaces biases of ``-inf``. Also returns which values were not finite, as 0 and 1; None if no
    product can overflow or no key is masked.
    """
    if not args.is_causal and args.mask is None and args.bias is None:
        return args, None
    largest = math.sqrt(torch.finfo(args.k.dtype).max)
    if all_or_none(args.k.abs() <= largest) and all_or_none(args.v.abs() <= largest):
        return args, None
    keys, values = args.k.isfinite(), args.v.isfinite()
    bias = torch.where(keys.all(-1), 0.0, math.nan).to(args.k.dtype)[..., None, :]
    mask = args.mask
    if args.bias is not None:
        bias, mask = args.bias + bias, args.bias != -math.inf  # there is a mask or a bias, not both
    k, v = torch.where(keys, args.k, 0), torch.where(values, args.v, 0)
    return args._replace(k=k, v=v, bias=bias, mask=mask), (~values).to(args.v.dtype)


def gradients(args: AttentionArgs, g: Tensor, needed: tuple[bool, ...]) -> Iterator[Tensor | None]:
    """The gradients of the output by differentiating the equations; they can be differentiated again."""
    with torch.enable_grad():
        o = output(args)
    inputs = [tensor for tensor, need in zip(args.tensors, needed, strict=True) if need and tensor is not None]
    options = {"create_graph": torch.is_grad_enabled(), "materialize_grads": True}
    d = iter(torch.autograd.grad(o, inputs, g, **options))
    return (next(d) if need else None for need in needed)


def dropout_factors(
    seed: int, dropped: int, full: tuple[int, ...], like: Tensor, part: tuple[slice, ...] = ()
) -> Tensor:
    """The factors of dropout, 0 or the one that keeps the mean, for a part of the weights of shape ``full``.

    They depend on the seed, of 63 bits, the index of the query and the index of the key only, with the same generator
    as the CPU kernel: forward and backward, blocks of any size and any number of threads drop the same weights without
    storing a mask.

    Example:
        >>> dropout_factors(1, STEPS // 2, (2, 8), torch.empty(0))
        tensor([[0., 2., 2., 2., 2., 0., 2., 0.],
                [0., 0., 0., 0., 0., 0., 0., 2.]])
    """
    queries = torch.arange(math.prod(full[:-1]), device=like.device).reshape(full[:-1])[part[:-1]]
    keys = torch.arange(full[-1], device=like.device)[part[-1:]]
    hashes = _hash((_hash((queries ^ seed) & WORD) + (seed >> 32)) & WORD)
    draws = _hash((keys * 0x9E3779B9 + hashes[..., None]) & WORD) >> 16
    return (draws >= dropped).to(like.dtype).mul_(STEPS / (STEPS - dropped) if dropped < STEPS else 0)


def _hash(x: Tensor) -> Tensor:
    """A 32-bit hash in which every input bit changes about half of the output bits."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)
