"""The mappings: section 3 of the paper, top to bottom, then those it is compared with. ``MAPPINGS`` lists them all.

A mapping turns a row of logits into probabilities: ``f(x, <parameter>, dim=-1, *, mask=None)``. What they share:

* ``x`` is float64, float32, float16 or bfloat16 of any shape; half precision is computed in float32.
* ``mask`` is boolean and broadcasts to ``x``, True = keep. A masked entry is like ``-inf``, and like no entry
  at all: padding never changes a row. A fully masked row gives zeros, with zero gradient.
* NaN and ``+inf`` turn their own row into NaN, as in :func:`torch.softmax`, and no other row.
* A parameter is a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1: one for each row, head or
  batch element. It is differentiable. Values outside its domain raise :class:`ValueError`; in tensors on other devices
  and in compiled code, where reading them would cost a synchronisation, they give rows of NaN instead.
"""

import math

import torch
from torch import Tensor

from rsoftmax._rows import ParamSpec, broadcast, check_input, check_option, inside_domain, over_rows
from rsoftmax._tensors import Value, apply_unmasked, exp_limit, mask_to_neg_inf, row_max
from rsoftmax.kernels.dispatch import row_function
from rsoftmax.registry import (
    ABOVE_ONE,
    BELOW_ONE,
    COUNT,
    DISTANCE,
    ENTMAX,
    LOGIT,
    MAPPINGS,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    SUM,
    WEIGHT,
    MappingSpec,
    register_mapping,
)

__all__ = [
    "MAPPINGS",
    "MappingSpec",
    "budget",
    "entmax",
    "entmax15",
    "k_softmax",
    "lapsum",
    "normmax",
    "r_softmax",
    "sink_softmax",
    "softmax",
    "softpick",
    "sparsegen_exp",
    "sparsegen_lin",
    "sparsehourglass",
    "sparsemax",
    "spherical_softmax",
    "t_softmax",
    "weighted_softmax",
]

_softmax = row_function("softmax")


@register_mapping(formula="e^x / sum", zeros="none", source="Bridle 1990")
def softmax(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Softmax, with masks: a fully masked row gives zeros instead of NaN.

    .. math:: p_i = e^{x_i} / \sum_j e^{x_j}

    Args:
        x: logits, any shape.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``. No zeros, except where masked.

    Example:
        >>> softmax(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([0.0321, 0.0871, 0.2369, 0.6439])
        >>> softmax(torch.tensor([1.0, 2.0, 3.0]), mask=torch.tensor([True, False, True]))
        tensor([0.1192, 0.0000, 0.8808])
    """
    return over_rows("softmax", _softmax, x, dim, mask)


W = ParamSpec("w", WEIGHT, example=1.0)
_weighted_softmax = row_function("weighted_softmax")


def weighted_softmax(x: Tensor, w: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Softmax with a weight for each entry: the general form of t-, r- and k-softmax.

    .. math:: p_i = w_i e^{x_i} / \sum_j w_j e^{x_j}

    Args:
        x: logits, any shape.
        w: weights, at least 0 and finite; broadcasts to ``x``. Only their ratios matter.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``; zero exactly where ``w`` is zero.

    Example:
        >>> weighted_softmax(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, 0.0]))
        tensor([0.2689, 0.7311, 0.0000])

    A row whose weights are all zero gives zeros, like a fully masked row.

    Reference: Bałazy et al., r-softmax (2023), "The weighted softmax".
    """
    check_input("weighted_softmax", x, dim)
    if not isinstance(w, Tensor):
        raise TypeError(f"weighted_softmax: w must be a tensor that broadcasts to {tuple(x.shape)}, got {w!r}")
    w = broadcast("weighted_softmax", "w", w.to(x.device), x.shape).movedim(dim, -1)

    def rows(x: Tensor, mask: Tensor | None) -> Tensor:
        weights = w if mask is None else torch.where(mask, w, 0)  # masked entries may have any weight
        return _weighted_softmax(x, mask, inside_domain("weighted_softmax", W, weights))

    return over_rows("weighted_softmax", rows, x, dim, mask)


EDGE = ParamSpec("edge", DISTANCE, example=1.0, default=math.inf)

T = ParamSpec("t", POSITIVE, example=2.0)
_t_softmax = row_function("t_softmax")


@register_mapping(
    formula="min(x - theta, edge)+ e^x / sum, theta = max(x) - t",
    parameter=T,
    options=(EDGE,),
    zeros="t and the data",
    source="Bałazy et al. 2023, eq. 1",
)
def t_softmax(x: Tensor, t: Value, dim: int = -1, *, edge: float = math.inf, mask: Tensor | None = None) -> Tensor:
    r"""Softmax that sets entries at least ``t`` below the maximum to zero.

    .. math:: p_i = w_i e^{x_i} / \sum_j w_j e^{x_j}, \qquad w_i = \min(x_i - \max(x) + t,\; \mathrm{edge})_+ \qquad (1)

    Args:
        x: logits, any shape.
        t: greater than 0; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1.
        dim: the dimension that sums to one.
        edge: the distance above the threshold over which weights rise; a number, at least 0. ``math.inf`` is the
            paper's mapping. 0 gives every entry of the support the same weight: softmax cut off ``t`` below the
            maximum, which is the rule of min-p sampling with p = e^-t.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``; zero exactly where :math:`\max(x) - x_i \ge t`.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> t_softmax(x, 2.5)
        tensor([0.0000, 0.0217, 0.1769, 0.8014])
        >>> t_softmax(x, 2.5, edge=0)
        tensor([0.0000, 0.0900, 0.2447, 0.6652])

    ``t = math.inf`` is softmax, for every ``edge``. As ``t`` falls to 0 all mass moves to the maximum, shared equally
    by ties. The support does not depend on ``edge``. With ``edge = 0`` the probabilities jump where an entry crosses
    the threshold, and ``t`` has no gradient; for every other edge they are continuous.

    Reference: Bałazy et al., r-softmax (2023), eq. 1 and Theorem 1.
    """
    edge = check_option("t_softmax", EDGE, edge)
    return over_rows("t_softmax", _t_softmax, x, dim, mask, T, t, edge=edge)


R = ParamSpec("r", RATE, example=0.5)
_r_softmax = row_function("r_softmax")


@register_mapping(
    formula="min(x - theta, edge)+ e^x / sum, theta = quantile(x, r)",
    parameter=R,
    options=(EDGE,),
    zeros="r: exactly k of n at r = k/n",
    source="Bałazy et al. 2023, eq. 3",
    nonzeros=lambda r, n: (1 - r) * n,
)
def r_softmax(
    x: Tensor,
    r: Value,
    dim: int = -1,
    *,
    edge: float = math.inf,
    mask: Tensor | None = None,
    detach_threshold: bool = False,
) -> Tensor:
    r"""Softmax with a rate of zeros that you choose: ``r = k/n`` gives exactly ``k`` zeros in a row of ``n``.

    .. math:: p_i = w_i e^{x_i} / \sum_j w_j e^{x_j}, \qquad
              w_i = \min(x_i - \mathrm{quantile}(x, r),\; \mathrm{edge})_+ \qquad (3)

    which is ``t_softmax(x, max(x) - quantile(x, r))``, the quantile interpolated linearly.

    Args:
        x: logits, any shape.
        r: the rate, in [0, 1]; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1.
        dim: the dimension that sums to one.
        edge: the distance above the threshold over which weights rise; see :func:`t_softmax`.
        mask: True = keep; broadcasts to ``x``. ``n`` counts unmasked entries.
        detach_threshold: treat the quantile as a constant in the backward pass, as the authors' published module
            does. The default is the true gradient, in ``x`` and in ``r``.

    Returns:
        Probabilities, of the shape and dtype of ``x``. For distinct entries and 0 < r < 1, ``floor(r (n-1)) + 1``
        of them are zero.

    Example:
        >>> r_softmax(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5)
        tensor([0.0000, 0.0000, 0.1092, 0.8908])
        >>> r_softmax(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5, edge=0)
        tensor([0.0000, 0.0000, 0.2689, 0.7311])
        >>> r_softmax(torch.randn(8, 10), torch.linspace(0, 0.9, 8).unsqueeze(-1)).count_nonzero(-1)
        tensor([10,  8,  7,  6,  5,  4,  3,  1])

    ``r = 0`` is softmax, as the paper says in its text ("r = 0 (dense output)"). Its formula read literally would
    zero the smallest entry there, and a row without zeros could not be expressed; that reading is available as
    ``t_softmax(x, max(x) - min(x))``. ``r = 1`` keeps the maximum only, shared equally by ties. Entries tied at the
    threshold all become zero, except that a row's maximum never does; a constant row gives the uniform distribution at
    every rate. In rows longer than about 4,000, pass ``r`` as a number or in float64: float32 cannot represent ``k/n``
    closely enough there.

    Reference: Bałazy et al., r-softmax (2023), eq. 3.
    """
    edge = check_option("r_softmax", EDGE, edge)
    return over_rows("r_softmax", _r_softmax, x, dim, mask, R, r, edge=edge, detach_threshold=detach_threshold)


K = ParamSpec("k", COUNT, example=4.0)
_k_softmax = row_function("k_softmax")


@register_mapping(
    formula="min(x - theta, edge)+ e^x / sum, theta = the entry below the k largest",
    parameter=K,
    options=(EDGE,),
    zeros="k: all but k",
    source="this library",
    nonzeros=lambda k, n: k,
)
def k_softmax(x: Tensor, k: Value, dim: int = -1, *, edge: float = math.inf, mask: Tensor | None = None) -> Tensor:
    r"""Softmax with a number of nonzeros that you choose: the ``k`` largest entries stay.

    .. math:: p_i = w_i e^{x_i} / \sum_j w_j e^{x_j}, \qquad w_i = \min(x_i - \theta,\; \mathrm{edge})_+

    where :math:`\theta` is the largest entry that does not stay: the one at the ascending position ``n - 1 - k`` (from
    0) of the ``n`` unmasked entries, interpolated linearly between neighbours for fractional ``k``.

    Args:
        x: logits, any shape.
        k: the number of entries to keep, at least 1; a number, or a tensor that broadcasts against ``x`` with ``dim``
            of size 1. Fractional values are allowed: ``ceil(k)`` entries stay, the last with a smaller weight.
        dim: the dimension that sums to one.
        edge: the distance above the threshold over which weights rise; see :func:`t_softmax`. 0 is top-k softmax.
        mask: True = keep; broadcasts to ``x``. ``n`` counts unmasked entries.

    Returns:
        Probabilities, of the shape and dtype of ``x``; of distinct entries, ``min(ceil(k), n)`` are not zero.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> k_softmax(x, 2)
        tensor([0.0000, 0.0000, 0.1554, 0.8446])
        >>> k_softmax(x, 2, edge=0)
        tensor([0.0000, 0.0000, 0.2689, 0.7311])
        >>> k_softmax(x, 4)
        tensor([0.0321, 0.0871, 0.2369, 0.6439])

    In a row of ``n`` unmasked entries, ``k > n - 1`` is softmax, for every ``edge``. Ties behave as in
    :func:`r_softmax`: entries tied at the threshold all become zero, except that a row's maximum never does. ``k`` has
    a gradient, which follows the interpolation.
    """
    edge = check_option("k_softmax", EDGE, edge)
    return over_rows("k_softmax", _k_softmax, x, dim, mask, K, k, edge=edge)


_sparsemax = row_function("sparsemax")


@register_mapping(formula="[x - tau]+", zeros="the data", source="Martins & Astudillo 2016")
def sparsemax(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""The point of the probability simplex nearest to ``x``.

    .. math:: p_i = [x_i - \tau]_+, \qquad \tau \text{ such that } \sum_i p_i = 1

    Args:
        x: logits, any shape.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``; the data determine the number of zeros.

    Example:
        >>> sparsemax(torch.tensor([1.0, 2.0, 2.5, 2.8]))
        tensor([0.0000, 0.0000, 0.3500, 0.6500])

    Reference: Martins & Astudillo, From softmax to sparsemax (2016).
    """
    return over_rows("sparsemax", _sparsemax, x, dim, mask)


LAM = ParamSpec("lam", BELOW_ONE, example=0.5)


@register_mapping(
    formula="sparsemax(x / (1 - lam))", parameter=LAM, zeros="lam and the data", source="Laha et al. 2018"
)
def sparsegen_lin(x: Tensor, lam: Value, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Sparsemax with a temperature: ``sparsemax(x / (1 - lam))``.

    Args:
        x: logits, any shape.
        lam: less than 1; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1. 0 is sparsemax,
            larger is sparser, negative is denser.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``; ``lam`` and the data determine the number of zeros.

    Example:
        >>> sparsegen_lin(torch.tensor([1.0, 2.0, 2.5, 2.8]), -1.0)
        tensor([0.0000, 0.1167, 0.3667, 0.5167])

    Reference: Laha et al., On controllable sparse alternatives to softmax (2018).
    """

    def rows(x: Tensor, mask: Tensor | None, lam: Value) -> Tensor:
        # An entry 1 - lam below the maximum is outside the support; clamped there, its quotient cannot overflow.
        x = mask_to_neg_inf(x, mask)
        return _sparsemax(apply_unmasked(x - row_max(x), lambda d: d.clamp(min=lam - 1) / (1 - lam)))

    return over_rows("sparsegen_lin", rows, x, dim, mask, LAM, lam)


LAM_EXP = ParamSpec("lam", BELOW_ONE, example=-4.0)


@register_mapping(
    formula="sparsemax(e^x / (1 - lam))",
    parameter=LAM_EXP,
    zeros="lam and the data",
    source="Laha et al. 2018",
    shift_invariant=False,
)
def sparsegen_exp(x: Tensor, lam: Value, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Sparsemax of exponentials: ``sparsemax(exp(x) / (1 - lam))``; not invariant to shifts.

    Args:
        x: logits, any shape.
        lam: less than 1; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1. At
            ``lam = 1 - sum(exp(x))`` this is softmax.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``; ``lam`` and the data determine the number of zeros.

    Example:
        >>> sparsegen_exp(torch.tensor([1.0, 2.0, 2.5, 2.8]), -9.0)
        tensor([0.0000, 0.0000, 0.2869, 0.7131])

    Reference: Laha et al., On controllable sparse alternatives to softmax (2018).
    """

    def rows(x: Tensor, mask: Tensor | None, lam: Value) -> Tensor:
        x = mask_to_neg_inf(x, mask)
        # e^x - e^m = e^m expm1(x - m) keeps ties exact and cannot overflow to inf - inf. Where e^m would overflow,
        # every entry below the maximum is far outside the support already, so the clamp changes nothing.
        m = row_max(x)
        log_width = torch.log1p(-lam) if isinstance(lam, Tensor) else math.log1p(-lam)
        height = (m - log_width).clamp(max=exp_limit(x)).exp()
        return _sparsemax(apply_unmasked(x - m, lambda d: torch.expm1(d) * height))

    return over_rows("sparsegen_exp", rows, x, dim, mask, LAM_EXP, lam)


Q = ParamSpec("q", NOT_NEGATIVE, example=10.0, default=10.0)


@register_mapping(
    formula="sparsemax(x (1 + nq) / (abs(sum x) + nq))",
    parameter=Q,
    zeros="the data",
    source="Laha et al. 2018",
    shift_invariant=False,
)
def sparsehourglass(x: Tensor, q: Value = 10.0, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Sparsemax of a rescaled row, between scale invariance (q = 0) and shift invariance (q to infinity).

    .. math:: p = \mathrm{sparsemax}(a x), \qquad a = \frac{1 + n q}{|\sum_i x_i| + n q}

    Args:
        x: logits, any shape.
        q: at least 0; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``. The sum and ``n`` run over unmasked entries.

    Returns:
        Probabilities, of the shape and dtype of ``x``; the data determine the number of zeros.

    Example:
        >>> sparsehourglass(torch.tensor([1.0, 2.0, 3.0]))
        tensor([0.0000, 0.0694, 0.9306])

    At ``q = 0`` and a sum of 0, where ``a`` is infinite, all mass lies on the maximum, shared equally by ties.

    Reference: Laha et al., On controllable sparse alternatives to softmax (2018).
    """

    def rows(x: Tensor, mask: Tensor | None, q: Value) -> Tensor:
        x = mask_to_neg_inf(x, mask)
        return _sparsemax(apply_unmasked(x - row_max(x), lambda d: hourglass_scale(x, q) * d))

    return over_rows("sparsehourglass", rows, x, dim, mask, Q, q)


def hourglass_scale(x: Tensor, q: Value) -> Tensor:
    """The factor ``a`` of :func:`sparsehourglass`, for rows; where it is infinite, the largest that floats allow."""
    unmasked = x != -math.inf
    n = unmasked.sum(-1, keepdim=True, dtype=x.dtype).clamp(min=1)
    mean = torch.where(unmasked, x / n, 0).sum(-1, keepdim=True)
    if not isinstance(q, Tensor):
        q = min(q, torch.finfo(x.dtype).max)
    return (1 / n + q) / (mean.abs() + q).clamp(min=torch.finfo(x.dtype).tiny)  # divided by n: n q might overflow


_spherical_softmax = row_function("spherical_softmax")


@register_mapping(
    formula="x^2 / sum",
    zeros="none",
    source="de Brébisson & Vincent 2015",
    shift_invariant=False,
    keeps_order=False,
)
def spherical_softmax(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Squares in place of exponentials: ignores signs, zero only where ``x`` is.

    .. math:: p_i = x_i^2 / \sum_j x_j^2

    Args:
        x: logits, any shape.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``.

    Example:
        >>> spherical_softmax(torch.tensor([1.0, -2.0, 0.0, 2.0]))
        tensor([0.1111, 0.4444, 0.0000, 0.4444])

    A row of zeros gives the uniform distribution.

    Reference: de Brébisson & Vincent, An exploration of softmax alternatives (2015).
    """
    return over_rows("spherical_softmax", _spherical_softmax, x, dim, mask)


_entmax15 = row_function("entmax15")


@register_mapping(formula="([x/2 - tau]+)^2", zeros="the data", source="Peters et al. 2019")
def entmax15(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""1.5-entmax, halfway between softmax and sparsemax.

    .. math:: p_i = [x_i / 2 - \tau]_+^2, \qquad \tau \text{ such that } \sum_i p_i = 1

    Args:
        x: logits, any shape.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``; the data determine the number of zeros.

    Example:
        >>> entmax15(torch.tensor([0.0, 2.0, 2.5, 2.8]))
        tensor([0.0000, 0.1133, 0.3441, 0.5426])

    Reference: Peters et al., Sparse sequence-to-sequence models (2019).
    """
    return over_rows("entmax15", _entmax15, x, dim, mask)


ALPHA = ParamSpec("alpha", ENTMAX, example=1.25)
_entmax = row_function("entmax")


@register_mapping(
    formula="([(alpha - 1) x - tau]+)^(1 / (alpha - 1))",
    parameter=ALPHA,
    zeros="alpha and the data",
    source="Peters et al. 2019",
)
def entmax(x: Tensor, alpha: Value, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Alpha-entmax, from softmax (alpha = 1) through 1.5-entmax and sparsemax (alpha = 2) to sparser ones.

    .. math:: p_i = [(\alpha - 1) x_i - \tau]_+^{1 / (\alpha - 1)}, \qquad \tau \text{ such that } \sum_i p_i = 1

    Args:
        x: logits, any shape.
        alpha: in [1, 4]; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``; zero exactly where :math:`(\alpha - 1) x_i \le \tau`.

    Example:
        >>> entmax(torch.tensor([1.0, 2.0, 2.5, 2.8]), 1.25)
        tensor([0.0218, 0.1618, 0.3322, 0.4842])
        >>> entmax(torch.tensor([1.0, 2.0, 2.5, 2.8]).expand(3, 4), torch.tensor([[1.0], [1.5], [2.0]]))
        tensor([[0.0702, 0.1908, 0.3145, 0.4245],
                [0.0000, 0.1133, 0.3441, 0.5426],
                [0.0000, 0.0000, 0.3500, 0.6500]])

    ``alpha = 1`` is softmax, its limit. An entry ``1 / (alpha - 1)`` below the maximum is always zero. The derivatives
    in ``x`` and ``alpha`` are exact up to the third order. Above 2, a probability leaves zero with an infinite slope:
    in a row with an entry at the threshold, a rounding error ``e`` becomes ``e^(1 / (alpha - 1))``.

    Reference: Peters et al., Sparse sequence-to-sequence models (2019); Correia et al., Adaptively sparse transformers
    (2019), for the gradient in alpha.
    """
    return over_rows("entmax", _entmax, x, dim, mask, ALPHA, alpha)


ALPHA_NORM = ParamSpec("alpha", ABOVE_ONE, example=2.0)


@register_mapping(
    formula="([x - tau]+)^(1 / (alpha - 1)) / sum",
    parameter=ALPHA_NORM,
    zeros="alpha and the data",
    source="Blondel et al. 2020",
)
def normmax(x: Tensor, alpha: Value, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""The distribution with the largest mean logit minus norm; on its support more uniform than entmax.

    .. math:: p = \arg\max_p \; p \cdot x - \|p\|_\alpha, \qquad p_i \propto [x_i - \tau]_+^{1 / (\alpha - 1)}

    Args:
        x: logits, any shape.
        alpha: greater than 1; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1. Towards 1
            all mass lies on the maximum; if it is large, the mapping is uniform on the support of sparsemax.
        dim: the dimension that sums to one.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Probabilities, of the shape and dtype of ``x``; ``alpha`` and the data determine the number of zeros.

    Example:
        >>> normmax(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), 2.0)
        tensor([0.0000, 0.0239, 0.1746, 0.3254, 0.4761])

    Reference: Blondel et al., Learning with Fenchel-Young losses (2020).
    """

    def rows(x: Tensor, mask: Tensor | None, alpha: Value) -> Tensor:
        # p^alpha is proportional to the (1 + b)-entmax of x / b. An entry 1 below the maximum is zero.
        x, b = mask_to_neg_inf(x, mask), (alpha - 1) / alpha
        d = x - row_max(x)
        q = _entmax(apply_unmasked(d.masked_fill(d <= -1, -math.inf), lambda d: d / b), None, 1 + b)
        root = (q.masked_fill(q <= 0, 1) ** (1 / alpha)).masked_fill(q <= 0, 0)
        total = root.sum(-1, keepdim=True)
        return root / total.masked_fill(total == 0, 1)

    return over_rows("normmax", rows, x, dim, mask, ALPHA_NORM, alpha)


K_SUM = ParamSpec("k", SUM, example=2.0)
_budget = row_function("budget")


@register_mapping(
    formula="clip(x - tau, 0, 1), sum k",
    parameter=K_SUM,
    zeros="k and the data",
    source="Malaviya et al. 2018",
    sums_to_one=False,
)
def budget(x: Tensor, k: Value, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Sparsemax with a sum of ``k`` and no entry above 1: a soft choice of ``k`` entries.

    .. math:: p_i = \min([x_i - \tau]_+, 1), \qquad \tau \text{ such that } \sum_i p_i = k

    Args:
        x: logits, any shape.
        k: the sum, at least 0; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1.
        dim: the dimension that sums to ``k``.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Weights in [0, 1], of the shape and dtype of ``x``. A row of at most ``k`` unmasked entries is all ones.

    Example:
        >>> budget(torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0]), 3.0)
        tensor([0.0000, 0.2500, 0.7500, 1.0000, 1.0000])

    References: Malaviya et al., Sparse and constrained attention (2018); Lou et al., Sparser is faster and less is
    more (2024), where it is called SparseK.
    """
    return over_rows("budget", _budget, x, dim, mask, K_SUM, k)


_lapsum = row_function("lapsum")


@register_mapping(
    formula="F(x - b), F Laplace's distribution function, sum k",
    parameter=K_SUM,
    zeros="none",
    source="Struski et al. 2025",
    sums_to_one=False,
)
def lapsum(x: Tensor, k: Value, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""LapSum's soft top-k: weights that sum to ``k``, near 1 for the largest entries and near 0 for the others.

    .. math:: p_i = F(x_i - b), \qquad b \text{ such that } \sum_i p_i = k, \qquad F(u) = \int_{-\infty}^u e^{-|v|} / 2

    Args:
        x: logits, any shape; the choice is harder if they are divided by a temperature below 1.
        k: the sum, at least 0; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1.
        dim: the dimension that sums to ``k``.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Weights in (0, 1), of the shape and dtype of ``x``. A row of at most ``k`` unmasked entries is all ones.

    Example:
        >>> lapsum(torch.tensor([0.0, 1.0, 2.0, 3.0]), 2.0)
        tensor([0.1116, 0.3033, 0.6967, 0.8884])

    Reference: Struski et al., LapSum: one method to differentiate them all (2025).
    """
    return over_rows("lapsum", _lapsum, x, dim, mask, K_SUM, k)


SINK = ParamSpec("sink", LOGIT, example=0.0, default=0.0)


@register_mapping(
    formula="e^x / (e^sink + sum)",
    parameter=SINK,
    zeros="none",
    source="Miller 2023 (softmax1)",
    shift_invariant=False,
    sums_to_one=False,
)
def sink_softmax(x: Tensor, sink: Value = 0.0, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Softmax with one more entry, the sink, which takes what is left of the sum.

    .. math:: p_i = e^{x_i} / (e^{\mathrm{sink}} + \sum_j e^{x_j})

    Args:
        x: logits, any shape.
        sink: the logit of the sink; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1. 0 is
            softmax1, a learned one for each head is that of gpt-oss, and ``-math.inf`` is softmax.
        dim: the dimension that is normalised.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Weights that sum to less than one, of the shape and dtype of ``x``. No zeros, except where masked.

    Example:
        >>> sink_softmax(torch.tensor([1.0, 2.0, -1.0]))
        tensor([0.2369, 0.6439, 0.0321])

    Reference: Miller, Attention is off by one (2023).
    """

    def rows(x: Tensor, mask: Tensor | None, sink: Value) -> Tensor:
        x = mask_to_neg_inf(x, mask)
        last = sink.to(x.dtype) if isinstance(sink, Tensor) else torch.full_like(x[..., :1], sink)
        return _softmax(torch.cat([x, last], -1))[..., :-1]

    return over_rows("sink_softmax", rows, x, dim, mask, SINK, sink)


_softpick = row_function("softpick")


@register_mapping(
    formula="[e^x - 1]+ / sum abs(e^x - 1)",
    zeros="the sign of x",
    source="Zuhri et al. 2025",
    shift_invariant=False,
    sums_to_one=False,
)
def softpick(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    r"""Rectified softmax: only positive logits get a weight, and a row may have none at all.

    .. math:: p_i = [e^{x_i} - 1]_+ / \sum_j |e^{x_j} - 1|

    Args:
        x: logits, any shape.
        dim: the dimension that is normalised.
        mask: True = keep; broadcasts to ``x``.

    Returns:
        Weights that sum to at most one, of the shape and dtype of ``x``; zero exactly where :math:`x_i \le 0`.

    Example:
        >>> softpick(torch.tensor([1.0, 2.0, -1.0, 0.0]))
        tensor([0.1966, 0.7311, 0.0000, 0.0000])

    Reference: Zuhri et al., Softpick: no attention sink, no massive activations with rectified softmax (2025).
    """
    return over_rows("softpick", _softpick, x, dim, mask)
