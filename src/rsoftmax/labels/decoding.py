"""From scores to label sets: the labels that maximise an expected F-measure, and mappings that keep exactly these.

The F-measure of a prediction is replaced by a ratio of expectations. With marginals ``pi`` and ``n`` predicted entries

.. math:: F_\\beta = \\frac{(1 + \\beta^2) \\sum_{\\text{predicted}} \\pi}{n + \\beta^2 \\sum \\pi}

The best set of any size holds the highest marginals: those above ``F / (1 + beta^2)``, where F is the best value.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Self, TypedDict, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsoftmax._tensors import all_or_none, exact, is_exporting
from rsoftmax.labels.calibration import PlattScaling
from rsoftmax.mappings import r_softmax, weighted_softmax

__all__ = [
    "AVERAGES",
    "Average",
    "Decoded",
    "Decoder",
    "DecoderOptions",
    "best_labels",
    "expected_f1",
    "expected_f1_count",
    "expected_f1_threshold",
    "keep_above",
    "keep_count",
    "rate_of_count",
]

Average = Literal["micro", "macro", "samples"]
AVERAGES: tuple[Average, ...] = get_args(Average)
TINY = torch.finfo(torch.float32).tiny  # 0 / TINY = 0: the ratio of an empty sum


class DecoderOptions(TypedDict, total=False):
    """The options of decoding; ``DEFAULTS`` has the default of each.

    Attributes:
        average: the F-measure to maximise. "micro": one threshold for all entries; "macro": one per label; "samples":
            the number of labels is chosen row by row.
        beta: recall is weighted beta times as much as precision.
        min_labels: the minimum number of labels per row.
        max_labels: the maximum number of labels per row; None: K.
    """

    average: Average
    beta: float
    min_labels: int
    max_labels: int | None


DEFAULTS: DecoderOptions = {"average": "micro", "beta": 1.0, "min_labels": 0, "max_labels": None}


def expected_f1_count(
    u: Tensor, none: Tensor | None = None, *, beta: float = 1.0, min_labels: int = 0, max_labels: int | None = None
) -> Tensor:
    r"""Return the number of labels with the highest expected F-measure for each row.

    .. math:: k^* = \arg\max_k F(k), \qquad
              F(k) = \frac{(1 + \beta^2) \sum_{i \le k} \pi_i}{k + \beta^2 \sum_i \pi_i}, \qquad
              F(0) = \mathrm{sigmoid}(\mathrm{none}), \qquad \pi = \mathrm{sigmoid}(u) \text{ in descending order}

    Args:
        u: log-odds of the labels, [..., K].
        none: log-odds that the row has no label, [..., 1]. Default: labels are independent, F(0) = prod(1 - pi).
        beta: recall is weighted beta times as much as precision.
        min_labels: the smallest number allowed.
        max_labels: the largest number allowed; None: K.

    Returns:
        k, [..., 1], int64.

    Example:
        >>> u = torch.tensor([[3.0, -0.3, -3.0], [-4.0, -3.0, -5.0]])
        >>> expected_f1_count(u)
        tensor([[2],
                [0]])
        >>> expected_f1_count(u, min_labels=1, max_labels=1)
        tensor([[1],
                [1]])

    Computing the expectation of the ratio itself would take ``O(K^2)`` or more. The F-measure of an empty prediction is
    1 if the row has no label and 0 otherwise, so F(0) is the probability that it has none.

    Reference: Lipton et al., Optimal thresholding of classifiers to maximize F1 measure (2014), for the ratio.
    """
    check_beta(beta)
    u = u.detach().to(exact(u)).sort(-1, descending=True).values
    pi, k = u.sigmoid(), torch.arange(1, u.shape[-1] + 1, device=u.device)
    some = (1 + beta**2) * pi.cumsum(-1) / (k + beta**2 * pi.sum(-1, keepdim=True))
    empty = (log_odds_of_no_label(u) if none is None else none.detach().to(u.dtype)).sigmoid()
    allowed = torch.cat([empty, some], -1)[..., min_labels : None if max_labels is None else max_labels + 1]
    return min_labels + allowed.argmax(-1, keepdim=True)


def expected_f1_threshold(
    u: Tensor,
    average: Average = "micro",
    *,
    beta: float = 1.0,
    weight: Tensor | None = None,
    tail: float | Tensor = 0.0,
) -> Tensor:
    r"""Return the decision threshold that maximises the expected F-measure of many rows, from log-odds alone.

    .. math:: c^* = \mathrm{logit}\left(\frac{F^*}{1 + \beta^2}\right), \qquad
              F^* = \max_c \frac{(1 + \beta^2) \sum_{u > c} \pi}{\#\{u > c\} + \beta^2 \sum \pi}, \qquad
              \pi = \mathrm{sigmoid}(u)

    Args:
        u: log-odds of the labels, [rows, K]; calibrated, and of held-out rows.
        average: "micro": one threshold, from all entries. "macro": one per label, from its column. "samples": one per
            row, which is :func:`expected_f1_count` without the empty prediction.
        beta: recall is weighted beta times as much as precision.
        weight: weights of the rows, [rows, 1], or of the entries, [rows, K].
        tail: the expected number of positive entries that u leaves out; broadcasts to the thresholds.

    Returns:
        The thresholds as log-odds, float64: [1, 1] for "micro", [1, K] for "macro", [rows, 1] for "samples". Entries
        with ``u > threshold`` are predicted.

    Raises:
        ValueError: u holds NaN.

    Example:
        >>> u = torch.tensor([[2.0, -1.0], [1.0, -2.0], [-1.0, -3.0]])
        >>> u > expected_f1_threshold(u, "micro")
        tensor([[ True, False],
                [ True, False],
                [False, False]])
        >>> u > expected_f1_threshold(u, "macro")
        tensor([[ True,  True],
                [ True, False],
                [False, False]])

    F rises to its maximum in a few iterations of ``F -> ratio of the entries above F / (1 + beta^2)``, each
    ``O(rows K)``. Marginals are compared relative to the largest one, so the threshold is right where all of them
    underflow. If all log-odds are ``-inf``, so is the threshold, and nothing lies above it;
    if all weights are 0, it is 0.

    References: Lipton et al. (2014), for the threshold at half of the best F1; Dinkelbach, On nonlinear fractional
    programming (1967), for the iteration.
    """
    check_average(average)
    check_beta(beta)
    if u.isnan().any():
        raise ValueError(
            f"expected_f1_threshold: u of shape {[*u.shape]} holds NaN; drop these rows, or set NaN to 0 with weight 0"
        )
    u = u.detach().to(exact(u))
    dims = {"micro": (-2, -1), "macro": (-2,), "samples": (-1,)}[average]
    weight = torch.ones_like(u) if weight is None else weight.to(u).expand_as(u)
    log_pi = F.logsigmoid(u).where(weight > 0, -torch.inf)
    log_top = log_pi.amax(dims, keepdim=True).clamp(min=torch.finfo(u.dtype).min)
    pi = (log_pi - log_top).exp()  # relative to the largest
    expected = beta**2 * (log_top.exp() * (weight * pi).sum(dims, keepdim=True) + tail)
    share = maximise_ratio(pi, weight, expected, lambda values: values.sum(dims, keepdim=True))
    u = u.where(weight > 0, -torch.inf)
    top = u.amax(dims, keepdim=True)
    second = u.where(u < top, -torch.inf).amax(dims, keepdim=True)
    return threshold_at(share, log_top, top, second).where((weight > 0).any(dims, keepdim=True), 0)


def maximise_ratio(
    pi: Tensor,
    weight: Tensor,
    expected: Tensor,
    total: Callable[[Tensor], Tensor],
    spread: Callable[[Tensor], Tensor] = lambda share: share,
) -> Tensor:
    """Maximise the sum of the highest ``pi`` over their number plus ``expected``, by Dinkelbach's method.

    Args:
        pi: marginals of the entries.
        weight: their weights.
        expected: one value per group of entries.
        total: sums entries by group.
        spread: gives each entry the value of its group.

    Returns:
        The largest ratio of each group; entries above it attain it.
    """
    share = torch.zeros_like(expected)
    while True:
        above = weight * (pi > spread(share))
        ratio = total(above * pi) / (total(above) + expected).clamp(min=TINY)
        if not (ratio > share).any():
            return share
        share = share.maximum(ratio)


def threshold_at(share: Tensor, log_top: Tensor, top: Tensor, second: Tensor) -> Tensor:
    """The threshold at the marginal ``share * exp(log_top)``, as log-odds.

    It lies below the highest log-odds even where rounding would move it there: the best set is never empty.

    Args:
        share: the best ratio of :func:`maximise_ratio`.
        log_top: the logarithm of the unit of ``share``, the highest marginal.
        top, second: the two highest log-odds.
    """
    log_share = share.log() + log_top  # of F / (1 + beta^2)
    threshold = log_share - torch.log1p(-log_share.exp())
    return threshold.where(threshold < top, second.where(second.isfinite(), top - top.abs().clamp(min=1) / 2))


def expected_f1(pi: Tensor, predicted: Tensor, average: Average = "micro", *, beta: float = 1.0) -> float:
    r"""Return the expected F-measure of a prediction under marginals: a ratio of expectations, without labels.

    .. math:: \frac{(1 + \beta^2) \sum_{\text{predicted}} \pi}{\#\text{predicted} + \beta^2 \sum \pi}

    over all entries ("micro"), or averaged over labels ("macro") or rows ("samples"). A row without predicted labels
    contributes the probability that it has none, for independent labels.

    Args:
        pi: calibrated marginals [rows, K].
        predicted: bool [rows, K].
        average: "micro", "macro" or "samples".
        beta: recall is weighted beta times as much as precision.

    Example:
        >>> pi = torch.tensor([[0.9, 0.2], [0.6, 0.7]])
        >>> round(expected_f1(pi, pi > 0.5), 3)
        0.815
    """
    check_average(average)
    check_beta(beta)
    pi = pi.to(exact(pi))
    dims = {"micro": (-2, -1), "macro": (-2,), "samples": (-1,)}[average]
    size = predicted.sum(dims) + beta**2 * pi.sum(dims)
    score = (1 + beta**2) * (pi * predicted).sum(dims) / size.clamp(min=TINY)
    if average == "samples":
        score = torch.where(predicted.any(-1), score, (1 - pi).prod(-1))
    return float(score.mean())


def log_odds_of_no_label(u: Tensor) -> Tensor:
    """Return the log-odds that a row of independent labels has none, ``logit(prod(1 - pi))``, [..., 1]."""
    log_p = -F.softplus(u).sum(-1, keepdim=True)
    return log_p - torch.log(-torch.expm1(log_p))


def keep_count(z: Tensor, k: Tensor) -> Tensor:
    """Apply r-softmax that keeps k labels: ``r = 1 - k/K``; all entries are zero where ``k = 0``.

    Args:
        z: logits [..., K].
        k: numbers of labels from 0 to K, integers [..., 1].

    Returns:
        Probabilities [..., K], exactly k of them non-zero, even with ties or where weights underflow. A row with NaN
        stays NaN, even where k = 0.

    Example:
        >>> keep_count(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([[2], [0]]))
        tensor([[0.9158, 0.0842, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    has_nan = z.isnan().any(-1, keepdim=True)  # zeros would read as "no label"
    p = r_softmax(z, rate_of_count(k, z), mask=(k > 0) | has_nan)
    if all_or_none(p.count_nonzero(-1).unsqueeze(-1) == k):
        return p
    labels = best_labels(z, k)
    kept = _kept(p, labels) * labels
    return p.where(has_nan, kept / kept.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny))


def keep_above(z: Tensor, theta: Tensor) -> Tensor:
    r"""Apply t-softmax that keeps the labels above a threshold: ``t = max(z) - theta``; zeros if all lie below.

    .. math:: p_i = w_i e^{z_i} / \sum_j w_j e^{z_j}, \qquad w_i = [z_i - \theta]_+

    Args:
        z: logits [..., K].
        theta: the threshold; broadcasts to [..., 1].

    Returns:
        Probabilities [..., K], non-zero where ``z > theta``, even where they underflow.

    Example:
        >>> keep_above(torch.tensor([[2.0, 1.0, -1.0], [-2.0, -1.0, -3.0]]), torch.tensor(0.0))
        tensor([[0.8446, 0.1554, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    return _kept(weighted_softmax(z, F.relu(z - theta)), z > theta)


def _kept(p: Tensor, labels: Tensor) -> Tensor:
    """Probabilities of which those of the labels are not zero, but at least the smallest normal number."""
    return p.where(~labels | (p != 0), torch.finfo(p.dtype).tiny)


def best_labels(u: Tensor, k: Tensor) -> Tensor:
    """Return the k highest entries of each row as bool [..., K]; exactly k, even with ties.

    Args:
        u: scores [..., K].
        k: numbers of labels, [..., 1].

    Example:
        >>> best_labels(torch.tensor([[2.0, 1.0, 1.0], [2.0, 1.0, 0.0]]), torch.tensor([[2], [0]]))
        tensor([[ True,  True, False],
                [False, False, False]])
    """
    stable = {} if is_exporting() else {"stable": True}  # ONNX's sort always is
    ranks = u.argsort(dim=-1, descending=True, **stable).argsort(-1)
    return ranks.lt(k)


def rate_of_count(k: Tensor, z: Tensor) -> Tensor:
    """The rate of zeros that leaves k of the K entries of ``z``: ``r = 1 - k/K``, exact for every k."""
    labels = z.shape[-1]
    return (labels - k).to(exact(z)) / labels


class Decoded(NamedTuple):
    """The output of a :class:`Decoder`.

    Attributes:
        log_odds: calibrated log-odds of the labels, [..., K].
        margins: log-odds minus threshold; labels are predicted in this order.
        k: the number of labels, [..., 1], int64.
    """

    log_odds: Tensor
    margins: Tensor
    k: Tensor

    @property
    def labels(self) -> Tensor:
        """The predicted labels [..., K], bool: the k with the highest margins."""
        return best_labels(self.margins, self.k)


class Decoder(nn.Module):
    """Calibrates scores of any origin and predicts the labels that maximise an expected F-measure.

    Args:
        num_labels: the number of labels, K.
        average, beta, min_labels, max_labels: see :class:`DecoderOptions`. ``min_labels=k, max_labels=k`` predicts the
            k best labels of every row.

    Attributes:
        calibration, no_label: the :class:`PlattScaling` of the labels and of "no label".
        threshold: the decision threshold as log-odds, [1] or, for "macro", [K]; 0 before :meth:`fit`; unused by
            "samples".

    Example:
        >>> _ = torch.manual_seed(0)
        >>> u = torch.randn(500, 3) - 1.5
        >>> y = torch.rand(500, 3) < (2 * u).sigmoid()
        >>> decoder = Decoder(3).fit(u, y)
        >>> decoder.threshold.sigmoid().round(decimals=1)
        tensor([0.3000])
        >>> decoder(torch.tensor([[0.1, -0.2, -2.0]])).labels
        tensor([[ True,  True, False]])

    The state is in buffers and saved by ``state_dict``. NaN scores give NaN log-odds.
    """

    threshold: Tensor

    def __init__(
        self,
        num_labels: int,
        average: Average = "micro",
        beta: float = 1.0,
        min_labels: int = 0,
        max_labels: int | None = None,
    ) -> None:
        super().__init__()
        check_average(average)
        check_beta(beta)
        _check_bounds(min_labels, max_labels, num_labels)
        self.average, self.beta, self.min_labels, self.max_labels = average, beta, min_labels, max_labels
        self.calibration, self.no_label = PlattScaling(num_labels), PlattScaling(1)
        self.register_buffer("threshold", torch.zeros(num_labels if average == "macro" else 1))

    def reset(self) -> None:
        """Return to the state before :meth:`fit`."""
        self.calibration.reset()
        self.no_label.reset()
        self.threshold.zero_()

    @torch.no_grad()
    def fit(
        self,
        u: Tensor,
        y: Tensor,
        none: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        calibrate: bool = True,
    ) -> Self:
        """Fit calibration and thresholds.

        Args:
            u: scores [rows, K] of held-out rows; NaN where there is no score.
            y: labels [rows, K], 0 or 1; NaN where unknown.
            none: scores [rows, 1] of "no label". Default: computed as for independent labels.
            weight: weights of the rows, [rows, 1].
            calibrate: False takes the scores as log-odds and fits the thresholds only, which needs no labels.
        """
        if calibrate:
            self.calibration.fit(u, y, weight)
            self.no_label.fit(self._none(self.calibration(u)) if none is None else none, _is_empty(y), weight)
        if self.average != "samples":
            odds, known = self.calibration(u), ~u.isnan()
            counted = known if weight is None else known * weight
            threshold = expected_f1_threshold(odds.where(known, 0), self.average, beta=self.beta, weight=counted)[0]
            self.threshold.copy_(threshold.nan_to_num(neginf=0.0))
        return self

    def forward(self, u: Tensor, none: Tensor | None = None) -> Decoded:
        """Map scores [..., K], and of "no label" [..., 1], to labels."""
        return self.decide(self.calibration(u), none)

    def decide(self, odds: Tensor, none: Tensor | None = None) -> Decoded:
        """Map calibrated log-odds [..., K] to labels."""
        if self.average == "samples":
            empty = self.no_label(self._none(odds) if none is None else none)
            k = expected_f1_count(odds, empty, beta=self.beta, min_labels=self.min_labels, max_labels=self.max_labels)
            return Decoded(odds, odds, k)
        margin = odds - self.threshold.to(odds.dtype)
        k = (margin > 0).sum(-1, keepdim=True).clamp(self.min_labels, self.max_labels)
        return Decoded(odds, margin, k)

    def extra_repr(self) -> str:
        """The options shown by ``repr``."""
        bounds = f", min_labels={self.min_labels}, max_labels={self.max_labels}"
        return f"average={self.average}, beta={self.beta}{bounds if self.min_labels or self.max_labels else ''}"

    @staticmethod
    def _none(odds: Tensor) -> Tensor:
        """A finite score of "no label" from log-odds of the labels."""
        return log_odds_of_no_label(odds.nan_to_num(nan=-30.0)).clamp(-30, 30)


def _is_empty(y: Tensor) -> Tensor:
    """Whether a row has no label, [rows, 1]; NaN where unknown labels leave it open."""
    some = (y == 1).any(-1, keepdim=True)
    return (~some).double().where(some | ~y.isnan().any(-1, keepdim=True), torch.nan)


def check_average(average: str) -> None:
    """Raise ValueError unless ``average`` is one of ``AVERAGES``."""
    if average not in AVERAGES:
        raise ValueError(f"expected F1: average must be one of {', '.join(map(repr, AVERAGES))}, got {average!r}")


def check_beta(beta: float) -> None:
    """Raise ValueError unless beta is positive and finite."""
    if not 0 < beta < math.inf:
        raise ValueError(f"expected F1: beta must be positive and finite, got {beta!r}; beta=1 is F1")


def _check_bounds(min_labels: int, max_labels: int | None, labels: int) -> None:
    if not 0 <= min_labels <= (labels if max_labels is None else max_labels) <= labels:
        raise ValueError(
            f"expected F1: 0 <= min_labels <= max_labels <= {labels} (the number of labels) must hold,"
            f" got min_labels={min_labels!r}, max_labels={max_labels!r}"
        )
