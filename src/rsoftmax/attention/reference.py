"""The equations of attention in plain torch: scores, weights, dropout, output, for all rows or some of them."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rsoftmax._tensors import all_or_none
from rsoftmax.attention.arguments import STEPS, Call
from rsoftmax.registry import MAPPINGS

WORD = 0xFFFFFFFF  # 32-bit numbers in int64


def scores(call: Call) -> Tensor:
    """scale q k^T + bias."""
    # Query heads that share keys are further rows of one product: keys are never repeated. beta = 0 ignores the first
    # argument.
    product = torch.baddbmm(call.q.new_empty(()), matrices(call.q), matrices(call.k).mT, beta=0, alpha=call.scale)
    found: Tensor = product.reshape(*call.q.shape[:-1], call.k.shape[-2])
    return found if call.bias is None else found + call.bias


def map_scores(call: Call, s: Tensor, first: int = 0) -> Tensor:
    """The weights of rows of scores, of which the first belongs to query ``first``."""
    mask = call.mask
    if call.is_causal:
        query = torch.arange(first, first + s.shape[-2], device=s.device)
        seen = torch.arange(s.shape[-1], device=s.device) <= query[:, None]
        mask = seen if mask is None else mask & seen
    row = MAPPINGS[call.mapping]
    return row.function(s, *([] if row.parameter is None else [call.value]), mask=mask, **call.named_options)


def weights(call: Call, first: int = 0) -> Tensor:
    """The mapping of the scores."""
    return map_scores(call, scores(call), first)


def output(call: Call) -> Tensor:
    """dropout(p) v, with the whole matrix of weights in memory."""
    call, bad = separate_non_finite(call.wide())
    p = weights(call)
    return combine(p * dropout_factors(call.seed, call.dropped, p.shape, p) if call.dropped else p, call.v, bad)


def combine(p: Tensor, v: Tensor, bad: Tensor | None) -> Tensor:
    """p v; NaN where a weight meets a value that was not finite. Weights of zero get no gradient from large values."""
    if bad is None:
        return _product(p, v)
    met = _product((p != 0).to(v.dtype), bad)
    return _product(torch.where(p != 0, p, 0), v).masked_fill(met > 0, math.nan)


def _product(p: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(matrices(p), matrices(v)).reshape(*p.shape[:-1], v.shape[-1])


def separate_non_finite(call: Call) -> tuple[Call, Tensor | None]:
    """Keep removed keys out of products, whatever they hold: 0 times NaN or infinity is NaN, and products overflow.

    Returns:
        The call with zeros for what is not finite, a bias of NaN for the keys that were not, so that a query that keeps
        one gets NaN, and a mask in place of biases of ``-inf``. And which values were not finite, as 0 and 1; None if
        no product can overflow or nothing is removed.
    """
    if not call.removes:
        return call, None
    most = math.sqrt(torch.finfo(call.k.dtype).max)
    if all_or_none(call.k.abs() <= most) and all_or_none(call.v.abs() <= most):
        return call, None
    keys, values = call.k.isfinite(), call.v.isfinite()
    bias = torch.where(keys.all(-1), 0.0, math.nan).to(call.k.dtype)[..., None, :]
    mask = call.mask
    if call.bias is not None:
        bias, mask = call.bias + bias, call.bias != -math.inf  # a call has a mask or a bias
    k, v = torch.where(keys, call.k, 0), torch.where(values, call.v, 0)
    return call._replace(k=k, v=v, bias=bias, mask=mask), (~values).to(call.v.dtype)


def matrices(x: Tensor) -> Tensor:
    """[B, H, G, rows, n] as [B H, G rows, n]."""
    batch, heads, groups, rows, n = x.shape
    return x.reshape(batch * heads, groups * rows, n)


def reference_gradients(call: Call, g: Tensor, needed: tuple[bool, ...]) -> Iterator[Tensor | None]:
    """The gradients of the output by differentiating the equations; they can be differentiated again."""
    with torch.enable_grad():
        o = output(call)
    wanted = [tensor for tensor, need in zip(call.tensors, needed, strict=True) if need and tensor is not None]
    options = {"create_graph": torch.is_grad_enabled(), "materialize_grads": True}
    found = iter(torch.autograd.grad(o, wanted, g, **options))
    return (next(found) if need else None for need in needed)


def dropout_factors(
    seed: int, dropped: int, full: tuple[int, ...], like: Tensor, part: tuple[slice, ...] = ()
) -> Tensor:
    """The factors of dropout: 0, or the one that keeps the mean.

    They depend on the seed, the index of the row and the index of the key only, with the same generator as the CPU
    kernel: forward and backward, blocks of any size and any number of threads drop the same weights without storing a
    mask.

    Args:
        seed: of 63 bits.
        dropped: how many of 65536 weights.
        full: the shape of all weights; the last dimension counts keys, the others rows.
        like: the dtype and device of the result.
        part: the part to compute; default: all.

    Returns:
        The factors of that part.

    Example:
        >>> dropout_factors(1, STEPS // 2, (2, 8), torch.empty(0))
        tensor([[0., 2., 2., 2., 2., 0., 2., 0.],
                [0., 0., 0., 0., 0., 0., 0., 2.]])
    """
    rows = torch.arange(math.prod(full[:-1]), device=like.device).reshape(full[:-1])[part[:-1]]
    keys = torch.arange(full[-1], device=like.device)[part[-1:]]
    row_keys = _hash((_hash((rows ^ seed) & WORD) + (seed >> 32)) & WORD)
    draws = _hash((keys * 0x9E3779B9 + row_keys[..., None]) & WORD) >> 16
    return (draws >= dropped).to(like.dtype).mul_(STEPS / (STEPS - dropped) if dropped < STEPS else 0)


def _hash(x: Tensor) -> Tensor:
    """A 32-bit hash in which every input bit changes about half of the output bits."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)
