"""How many labels, and which cut, the marginals alone ask for: the maximum of the expected F1, without labels.

The F1 of an answer is replaced by a ratio of expectations. With marginals ``pi`` and ``n`` entries answered "yes"

.. math:: F_\\beta = \\frac{(1 + \\beta^2) \\sum_{\\text{yes}} \\pi}{n + \\beta^2 \\sum \\pi}

and the best set of any size holds the highest marginals: those above ``F / (1 + beta^2)``, F being the best value.
"""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.tensors import exact

Average = Literal["micro", "macro", "samples"]
AVERAGES: tuple[Average, ...] = get_args(Average)
TINY = torch.finfo(torch.float32).tiny  # 0 / TINY = 0: the ratio of no entry at all


def expected_f1_count(
    u: Tensor, none: Tensor | None = None, *, beta: float = 1.0, at_least: int = 0, at_most: int | None = None
) -> Tensor:
    r"""The number of labels of a row with the highest expected F1, from the log-odds of the labels.

    .. math:: k^* = \arg\max_k F(k), \qquad
              F(k) = \frac{(1 + \beta^2) \sum_{i \le k} \pi_i}{k + \beta^2 \sum_i \pi_i}, \qquad
              F(0) = \mathrm{sigmoid}(\mathrm{none}), \qquad \pi = \mathrm{sigmoid}(u) \text{ in descending order}

    Args:
        u: log-odds of the labels, [..., K].
        none: log-odds that there is no label, [..., 1]; if not given, as of independent labels: F(0) = prod(1 - pi).
        beta: recall counts beta times as much as precision.
        at_least: the smallest number allowed.
        at_most: the largest number allowed; None: K.

    Returns:
        k, [..., 1], int64.

    Example:
        >>> u = torch.tensor([[3.0, -0.3, -3.0], [-4.0, -3.0, -5.0]])
        >>> expected_f1_count(u)
        tensor([[2],
                [0]])
        >>> expected_f1_count(u, at_least=1, at_most=1)
        tensor([[1],
                [1]])

    The ratio of expectations stands for the expectation of the ratio, which would take ``O(K^2)`` and more. The F1 of
    an empty answer is 1 if there is no label and 0 otherwise: F(0) is the probability of that.

    Reference: Lipton et al., Optimal thresholding of classifiers to maximize F1 measure (2014), for the ratio.
    """
    check_beta(beta)
    u = u.detach().to(exact(u)).sort(-1, descending=True).values
    pi, k = u.sigmoid(), torch.arange(1, u.shape[-1] + 1, device=u.device)
    some = (1 + beta**2) * pi.cumsum(-1) / (k + beta**2 * pi.sum(-1, keepdim=True))
    empty = (no_independent_label(u) if none is None else none.detach().to(u.dtype)).sigmoid()
    allowed = torch.cat([empty, some], -1)[..., at_least : None if at_most is None else at_most + 1]
    return at_least + allowed.argmax(-1, keepdim=True)


def expected_f1_cut(
    u: Tensor, average: Average = "micro", *, beta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    r"""The cut, or the cuts, above which labels maximise the expected F1 of many rows, from their log-odds alone.

    .. math:: c^* = \mathrm{logit}\left(\frac{F^*}{1 + \beta^2}\right), \qquad
              F^* = \max_c \frac{(1 + \beta^2) \sum_{u > c} \pi}{\#\{u > c\} + \beta^2 \sum \pi}, \qquad
              \pi = \mathrm{sigmoid}(u)

    Args:
        u: log-odds of the labels, [rows, K]; they should be calibrated, and of rows that were not learned from.
        average: which F1. "micro": one cut, from all entries. "macro": a cut for each label, from its column.
            "samples": a cut for each row, from the row, which is :func:`expected_f1_count` without the empty answer.
        beta: recall counts beta times as much as precision.
        weight: of the rows, [rows, 1], or of the entries, [rows, K].

    Returns:
        The cuts as log-odds: [1, 1] for "micro", [1, K] for "macro", [rows, 1] for "samples"; a label is an entry with
        ``u > cut``.

    Example:
        >>> u = torch.tensor([[2.0, -1.0], [1.0, -2.0], [-1.0, -3.0]])
        >>> u > expected_f1_cut(u, "micro")
        tensor([[ True, False],
                [ True, False],
                [False, False]])
        >>> u > expected_f1_cut(u, "macro")
        tensor([[ True,  True],
                [ True, False],
                [False, False]])

    F rises to its maximum in a few steps of ``F -> ratio of the entries above F / (1 + beta^2)``, each ``O(rows K)``.
    Where all marginals are 0 the cut is ``-inf``, and no entry lies above it. NaN raises.

    References: Lipton et al. (2014), for the cut at half of the best F1; Dinkelbach, On nonlinear fractional
    programming (1967), for the steps.
    """
    check_average(average)
    check_beta(beta)
    if u.isnan().any():
        raise ValueError("expected_f1_cut: the log-odds hold NaN, of which no label can be told")
    u = u.detach().to(exact(u))
    dims = {"micro": (-2, -1), "macro": (-2,), "samples": (-1,)}[average]
    pi, weight = u.sigmoid(), torch.ones_like(u) if weight is None else weight.to(u).expand_as(u)
    expected = beta**2 * (weight * pi).sum(dims, keepdim=True)
    share = torch.zeros_like(expected)  # F / (1 + beta^2)
    while True:
        yes = weight * (pi > share)
        ratio = (yes * pi).sum(dims, keepdim=True) / (yes.sum(dims, keepdim=True) + expected).clamp(min=TINY)
        if not (ratio > share).any():
            return share.logit()
        share = share.maximum(ratio)


def no_independent_label(u: Tensor) -> Tensor:
    """The log-odds of there being no label if labels are independent, ``logit(prod(1 - pi))``; [..., 1]."""
    log_p = -F.softplus(u).sum(-1, keepdim=True)
    return log_p - torch.log(-torch.expm1(log_p))


def check_average(average: str) -> None:
    """Raise unless it is one of ``AVERAGES``."""
    if average not in AVERAGES:
        raise ValueError(f"expected F1: no average is called {average!r}; there are {', '.join(map(repr, AVERAGES))}")


def check_beta(beta: float) -> None:
    """Raise unless beta is positive and finite."""
    if not 0 < beta < math.inf:
        raise ValueError(f"expected F1: beta must be above 0 and finite, got {beta!r}; 1 is the F1")
