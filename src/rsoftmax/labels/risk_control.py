r"""Decision thresholds with a guarantee on recall or precision: distribution-free, for finite samples.

Labels with ``u >= threshold`` are predicted. The thresholds come from held-out rows that are exchangeable with the rows
to predict. Three quantities can be controlled, named by ``by``:

* "samples": the mean of the rows' recall, over rows that have a label, or precision, 1 for an empty prediction;
* "micro": correct predictions over all positive, or all predicted, entries;
* "label": the recall or precision of each label, with a threshold per label.

Without ``confidence`` the guarantee holds in expectation over held-out and new rows, by conformal risk control. With
``confidence`` it holds for all new rows together, with that probability over the held-out rows; with "label", for all
labels at once.

The labels above a threshold are the support of t-softmax with ``t = max(u) - threshold``. With ``u - max(u)`` in place
of ``u`` the threshold is ``-t``, one t for all rows: the conformal quantile of ``max(u) - u`` over positive entries.

References: Angelopoulos et al., Conformal risk control (2022), and Learn then test (2021); Bates et al.,
Distribution-free, risk-controlling prediction sets (2021); Waudby-Smith and Ramdas, Estimating means of bounded random
variables by betting (2020).
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["precision_threshold", "recall_threshold"]

By = Literal["samples", "micro", "label"]
CANDIDATES = 30  # thresholds that are tested where the risk is not monotone
PLACED = 0.1  # the fraction of held-out rows that place these candidates
ROUNDING = 1e-9
FEWEST = 8  # predictions from which the precision of a label is tested


def recall_threshold(
    u: Tensor, y: Tensor, recall: float, *, by: By = "samples", confidence: float | None = None
) -> Tensor:
    r"""Return the highest threshold that guarantees a recall.

    In expectation, with losses ``L_i`` (the missed fraction of a row's labels) of n rows that have a label:

    .. math:: \hat\lambda = \max \{\lambda : \sum_i L_i(\lambda) + 1 \le (1 - \mathrm{recall}) (n + 1)\}

    Args:
        u: scores [rows, K] of held-out rows.
        y: their labels [rows, K], 0 or 1; rows with NaN are left out, for "label" column by column.
        recall: the level, in (0, 1).
        by: "samples", "micro" or "label".
        confidence: None for a guarantee in expectation, or a probability such as 0.95.

    Returns:
        Thresholds, float64: [1], or [K] for "label", where NaN marks labels with too few rows.

    Raises:
        ValueError: too few rows; the message says how many are needed.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> u = torch.randn(1000, 5)
        >>> y = torch.rand(1000, 5) < (2 * u - 1).sigmoid()
        >>> threshold = recall_threshold(u[:500], y[:500], 0.9)
        >>> found = u[500:] >= threshold
        >>> round(float(((found & y[500:]).sum(1) / y[500:].sum(1)).nanmean()), 1)
        0.9
    """
    _check(u, y, recall, by, confidence, "recall_threshold")
    miss = 1 - recall
    if by == "label":
        delta = None if confidence is None else (1 - confidence) / u.shape[1]
        columns = [_label_recall(scores[labels == 1], miss, delta) for scores, labels in zip(u.T, y.T, strict=True)]
        return torch.stack(columns)
    u, y = _known_rows(u, y)
    if by == "samples":
        u, y = u[y.any(1)], y[y.any(1)]
    if confidence is None:
        return _expected_recall(u, y, miss, by)
    if by == "samples":
        return _samples_recall(u, y, miss, 1 - confidence)
    return _bet(u, y, recall, 1 - confidence, by, "recall")


def precision_threshold(u: Tensor, y: Tensor, precision: float, *, by: By = "samples", confidence: float) -> Tensor:
    """Return the lowest threshold that guarantees a precision with a confidence.

    Candidates are tested one by one (learn then test), with a correction for their number and, for "label", for the
    number of labels. There is no version in expectation: precision does not fall monotonically with the threshold.

    Args:
        u: scores [rows, K] of held-out rows.
        y: their labels [rows, K], 0 or 1; rows with NaN are left out, for "label" column by column.
        precision: the level, in (0, 1).
        by: "samples", "micro" or "label".
        confidence: a probability such as 0.95.

    Returns:
        Thresholds, float64: [1], or [K] for "label", where NaN marks labels for which no threshold passed.

    Raises:
        ValueError: no threshold passed; the message says how many rows are needed at least.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> u = torch.randn(4000, 5)
        >>> y = torch.rand(4000, 5) < (4 * u - 1).sigmoid()
        >>> found = u[2000:] >= precision_threshold(u[:2000], y[:2000], 0.8, by="micro", confidence=0.95)
        >>> bool((found & y[2000:]).sum() / found.sum() > 0.8)
        True
    """
    if confidence is None:
        raise ValueError("precision_threshold: precision is not monotone in the threshold; pass confidence=0.95")
    _check(u, y, precision, by, confidence, "precision_threshold")
    if by != "label":
        u, y = _known_rows(u, y)
        return _bet(u, y, precision, 1 - confidence, by, "precision")
    delta = (1 - confidence) / u.shape[1]
    known = zip(u.T, y.T, strict=True)
    return torch.stack([_label_precision(s[~t.isnan()], t[~t.isnan()], precision, delta) for s, t in known])


def guaranteed_threshold(
    u: Tensor,
    y: Tensor,
    *,
    recall: float | None = None,
    precision: float | None = None,
    by: By = "samples",
    confidence: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the thresholds that guarantee a recall or a precision, and for which labels, bool [K].

    The arguments are those of :func:`recall_threshold` and :func:`precision_threshold`. For "label", labels that cannot
    be guaranteed have the threshold of "micro"; without one, for a recall they are always predicted, for a precision
    never.
    """
    if (recall is None) == (precision is None):
        raise ValueError(f"pass either recall or precision, got recall={recall!r}, precision={precision!r}")

    def threshold(by: By) -> Tensor:
        if recall is not None:
            return recall_threshold(u, y, recall, by=by, confidence=confidence)
        return precision_threshold(u, y, precision, by=by, confidence=confidence)  # type: ignore[arg-type]

    found = threshold(by)
    failed = found.isnan()
    if failed.any():
        try:
            fallback = threshold("micro")
        except ValueError:  # too few rows for that as well: predict always, or never
            fallback = torch.tensor(math.inf if recall is None else -math.inf, dtype=torch.float64)
        found = found.where(~failed, fallback)
    return found, ~failed.expand(u.shape[1])


def describe_guarantee(
    recall: float | None = None,
    precision: float | None = None,
    by: By = "samples",
    confidence: float | None = None,
) -> str:
    """The guarantee in words.

    Example:
        >>> describe_guarantee(recall=0.9), describe_guarantee(precision=0.8, by="label", confidence=0.95)
        ('recall of a row at least 0.9, in expectation', 'precision of every label at least 0.8, with confidence 0.95')
    """
    of = {"samples": "a row", "micro": "all entries", "label": "every label"}[by]
    sure = "in expectation" if confidence is None else f"with confidence {confidence:g}"
    what = f"precision of {of} at least {precision:g}" if recall is None else f"recall of {of} at least {recall:g}"
    return f"{what}, {sure}"


def _expected_recall(u: Tensor, y: Tensor, miss: float, by: By) -> Tensor:
    """Conformal risk control of the missed labels: fractions of a row's labels, or all of them."""
    size = y.sum(1, keepdim=True)
    if by == "samples":
        weight, budget = y / size, miss * (len(y) + 1) - 1
        needed = math.ceil(1 / miss - ROUNDING) - 1
    else:  # misses - miss * size of a row is at most (1 - miss) * labels
        weight, budget = y, miss * float(size.sum()) - (1 - miss) * y.shape[1]
        needed = math.ceil((1 - miss) * y.shape[1] / miss * max(len(y), 1) / max(float(size.sum()), 1))
    if budget < -ROUNDING:
        raise ValueError(_too_few("recall", 1 - miss, len(y), needed))
    return _spend(u.double()[y.bool()], weight[y.bool()], budget)[None]


def _spend(scores: Tensor, weight: Tensor, budget: float) -> Tensor:
    """The highest score below which the weights add up to no more than the budget."""
    scores, order = scores.sort()
    below = weight[order].cumsum(0) - weight[order]
    first = torch.searchsorted(scores, scores)  # of equal scores
    highest: Tensor = scores[below[first] <= budget + ROUNDING].max()
    return highest


def _label_recall(scores: Tensor, miss: float, delta: float | None) -> Tensor:
    """The threshold of one label from the scores of its positive rows; NaN if they are too few."""
    n = len(scores)
    expected = math.floor(miss * (n + 1) + ROUNDING)
    missed = expected if delta is None else int((_binomial_cdf(n, miss) <= delta).sum())
    return scores.double().sort().values[missed - 1] if missed else torch.tensor(math.nan, dtype=torch.float64)


def _samples_recall(u: Tensor, y: Tensor, miss: float, delta: float) -> Tensor:
    """The highest threshold whose missed fraction is below ``miss`` with confidence: risk-controlling sets."""
    candidates: Tensor = u.double()[y.bool()].unique()
    low, high = -1, len(candidates) - 1  # the p-value rises with the threshold
    while low < high:
        middle = (low + high + 1) // 2
        missed = ((u < candidates[middle]) & y.bool()).sum(1) / y.sum(1)
        low, high = (middle, high) if _hoeffding_bentkus(missed, miss) <= delta else (low, middle - 1)
    if low < 0:
        raise ValueError(_too_few("recall", 1 - miss, len(y), _rows_for(miss, delta)))
    return candidates[low][None]


def _label_precision(scores: Tensor, y: Tensor, precision: float, delta: float) -> Tensor:
    """The lowest threshold of one label whose precision passes an exact binomial test; NaN if none does.

    Given the j-th highest score, the rows above it are a sample of all rows above it, for any j that is fixed before.
    """
    scores, order = scores.double().sort(descending=True)
    sizes = sorted({int(FEWEST * 1.5**i) for i in range(40) if FEWEST * 1.5**i < len(scores)}, reverse=True)
    wrong = (y[order] == 0).cumsum(0)
    for size in sizes:
        above = int((scores > scores[size]).sum())  # fewer than ``size`` in case of ties
        if above and _binomial_cdf(above, 1 - precision)[int(wrong[above - 1])] <= delta / len(sizes):
            above_it: Tensor = torch.nextafter(scores[size], torch.tensor(math.inf, dtype=torch.float64))
            return above_it
    return torch.tensor(math.nan, dtype=torch.float64)


def _bet(u: Tensor, y: Tensor, level: float, delta: float, by: By, what: str) -> Tensor:
    """The best of some candidates whose risk is below ``1 - level`` with confidence, by bets on each row's loss."""
    if len(u) < 2:
        raise ValueError(_too_few(what, level, len(u), _rows_for(1 - level, delta)))
    order = torch.randperm(len(u), generator=torch.Generator().manual_seed(0))  # bets assume rows in random order
    u, y = u[order], y[order]
    placed = max(int(PLACED * len(u)), 1)
    shares = torch.linspace(0, 1, CANDIDATES + 2, dtype=torch.float64)[1:-1]
    high = u[:placed].double().flatten().sort(descending=True).values
    places = (float(len(high)) ** shares).long().clamp(max=len(high) - 1)  # finer among the highest scores
    candidates: Tensor = high[places].unique(sorted=True)
    u, y = u[placed:].double(), y[placed:].bool()
    tests = len(candidates) if what == "precision" else 1  # recall: one after the other, from the lowest threshold on
    passed = [
        bool(_bet_p_value(_losses(u >= one, y, level, by, what), 1 - level) <= delta / tests) for one in candidates
    ]
    if what == "recall":
        found = candidates[: [*passed, False].index(False)][-1:]
    else:
        found = candidates[[*passed, True].index(True) :][:1]
    if not len(found):
        raise ValueError(_too_few(what, level, len(u) + placed, _rows_for(1 - level, delta / tests)))
    return found


def _losses(found: Tensor, y: Tensor, level: float, by: By, what: str) -> Tensor:
    """A loss in [0, 1] of each row, whose mean is at most ``1 - level`` if and only if the level is kept."""
    right, size = (found & y).sum(1).double(), (found if what == "precision" else y).sum(1).double()
    if by == "samples":
        return 1 - torch.where(size > 0, right / size.clamp(min=1), 1.0)
    labels = y.shape[1]  # level * size - right lies in [-(1 - level) * labels, level * labels]
    return (level * size - right) / labels + 1 - level


def _bet_p_value(losses: Tensor, risk: float) -> float:
    """A p-value of the hypothesis that the mean loss is ``risk`` or more: one over the highest capital of a gambler."""
    n, t = len(losses), torch.arange(1, len(losses) + 1, dtype=torch.float64)
    mean = (0.5 + losses.cumsum(0)) / (t + 1)
    variance = (0.25 + (losses - mean).square().cumsum(0)) / (t + 1)
    variance = torch.cat([torch.tensor([0.25], dtype=torch.float64), variance[:-1]])  # of the rows before
    bets = (2 * math.log(20) / (n * variance)).sqrt().clamp(max=0.9 / (1 - risk))
    capital = torch.log1p(bets * (risk - losses)).cumsum(0)
    return float(torch.exp(-capital.max()).clamp(max=1))


def _hoeffding_bentkus(losses: Tensor, risk: float) -> float:
    """A p-value, monotone in the mean, of the hypothesis that the mean of losses in [0, 1] is ``risk`` or more."""
    n, mean = len(losses), min(float(losses.double().mean()), risk)
    divergence = sum(p * math.log(p / q) for p, q in ((mean, risk), (1 - mean, 1 - risk)) if p > 0)
    cdf = _binomial_cdf(n, risk)[min(math.ceil(n * float(losses.double().mean()) - ROUNDING), n)]
    return min(math.exp(-n * divergence), math.e * float(cdf), 1.0)


def _binomial_cdf(n: int, p: float) -> Tensor:
    """P(X <= k) for k = 0..n, X binomial."""
    k = torch.arange(n + 1, dtype=torch.float64)
    choose = torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64)) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return (choose + k * math.log(p) + (n - k) * math.log1p(-p)).exp().cumsum(0).clamp(max=1)


def _rows_for(risk: float, delta: float) -> int:
    """The rows from which a test can pass: without a single loss, ``(1 - risk)^n <= delta``."""
    return math.ceil(math.log(delta) / math.log1p(-risk))


def _too_few(what: str, level: float, rows: int, needed: int) -> str:
    return (
        f"a {what} of {level:g} cannot be guaranteed with {rows} held-out rows: it takes at least"
        f" {max(needed, rows + 1)}; hold out more rows, or lower {what} or confidence"
    )


def _known_rows(u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    known = ~y.isnan().any(1)
    return u[known], y[known].double()


def _check(u: Tensor, y: Tensor, level: float, by: str, confidence: float | None, name: str) -> None:
    if u.shape != y.shape or u.ndim != 2 or not u.numel():
        raise ValueError(f"{name}: u and y must both be [rows, K], got shapes {[*u.shape]} and {[*y.shape]}")
    if u.isnan().any():
        raise ValueError(f"{name}: u of shape {[*u.shape]} holds NaN")
    if by not in get_args(By):
        raise ValueError(f"{name}: by must be one of {', '.join(map(repr, get_args(By)))}, got {by!r}")
    for option, value in (("the level", level), ("confidence", 0.5 if confidence is None else confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name}: {option} must be in (0, 1), got {value!r}")
