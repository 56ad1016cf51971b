"""Evaluation of predictions: F-measures, precision at k, calibration, and the scores of each label."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax.labels.models.card import aligned, count_of, printable, share

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
        return self._mean_gap(self.entries)

    @property
    def error_of_labels(self) -> float:
        """The same over labels, predicted and observed: a bin counts ``predicted + observed`` times its entries.

        Nearly all entries of a problem with many labels are negative, with marginals near zero. They make the error
        over all entries small, however wrong the probabilities are that decide. Here they have no weight.
        """
        return self._mean_gap(self.entries * (self.predicted + self.observed))

    def _mean_gap(self, weights: Tensor) -> float:
        gaps = (self.predicted - self.observed).abs()
        return float((weights * gaps).sum() / weights.sum().clamp(min=torch.finfo(gaps.dtype).tiny))


def calibration_curve(marginals: Tensor, y: Tensor, *, bins: int = BINS) -> CalibrationCurve:
    """Compare marginals with observed frequencies, in bins of equal width.

    Args:
        marginals: in [0, 1], of held-out samples, any shape.
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
    _check_curve(marginals, y, bins)
    known = (y >= 0).flatten()
    pi, y = marginals.detach().double().flatten()[known], y.double().flatten()[known]
    return curve_of(pi, y, bins)


def curve_of(pi: Tensor, y: Tensor, bins: int = BINS, zeros: int = 0) -> CalibrationCurve:
    """The curve of known entries, float64 [entries], and of so many more with marginal 0 and label 0."""
    index = (pi * bins).long().clamp(max=bins - 1)
    entries, predicted, observed = (index.bincount(values, bins) for values in (None, pi, y))
    entries[0] += zeros
    some = entries > 0
    predicted, observed, entries = predicted[some], observed[some], entries[some]
    brier = float((pi - y).square().sum() / entries.sum())
    return CalibrationCurve(predicted / entries, observed / entries, entries, brier)


@dataclass(frozen=True)
class LabelScores:
    """The scores of one label; NaN where a ratio has no denominator.

    Attributes:
        label: its name.
        precision: NaN if the label was never predicted.
        recall: NaN if no sample has the label.
        f1: NaN if no sample has the label: any prediction is then a false positive.
        support: the number of samples that have it.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Evaluation:
    """Scores of predictions on labelled samples, each in [0, 1].

    Attributes:
        num_samples: the number of samples.
        micro: F1 over all entries.
        macro: the mean F1 over the labels that at least one sample has.
        samples: the mean F1 over samples; 1 for a sample without labels for which none was predicted.
        samples_zero: the same with 0 in place of 1: scikit-learn's ``zero_division=0``.
        precision_at: mean precision among the k labels with the highest marginals, by k.
        brier: the mean squared difference of marginal and label; lower is better.
        calibration_error: the mean difference of predicted and observed frequencies over labels; see
            :attr:`CalibrationCurve.error_of_labels`.
        labels: the scores of each label.
        curve: predicted against observed frequencies.
    """

    num_samples: int
    micro: float
    macro: float
    samples: float
    samples_zero: float
    precision_at: dict[int, float]
    brier: float
    calibration_error: float
    labels: list[LabelScores] = field(repr=False)
    curve: CalibrationCurve = field(repr=False)

    def __str__(self) -> str:
        """The overall scores and those of each label as a table."""
        overall = [["score", count_of(self.num_samples, "row")], *([n, share(v)] for n, v in self.headline().items())]
        labels = [["label", "precision", "recall", "F1", "rows"]]
        for s in self.labels:
            labels.append([printable(s.label), *map(share, (s.precision, s.recall, s.f1)), str(s.support)])
        return f"{aligned(overall)}\n\n{aligned(labels)}"

    @property
    def absent(self) -> list[str]:
        """The labels that no sample has: they have no F1, and "macro" leaves them out."""
        return [scores.label for scores in self.labels if not scores.support]

    @property
    def macro_with_absent(self) -> float:
        """scikit-learn's macro-F1 with ``zero_division=1``: an absent label counts 1, or 0 if it was predicted."""
        f1 = [s.f1 if s.support else float(s.precision != s.precision) for s in self.labels]  # NaN: never predicted
        return sum(f1) / max(len(f1), 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as JSON values: without the curve, and with None in place of NaN."""
        values = asdict(replace(self, labels=[])) | {"labels": [_without_nan(asdict(scores)) for scores in self.labels]}
        del values["curve"]
        return _without_nan(values)

    def rename(self, names: Sequence[str]) -> "Evaluation":
        """Return the same scores under other label names."""
        return replace(self, labels=[replace(s, label=name) for s, name in zip(self.labels, names, strict=True)])

    def headline(self) -> dict[str, float]:
        """Return the overall scores by title."""
        title = f"macro F1, {len(self.absent)} absent labels counted as 1 or 0"
        return headline(vars(self), {title: self.macro_with_absent} if self.absent else {})


def headline(scores: dict[str, Any], further_f1: dict[str, float]) -> dict[str, Any]:
    """The overall scores by title, from an evaluation or its JSON."""
    titles = {f"{name} F1": scores[name] for name in ("micro", "macro", "samples")}
    zero = scores.get("samples_zero", scores["samples"])  # models of version 0.1 were saved without
    if zero != scores["samples"]:
        titles |= {"samples F1, zero_division=0": zero}
    titles |= further_f1
    titles |= {f"precision at {k}": precision for k, precision in scores["precision_at"].items()}
    return titles | {"Brier score": scores["brier"], "calibration error": scores["calibration_error"]}


def evaluate(marginals: Tensor, predicted: Tensor, y: Tensor, names: Sequence[str]) -> Evaluation:
    """Score predictions.

    Args:
        marginals: [samples, K].
        predicted: the predicted labels, bool [samples, K].
        y: the labels, [samples, K], 0 or 1; entries with NaN are unknown and ignored.
        names: the names of the labels.

    Example:
        >>> marginals = torch.tensor([[0.9, 0.2], [0.6, 0.7]])
        >>> scores = evaluate(marginals, marginals > 0.5, torch.tensor([[1, 0], [0, 1]]), ["a", "b"])
        >>> round(scores.micro, 3), round(scores.samples, 3), scores.precision_at
        (0.8, 0.833, {1: 1.0})
        >>> print(scores)
        score              2 rows
        micro F1            0.800
        macro F1            0.833
        samples F1          0.833
        precision at 1      1.000
        Brier score         0.125
        calibration error   0.250
        <BLANKLINE>
        label  precision  recall     F1  rows
        a          0.500   1.000  0.667     1
        b          1.000   1.000  1.000     1
    """
    known = ~y.isnan()
    predicted, y = predicted.bool() & known, y.nan_to_num().bool()
    correct = predicted & y
    f1_of_samples = _f1(correct, predicted, y, 1)[known.any(1)]
    empty = ~(predicted | y).any(1)[known.any(1)]
    precision, recall = (correct.sum(0).double() / part.sum(0) for part in (predicted, y))
    f1 = _f1(correct, predicted, y, 0).where(y.any(0), torch.nan)
    columns = (column.tolist() for column in (precision, recall, f1, y.sum(0)))
    curve = calibration_curve(marginals[known], y[known])
    return Evaluation(
        num_samples=len(y),
        micro=float(_f1(correct, predicted, y, (0, 1))),
        macro=float(f1.nanmean()),
        samples=float(f1_of_samples.mean()),
        samples_zero=float(f1_of_samples.where(~empty, 0).mean()),
        precision_at={k: _precision_at(k, marginals, known, y) for k in TOP if k < len(names)},
        brier=curve.brier,
        calibration_error=curve.error_of_labels,
        labels=[LabelScores(*scores) for scores in zip(names, *columns, strict=True)],
        curve=curve,
    )


def _f1(correct: Tensor, predicted: Tensor, y: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """F1 over some dimensions; 1 where nothing is predicted and nothing is positive."""
    size = predicted.sum(dims) + y.sum(dims)
    return torch.where(size == 0, 1.0, 2 * correct.sum(dims).double() / size.clamp(min=1))


def _precision_at(k: int, marginals: Tensor, known: Tensor, y: Tensor) -> float:
    """The fraction of positive entries among the k most probable known ones of each sample."""
    top = marginals.where(known, -1.0).topk(k, 1).indices
    return float(y.gather(1, top).sum().double() / known.gather(1, top).sum())


def _without_nan(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and value != value else value for name, value in values.items()}


def _check_curve(marginals: Tensor, y: Tensor, bins: int) -> None:
    if marginals.shape != y.shape:
        shapes = f"{[*marginals.shape]} and {[*y.shape]}"
        raise ValueError(f"calibration_curve: marginals and y must have the same shape, got {shapes}")
    if not ((marginals >= 0) & (marginals <= 1)).all():
        raise ValueError("calibration_curve: marginals must be in [0, 1]; use predict_proba, or sigmoid of log-odds")
    strange = y[~(y.isnan() | (y == -1) | (y == 0) | (y == 1))]
    if len(strange):
        raise ValueError(f"calibration_curve: y must be 0 or 1, or NaN or -1 where unknown, got {strange[0]:g}")
    if not (y >= 0).any():
        raise ValueError(f"calibration_curve: y of shape {[*y.shape]} has no known label")
    if bins < 1:
        raise ValueError(f"calibration_curve: bins must be 1 or more, got {bins!r}")
