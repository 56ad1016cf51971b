"""Is a result as exact as its arithmetic allows? Float32 and half precision are judged against float64.

The truth is computed in float64, together with copies in which every score is off by the rounding that float32 allows
it, up or down at random, and so is every gradient that enters the mapping. The spread of the copies is the rounding of
a result to first order: it grows with the number of terms, their magnitudes and the derivatives of the mapping, the
condition of its threshold among them. The last sum adds its own rounding. Errors are in units of this bound.

Where scores lie within rounding of the threshold float32 may have other zeros. Such a row is undecided: its incoming
gradient is set to zero, and its weights are not judged.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rsoftmax import MAPPINGS, MappingSpec, use_kernels

UNIT = torch.finfo(torch.float32).eps / 2
UNIT64 = 64 * torch.finfo(torch.float64).eps
COPIES = 16
MARGIN = 4  # how many times the rounding to expect is allowed
BY_ORDER = ("r_softmax", "k_softmax")  # comparisons of scores decide about zeros; tied scores share no gradient


@dataclass
class Truth:
    """A result in float64, and the rounding to expect in float32: infinite where the result is not judged."""

    exact: Tensor
    rounding: Tensor
    with_zeros: bool = False  # the zeros are judged, too

    @classmethod
    def of(cls, copies: Tensor, last_sum: Tensor | float = 0.0) -> "Truth":
        """From copies, of which the first is exact, and the rounding of the last sum."""
        return cls(copies[0], (copies[1:] - copies[0]).square().mean(0).sqrt() + last_sum)

    def bound(self, dtype: torch.dtype) -> Tensor:
        """The largest error allowed of a result of that dtype."""
        limits = torch.finfo(dtype)
        return MARGIN * self.rounding + limits.eps * (self.exact.abs() + limits.smallest_normal)

    def errors(self, actual: Tensor) -> Tensor:
        """In units of the bound; infinite where a zero is wrong."""
        errors = ((actual.double() - self.exact).abs() / self.bound(actual.dtype)).nan_to_num(nan=math.inf)
        if self.with_zeros:
            underflow = (actual == 0) & (self.exact.abs() < torch.finfo(actual.dtype).smallest_normal)
            errors[((actual == 0) != (self.exact == 0)) & ~underflow] = math.inf
        same = (actual == self.exact) | (actual.isnan() & self.exact.isnan())
        return errors.masked_fill(same | self.rounding.isinf(), 0)

    def check(self, name: str, actual: Tensor) -> float:
        """Return the largest error in units of its bound; raise if it is larger than 1."""
        assert actual.shape == self.exact.shape, f"{name}: {tuple(actual.shape)} instead of {tuple(self.exact.shape)}"
        actual = actual.detach()
        errors = self.errors(actual)
        worst = float(errors.max()) if errors.numel() else 0.0
        if worst > 1:
            at = tuple(int(i) for i in torch.unravel_index(errors.argmax(), errors.shape))
            result, exact, bound = (float(x[at]) for x in (actual, self.exact, self.bound(actual.dtype)))
            raise AssertionError(
                f"{name}{list(at)} is {result:.9g}, in float64 {exact:.9g}: the error is {worst:.3g} times the bound of"
                f" {bound:.2g}; {int((errors > 1).sum())} of {errors.numel()} numbers exceed theirs"
            )
        return worst


# --------------------------------------------------------------------------- what is judged


def check_mapping(
    name: str, x: Tensor, value: Any = None, *, g: Tensor | None = None, mask: Tensor | None = None, **options: Any
) -> float:
    """Judge a mapping of rows [..., n], and its gradients in x and in a tensor parameter.

    Args:
        name: of the mapping.
        x: in float32 or half precision.
        value: the parameter, a number or a tensor that broadcasts to [..., 1].
        g: the incoming gradient; random by default.
        mask: True = keep.
        options: of the mapping.

    Returns:
        The largest error in units of its bound.
    """
    leaves = [a.detach().requires_grad_() for a in (x, value) if isinstance(a, Tensor)]
    arguments = leaves[1:] or ([] if value is None else [value])
    p = MAPPINGS[name].function(leaves[0], *arguments, mask=mask, **options)
    s = x.detach().double() if mask is None else x.detach().double().masked_fill(~mask, -math.inf)
    rows = Rows(MAPPINGS[name], s, torch.zeros_like(s), value, options, p.dtype)
    g = (random_like(p) if g is None else g).masked_fill(rows.undecided | rows.tied, 0)
    ds, *dvalue = rows.gradients(g.double(), torch.zeros_like(s))
    truths = {"p": rows.weights(), "dx": Truth.of(ds)}
    if dvalue:
        truths["dvalue"] = summed(dvalue[0], value.shape)
    return check_all(truths, p, *torch.autograd.grad(p, leaves, g))


def check_weights(name: str, p: Tensor, s: Tensor, value: Any = None, **options: Any) -> float:
    """Judge weights [..., L] of a mapping by the scores, which are exact."""
    s = s.detach().double()
    return Rows(MAPPINGS[name], s, torch.zeros_like(s), value, options, p.dtype).weights().check("p", p)


def check_attention(
    attend: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    *,
    factors: Tensor | None = None,
    exact_scores: bool = False,
    **options: Any,
) -> float:
    """Judge ``attend(q, k, v, enable_gqa=True, **options)`` and its gradients in q, k, v, a bias and a parameter.

    Args:
        attend: takes what :func:`rsoftmax.attention.sparse_attention` takes.
        q: [B, Hq, Q, D].
        k: [B, H, L, D].
        v: [B, H, L, Dv]; if no entry is negative, the zeros of the output are judged, too.
        factors: of dropout, for the weights [B, Hq, Q, L].
        exact_scores: float32 does not round them, so their ties are judged.
        options: attn_mask, is_causal, scale (a number), dropout_p, mapping, its parameter and options.

    Returns:
        The largest error in units of its bound.
    """
    names = [name for name, a in options.items() if isinstance(a, Tensor) and a.dtype != torch.bool]
    names.sort(key=lambda name: name != "attn_mask")  # in the order of the truths
    leaves = [a.detach().requires_grad_() for a in (q, k, v, *(options[name] for name in names))]
    o = attend(*leaves[:3], enable_gqa=True, **options | dict(zip(names, leaves[3:], strict=True)))
    options.pop("dropout_p", None)
    g, truths = attention(q, k, v, random_like(o), factors, exact_scores, **options)
    return check_all(truths, o, *torch.autograd.grad(o, leaves, g))


def check_all(truths: dict[str, Truth], *results: Tensor) -> float:
    """The largest error of several results."""
    return max(truth.check(name, result) for (name, truth), result in zip(truths.items(), results, strict=True))


# --------------------------------------------------------------------------- the truth


class Rows:
    """A mapping in float64. Results are copies [1 + COPIES, ..., L], of which the first is exact.

    Args:
        spec: the mapping.
        s: the scores [..., L]; -inf is masked.
        rounding: of the scores; zeros if they are what is given.
        value: the parameter, a number or a tensor that broadcasts to [..., 1].
        options: of the mapping.
        saved: the dtype in which backward reads the weights.
    """

    def __init__(
        self,
        spec: MappingSpec,
        s: Tensor,
        rounding: Tensor,
        value: Any,
        options: dict[str, Any],
        saved: torch.dtype = torch.float32,
    ) -> None:
        def apply(s: Tensor, value: Any) -> Tensor:
            return spec.function(s, *([] if value is None else [value]), **options)

        given, self.saved = not rounding.any(), torch.finfo(saved)
        top = s.amax(-1, keepdim=True).nan_to_num(neginf=0)
        size = (s - top).abs() + (0 if spec.shift_invariant else s.abs())
        rounding = (rounding + 4 * UNIT * (1 + size)).masked_fill(s.isinf(), 0)  # of what is done to scores first
        self.leaves = [off_by(s, rounding, alike=given).requires_grad_()]
        exact_value, values = value, value
        if isinstance(value, Tensor):
            values = value.detach().double().expand(1 + COPIES, *s.shape[:-1], 1).clone().requires_grad_()
            self.leaves.append(values)
            exact_value, values = values[0], values[1:]
        copies = apply(self.leaves[0][1:], values)  # by kernels, for speed
        with use_kernels("reference"):
            self.p = torch.cat([apply(self.leaves[0][:1], exact_value), copies])
        exact = self.p[0].detach()
        alpha = values if spec.name == "entmax" else 1.0
        alpha = alpha[0].detach() if isinstance(alpha, Tensor) else torch.tensor(alpha, dtype=s.dtype)
        steep = (exact > 0) & (alpha > 2)  # the slope p^(2 - alpha) has no bound, and entries are rounded one by one
        self.own = torch.where(steep, 4 * UNIT * exact.clamp(min=1e-30) ** (1 - alpha), 0)
        self.undecided = self.tied = torch.zeros_like(top, dtype=torch.bool)
        if given and spec.name in BY_ORDER:
            self.tied = tied_threshold(s, exact)
        else:
            for up in (exact == 0, s == top, exact > exact.amax(-1, keepdim=True) / 1000):
                pushed = s + torch.where(up, 2, -2) * rounding
                zeros = apply(pushed, exact_value.detach() if isinstance(value, Tensor) else value) == 0
                self.undecided = self.undecided | (zeros != (exact == 0)).any(-1, keepdim=True)

    @property
    def per_sum(self) -> float:
        """The relative rounding of a sum of all entries."""
        return UNIT * math.sqrt(self.p.shape[-1])

    def copies(self) -> Tensor:
        """p, which is normalised by a sum, with copies."""
        p = self.p.detach().clone()
        own = p[0] * (self.own + (p[0] * self.own).square().sum(-1, keepdim=True).sqrt() + self.per_sum)
        p[1:] += off_by(torch.zeros_like(own), own)[1:]
        return p

    def weights(self) -> Truth:
        """The truth of p."""
        truth = Truth.of(self.copies())
        return Truth(truth.exact, truth.rounding.masked_fill(self.undecided, math.inf), with_zeros=True)

    def gradients(self, dp: Tensor, rounding: Tensor) -> list[Tensor]:
        """The gradients in the scores and in a tensor parameter, from an incoming one with its rounding."""
        p = self.p[0].detach()
        rounding = rounding + self.per_sum * dp.abs()
        relative = 2 * self.own
        if self.saved.bits < 32:
            relative = self.saved.eps * (1 + self.saved.smallest_normal / p.clamp(min=self.saved.smallest_normal / 1e6))
        # an error of a weight acts like one of its gradient minus the mean
        rounding += relative * (dp - (p * dp).sum(-1, keepdim=True)).abs()
        ds, *dvalue = torch.autograd.grad(self.p, self.leaves, off_by(dp, rounding))
        # a mean of dp is subtracted from it
        mean = self.per_sum * p * (p * dp.abs()).sum(-1, keepdim=True) + UNIT64 * dp.abs().amax(-1, keepdim=True)
        own = (4 * UNIT * ds[0].abs() + mean).where(self.leaves[0][0].isfinite(), 0)
        ds[1:] += off_by(torch.zeros_like(own), own)[1:]
        return [ds, *dvalue]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    factors: Tensor | None,
    exact_scores: bool,
    /,
    *,
    mapping: str,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    **parameter: Any,
) -> tuple[Tensor, dict[str, Truth]]:
    """The incoming gradient, zero for queries that are undecided, and the truths of o and of the gradients."""
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]

    def rows(x: Tensor) -> Tensor:
        """What broadcasts to [B, Hq, Q, n] as [B, H, rows, n]: heads that share keys are further rows."""
        x = x.detach() if x.dtype == torch.bool else x.detach().double()
        return x.expand(batch, heads, queries, x.shape[-1]).reshape(batch, k.shape[1], -1, x.shape[-1])

    def unrows(x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-4], batch, heads, queries, x.shape[-1])

    q, k, v = rows(q), k.detach().double(), v.detach().double()
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s, rounding = scale * q @ k.mT, abs(scale) * product_rounding(q, k.mT)
    if attn_mask is None:
        attn_mask = torch.tensor([True])
    added = attn_mask.dtype != torch.bool
    mask = rows(attn_mask.expand(*attn_mask.shape[:-1], keys))
    if added:
        s, rounding, mask = s + mask, rounding + UNIT * (s + mask).abs(), mask > -math.inf
    if is_causal:
        mask = mask & rows(torch.ones(queries, keys, dtype=torch.bool).tril())
    s, rounding = s.masked_fill(~mask, -math.inf), rounding.masked_fill(~mask | exact_scores, 0)

    spec = MAPPINGS[mapping]
    name = spec.parameter.name if spec.parameter else ""
    value = parameter.pop(name, None)
    tensor = value if isinstance(value, Tensor) else None
    if tensor is not None:
        shape = tensor.shape
        tensor = tensor.reshape(-1, 1, 1) if tensor.dim() < 2 else tensor
        value = rows(tensor)
    mapped = Rows(spec, s, rounding, value, parameter)

    g = g.masked_fill(unrows(mapped.undecided | mapped.tied), 0)
    dropout = torch.ones(()) if factors is None else rows(factors)
    dp, dp_rounding = dropout * (rows(g) @ v.mT), dropout * product_rounding(rows(g), v.mT)
    ds, *dvalue = mapped.gradients(dp, dp_rounding)
    w = mapped.copies() * dropout

    def product(a: Tensor, b: Tensor) -> Truth:
        return Truth.of(a @ b, product_rounding(a[0], b))

    o = product(w, v)
    o.rounding.masked_fill_(mapped.undecided, math.inf)
    o = Truth(unrows(o.exact), unrows(o.rounding), with_zeros=bool((v >= 0).all()))
    truths = {"o": o, "dq": product(scale * ds, k), "dk": product(scale * ds.mT, q), "dv": product(w.mT, rows(g))}
    truths["dq"] = Truth(unrows(truths["dq"].exact), unrows(truths["dq"].rounding))
    if added:
        truths["dbias"] = summed(unrows(ds), attn_mask.shape)
    if tensor is not None:
        t = summed(unrows(dvalue[0]), tensor.shape)
        truths["dparameter"] = Truth(t.exact.reshape(shape), t.rounding.reshape(shape))
    return g, truths


# --------------------------------------------------------------------------- rounding


def product_rounding(a: Tensor, b: Tensor) -> Tensor:
    """Of a @ b: n times that of a partial sum, which is about as large as the whole and the norm of the terms."""
    return UNIT * math.sqrt(a.shape[-1]) * ((a @ b).abs() + (a.square() @ b.square()).sqrt())


def summed(copies: Tensor, shape: torch.Size) -> Truth:
    """Copies summed over the dimensions in which the shape broadcasts."""
    total = copies.sum_to_size(1 + COPIES, *[1] * (copies.dim() - 1 - len(shape)), *shape).reshape(-1, *shape)
    norm = copies[0].square().sum_to_size(shape).sqrt()
    terms = copies[0].numel() / max(total[0].numel(), 1)
    return Truth.of(total, UNIT * math.sqrt(terms) * (total[0].abs() + norm))


def off_by(x: Tensor, rounding: Tensor, alike: bool = False) -> Tensor:
    """x and copies of it that are off by its rounding, up or down at random; ``alike``: equal entries stay equal."""
    generator = torch.Generator().manual_seed(x.numel())
    if alike:
        values, which = x.unique(return_inverse=True)
        noise = torch.randn(COPIES, len(values), generator=generator, dtype=x.dtype)[:, which]
    else:
        noise = torch.randn(COPIES, *x.shape, generator=generator, dtype=x.dtype)
    return torch.cat([x[None], x + noise * rounding])


def tied_threshold(s: Tensor, p: Tensor) -> Tensor:
    """Whether scores next to the threshold are equal: which of them has a gradient is a matter of choice."""
    below = s.masked_fill(p > 0, -math.inf).amax(-1, keepdim=True)
    above = s.masked_fill(p == 0, math.inf).amin(-1, keepdim=True)
    return ((s == below) & (s > -math.inf)).sum(-1, keepdim=True).gt(1) | (s == above).sum(-1, keepdim=True).gt(1)


def random_like(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
