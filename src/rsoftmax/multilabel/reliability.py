"""Whether marginals can be trusted: what was said beside what happened."""

from typing import NamedTuple

from torch import Tensor

BINS = 15


class CalibrationCurve(NamedTuple):
    """What was said and what happened, in bins of marginals that hold any.

    Attributes:
        said: the mean marginal of a bin, [bins].
        happened: the share of its entries that are labels, [bins].
        entries: how many it has, [bins].
        brier: the mean of ``(pi - y)^2`` over all entries.
    """

    said: Tensor
    happened: Tensor
    entries: Tensor
    brier: float

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of the two, over all entries."""
        return float((self.entries * (self.said - self.happened).abs()).sum() / self.entries.sum())


def calibration_curve(pi: Tensor, y: Tensor, *, bins: int = BINS) -> CalibrationCurve:
    """How often labels of a marginal near ``p`` are there, for ``p`` in bins of equal width.

    Args:
        pi: marginals of any shape, from 0 to 1, of rows that were not learned from.
        y: labels of the same shape, 0 or 1; NaN or -1 where not known, which counts nowhere.
        bins: their number.

    Example:
        >>> import torch
        >>> curve = calibration_curve(torch.tensor([[0.9, 0.9], [0.1, 0.1]]), torch.tensor([[1, 1], [0, 1]]))
        >>> curve.said, curve.happened, curve.entries
        (tensor([0.1000, 0.9000], dtype=torch.float64), tensor([0.5000, 1.0000], dtype=torch.float64), tensor([2, 2]))
        >>> round(curve.error, 4), round(curve.brier, 4)
        (0.25, 0.21)

    Reference: Guo et al., On calibration of modern neural networks (2017), for the error; its bins are 15.
    """
    _check(pi, y, bins)
    pi, y = pi.detach().double().flatten(), y.double().flatten()
    known = y >= 0
    pi, y = pi[known], y[known]
    place = (pi * bins).long().clamp(max=bins - 1)
    entries, said, happened = (place.bincount(values, bins) for values in (None, pi, y))
    some = entries > 0
    said, happened, entries = said[some], happened[some], entries[some]
    return CalibrationCurve(said / entries, happened / entries, entries, float((pi - y).square().mean()))


def _check(pi: Tensor, y: Tensor, bins: int) -> None:
    if pi.shape != y.shape:
        raise ValueError(f"calibration_curve: marginals {[*pi.shape]} and labels {[*y.shape]} must have one shape")
    if not ((pi >= 0) & (pi <= 1)).all():
        raise ValueError("calibration_curve: marginals must be from 0 to 1; predict_proba gives them")
    strange = y[~(y.isnan() | (y == -1) | (y == 0) | (y == 1))]
    if len(strange):
        raise ValueError(f"calibration_curve: labels must be 0 or 1, or NaN or -1 if not known, got {strange[0]:g}")
    if not (y >= 0).any():
        raise ValueError("calibration_curve: there is no entry whose label is known")
    if bins < 1:
        raise ValueError(f"calibration_curve: bins must be 1 or more, got {bins!r}")
