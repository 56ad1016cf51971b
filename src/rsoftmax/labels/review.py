"""Three ways for each label of a sample: accept it, reject it, or let a person decide; the first two with a guarantee.

Labels with a score of at least ``accept`` are accepted, those below ``reject`` are rejected, and a person decides on
the others. What is guaranteed is the precision of the accepted labels, and the recall if the person finds every label
that was not rejected.
"""

import math
import warnings
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from rsoftmax.labels.risk_control import By, TooFewSamplesError, guaranteed_threshold

__all__ = ["ReviewThresholds", "ReviewedItem", "review_thresholds"]

NEVER = {"precision": ("accepted", math.inf), "recall": ("rejected", -math.inf)}


class ReviewedItem(NamedTuple):
    """What is decided about the labels of an item, and what is left to a person.

    Attributes:
        labels: the accepted labels, and those of ``asked`` that are predicted, with their marginals: what a person
            corrects.
        asked: the labels that a person decides on, with their marginals, the most probable first.
        expected_f1: the expected F1 of the predicted labels.
        corrections: the expected number of labels that the person changes.
    """

    labels: dict[str, float]
    asked: dict[str, float]
    expected_f1: float
    corrections: float


class ReviewThresholds(NamedTuple):
    """Two thresholds on scores, float64, [1], or [K] for a guarantee of each label.

    Attributes:
        accept: labels with at least this score are accepted; ``inf``: none.
        reject: labels below this score are rejected; ``-inf``: none.
    """

    accept: Tensor
    reject: Tensor

    def accepted(self, scores: Tensor) -> Tensor:
        """Which labels are accepted, bool [..., K]."""
        return scores >= self.accept.to(scores.device)

    def asked(self, scores: Tensor) -> Tensor:
        """Which labels a person decides on, bool [..., K]."""
        return (scores >= self.reject.to(scores.device)) & ~self.accepted(scores)


def review_thresholds(
    scores: Tensor,
    y: Tensor,
    *,
    accept: float = 0.95,
    reject: float = 0.95,
    by: By = "samples",
    confidence: float = 0.95,
) -> ReviewThresholds:
    r"""Return the thresholds that leave the fewest labels to a person, with guarantees that hold together.

    The precision of what is accepted, and the recall of what is not rejected, are each guaranteed with the confidence
    ``(1 + confidence) / 2``, so both hold with ``confidence``: over held-out samples drawn anew, in this share of cases
    both are kept for all new samples together.

    Args:
        scores: [samples, K], of held-out samples.
        y: their labels [samples, K], 0 or 1, NaN where unknown.
        accept: the precision of accepted labels, in (0, 1).
        reject: the recall after review, in (0, 1): at most ``1 - reject`` of the true labels are rejected.
        by: what both hold for. "samples": the mean over samples with accepted labels, and over those with true ones;
            "micro": all entries; "label": each label.
        confidence: the probability that both guarantees hold, such as 0.95.

    Where these samples cannot guarantee the precision, nothing is accepted, and where they cannot guarantee the recall,
    nothing is rejected, with a warning that says why.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> scores = 4 * torch.randn(4000, 5)
        >>> y = torch.rand(4000, 5) < scores.sigmoid()
        >>> thresholds = review_thresholds(scores[:2000], y[:2000], accept=0.9, reject=0.9)
        >>> accepted, asked = thresholds.accepted(scores[2000:]), thresholds.asked(scores[2000:])
        >>> bool(y[2000:][accepted].double().mean() > 0.9), bool((accepted | asked)[y[2000:]].double().mean() > 0.9)
        (True, True)
        >>> round(float(asked.double().mean()), 1)
        0.1
    """
    each = (1 + confidence) / 2

    def threshold(**level: float) -> Tensor:
        options: dict[str, Any] = {"by": by, "confidence": each, "zero_division": math.nan, **level}
        try:
            return guaranteed_threshold(scores, y.double(), **options)[0]
        except TooFewSamplesError as error:
            done, value = NEVER[next(iter(level))]
            warnings.warn(f"no label is {done}: {error}", stacklevel=3)
            return torch.tensor([value], dtype=torch.float64)

    highest = threshold(precision=accept)
    return ReviewThresholds(highest, highest.minimum(threshold(recall=reject)))


def saved_thresholds(review: dict[str, Any], num_labels: int) -> ReviewThresholds:
    """The thresholds in the settings of a saved model.

    Raises:
        KeyError, TypeError, ValueError: the settings, which people may have edited, are not what was saved.
    """
    accept, reject = (torch.tensor(values, dtype=torch.float64) for values in review["thresholds"])
    levels = review["levels"]
    if levels["by"] not in get_args(By):
        raise ValueError(f"by must be one of {', '.join(get_args(By))}, got {levels['by']!r}")
    size = num_labels if levels["by"] == "label" else 1
    if not accept.shape == reject.shape == (size,) or not torch.stack([accept, reject]).isfinite().all():
        raise ValueError(f"thresholds must be two lists of numbers, [{size}], got {review['thresholds']!r:.80}")
    if wrong := [name for name in ("accept", "reject", "confidence") if not 0 < levels[name] < 1]:
        raise ValueError(f"{wrong[0]} must be in (0, 1), got {levels[wrong[0]]!r}")
    return ReviewThresholds(accept, reject)
