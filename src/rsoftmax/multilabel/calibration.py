"""Platt scaling for each label: scores become log-odds that can be trusted."""

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ENTRIES_AT_ONCE = 2**24
STEPS = 30
STEP_SIZES = (1.0, 0.3, 0.1, 0.01)  # a shorter step where a longer one does not help
PRECISION = 1e-6


class PlattScaling(nn.Module):
    r"""Log-odds from scores, a line for each label: ``slope * u + offset``, slope >= 0.

    .. math:: \min_{a, b} \sum_{\text{rows}} \mathrm{BCE}(a u + b, y)
              + \frac{\lambda}{2} \bigl((a - a_0)^2 + (b - b_0)^2\bigr)

    for each label, where the line ``(a_0, b_0)`` is that of all labels together, shrunk towards ``(1, 0)`` likewise.

    Args:
        labels: their number, K.
        shrinkage: the strength lambda of the pull towards the line of all labels, in rows of doubtful label.

    Attributes:
        slope, offset: buffers [K], saved with the module; 1 and 0 before :meth:`fit`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> u = torch.randn(1000, 2)
        >>> y = torch.rand(1000, 2) < (2 * u - 1).sigmoid()
        >>> scaling = PlattScaling(2).fit(u, y)
        >>> scaling.slope.round(decimals=1), scaling.offset.round(decimals=1)
        (tensor([2.3000, 2.0000]), tensor([-1., -1.]))
        >>> scaling(torch.zeros(1, 2)).round(decimals=1)
        tensor([[-1., -1.]])

    A label that never or always occurs is pulled towards the common line, so its log-odds stay finite. The order of
    rows within a label never changes. Newton's method, all labels at once: ``O(rows K)`` for each of a few steps.

    Reference: Platt, Probabilistic outputs for support vector machines (1999).
    """

    slope: Tensor
    offset: Tensor

    def __init__(self, labels: int, shrinkage: float = 1.0) -> None:
        super().__init__()
        if shrinkage <= 0:
            raise ValueError(f"PlattScaling: shrinkage must be above 0, got {shrinkage!r}")
        self.shrinkage = shrinkage
        self.register_buffer("slope", torch.ones(labels))
        self.register_buffer("offset", torch.zeros(labels))

    def reset(self) -> None:
        """Forget what was learned: scores are log-odds."""
        self.slope.fill_(1)
        self.offset.zero_()

    @torch.no_grad()
    def fit(self, u: Tensor, y: Tensor, weight: Tensor | None = None) -> Self:
        """Learn the lines.

        Args:
            u: scores [rows, K], finite, of rows that were not learned from; NaN where there is no score.
            y: labels [rows, K], 0 or 1; NaN where it is not known.
            weight: of the rows, [rows, 1], or of the entries, [rows, K].

        Entries with NaN count nowhere.
        """
        _check_scores(u, y, len(self.slope))
        weight = _of_known(u, y, weight)
        unchanged = torch.tensor([[1.0], [0.0]], dtype=torch.float64, device=u.device)
        common = _newton(u.reshape(-1, 1), y.reshape(-1, 1), weight.reshape(-1, 1), unchanged, self.shrinkage)
        chunk = max(ENTRIES_AT_ONCE // max(len(u), 1), 1)
        parts = zip(u.split(chunk, -1), y.split(chunk, -1), weight.split(chunk, -1), strict=True)
        lines = torch.cat([_newton(*part, common, self.shrinkage) for part in parts], -1)
        self.slope.copy_(lines[0])
        self.offset.copy_(lines[1])
        return self

    def forward(self, u: Tensor) -> Tensor:
        """From scores [..., K] to log-odds."""
        return self.slope.to(u.dtype) * u + self.offset.to(u.dtype)

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"{len(self.slope)}, shrinkage={self.shrinkage}"


def _check_scores(u: Tensor, y: Tensor, labels: int) -> None:
    if u.shape != y.shape or u.ndim != 2 or u.shape[1] != labels:
        raise ValueError(f"PlattScaling: needs scores and labels [rows, {labels}], got {[*u.shape]} and {[*y.shape]}")
    if u.isinf().any():
        raise ValueError("PlattScaling: a score is infinite; clip marginals of 0 and 1 before they become log-odds")


def _of_known(u: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
    """The weight of each entry, 0 where its score or its label is not known."""
    known = (~u.isnan() & ~y.isnan()).double()
    return known if weight is None else known * weight


def _newton(u: Tensor, y: Tensor, weight: Tensor, prior: Tensor, shrinkage: float) -> Tensor:
    """Slopes and offsets [2, K] that minimise the penalised loss; the slopes are not negative."""
    u, y = (entries.double().where(weight > 0, 0) for entries in (u, y))
    lines = prior.expand(2, u.shape[1])
    lowest = _penalised(u, y, weight, lines, prior, shrinkage)
    for _ in range(STEPS):
        step = _step(u, y, weight, lines, lines - prior, shrinkage)
        if step.abs().max() < PRECISION:
            break
        start = lines
        for size in STEP_SIZES:
            tried = _valid(start - size * step)
            loss = _penalised(u, y, weight, tried, prior, shrinkage)
            better = loss < lowest
            lines, lowest = torch.where(better, tried, lines), torch.where(better, loss, lowest)
            if better.all():
                break
    return lines


def _step(u: Tensor, y: Tensor, weight: Tensor, lines: Tensor, pull: Tensor, shrinkage: float) -> Tensor:
    """Newton's step [2, K]: the inverse of the 2 x 2 matrix of second derivatives times the gradient."""
    pi = (lines[0] * u + lines[1]).sigmoid()
    miss, curvature = weight * (pi - y), weight * pi * (1 - pi)
    da, db = (miss * u).sum(0) + shrinkage * pull[0], miss.sum(0) + shrinkage * pull[1]
    aa, ab, bb = (curvature * u * u).sum(0) + shrinkage, (curvature * u).sum(0), curvature.sum(0) + shrinkage
    step = torch.stack([bb * da - ab * db, aa * db - ab * da]) / (aa * bb - ab * ab)
    held = (lines[0] == 0) & (step[0] > 0)  # the slope stays 0: the offset moves alone
    return torch.where(held, torch.stack([torch.zeros_like(da), db / bb]), step)


def _valid(lines: Tensor) -> Tensor:
    return torch.stack([lines[0].clamp(min=0), lines[1]])


def _penalised(u: Tensor, y: Tensor, weight: Tensor, lines: Tensor, prior: Tensor, shrinkage: float) -> Tensor:
    """The function that is minimised, for each label, [K]."""
    odds = lines[0] * u + lines[1]
    return (weight * (F.softplus(odds) - y * odds)).sum(0) + shrinkage / 2 * (lines - prior).square().sum(0)
