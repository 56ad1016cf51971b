"""The definitions, in plain torch: rows in, rows out.

Contract of every function here:

* a row is the last dimension of ``x``, float32 or float64, never empty;
* ``-inf`` marks a masked entry; a fully masked row gives zeros and has zero gradient;
* a parameter is a number or a tensor ``[..., 1]``; NaN in a row or in its parameter gives a row of NaN.

Everything is composed of differentiable torch operations, so derivatives of any order, forward and reverse mode,
``torch.func``, ``torch.compile`` and export work on every device. Two rules keep the derivatives finite: the support is
decided first, by exact comparisons, and values outside it are replaced *before* they enter a division.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax._tensors import Value, exact, exp_limit, mask_to_neg_inf, row_max, smallest


def softmax(x: Tensor) -> Tensor:
    """e^x / sum."""
    return _normalize(torch.exp(x - row_max(x).detach()))


def weighted_softmax(x: Tensor, w: Tensor) -> Tensor:
    """w e^x / sum."""
    # Shifted by the largest x + log w, the largest mass is 1, whatever the scale of the weights. A huge entry of weight
    # zero does not count; the clamp keeps its exponential, which is the derivative in its weight, finite.
    w = torch.where(x == -math.inf, 0, w)
    shift = row_max(x + w.log()).detach()
    return _normalize(w * torch.exp((x - shift).clamp(max=exp_limit(x))))


def t_softmax(x: Tensor, t: Value, edge: float = math.inf) -> Tensor:
    """min(x - theta, edge)+ e^x / sum, theta = max - t."""
    # Weights are divided by min(t, edge): the largest is 1, t = inf is softmax, and edge -> 0 has a limit.
    if not isinstance(t, Tensor):
        t = max(t, smallest(x))
    d = x - row_max(x)
    support = ~(d <= -t)
    d_support = torch.where(support, d, 0)
    w = 1 + d_support / t
    if edge < math.inf:
        above = d_support + t
        faded = torch.where(~(above >= edge), above / (edge or 1), 1)
        w = torch.where(t <= edge, w, faded) if isinstance(t, Tensor) else (w if t <= edge else faded)
    return _normalize(torch.where(support, w, 0) * torch.exp(d))


def r_softmax(x: Tensor, r: Value, edge: float = math.inf, detach_threshold: bool = False) -> Tensor:
    """min(x - theta, edge)+ e^x / sum, theta = quantile(x, r)."""
    if not isinstance(r, Tensor) and r == 0:
        return softmax(x)
    length, last = x.shape[-1], _count(x) - 1
    if isinstance(r, Tensor):
        depth, rank, dense = length, r.to(exact(x)) * last, r == 0
    else:
        rank, dense = r * last.to(exact(x)), torch.zeros_like(last, dtype=torch.bool)
        depth = length if isinstance(length, torch.SymInt) else length - math.floor(r * (length - 1))
    return _above_rank(x, rank, depth, dense, edge, detach_threshold)


def k_softmax(x: Tensor, k: Value, edge: float = math.inf) -> Tensor:
    """min(x - theta, edge)+ e^x / sum, theta = the entry below the k largest."""
    depth, last = _depth(x, k + 1), _count(x) - 1
    if isinstance(k, Tensor):
        k = k.to(exact(x))
    rank = last.to(exact(x)) - k
    return _above_rank(x, rank.clamp(min=0), depth, rank < 0, edge)


def _above_rank(
    x: Tensor, rank: Tensor, depth: int, dense: Tensor, edge: float, detach_threshold: bool = False
) -> Tensor:
    """min(x - theta, edge)+ e^x / sum, with theta at an ascending rank of the unmasked entries; softmax where dense."""
    lo, hi, f = _neighbours(x, rank, depth)
    if detach_threshold:
        lo, hi, f = lo.detach(), hi.detach(), f.detach()
    m = row_max(x).detach()
    # In dense rows, and where the threshold reaches the maximum (r = 1, ties at the top), the weights are constant.
    floor = lo.masked_fill(dense, -math.inf)
    constant = (floor == m) | (floor == -math.inf)
    support = (x > floor) | (x == m)
    # The threshold hi - (1 - f)(hi - lo) is never formed: rounding could move it onto hi and so change the number of
    # zeros. Kept apart, an entry x >= hi always has a positive weight. The span only sets the scale of the weights,
    # which cancels in p; dividing by it keeps rows of denormal spread exact. A spread beyond the float range is halved.
    fit = torch.where((m - lo).isinf(), 0.5, 1.0).to(x.dtype).detach()
    span = (m * fit - lo * fit).masked_fill(constant, 1).detach()
    gap = (hi * fit - lo * fit).masked_fill(constant, 0)
    w = (torch.where(support, x, hi) * fit - hi * fit) / span + (1 - f).to(x.dtype) * (gap / span)
    if edge < math.inf:
        limit = (edge * fit / span).clamp(max=1)
        w = torch.where(~(w >= limit) | (limit == 1), w / limit.masked_fill(limit == 0, 1), 1)
    w = torch.where(support, w.masked_fill(constant, 1), 0)
    return _normalize(w * torch.exp(x - m.masked_fill(f.isnan(), math.nan)))


def sparsemax(x: Tensor) -> Tensor:
    """[x - tau]+, tau such that the row sums to one."""
    d = x - row_max(x).detach()
    k, s = _ranks_and_sorted(d)
    total = s.cumsum(-1)
    size = (1 + k * s > total).sum(-1, keepdim=True).clamp(min=1)
    support = _above(d, (total.gather(-1, size - 1) - 1) / size)
    tau = (torch.where(support, d, 0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(support, d - tau, 0).clamp(min=0)


def entmax15(x: Tensor) -> Tensor:
    """([x/2 - tau]+)^2, tau such that the row sums to one."""
    d = (x - row_max(x).detach()) / 2
    k, s = _ranks_and_sorted(d)
    mean, mean_square = s.cumsum(-1) / k, (s * s).cumsum(-1) / k
    # tau_k solves sum_{i <= k} (s_i - tau)^2 = 1, provided that the first k entries are the support.
    tau_k = mean - (1 / k - (mean_square - mean * mean)).clamp(min=0).sqrt()
    size = (tau_k <= s).sum(-1, keepdim=True).clamp(min=1)
    support = _above(d, tau_k.gather(-1, size - 1))
    size = support.sum(-1, keepdim=True).clamp(min=1)
    centred = torch.where(support, d, 0)
    centred = torch.where(support, centred - centred.sum(-1, keepdim=True) / size, 0)
    root = ((1 - (centred * centred).sum(-1, keepdim=True)) / size).sqrt()
    return torch.where(support, centred + root, 0).clamp(min=0).square()


def entmax(x: Tensor, alpha: Value) -> Tensor:
    """([(alpha - 1) x - tau]+)^(1 / (alpha - 1)), tau such that the row sums to one."""
    if not isinstance(alpha, Tensor):
        if alpha in _ENTMAX:
            return _ENTMAX[alpha](x)
        alpha = torch.full_like(x[..., :1], alpha)
    b = alpha - 1
    d = x - row_max(x).detach()
    a = _log_peak(d.detach(), b.detach())
    # Already at the root: these steps of Newton's method carry the derivatives, the first one those of first order, the
    # next those up to the third.
    for _ in range(2):
        p, slope = _tsallis(d, b, a)
        total = slope.sum(-1, keepdim=True)
        a = a - (p.sum(-1, keepdim=True) - 1) / total.masked_fill(total == 0, 1)
    return _normalize(_tsallis(d, b, a)[0])


_ENTMAX = {1.0: softmax, 1.5: entmax15, 2.0: sparsemax}


def spherical_softmax(x: Tensor) -> Tensor:
    """x^2 / sum."""
    unmasked = x != -math.inf
    z = torch.where(unmasked, x, 0)
    scale = z.abs().amax(-1, keepdim=True).detach()
    z = z / scale.masked_fill(scale == 0, 1)
    # A row of zeros gives the uniform distribution, like every constant row.
    return _normalize(torch.where(unmasked & (scale == 0), 1, z * z))


def budget(x: Tensor, k: Value) -> Tensor:
    """clip(x - tau, 0, 1), tau such that the row sums to k."""
    kth = _kth_largest(x, k)
    d = (x - kth).clamp(min=-1, max=1)
    # tau is between the k-th largest entry and 1 below it: bisection finds the entries that are neither 0 nor 1.
    tau, high = torch.full_like(kth, -1), torch.zeros_like(kth)
    for _ in range(2 - round(math.log2(torch.finfo(d.dtype).eps))):
        middle = (tau + high) / 2
        above = (d.detach() - middle).clamp(min=0, max=1).sum(-1, keepdim=True) > k
        tau, high = torch.where(above, middle, tau), torch.where(above, high, middle)
    full = (d >= tau + 1) & (x != -math.inf)
    inside = (d > tau) & ~full & (x != -math.inf)
    # This step of Newton's method arrives at the root, and carries the derivatives.
    p = torch.where(inside, d - tau, full.to(d))
    excess = (p.sum(-1, keepdim=True) - k) / inside.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(inside, p - excess, p).clamp(min=0, max=1).masked_fill(kth.isnan(), math.nan)


def lapsum(x: Tensor, k: Value) -> Tensor:
    """F(x - b), F the distribution function of Laplace, b such that the row sums to k."""
    unmasked, kth = x != -math.inf, _kth_largest(x, k)
    d = torch.where(unmasked, x.to(exact(x)) - kth, 0)
    k = k.to(d) if isinstance(k, Tensor) else torch.full_like(d[..., :1], k)
    b = _laplace_threshold(d.masked_fill(~unmasked, -math.inf).detach(), k.detach())
    b = b.masked_fill(k >= _count(x), -math.inf)
    # Already at the root: each step of Newton's method carries the derivatives of one more order.
    for _ in range(2):
        p, density = _laplace(d - b, unmasked)
        total = density.sum(-1, keepdim=True)
        b = b + (p.sum(-1, keepdim=True) - k) / total.masked_fill(total == 0, 1)
    return _laplace(d - b, unmasked)[0].masked_fill(kth.isnan(), math.nan)


def _laplace(u: Tensor, unmasked: Tensor) -> tuple[Tensor, Tensor]:
    """The distribution function of Laplace and its density."""
    density = torch.where(unmasked, torch.exp(-u.abs()) / 2, 0)
    return torch.where(unmasked & (u > 0), 1 - density, density), density


def _laplace_threshold(d: Tensor, k: Tensor) -> Tensor:
    """The root b of sum F(d - b) = k, between two entries: with m above it, m - k = A e^b / 2 - B e^-b / 2."""
    s, _ = d.sort(-1, descending=True)
    log_a = F.pad((-s).masked_fill(s == -math.inf, -math.inf).logcumsumexp(-1), (1, 0), value=-math.inf)
    log_b = F.pad(s.flip(-1).logcumsumexp(-1).flip(-1), (0, 1), value=-math.inf)
    ranks = torch.arange(1, s.shape[-1] + 1, device=s.device)
    at_entries = ranks - torch.exp(log_a[..., 1:] + s) / 2 + torch.exp(log_b[..., 1:] - s) / 2
    m = ((at_entries <= k) & (s != -math.inf)).sum(-1, keepdim=True)
    log_a, log_b, log_c = log_a.gather(-1, m), log_b.gather(-1, m), (m - k).abs().log()
    h = torch.logaddexp(log_c, torch.logaddexp(2 * log_c, log_a + log_b) / 2)
    return torch.where(m > k, h - log_a, log_b - h)


def softpick(x: Tensor) -> Tensor:
    """relu(e^x - 1) / sum |e^x - 1|."""
    z = torch.where(x != -math.inf, x, 0)
    m = row_max(z).clamp(min=0).detach()
    mass = -torch.expm1(-z.abs()) * torch.exp(z.clamp(min=0) - m)  # |e^z - 1| / e^m, which cannot overflow
    total = mass.sum(-1, keepdim=True)
    return torch.where(z > 0, mass, mass * 0) / total.masked_fill(total == 0, 1)


_FUNCTIONS: list[Callable[..., Tensor]] = [softmax, weighted_softmax, t_softmax, r_softmax, k_softmax]
_FUNCTIONS += [sparsemax, entmax15, entmax, spherical_softmax, budget, lapsum, softpick]
OPERATIONS = {function.__name__: function for function in _FUNCTIONS}
"""The operations by name."""


def reference_forward(
    name: str, x: Tensor, mask: Tensor | None, value: Value | None, options: dict[str, Any]
) -> Tensor:
    """Apply the function of that name to rows with a mask; the result has the dtype of ``x``."""
    p: Tensor = OPERATIONS[name](mask_to_neg_inf(x, mask), *([] if value is None else [value]), **options)
    return p.to(x.dtype)


def reference_backward(
    name: str,
    x: Tensor,
    mask: Tensor | None,
    value: Value | None,
    options: dict[str, Any],
    g: Tensor,
    needed: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in ``x`` and ``value``, where needed, by differentiating the definition."""
    with torch.enable_grad():
        p = reference_forward(name, x, mask, value, options)
    inputs = [a for a, need in zip((x, value), needed, strict=True) if need and isinstance(a, Tensor)]
    # allow_unused: a detached threshold does not depend on its parameter.
    options = {"create_graph": torch.is_grad_enabled(), "allow_unused": True}
    gradients = iter(torch.autograd.grad(p, inputs, g, **options) if p.requires_grad else (None, None))
    dx, dvalue = (next(gradients) if need else None for need in needed)
    return dx, dvalue


def _normalize(mass: Tensor) -> Tensor:
    total = mass.sum(-1, keepdim=True)
    return mass / total.masked_fill(total == 0, 1)


def _tsallis(d: Tensor, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Entmax in terms of its largest probability P, whose logarithm is ``a``, and the derivative in ``a``.

    p = P [1 + w]+^(1/b), w = b d / P^b. It tends to P e^d as b goes to 0, and is written such that its derivatives do.
    """
    u = d * torch.exp(-b * a)
    support = (~(b * u <= -1)).detach() & (d != -math.inf)
    u = torch.where(support, d, 0) * torch.exp(-b * a)
    u = u.clamp(min=-2 * exp_limit(d))  # p <= P e^u: below that it is zero, and its derivatives do not overflow
    w = b * u
    p = torch.where(support, torch.exp(a + u * _log1p_quotient(w)), 0)
    return p, p / (1 + w)


def _log1p_quotient(w: Tensor) -> Tensor:
    """log(1 + w) / w for -1 < w <= 0, differentiable at 0."""
    small = w > -0.25
    # log(1 + w) = 2 atanh(z), z = w / (2 + w)
    near = torch.where(small, w, 0)
    z2 = (near / (2 + near)).square()
    series = torch.zeros_like(w)
    for k in reversed(range(10)):
        series = series * z2 + 1 / (2 * k + 1)
    far = torch.where(small, -0.5, w)
    return torch.where(small, series * 2 / (2 + near), torch.log1p(far) / far)


def _log_peak(d: Tensor, b: Tensor) -> Tensor:
    """The logarithm of entmax's largest probability, by bisection: it is at least 1/n, and the sum grows with it."""
    low, high = -_count(d).clamp(min=1).to(d.dtype).log(), torch.zeros_like(d[..., :1])
    for _ in range(6 - round(math.log2(torch.finfo(d.dtype).eps))):
        a = (low + high) / 2
        u = d * torch.exp(-b * a)
        log_p = a + torch.where(b > 0, torch.log1p((b * u).clamp(min=-1)) / b, u)
        above = log_p.exp().sum(-1, keepdim=True) > 1
        low, high = torch.where(above, low, a), torch.where(above, a, high)
    return low


def _count(x: Tensor) -> Tensor:
    """The number of unmasked entries of each row."""
    return (x != -math.inf).sum(-1, keepdim=True)


def _neighbours(x: Tensor, rank: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """The order statistics on both sides of an ascending rank, and the fraction of the way between them.

    Ranks are float64: in float32, ``k/n * (n - 1)`` falls on the wrong side of an integer for long rows. They count
    from the top, where masked entries do not reach; a row with fewer entries needs no more of them, so for a
    number the length of the partial sort, ``depth``, is known without reading the data.
    """
    floor = rank.detach().floor()
    from_top = (_count(x) - 1 - floor.nan_to_num().long()).clamp(min=0, max=depth - 1)
    order = torch.topk(x, depth).indices
    lo = x.gather(-1, order.gather(-1, from_top))
    hi = x.gather(-1, order.gather(-1, (from_top - 1).clamp(min=0)))
    return lo, hi, rank - floor


def _depth(x: Tensor, count: Value) -> int:
    """How many of the largest entries to sort for those up to ``count``, rounded up; all for a tensor."""
    length = x.shape[-1]
    if isinstance(count, Tensor) or isinstance(length, torch.SymInt) or count >= length:
        return length
    return max(math.ceil(count), 1)


def _kth_largest(x: Tensor, k: Value) -> Tensor:
    """The k-th largest entry, k rounded up, or the last one; NaN if the row or k has no result."""
    depth = _depth(x, k)
    k = k.detach() if isinstance(k, Tensor) else torch.full_like(x[..., :1], k)
    rank = torch.minimum(k.nan_to_num().ceil().clamp(min=1), _count(x).clamp(min=1)).long() - 1
    entry = x.detach().topk(depth).values.gather(-1, rank)
    return entry.masked_fill(entry == -math.inf, 0).masked_fill((row_max(x) + k).isnan(), math.nan)


def _ranks_and_sorted(d: Tensor) -> tuple[Tensor, Tensor]:
    """1..n, and the row in descending order, clamped at -1: an entry 1 below the maximum is never in the support."""
    k = torch.arange(1, d.shape[-1] + 1, device=d.device, dtype=exact(d))
    return k, d.detach().clamp(min=-1).sort(-1, descending=True).values.to(exact(d))


def _above(d: Tensor, tau: Tensor) -> Tensor:
    return ~(d <= tau) & (d != -math.inf)
