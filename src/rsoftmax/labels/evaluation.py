"""Evaluation of predictions: F-measures, precision at k, calibration, and the scores of each label."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["CalibrationCurve", "Evaluation", "LabelScores", "calibration_curve", "evaluate"]

TOP = (1, 3, 5)
BINS = 15


class CalibrationCurve(NamedTuple):
    """Predicted against observed frequencies, in the bins of marginals that are not empty.

    Attributes:
        predicted: the mean marginal of a bin, [bins].
        observed: the fraction of positive entries, [bins].
        entries: the number of entries, [bins].
        brier: the mean of ``(pi - y)^2`` over all entries.
    """

    predicted: Tensor
    observed: Tensor
    entries: Tensor
    brier: float

    @property
    def error(self) -> float:
        """The expected calibration error: the mean of ``|predicted - observed|`` over all entries."""
        return float((self.entries * (self.predicted - self.observed).abs()).sum() / self.entries.sum())


def calibration_curve(pi: Tensor, y: Tensor, *, bins: int = BINS) -> CalibrationCurve:
    """Compare marginals with observed frequencies, in bins of equal width.

    Args:
        pi: marginals in [0, 1] of held-out rows, any shape.
        y: labels of the same shape, 0 or 1; entries with NaN or -1 are unknown and ignored.
        bins: the number of bins.

    Example:
        >>> import torch
        >>> curve = calibration_curve(torch.tensor([[0.9, 0.9], [0.1, 0.1]]), torch.tensor([[1, 1], [0, 1]]))
        >>> curve.predicted, curve.observed
        (tensor([0.1000, 0.9000], dtype=torch.float64), tensor([0.5000, 1.0000], dtype=torch.float64))
        >>> round(curve.error, 4), round(curve.brier, 4)
        (0.25, 0.21)

    Reference: Guo et al., On calibration of modern neural networks (2017), for the error and its 15 bins.
    """
    _check_curve(pi, y, bins)
    pi, y = pi.detach().double().flatten(), y.double().flatten()
    known = y >= 0
    pi, y = pi[known], y[known]
    place = (pi * bins).long().clamp(max=bins - 1)
    entries, predicted, observed = (place.bincount(values, bins) for values in (None, pi, y))
    some = entries > 0
    predicted, observed, entries = predicted[some], observed[some], entries[some]
    return CalibrationCurve(predicted / entries, observed / entries, entries, float((pi - y).square().mean()))


@dataclass(frozen=True)
class LabelScores:
    """The scores of one label; NaN where a ratio has no denominator.

    Attributes:
        label: its name.
        precision: NaN if the label was never predicted.
        recall: NaN if no row has the label.
        f1: NaN if no row has the label: then there is nothing to find, and any prediction is a false positive.
        rows: the number of rows that have it.
    """

    label: str
    precision: float
    recall: float
    f1: float
    rows: int


@dataclass(frozen=True)
class Evaluation:
    """Scores of predictions on labelled rows, each in [0, 1].

    Attributes:
        rows: the number of rows.
        micro: F1 over all entries.
        macro: the mean F1 over the labels that at least one row has.
        samples: the mean F1 over rows; 1 for a row without labels for which none was predicted.
        precision_at: mean precision among the k labels with the highest marginals, by k.
        brier: the mean squared difference of marginal and label; lower is better.
        calibration_error: the expected calibration error of ``curve``.
        labels: the scores of each label.
        curve: predicted against observed frequencies.
    """

    rows: int
    micro: float
    macro: float
    samples: float
    precision_at: dict[int, float]
    brier: float
    calibration_error: float
    labels: list[LabelScores]
    curve: CalibrationCurve

    @property
    def absent(self) -> list[str]:
        """The labels that no row has: they have no F1, and "macro" leaves them out."""
        return [one.label for one in self.labels if not one.rows]

    @property
    def macro_with_absent(self) -> float:
        """scikit-learn's macro-F1 with ``zero_division=1``: an absent label counts 1, or 0 if it was predicted."""
        return sum(_with_absent(one) for one in self.labels) / max(len(self.labels), 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as JSON values: without the curve, and with None in place of NaN."""
        found = {name: value for name, value in asdict(self).items() if name != "curve"}
        labels = [{name: _or_none(value) for name, value in one.items()} for one in found["labels"]]
        return {name: _or_none(value) for name, value in found.items()} | {"labels": labels}

    def rename(self, names: Sequence[str]) -> "Evaluation":
        """Return the same scores under other label names."""
        return replace(self, labels=[replace(one, label=name) for one, name in zip(self.labels, names, strict=True)])

    def headline(self) -> dict[str, float]:
        """Return the overall scores by title."""
        top = {f"precision at {k}": share for k, share in self.precision_at.items()}
        f1 = {f"{name} F1": float(getattr(self, name)) for name in ("micro", "macro", "samples")}
        if self.absent:
            f1[f"macro F1, {len(self.absent)} absent labels counted as 1 or 0"] = self.macro_with_absent
        return {**f1, **top, "Brier score": self.brier, "calibration error": self.calibration_error}


def evaluate(marginals: Tensor, predicted: Tensor, y: Tensor, names: Sequence[str]) -> Evaluation:
    """Score predictions.

    Args:
        marginals: [rows, K].
        predicted: the predicted labels, bool [rows, K].
        y: the labels, [rows, K], 0 or 1; entries with NaN are unknown and ignored.
        names: the names of the labels.

    Example:
        >>> marginals = torch.tensor([[0.9, 0.2], [0.6, 0.7]])
        >>> scores = evaluate(marginals, marginals > 0.5, torch.tensor([[1, 0], [0, 1]]), ["a", "b"])
        >>> round(scores.micro, 3), round(scores.samples, 3), scores.precision_at
        (0.8, 0.833, {1: 1.0})
    """
    known = ~y.isnan()
    predicted, y = predicted.bool() & known, y.nan_to_num().bool()
    correct = predicted & y
    precision, recall = (correct.sum(0).double() / part.sum(0) for part in (predicted, y))
    f1 = _f1(correct, predicted, y, 0).where(y.any(0), torch.nan)
    curve = calibration_curve(marginals[known], y[known])
    return Evaluation(
        rows=len(y),
        micro=float(_f1(correct, predicted, y, (0, 1))),
        macro=float(f1.nanmean()),
        samples=float(_f1(correct, predicted, y, 1)[known.any(1)].mean()),
        precision_at={k: _precision_at(marginals, known, y, k) for k in TOP if k < len(names)},
        brier=curve.brier,
        calibration_error=curve.error,
        labels=[
            LabelScores(*label)
            for label in zip(names, *(column.tolist() for column in (precision, recall, f1, y.sum(0))), strict=True)
        ],
        curve=curve,
    )


def _f1(correct: Tensor, predicted: Tensor, y: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """F1 over some dimensions; 1 where nothing is predicted and nothing is positive."""
    size = predicted.sum(dims) + y.sum(dims)
    return torch.where(size == 0, 1.0, 2 * correct.sum(dims).double() / size.clamp(min=1))


def _precision_at(marginals: Tensor, known: Tensor, y: Tensor, k: int) -> float:
    """The fraction of positive entries among the k most probable known ones of each row."""
    top = marginals.where(known, -1.0).topk(k, 1).indices
    return float(y.gather(1, top).sum().double() / known.gather(1, top).sum())


def _with_absent(one: LabelScores) -> float:
    """The F1 of a label; for an absent one 1, or 0 if it was predicted: its precision is then 0 instead of NaN."""
    return one.f1 if one.rows else float(one.precision != one.precision)


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def _check_curve(pi: Tensor, y: Tensor, bins: int) -> None:
    if pi.shape != y.shape:
        raise ValueError(f"calibration_curve: pi and y must have the same shape, got {[*pi.shape]} and {[*y.shape]}")
    if not ((pi >= 0) & (pi <= 1)).all():
        raise ValueError("calibration_curve: pi must be in [0, 1]; use predict_proba, or sigmoid of log-odds")
    strange = y[~(y.isnan() | (y == -1) | (y == 0) | (y == 1))]
    if len(strange):
        raise ValueError(f"calibration_curve: y must hold 0 or 1, or NaN or -1 where unknown, got {strange[0]:g}")
    if not (y >= 0).any():
        raise ValueError(f"calibration_curve: y of shape {[*y.shape]} has no known label")
    if bins < 1:
        raise ValueError(f"calibration_curve: bins must be 1 or more, got {bins!r}")
