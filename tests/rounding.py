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

    def map(self, f: Callable[[Tensor], Tensor]) -> "Truth":
        """In another layout."""
        return Truth(f(self.exact), f(self.rounding), self.with_zeros)

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
    name: str,
    x: Tensor,
    value: Any = None,
    *,
    function: Callable[..., Tensor] | None = None,
    g: Tensor | None = None,
    mask: Tensor | None = None,
    **options: Any,
) -> float:
    """Judge a mapping of rows [..., n], and its gradients in x and in a tensor parameter.

    Args:
        name: of the mapping.
        x: in float32 or half precision.
        value: the parameter, a number or a tensor that broadcasts to [..., 1].
        function: what is judged; the mapping itself by default.
        g: the incoming gradient; random by default.
        mask: True = keep.
        options: of the mapping.

    Returns:
        The largest error in units of its bound.
    """
    leaves = [a.detach().requires_grad_() for a in (x, value) if isinstance(a, Tensor)]
    arguments = leaves[1:] or ([] if value is None else [value])
    p = (function or MAPPINGS[name].function)(leaves[0], *arguments, mask=mask, **options)
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
    ties: bool = False,
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
        ties: of scores tied at the threshold the same one must have its gradient as in the reference.
        options: attn_mask, is_causal, scale (a number), dropout_p, mapping, its parameter and options.

    Returns:
        The largest error in units of its bound.
    """
    names = [name for name, a in options.items() if isinstance(a, Tensor) and a.dtype != torch.bool]
    names.sort(key=lambda name: name != "attn_mask")  # in the order of the truths
    leaves = [a.detach().requires_grad_() for a in (q, k, v, *(options[name] for name in names))]
    o = attend(*leaves[:3], enable_gqa=True, **options | dict(zip(names, leaves[3:], strict=True)))
    options.pop("dropout_p", None)
    g, truths = attention(q, k, v, random_like(o), factors, exact_scores, ties, **options)
    return check_all(truths, o, *torch.autograd.grad(o, leaves, g))


def check_all(truths: dict[str, Truth], *results: Tensor) -> float:
    """The largest error of several results."""
    return max(truth.check(name, result) for (name, truth), result in zip(truths.items(), results, strict=True))


# --------------------------------------------------------------------------- the truth


class Rows:
    """A mapping of rows in float64. Results are [1 + COPIES, ..., L]: the exact one, then the copies.

    Args:
        spec: the mapping.
        s: the scores [..., L]; -inf is masked.
        rounding: of the scores; zero if they are the input of the mapping.
        value: the parameter, a number or a tensor that broadcasts to [..., 1].
        options: of the mapping.
        saved: the dtype in which backward reads the weights.
        ties: judge gradients where scores are tied at the threshold, by the choice of the reference.
    """

    def __init__(
        self,
        spec: MappingSpec,
        s: Tensor,
        rounding: Tensor,
        value: Any,
        options: dict[str, Any],
        saved: torch.dtype = torch.float32,
        ties: bool = False,
    ) -> None:
        self.spec, self.options, self.saved = spec, options, torch.finfo(saved)
        is_input = not rounding.any()
        self.s = s
        self.rounding = (rounding + preparation(spec, s)).masked_fill(s.isinf(), 0)
        leaf = off_by(s, self.rounding, alike=is_input).requires_grad_()
        values = [value, value]
        self.leaves = [leaf]
        if isinstance(value, Tensor):
            self.leaves.append(value.detach().double().expand(1 + COPIES, *s.shape[:-1], 1).clone().requires_grad_())
            values = [self.leaves[1][0], self.leaves[1][1:]]
        copies = self.apply(leaf[1:], values[1])  # by the kernels, which are faster
        with use_kernels("reference"):
            self.graph = torch.cat([self.apply(leaf[:1], values[0]), copies])
            self.p = self.graph[0].detach()
            self.undecided = self.tied = torch.zeros_like(s[..., :1], dtype=torch.bool)
            if is_input and spec.name in BY_ORDER:
                self.tied |= tied_at_threshold(s, self.p) & (not ties)
            else:
                self.undecided = self.zeros_may_differ(values[0])
        self.each = self.rounding_of_each(values[0])

    def apply(self, s: Tensor, value: Any) -> Tensor:
        return self.spec.function(s, *([] if value is None else [value]), **self.options)

    def zeros_may_differ(self, value: Any) -> Tensor:
        """Whether the zeros change if rounding pushes scores towards the threshold, in three ways."""
        value = value.detach() if isinstance(value, Tensor) else value
        ways = [self.p == 0, self.s == self.s.amax(-1, keepdim=True), self.p > self.p.amax(-1, keepdim=True) / 1000]
        pushed = torch.stack([self.s + torch.where(up, 2, -2) * self.rounding for up in ways])
        return ((self.apply(pushed, value) == 0) != (self.p == 0)).any(0).any(-1, keepdim=True)

    def rounding_of_each(self, value: Any) -> Tensor:
        """The relative rounding of single weights, where no rounding of scores is like it.

        Backward reads weights in half precision. In entmax with alpha > 2, the slope p^(2 - alpha) has no bound.
        """
        if self.saved.bits < 32:
            smallest = self.saved.smallest_normal
            return self.saved.eps * (1 + smallest / self.p.clamp(min=1e-6 * smallest))
        alpha = torch.as_tensor(value).detach() if self.spec.name == "entmax" else torch.ones(())
        return torch.where((alpha > 2) & (self.p > 0), 8 * UNIT * self.p.clamp(min=1e-30) ** (1 - alpha), 0)

    @property
    def of_sum(self) -> float:
        """The relative rounding of a sum of positive terms, one for each entry."""
        return UNIT * math.sqrt(self.s.shape[-1])

    def copies(self) -> Tensor:
        """The weights: normalised by a sum, in which the rounding of each one occurs."""
        each = self.each if self.saved.bits == 32 else torch.zeros(())
        common = (self.p * each).square().sum(-1, keepdim=True).sqrt() + self.of_sum
        return spread(self.graph.detach(), self.p * (each + common))

    def weights(self) -> Truth:
        """The truth of the weights."""
        truth = Truth.of(self.copies())
        return Truth(truth.exact, truth.rounding.masked_fill(self.undecided, math.inf), with_zeros=True)

    def gradients(self, dp: Tensor, rounding: Tensor) -> list[Tensor]:
        """The gradients in the scores and in a tensor parameter, from one in the weights with its rounding.

        All of them have the form slope (dp - mean): a wrong weight is like a wrong dp - mean, and the mean is a sum.
        """
        mean, size = (self.p * dp).sum(-1, keepdim=True), (self.p * dp.abs()).sum(-1, keepdim=True)
        off = rounding + self.of_sum * dp.abs() + self.each * (dp - mean).abs()
        ds, *dvalue = torch.autograd.grad(self.graph, self.leaves, off_by(dp, off))
        at_threshold = (self.s == beside_threshold(self.s, self.p)[0]) & (self.spec.name in BY_ORDER)
        has_gradient = (self.p > 0) | (ds[0] != 0) | at_threshold  # even if it is zero by cancellation
        of_mean = (self.of_sum + self.saved.eps * (self.saved.bits < 32)) * size
        own = 4 * UNIT * ds[0].abs() + (of_mean * self.slopes()).where(has_gradient, 0)
        own += UNIT64 * dp.abs().amax(-1, keepdim=True)
        own = own.where(self.s.isfinite(), 0)
        # a parameter moves the threshold, like the score below it, whose gradient has the same relative rounding
        relative = torch.where((self.p == 0) & (ds[0] != 0), own / ds[0].abs(), 0).amax(-1, keepdim=True)
        return [spread(ds, own), *(spread(d, relative * d[0].abs()) for d in dvalue)]

    def slopes(self) -> Tensor:
        """About the derivative of the sum that normalises, relative to it, in each score: that of (s - theta) e^s."""
        below, above = beside_threshold(self.s, self.p)
        distance, edge = self.s - below, self.options.get("edge", math.inf if self.spec.options else 0)
        ramp = torch.where((distance > 0) & (distance < edge), self.p / distance, 0)
        return self.p + ramp + torch.where((self.s == above) | (self.p == 0), ramp.sum(-1, keepdim=True), 0)


class Heads:
    """The layout of attention: query heads that share keys are further rows of one product."""

    def __init__(self, q: Tensor, k: Tensor) -> None:
        self.shape, self.shared = q.shape[:3], k.shape[:2]

    def join(self, x: Tensor) -> Tensor:
        """What broadcasts to [B, Hq, Q, n], as [B, H, rows, n]."""
        x = x.detach() if x.dtype == torch.bool else x.detach().double()
        return x.expand(*self.shape, x.shape[-1]).reshape(*self.shared, -1, x.shape[-1])

    def split(self, x: Tensor) -> Tensor:
        """The inverse, for copies, too."""
        return x.reshape(*x.shape[:-4], *self.shape, x.shape[-1])


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    factors: Tensor | None,
    exact_scores: bool,
    ties: bool,
    /,
    *,
    mapping: str,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    **parameter: Any,
) -> tuple[Tensor, dict[str, Truth]]:
    """The incoming gradient, zero where it is not judged, and the truths of o, dq, dk, dv, dbias and dparameter."""
    heads, spec = Heads(q, k), MAPPINGS[mapping]
    value = parameter.pop(spec.parameter.name, None) if spec.parameter else None
    bias = attn_mask if attn_mask is not None and attn_mask.is_floating_point() else None
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    rows_q, k, v = scale * heads.join(q), k.detach().double(), v.detach().double()

    s, rounding = rows_q @ k.mT, product_rounding(rows_q, k.mT)
    if bias is not None:
        s = s + heads.join(bias.expand(*bias.shape[:-1], k.shape[-2]))
        rounding = rounding + UNIT * s.abs()
    keep = visible(heads, s, attn_mask if bias is None else bias > -math.inf, is_causal)
    s, rounding = s.masked_fill(~keep, -math.inf), rounding.masked_fill(~keep | exact_scores, 0)
    value_of_rows = heads.join(per_head(value)) if isinstance(value, Tensor) else value
    rows = Rows(spec, s, rounding, value_of_rows, parameter, ties=ties)

    g = g.masked_fill(heads.split(rows.undecided | rows.tied), 0)
    rows_g, dropout = heads.join(g), torch.ones(()) if factors is None else heads.join(factors)
    w = dropout * rows.copies()
    ds, *dvalue = rows.gradients(dropout * (rows_g @ v.mT), dropout * product_rounding(rows_g, v.mT))
    o, dq = product(w, v).map(heads.split), product(ds, scale * k).map(heads.split)
    o = Truth(o.exact, o.rounding.masked_fill(heads.split(rows.undecided), math.inf), with_zeros=bool((v >= 0).all()))
    truths = {"o": o, "dq": dq, "dk": product(ds.mT, rows_q), "dv": product(w.mT, rows_g)}
    if bias is not None:
        truths["dbias"] = summed(heads.split(ds), bias.shape)
    if isinstance(value, Tensor):
        total = summed(heads.split(dvalue[0]), per_head(value).shape)
        truths["dparameter"] = total.map(lambda x: x.reshape(value.shape))
    return g, truths


def visible(heads: Heads, s: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """Which keys each row of scores may see."""
    queries, keys = heads.shape[-1], s.shape[-1]
    keep = torch.ones(queries, keys, dtype=torch.bool)
    return heads.join((keep.tril() if is_causal else keep) & (keep if mask is None else mask))


def per_head(value: Tensor) -> Tensor:
    """One value for each head, so that it broadcasts to [B, Hq, Q, 1]."""
    return value.reshape(-1, 1, 1) if value.dim() < 2 else value


# --------------------------------------------------------------------------- rounding


def preparation(spec: MappingSpec, s: Tensor) -> Tensor:
    """The rounding of what is done to scores first: the maximum is subtracted, then exponentials or thresholds."""
    distance = (s - s.amax(-1, keepdim=True).nan_to_num(neginf=0)).abs()
    return 4 * UNIT * (1 + distance + (0 if spec.shift_invariant else s.abs()))


def product_rounding(a: Tensor, b: Tensor) -> Tensor:
    """Of a @ b: in each of n steps that of a partial sum, which is as large as the sum and the norm of the terms."""
    return UNIT * math.sqrt(a.shape[-1]) * ((a @ b).abs() + (a.square() @ b.square()).sqrt())


def product(a: Tensor, b: Tensor) -> Truth:
    """The truth of a @ b, from copies of a."""
    return Truth.of(a @ b, product_rounding(a[0], b))


def summed(copies: Tensor, shape: torch.Size) -> Truth:
    """The truth of a sum over the dimensions in which the shape broadcasts."""
    ones = [1] * (copies.dim() - 1 - len(shape))
    total = copies.sum_to_size(1 + COPIES, *ones, *shape).reshape(-1, *shape)
    terms, norm = copies[0].numel() / max(total[0].numel(), 1), copies[0].square().sum_to_size(shape).sqrt()
    return Truth.of(total, UNIT * math.sqrt(terms) * (total[0].abs() + norm))


def off_by(x: Tensor, rounding: Tensor, alike: bool = False) -> Tensor:
    """x, and copies that are off by its rounding at random; ``alike``: by the same number where x is equal."""
    generator = torch.Generator().manual_seed(x.numel())
    values, which = x.unique(return_inverse=True) if alike else (x, ...)
    noise = torch.randn(COPIES, *values.shape, generator=generator, dtype=x.dtype)[:, which]
    return torch.cat([x[None], x + noise * rounding])


def spread(copies: Tensor, rounding: Tensor) -> Tensor:
    """Copies that are off by a further rounding."""
    return copies + off_by(torch.zeros_like(rounding), rounding)


def beside_threshold(s: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The largest score without a weight and the smallest one with a weight."""
    return s.masked_fill(p > 0, -math.inf).amax(-1, keepdim=True), s.masked_fill(p == 0, math.inf).amin(
        -1, keepdim=True
    )


def tied_at_threshold(s: Tensor, p: Tensor) -> Tensor:
    """Whether scores beside the threshold are equal: which of them has its gradient is a matter of choice."""
    below, above = beside_threshold(s, p)
    return ((s == below) & (s > -math.inf)).sum(-1, keepdim=True).gt(1) | (s == above).sum(-1, keepdim=True).gt(1)


def random_like(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
