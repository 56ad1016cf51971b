r"""Decision thresholds with a guarantee on recall or precision: distribution-free, for finite samples.

Labels with ``score >= threshold`` are predicted. The thresholds come from held-out samples that are exchangeable with
the samples to predict. Three quantities can be controlled, named by ``by``:

* "samples": the mean of the samples' recall, over samples that have a label, or precision, where an empty prediction
  counts as ``zero_division``;
* "micro": correct predictions over all positive, or all predicted, entries;
* "label": the recall or precision of each label, with a threshold per label.

Without ``confidence`` the guarantee holds in expectation over held-out and new samples, by conformal risk control. With
``confidence`` it holds for all new samples together, with that probability over the held-out ones; with "label", for
all labels at once.

The labels above a threshold are the support of t-softmax with ``t = max(u) - threshold``, where ``u`` are the scores.
With ``u - max(u)`` in place of ``u`` the threshold is ``-t``, one t for all samples: the conformal quantile of
``max(u) - u`` over positive entries.

References: Angelopoulos et al., Conformal risk control (2022), and Learn then test (2021); Bates et al.,
Distribution-free, risk-controlling prediction sets (2021); Waudby-Smith and Ramdas, Estimating means of bounded random
variables by betting (2020).
"""

import math
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor

__all__ = ["TooFewSamplesError", "precision_threshold", "recall_threshold"]

By = Literal["samples", "micro", "label"]
CANDIDATES = 30  # thresholds that are tested where the risk is not monotone
CANDIDATE_SHARE = 0.1  # the fraction of held-out samples that these candidates are chosen from
ROUNDING = 1e-9
MIN_PREDICTIONS = 8  # from which the precision of a label is tested


class TooFewSamplesError(ValueError):
    """The held-out samples cannot guarantee a level."""


def recall_threshold(
    scores: Tensor, y: Tensor, recall: float, *, by: By = "samples", confidence: float | None = None
) -> Tensor:
    r"""Return the highest threshold that guarantees a recall.

    In expectation, with losses ``L_i`` (the missed fraction of a sample's labels) of n samples that have a label:

    .. math:: \hat\lambda = \max \{\lambda : \sum_i L_i(\lambda) + 1 \le (1 - \mathrm{recall}) (n + 1)\}

    Args:
        scores: [samples, K], of held-out samples.
        y: their labels [samples, K], 0 or 1; samples with NaN are left out, for "label" column by column.
        recall: the level, in (0, 1).
        by: "samples", "micro" or "label".
        confidence: None for a guarantee in expectation, or a probability such as 0.95.

    Returns:
        Thresholds, float64: [1], or [K] for "label", where NaN marks labels with too few samples.

    Raises:
        ValueError: too few samples; the message says how many are needed.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> scores = torch.randn(1000, 5)
        >>> y = torch.rand(1000, 5) < (2 * scores - 1).sigmoid()
        >>> predicted = scores[500:] >= recall_threshold(scores[:500], y[:500], 0.9)
        >>> round(float(((predicted & y[500:]).sum(1) / y[500:].sum(1)).nanmean()), 1)
        0.9
    """
    _check("recall_threshold", scores, y, recall, by, confidence)
    risk = 1 - recall
    if by == "label":
        delta = None if confidence is None else (1 - confidence) / scores.shape[1]
        columns = zip(scores.T, y.T, strict=True)
        return torch.stack([_label_recall(column[labels == 1], risk, delta) for column, labels in columns])
    scores, y = _known(scores, y)
    if by == "samples":
        scores, y = scores[y.any(1)], y[y.any(1)]
    if confidence is None:
        return _expected_recall(scores, y, risk, by)
    if by == "samples":
        return _samples_recall(scores, y, risk, 1 - confidence)
    return _betting_threshold(scores, y, recall, 1 - confidence, by, "recall")


def precision_threshold(
    scores: Tensor, y: Tensor, precision: float, *, by: By = "samples", confidence: float, zero_division: float = 1.0
) -> Tensor:
    """Return the lowest threshold that guarantees a precision with a confidence.

    Candidates are tested one by one (learn then test), with a correction for their number and, for "label", for the
    number of labels. There is no version in expectation: precision does not fall monotonically with the threshold.

    Args:
        scores: [samples, K], of held-out samples.
        y: their labels [samples, K], 0 or 1; samples with NaN are left out, for "label" column by column.
        precision: the level, in (0, 1).
        by: "samples", "micro" or "label".
        confidence: a probability such as 0.95.
        zero_division: for "samples", the precision where nothing is predicted: 1; or NaN, which leaves these samples
            out of the mean.

    Returns:
        Thresholds, float64: [1], or [K] for "label", where NaN marks labels for which no threshold passed.

    Raises:
        ValueError: no threshold passed; the message says how many samples are needed at least.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> scores = torch.randn(4000, 5)
        >>> y = torch.rand(4000, 5) < (4 * scores - 1).sigmoid()
        >>> threshold = precision_threshold(scores[:2000], y[:2000], 0.8, by="micro", confidence=0.95)
        >>> predicted = scores[2000:] >= threshold
        >>> bool((predicted & y[2000:]).sum() / predicted.sum() > 0.8)
        True
    """
    if confidence is None:
        raise ValueError("precision_threshold: precision is not monotone in the threshold; pass confidence=0.95")
    _check("precision_threshold", scores, y, precision, by, confidence)
    if by != "label":
        return _betting_threshold(*_known(scores, y), precision, 1 - confidence, by, "precision", zero_division)
    delta = (1 - confidence) / scores.shape[1]
    columns = zip(scores.T, y.T, strict=True)
    return torch.stack([_label_precision(s[~t.isnan()], t[~t.isnan()], precision, delta) for s, t in columns])


def guaranteed_threshold(
    scores: Tensor,
    y: Tensor,
    *,
    recall: float | None = None,
    precision: float | None = None,
    by: By = "samples",
    confidence: float | None = None,
    zero_division: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the thresholds that guarantee a recall or a precision, and for which labels, bool [K].

    The arguments are those of :func:`recall_threshold` and :func:`precision_threshold`. For "label", labels that cannot
    be guaranteed have the threshold of "micro"; without one, for a recall they are always predicted, for a precision
    never.
    """
    if (recall is None) == (precision is None):
        raise ValueError(f"pass either recall or precision, got recall={recall!r}, precision={precision!r}")

    def threshold_of(by: By) -> Tensor:
        if recall is not None:
            return recall_threshold(scores, y, recall, by=by, confidence=confidence)
        options: Any = {"by": by, "confidence": confidence, "zero_division": zero_division}
        return precision_threshold(scores, y, precision, **options)  # type: ignore[arg-type]

    threshold = threshold_of(by)
    failed = threshold.isnan()
    if failed.any():
        try:
            fallback = threshold_of("micro")
        except ValueError:  # too few samples for that as well: predict always, or never
            fallback = torch.tensor(math.inf if recall is None else -math.inf, dtype=torch.float64)
        threshold = threshold.where(~failed, fallback)
    return threshold, ~failed.expand(scores.shape[1])


def describe_guarantee(
    recall: float | None = None,
    precision: float | None = None,
    by: By = "samples",
    confidence: float | None = None,
) -> str:
    """The guarantee in words.

    Example:
        >>> describe_guarantee(precision=0.8, by="label", confidence=0.95)
        'precision of every label at least 0.8, with confidence 0.95'
    """
    of = {"samples": "a sample", "micro": "all entries", "label": "every label"}[by]
    sure = "in expectation" if confidence is None else f"with confidence {confidence:g}"
    what = f"precision of {of} at least {precision:g}" if recall is None else f"recall of {of} at least {recall:g}"
    return f"{what}, {sure}"


def _expected_recall(u: Tensor, y: Tensor, risk: float, by: By) -> Tensor:
    """Conformal risk control of the missed labels: the highest score below which their weights fit the budget."""
    size = y.sum(1, keepdim=True)
    if by == "samples":  # fractions of a sample's labels
        weight, budget = y / size, risk * (len(y) + 1) - 1
        needed = math.ceil(1 / risk - ROUNDING) - 1
    else:  # misses - risk * size of a sample is at most (1 - risk) * labels
        weight, budget = y, risk * float(size.sum()) - (1 - risk) * y.shape[1]
        needed = math.ceil((1 - risk) * y.shape[1] / risk * max(len(y), 1) / max(float(size.sum()), 1))
    if budget < -ROUNDING:
        raise _too_few("recall", 1 - risk, len(y), needed)
    u, order = u.double()[y.bool()].sort()
    weight = weight[y.bool()][order]
    below = (weight.cumsum(0) - weight)[torch.searchsorted(u, u)]  # searchsorted: the first of equal scores
    return u[below <= budget + ROUNDING].max()[None]


def _label_recall(u: Tensor, risk: float, delta: float | None) -> Tensor:
    """The threshold of one label from the scores of its positive samples; NaN if they are too few."""
    n = len(u)
    expected = math.floor(risk * (n + 1) + ROUNDING)
    missed = expected if delta is None else int((binomial_cdf(n, risk) <= delta).sum())
    return u.double().sort().values[missed - 1] if missed else torch.tensor(math.nan, dtype=torch.float64)


def _samples_recall(u: Tensor, y: Tensor, risk: float, delta: float) -> Tensor:
    """The highest threshold whose missed fraction is below the risk with confidence: risk-controlling sets."""
    candidates: Tensor = u.double()[y.bool()].unique()
    low, high = -1, len(candidates) - 1  # the p-value rises with the threshold
    while low < high:
        middle = (low + high + 1) // 2
        missed = ((u < candidates[middle]) & y.bool()).sum(1) / y.sum(1)
        low, high = (middle, high) if hoeffding_bentkus(missed, risk) <= delta else (low, middle - 1)
    if low < 0:
        raise _too_few("recall", 1 - risk, len(y), _samples_for(risk, delta))
    return candidates[low][None]


def _label_precision(u: Tensor, y: Tensor, precision: float, delta: float) -> Tensor:
    """The lowest threshold of one label whose precision passes an exact binomial test; NaN if none does.

    Given the j-th highest score, the samples above it are drawn from all samples above it, for any j chosen before.
    """
    u, order = u.double().sort(descending=True)
    sizes = [int(MIN_PREDICTIONS * 1.5**i) for i in range(40) if MIN_PREDICTIONS * 1.5**i < len(u)]
    wrong = (y[order] == 0).cumsum(0)
    for size in reversed(sizes):
        above = int((u > u[size]).sum())  # fewer than ``size`` in case of ties
        if above and binomial_cdf(above, 1 - precision)[int(wrong[above - 1])] <= delta / len(sizes):
            return u[size].nextafter(u.new_tensor(math.inf))
    return torch.tensor(math.nan, dtype=torch.float64)


def _betting_threshold(
    u: Tensor, y: Tensor, level: float, delta: float, by: By, what: str, zero_division: float = 1.0
) -> Tensor:
    """The best of some candidates whose risk is below ``1 - level`` with confidence, by bets on each sample's loss."""
    n, risk = len(u), 1 - level
    if n < 2:
        raise _too_few(what, level, n, _samples_for(risk, delta))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))  # bets assume samples in random order
    first, rest = order[: max(int(CANDIDATE_SHARE * n), 1)], order[max(int(CANDIDATE_SHARE * n), 1) :]
    high = u[first].double().flatten().sort(descending=True).values
    shares = torch.linspace(0, 1, CANDIDATES + 2, dtype=torch.float64)[1:-1]
    index = (float(len(high)) ** shares).long().clamp(max=len(high) - 1)  # finer among the highest scores
    candidates: Tensor = high[index].unique(sorted=True)
    u, y = u[rest].double(), y[rest].bool()
    tests = len(candidates) if what == "precision" else 1  # recall: one after the other, from the lowest threshold on
    losses = (_losses(u >= threshold, y, level, by, what, zero_division) for threshold in candidates)
    passed = [betting_p_value(loss, risk) <= delta / tests for loss in losses]
    if what == "recall":
        best = candidates[: [*passed, False].index(False)][-1:]
    else:
        best = candidates[[*passed, True].index(True) :][:1]
    if not len(best):
        raise _too_few(what, level, n, _samples_for(risk, delta / tests))
    return best


def _losses(predicted: Tensor, y: Tensor, level: float, by: By, what: str, zero_division: float) -> Tensor:
    """A loss in [0, 1] of each sample, whose mean is at most ``1 - level`` if and only if the level is reached."""
    correct, size = (predicted & y).sum(1).double(), (predicted if what == "precision" else y).sum(1).double()
    if by == "samples":
        empty = level if math.isnan(zero_division) else zero_division  # the level itself is no evidence either way
        return 1 - torch.where(size > 0, correct / size.clamp(min=1), empty)
    return (level * size - correct) / y.shape[1] + 1 - level  # the quotient lies in [level - 1, level]


def betting_p_value(losses: Tensor, risk: float) -> float:
    """A p-value of the hypothesis that the mean loss is ``risk`` or more: one over the highest capital of a gambler."""
    n, t = len(losses), torch.arange(1, len(losses) + 1, dtype=torch.float64)
    mean = (0.5 + losses.cumsum(0)) / (t + 1)
    variance = (0.25 + (losses - mean).square().cumsum(0)) / (t + 1)
    variance = torch.cat([torch.tensor([0.25], dtype=torch.float64), variance[:-1]])  # of the samples before
    bets = (2 * math.log(20) / (n * variance)).sqrt().clamp(max=0.9 / (1 - risk))
    capital = torch.log1p(bets * (risk - losses)).cumsum(0)
    return float(torch.exp(-capital.max()).clamp(max=1))


def hoeffding_bentkus(losses: Tensor, risk: float) -> float:
    """A p-value, monotone in the mean, of the hypothesis that the mean of losses in [0, 1] is ``risk`` or more."""
    n, mean = len(losses), min(float(losses.double().mean()), risk)
    divergence = sum(p * math.log(p / q) for p, q in ((mean, risk), (1 - mean, 1 - risk)) if p > 0)
    cdf = binomial_cdf(n, risk)[min(math.ceil(n * float(losses.double().mean()) - ROUNDING), n)]
    return min(math.exp(-n * divergence), math.e * float(cdf), 1.0)


def binomial_cdf(n: int, p: float) -> Tensor:
    """P(X <= k) for k = 0..n, X binomial."""
    k = torch.arange(n + 1, dtype=torch.float64)
    choose = torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64)) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return (choose + k * math.log(p) + (n - k) * math.log1p(-p)).exp().cumsum(0).clamp(max=1)


def _samples_for(risk: float, delta: float) -> int:
    """The number of samples from which a test can pass: without a single loss, ``(1 - risk)^n <= delta``."""
    return math.ceil(math.log(delta) / math.log1p(-risk))


def _too_few(what: str, level: float, samples: int, needed: int) -> TooFewSamplesError:
    reason = "no threshold reaches it with the confidence" if needed <= samples else f"it takes at least {needed}"
    return TooFewSamplesError(
        f"a {what} of {level:g} cannot be guaranteed with {samples} held-out samples: {reason};"
        f" hold out more samples, or lower {what} or confidence"
    )


def _known(u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The samples without an unknown label."""
    known = ~y.isnan().any(1)
    return u[known], y[known].double()


def _check(name: str, u: Tensor, y: Tensor, level: float, by: str, confidence: float | None) -> None:
    if u.shape != y.shape or u.ndim != 2 or not u.numel():
        raise ValueError(f"{name}: scores and y must both be [samples, K], got shapes {[*u.shape]} and {[*y.shape]}")
    if u.isnan().any():
        raise ValueError(f"{name}: scores of shape {[*u.shape]} contain NaN; leave out these samples")
    if len(wrong := y[(y != 0) & (y != 1) & ~y.isnan()]):
        raise ValueError(f"{name}: y must hold 0 or 1, or NaN where unknown, got {wrong[0]:g}")
    if by not in get_args(By):
        raise ValueError(f"{name}: by must be one of {', '.join(map(repr, get_args(By)))}, got {by!r}")
    for option, value in (("the level", level), ("confidence", 0.5 if confidence is None else confidence)):
        if not (isinstance(value, Real) and 0 < value < 1):
            raise ValueError(f"{name}: {option} must be in (0, 1), got {value!r}")
