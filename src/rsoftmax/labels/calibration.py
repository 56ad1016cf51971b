"""Platt scaling per label: turns scores of any scale into calibrated log-odds."""

import warnings
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PlattScaling"]

CHUNK = 2**24  # entries whose labels are fitted at once
SAMPLE = 2**21  # entries that choose how scores are standardised, and from which the common line is fitted
STEPS, HALVINGS = 200, 40
TOLERANCE = 1e-10  # of the expected decrease, relative to the loss
RIDGE = 1e-9  # makes the minimum unique where all scores are equal
NARROWEST = 1e-30  # spread of scores that differ
OUTLIER = 10.0  # spreads from the median


class PlattScaling(nn.Module):
    r"""Maps scores to log-odds by one line per label, ``slope * u + offset`` with ``slope >= 0``.

    .. math:: \min_{a \ge 0, b} \sum_{\text{samples}} \mathrm{BCE}(a v + b, y)
              + \frac{\lambda}{2} \bigl((a - a_0)^2 + (b - b_0)^2\bigr)

    for each label, where ``v`` are the scores after one line for all labels together, fitted by Platt's method, so that
    ``a_0 = 1, b_0 = 0``. Labels with few samples share that line, and a single label uses it unchanged. Scores are
    first standardised, all together or label by label, whichever fits better, so their scale does not matter.

    Args:
        num_labels: the number of labels, K.
        shrinkage: the strength lambda of the pull towards the common line; 1 has the effect of a few samples.

    Attributes:
        slope, offset: buffers [K], saved with the module; 1 and 0 before :meth:`fit`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> u = torch.randn(1000, 2)
        >>> y = torch.rand(1000, 2) < (2 * u - 1).sigmoid()
        >>> scaling = PlattScaling(2).fit(100 * u, y)
        >>> (100 * scaling.slope).round(decimals=1), scaling.offset.round(decimals=1)
        (tensor([2.3000, 2.0000]), tensor([-1., -1.]))
        >>> scaling(torch.zeros(1, 2)).round(decimals=1)
        tensor([[-1., -1.]])

    The order of samples within a label never changes: where the best slope would be negative it is 0. Labels that never
    or always occur are pulled towards the common line, so their log-odds stay finite. Newton's method with a line
    search converges for every label at once in a few steps of ``O(samples K)``; a label for which it does not converge
    uses the common line, with a warning.

    Reference: Platt, Probabilistic outputs for support vector machines (1999); Lin et al., A note on Platt's
    probabilistic outputs for support vector machines (2007), for the line search.
    """

    slope: Tensor
    offset: Tensor

    def __init__(self, num_labels: int, shrinkage: float = 1.0) -> None:
        super().__init__()
        if shrinkage <= 0:
            raise ValueError(f"PlattScaling: shrinkage must be positive, got {shrinkage!r}")
        self.shrinkage = shrinkage
        self.register_buffer("slope", torch.ones(num_labels))
        self.register_buffer("offset", torch.zeros(num_labels))

    def reset(self) -> None:
        """Return to the identity, the state before :meth:`fit`."""
        self.slope.fill_(1)
        self.offset.zero_()

    @torch.no_grad()
    def fit(self, scores: Tensor, y: Tensor, weight: Tensor | None = None) -> Self:
        """Fit the lines; entries with NaN are ignored.

        Args:
            scores: [samples, K], of held-out samples, finite; NaN where there is no score.
            y: labels [samples, K], 0 or 1; NaN where unknown.
            weight: weights of the samples, [samples, 1], or of the entries, [samples, K].
        """
        num_labels = len(self.slope)
        if scores.shape != y.shape or scores.ndim != 2 or scores.shape[1] != num_labels:
            shapes = f"{[*scores.shape]} and {[*y.shape]}"
            raise ValueError(f"PlattScaling: scores and y must be [samples, {num_labels}], got shapes {shapes}")
        if scores.isinf().any():
            raise ValueError("PlattScaling: scores contain inf; clip probabilities of 0 and 1 before taking log-odds")
        weight = scores.new_ones(1, 1) if weight is None else weight
        check_not_negative("PlattScaling: weight", weight)
        weight = weight.expand_as(scores)
        step = max(-(-scores.numel() // SAMPLE), 1)
        sample = scores[::step], y[::step], weight[::step]
        problem = _Regressions.of_known(*sample)
        if num_labels == 1:
            common = _fit_common(problem, together=True)
            lines = common.lines(common.prior)
        else:
            commons = [_fit_common(problem, together) for together in (True, False)]
            fits = [self._fit_labels(*sample, common) for common in commons]
            best = min((0, 1), key=lambda i: fits[i].loss)
            fit = fits[best] if step == 1 else self._fit_labels(scores, y, weight, commons[best])
            lines = fit.lines
            if fit.failed:
                _warn_not_converged(f"for {fit.failed} labels, which use the line of all labels together")
        self.slope.copy_(lines[0])
        self.offset.copy_(lines[1])
        return self

    def _fit_labels(self, u: Tensor, y: Tensor, weight: Tensor, common: "_Common") -> "_Fit":
        """Fit a line to each label, as many labels at once as fit into memory."""
        fits = []
        for columns in torch.arange(u.shape[1], device=u.device).split(max(CHUNK // max(len(u), 1), 1)):
            part = _Common(common.slope[columns], common.offset[columns], common.prior)
            problem = _Regressions.of_known(u[:, columns], y[:, columns], weight[:, columns])
            problem = problem._replace(u=part.slope * problem.u + part.offset, prior=part.prior, ridge=self.shrinkage)
            lines, converged = _minimise(problem)
            lines = lines.where(converged, part.prior)
            loss = float(problem.loss(lines).nan_to_num(nan=torch.inf).sum())
            fits.append(_Fit(part.lines(lines), loss, int((~converged).sum())))
        return _Fit(torch.cat([fit.lines for fit in fits], -1), sum(f.loss for f in fits), sum(f.failed for f in fits))

    def forward(self, scores: Tensor) -> Tensor:
        """Map scores [..., K] to log-odds."""
        return self.slope.to(scores.dtype) * scores + self.offset.to(scores.dtype)

    def extra_repr(self) -> str:
        """The settings shown by ``repr``."""
        return f"{len(self.slope)}, shrinkage={self.shrinkage}"


class _Fit(NamedTuple):
    """Slopes and offsets [2, K], their penalised loss, and for how many labels the fit did not converge."""

    lines: Tensor
    loss: float
    failed: int


class _Regressions(NamedTuple):
    """One logistic regression per column: BCE of ``slope * u + offset``, pulled towards a prior line.

    Attributes:
        u, y, weight: scores, targets and weights, float64 [samples, K].
        prior: slope and offset [2, 1].
        ridge: the strength of the pull.
    """

    u: Tensor
    y: Tensor
    weight: Tensor
    prior: Tensor
    ridge: float = RIDGE

    @classmethod
    def of_known(cls, u: Tensor, y: Tensor, weight: Tensor) -> Self:
        """With a weight of 0 where the score or the label is NaN."""
        known = ~u.isnan() & ~y.isnan()
        u, y, weight = (entries.double().where(known, 0) for entries in (u, y, weight))
        return cls(u, y, weight, u.new_zeros(2, 1))

    def take(self, columns: Tensor) -> Self:
        """The regressions of some columns."""
        return self._replace(**{name: getattr(self, name)[:, columns] for name in ("u", "y", "weight")})

    def scale(self, together: bool) -> tuple[Tensor, Tensor]:
        """Median and normalised interquartile range [K] of the scores; the deviation where most scores are equal."""
        u = self.u.where(self.weight > 0, torch.nan)
        u = u.reshape(-1, 1) if together else u
        ordered, count = u.sort(0).values, (~u.isnan()).sum(0, keepdim=True)  # NaN comes last
        index = (torch.tensor([[0.25], [0.5], [0.75]], device=u.device) * (count - 1)).long().clamp(min=0)
        low, middle, high = ordered.gather(0, index).nan_to_num() if len(u) else u.new_zeros(3, 1)
        spread = (high - low) / 1.35
        spread = spread.where(spread > 0, (u - middle).nan_to_num().square().mean(0).sqrt())
        spread = spread.where(spread > 0, 1).clamp(min=NARROWEST)
        return middle.expand(self.u.shape[1]), spread.expand(self.u.shape[1])

    def loss(self, lines: Tensor) -> Tensor:
        """The penalised loss [K] of lines [2, K]."""
        odds = lines[0] * self.u + lines[1]
        likelihood = (self.weight * (F.softplus(odds) - self.y * odds)).sum(0)
        return likelihood + self.ridge / 2 * (lines - self.prior).square().sum(0)

    def newton(self, lines: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Newton's step [2, K], of the offset alone where ``flat``, and twice the decrease [K] that it predicts."""
        pi, pull = (lines[0] * self.u + lines[1]).sigmoid(), self.ridge * (lines - self.prior)
        miss, curvature = self.weight * (pi - self.y), self.weight * pi * (1 - pi)
        da, db = (miss * self.u).sum(0) + pull[0], miss.sum(0) + pull[1]
        slanted = curvature * self.u
        aa, ab, bb = (slanted * self.u).sum(0), slanted.sum(0), curvature.sum(0)
        da, ab, aa, bb = da.where(~flat, 0), ab.where(~flat, 0), aa + self.ridge, bb + self.ridge
        step = torch.stack([bb * da - ab * db, aa * db - ab * da]) / (aa * bb - ab * ab)
        return step, step[0] * da + step[1] * db


class _Common(NamedTuple):
    """The line of all labels together: scores are mapped by ``slope`` and ``offset``, then by the ``prior`` line.

    Attributes:
        slope, offset: [K].
        prior: slope and offset [2, 1]; (1, 0) unless the scores say next to nothing about the labels.
    """

    slope: Tensor
    offset: Tensor
    prior: Tensor

    def lines(self, lines: Tensor) -> Tensor:
        """Lines [2, K] on mapped scores as lines on the scores themselves."""
        return torch.stack([lines[0] * self.slope, lines[0] * self.offset + lines[1]])


def _fit_common(problem: _Regressions, together: bool) -> _Common:
    """Fit one line to the scores of all labels, standardised together or label by label."""
    center, spread = problem.scale(together)
    known = problem.weight > 0
    v, y, weight = (part[known][:, None] for part in ((problem.u - center) / spread, problem.y, problem.weight))
    line = _platt(_Regressions(v, y, weight, v.new_zeros(2, 1)))
    unit = line[0].clamp(min=1)
    prior = torch.stack([line[0] / unit, line[1] * (1 - line[0] / unit)])
    return _Common(unit / spread, line[1] - unit * center / spread, prior)


def _platt(problem: _Regressions) -> Tensor:
    """Platt's line [2, 1]: a logistic regression with smoothed targets.

    Smoothing flattens the line where there are outliers, even right ones. A fit with clipped outliers replaces it if it
    has the lower loss on the unclipped scores.
    """
    positive, total = (problem.weight * problem.y).sum(), problem.weight.sum()
    smooth = torch.where(problem.y == 1, (positive + 1) / (positive + 2), 1 / (total - positive + 2))
    clipped = problem.u.clamp(-OUTLIER, OUTLIER)
    fits = [_minimise(problem._replace(u=u, y=smooth)) for u in (problem.u, clipped)]
    lines = [line for line, converged in fits if converged and problem.loss(line).isfinite()]
    if not lines:
        _warn_not_converged("for all labels together; their slope is one standard deviation")
        return torch.stack([torch.ones_like(total)[None], ((positive + 1) / (total + 2)).logit()[None]])
    return min(lines, key=lambda line: float(problem.loss(line)))


def _minimise(problem: _Regressions) -> tuple[Tensor, Tensor]:
    """The best lines [2, K] without negative slopes, and for which columns the search converged [K].

    The loss is convex: where the best slope is negative, the best non-negative slope is 0.
    """
    positive, total = (problem.weight * problem.y).sum(0), problem.weight.sum(0)
    start = torch.stack([torch.zeros_like(total), ((positive + 0.5) / (total + 1)).logit()])
    lines, converged = _descend(problem, start, torch.zeros_like(total, dtype=torch.bool))
    turned = lines[0] < 0
    if turned.any():
        lines[:, turned], converged[turned] = _descend(problem.take(turned), start[:, turned], turned[turned])
    return lines, converged


def _descend(problem: _Regressions, lines: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method with a line search; columns that have converged do not change."""
    lines, converged, active = lines.clone(), torch.zeros_like(flat), torch.arange(lines.shape[1], device=lines.device)
    for _ in range(STEPS):
        loss = problem.loss(lines[:, active])
        step, decrease = problem.newton(lines[:, active], flat[active])
        done = decrease <= TOLERANCE * (1 + loss)
        if done.any():
            converged[active[done]] = True
            problem, active = problem.take(~done), active[~done]
            step, loss, decrease = step[:, ~done], loss[~done], decrease[~done]
        if not len(active):
            break
        lines[:, active] = _search(problem, lines[:, active], step, loss, decrease)
    return lines, converged


def _search(problem: _Regressions, start: Tensor, step: Tensor, loss: Tensor, decrease: Tensor) -> Tensor:
    """The lines after the longest of the steps 1, 1/2, 1/4, ... that lowers each loss enough (Armijo's rule)."""
    size = torch.ones_like(loss)
    for _ in range(HALVINGS):
        lines = start - size * step
        too_long = ~(problem.loss(lines) <= loss - 1e-4 * size * decrease)  # also where the loss is NaN
        if not too_long.any():
            break
        size = torch.where(too_long, size / 2, size)
    return lines.where(~too_long, start)


def _warn_not_converged(which: str) -> None:
    warnings.warn(
        f"PlattScaling: the fit did not converge {which}; check the scores for extreme values",
        RuntimeWarning,
        stacklevel=4,
    )


def check_not_negative(name: str, values: float | Tensor) -> None:
    """Raise ValueError if a value is negative or NaN."""
    values = torch.as_tensor(values)
    if len(wrong := values[~(values >= 0)]):
        raise ValueError(f"{name} must not be negative or NaN, got {wrong[0]:g}")
