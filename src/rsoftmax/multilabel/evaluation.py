"""How good answers are: every F1, precision among the first labels, calibration, and each label for itself."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rsoftmax.multilabel.reliability import CalibrationCurve, calibration_curve

FIRST = (1, 3, 5)


@dataclass(frozen=True)
class LabelScores:
    """One label: right answers as a share of those given and of those due, and the number of rows that have it.

    A share of nothing is NaN: the precision of a label that was never answered, the recall of one that no row has.
    """

    label: str
    precision: float
    recall: float
    f1: float
    rows: int


@dataclass(frozen=True)
class Evaluation:
    """Scores of answers, each between 0 and 1.

    Attributes:
        rows: how many rows were looked at.
        micro, macro, samples: F1 of all entries, its mean over the labels, its mean over the rows. Where there is
            nothing to find and nothing was found, it is 1.
        precision_at: the mean share of right labels among the k with the highest marginals, by k.
        brier: the mean square of the distance between marginal and truth; lower is better.
        calibration_error: the expected one, of ``curve``.
        labels: each label.
        curve: how far marginals can be trusted.
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

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON can hold it, with None in place of NaN and without the curve."""
        found = {name: value for name, value in asdict(self).items() if name != "curve"}
        labels = [{k: None if v != v else v for k, v in one.items()} for one in found["labels"]]
        return {**found, "labels": labels}

    def named(self, names: Sequence[str]) -> "Evaluation":
        """The same with other names of the labels."""
        return replace(self, labels=[replace(one, label=name) for one, name in zip(self.labels, names, strict=True)])

    def headline(self) -> dict[str, float]:
        """The scores of the whole, by title."""
        first = {f"precision at {k}": share for k, share in self.precision_at.items()}
        f1 = {f"{name} F1": float(getattr(self, name)) for name in ("micro", "macro", "samples")}
        return {**f1, **first, "Brier score": self.brier, "calibration error": self.calibration_error}


def evaluated(marginals: Tensor, found: Tensor, truth: Tensor, names: Sequence[str]) -> Evaluation:
    """Score answers.

    Args:
        marginals: [rows, K].
        found: the labels that were answered, bool [rows, K].
        truth: the labels, [rows, K], 0 or 1; NaN where it is not known, which counts nowhere.
        names: of the labels.

    Example:
        >>> marginals = torch.tensor([[0.9, 0.2], [0.6, 0.7]])
        >>> scores = evaluated(marginals, marginals > 0.5, torch.tensor([[1, 0], [0, 1]]), ["a", "b"])
        >>> round(scores.micro, 3), round(scores.samples, 3), scores.precision_at
        (0.8, 0.833, {1: 1.0})
    """
    known = ~truth.isnan()
    found, truth = found.bool() & known, truth.nan_to_num().bool()
    right, given, due = found & truth, found, truth
    precision, recall = (right.sum(0).double() / part.sum(0) for part in (given, due))
    f1 = _f1(right.sum(0), given.sum(0), due.sum(0))
    curve = calibration_curve(marginals[known], truth[known])
    return Evaluation(
        rows=len(truth),
        micro=float(_f1(right.sum(), given.sum(), due.sum())),
        macro=float(f1.mean()),
        samples=float(_f1(right.sum(1), given.sum(1), due.sum(1)).mean()),
        precision_at={k: _precision_at(marginals, truth, k) for k in FIRST if k < len(names)},
        brier=curve.brier,
        calibration_error=curve.error,
        labels=[
            LabelScores(*label)
            for label in zip(names, *(c.tolist() for c in (precision, recall, f1, due.sum(0))), strict=True)
        ],
        curve=curve,
    )


def _f1(right: Tensor, given: Tensor, due: Tensor) -> Tensor:
    """F1; 1 where nothing is given and nothing is due."""
    return torch.where(given + due == 0, 1.0, 2 * right.double() / (given + due).clamp(min=1))


def _precision_at(marginals: Tensor, truth: Tensor, k: int) -> float:
    return float(truth.gather(1, marginals.topk(k, 1).indices).double().mean())
