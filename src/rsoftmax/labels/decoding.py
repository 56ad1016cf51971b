"""From scores to label sets: the labels that maximise an expected F-measure, and mappings that keep exactly these.

The F-measure of a prediction is replaced by a ratio of expectations. With marginals ``pi`` and ``n`` predicted entries

.. math:: F_\\beta = \\frac{(1 + \\beta^2) \\sum_{\\text{predicted}} \\pi}{n + \\beta^2 \\sum \\pi}

The best set of any size has the highest marginals: those above ``F / (1 + beta^2)``, where F is the best value.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Literal, NamedTuple, Self, TypedDict, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsoftmax._tensors import all_or_none, exact, is_exporting
from rsoftmax.labels.calibration import PlattScaling, check_not_negative
from rsoftmax.labels.constraints import Constraints
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
DIMS: dict[str, tuple[int, ...]] = {"micro": (-2, -1), "macro": (-2,), "samples": (-1,)}  # that an average sums over
UNLIKELY = -1e30  # the least margin of a label that a rule needs
TINY = torch.finfo(torch.float32).tiny  # 0 / TINY = 0: the ratio of an empty sum


class DecoderOptions(TypedDict, total=False):
    """The options of decoding; ``DEFAULTS`` has the default of each.

    Attributes:
        average: the F-measure to maximise. "micro": one threshold for all entries; "macro": one per label; "samples":
            the number of labels is chosen sample by sample.
        beta: recall is weighted beta times as much as precision.
        min_labels: the minimum number of labels per sample.
        max_labels: the maximum number of labels per sample; None: K.
        zero_division: for "samples", the F-measure of predicting nothing for a sample without labels: 1 or 0.
        implies: pairs of labels (child, parent), by index: the parent is predicted wherever the child is, and is at
            least as probable.
        exclusive: groups of labels, by index, of which at most one is predicted.
    """

    average: Average
    beta: float
    min_labels: int
    max_labels: int | None
    zero_division: float
    implies: Sequence[tuple[int, int]]
    exclusive: Sequence[Sequence[int]]


DEFAULTS: DecoderOptions = {
    "average": "micro",
    "beta": 1.0,
    "min_labels": 0,
    "max_labels": None,
    "zero_division": 1.0,
    "implies": (),
    "exclusive": (),
}


def expected_f1_count(
    log_odds: Tensor,
    no_label: Tensor | None = None,
    *,
    beta: float = 1.0,
    min_labels: int = 0,
    max_labels: int | None = None,
    zero_division: float = 1.0,
) -> Tensor:
    r"""Return the number of labels with the highest expected F-measure for each sample.

    .. math:: k^* = \arg\max_k F(k), \qquad
              F(k) = \frac{(1 + \beta^2) \sum_{i \le k} \pi_i}{k + \beta^2 \sum_i \pi_i}, \qquad
              F(0) = \mathrm{zero\_division} \cdot P(\text{no label}), \\
              \pi = \mathrm{sigmoid}(u) \text{ in descending order}

    Args:
        log_odds: u, of the labels, [..., K].
        no_label: log-odds that the sample has no label, [..., 1]. Default: labels are independent,
            P(no label) = prod(1 - pi).
        beta: recall is weighted beta times as much as precision.
        min_labels: the smallest number allowed.
        max_labels: the largest number allowed; None: K.
        zero_division: the F-measure of predicting nothing for a sample without labels, 1 or 0. With 0, scikit-learn's
            default, every sample gets a label.

    Returns:
        k, [..., 1], int64.

    Example:
        >>> log_odds = torch.tensor([[3.0, -0.3, -3.0], [-4.0, -3.0, -5.0]])
        >>> expected_f1_count(log_odds)
        tensor([[2],
                [0]])
        >>> expected_f1_count(log_odds, min_labels=1, max_labels=1)
        tensor([[1],
                [1]])

    Computing the expectation of the ratio itself would take ``O(K^2)`` or more. The F-measure of an empty prediction is
    ``zero_division`` if the sample has no label and 0 otherwise.

    Reference: Lipton et al., Optimal thresholding of classifiers to maximize F1 measure (2014), for the ratio.
    """
    check_options("samples", beta, zero_division)
    check_bounds(log_odds.shape[-1], min_labels, max_labels)
    u = log_odds.detach().to(exact(log_odds)).sort(-1, descending=True).values
    pi, k = u.sigmoid(), torch.arange(1, u.shape[-1] + 1, device=u.device)
    f_of_k = f_measure(pi.cumsum(-1), k, pi.sum(-1, keepdim=True), beta)
    f_of_0 = (log_odds_of_no_label(u) if no_label is None else no_label.detach().to(u.dtype)).sigmoid()
    allowed = torch.cat([zero_division * f_of_0, f_of_k], -1)[
        ..., min_labels : None if max_labels is None else max_labels + 1
    ]
    return min_labels + allowed.argmax(-1, keepdim=True)


def expected_f1_threshold(
    log_odds: Tensor,
    average: Average = "micro",
    *,
    beta: float = 1.0,
    weight: Tensor | None = None,
    tail: float | Tensor = 0.0,
) -> Tensor:
    r"""Return the decision threshold that maximises the expected F-measure of many samples, from log-odds alone.

    .. math:: c^* = \mathrm{logit}\left(\frac{F^*}{1 + \beta^2}\right), \qquad
              F^* = \max_c \frac{(1 + \beta^2) \sum_{u > c} \pi}{\#\{u > c\} + \beta^2 \sum \pi}, \qquad
              \pi = \mathrm{sigmoid}(u)

    Args:
        log_odds: u, of the labels, [samples, K]; calibrated, and of held-out samples.
        average: "micro": one threshold, from all entries. "macro": one per label, from its column. "samples": one per
            sample, which is :func:`expected_f1_count` without the empty prediction.
        beta: recall is weighted beta times as much as precision.
        weight: weights of the samples, [samples, 1], or of the entries, [samples, K].
        tail: the expected number of positive entries that are left out; broadcasts to the thresholds.

    Returns:
        The thresholds as log-odds, float64: [1, 1] for "micro", [1, K] for "macro", [samples, 1] for "samples". Entries
        with ``u > threshold`` are predicted.

    Raises:
        ValueError: the log-odds contain NaN, or a weight or the tail is negative.

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

    Marginals are compared relative to the largest one, so the threshold is right where all of them underflow. If all
    log-odds are ``-inf``, so is the threshold, and nothing lies above it; if all weights are 0, it is 0.

    References: Lipton et al. (2014), for the threshold at half of the best F1; Dinkelbach, On nonlinear fractional
    programming (1967), for the iteration.
    """
    check_options(average, beta)
    if log_odds.isnan().any():
        raise ValueError(
            f"expected_f1_threshold: log-odds of shape {[*log_odds.shape]} contain NaN; drop these samples, or set NaN"
            " to 0 with weight 0"
        )
    check_not_negative("expected_f1_threshold: tail", tail)
    u, dims = log_odds.detach().to(exact(log_odds)), DIMS[average]
    weight = torch.ones_like(u) if weight is None else weight.to(u).expand_as(u)
    check_not_negative("expected_f1_threshold: weight", weight)
    groups = Groups(lambda x: x.sum(dims, keepdim=True), lambda x: x.amax(dims, keepdim=True), lambda x: x)
    return groups.thresholds(u, weight, beta, tail).where((weight > 0).any(dims, keepdim=True), 0)


class Groups(NamedTuple):
    """How entries form groups with a threshold each: dimensions of a matrix, or labels of sparse entries.

    Attributes:
        total: the sum of the entries of each group.
        top: their maximum.
        spread: gives each entry the value of its group.
    """

    total: Callable[[Tensor], Tensor]
    top: Callable[[Tensor], Tensor]
    spread: Callable[[Tensor], Tensor]

    def thresholds(self, u: Tensor, weight: Tensor, beta: float, tail: float | Tensor) -> Tensor:
        """The threshold of each group as log-odds; see :func:`expected_f1_threshold`.

        It lies below the highest log-odds even where rounding would move it there: the best set is never empty.
        """
        log_pi = F.logsigmoid(u).where(weight > 0, -torch.inf)
        log_top = self.top(log_pi).clamp(min=torch.finfo(u.dtype).min)
        pi = (log_pi - self.spread(log_top)).exp()  # relative to the largest
        expected = beta**2 * (log_top.exp() * self.total(weight * pi) + tail)
        log_share = self._best_ratio(pi, weight, expected).log() + log_top  # of F / (1 + beta^2)
        threshold = log_share - torch.log1p(-log_share.exp())
        u = u.where(weight > 0, -torch.inf)
        top = self.top(u)
        second = self.top(u.where(u < self.spread(top), -torch.inf))
        return threshold.where(threshold < top, second.where(second.isfinite(), top - top.abs().clamp(min=1) / 2))

    def _best_ratio(self, pi: Tensor, weight: Tensor, expected: Tensor) -> Tensor:
        """The sum of the highest ``pi`` over their number plus ``expected``, maximised by Dinkelbach's method."""
        best = torch.zeros_like(expected)
        while True:
            above = weight * (pi > self.spread(best))
            ratio = self.total(above * pi) / (self.total(above) + expected).clamp(min=TINY)
            if not (ratio > best).any():
                return best
            best = best.maximum(ratio)


def expected_f1(
    marginals: Tensor,
    predicted: Tensor,
    average: Average = "micro",
    *,
    beta: float = 1.0,
    zero_division: float = 1.0,
) -> float:
    r"""Return the expected F-measure of a prediction under marginals: a ratio of expectations, without labels.

    .. math:: \frac{(1 + \beta^2) \sum_{\text{predicted}} \pi}{\#\text{predicted} + \beta^2 \sum \pi}

    over all entries ("micro"), or averaged over labels ("macro") or samples ("samples"). A sample without predicted
    labels contributes ``zero_division`` times the probability of no label, for independent labels.

    Args:
        marginals: pi, calibrated, [samples, K].
        predicted: bool [samples, K].
        average: "micro", "macro" or "samples".
        beta: recall is weighted beta times as much as precision.
        zero_division: for "samples", the F-measure of predicting nothing for a sample without labels, 1 or 0.

    Example:
        >>> marginals = torch.tensor([[0.9, 0.2], [0.6, 0.7]])
        >>> round(expected_f1(marginals, marginals > 0.5), 3)
        0.815
    """
    check_options(average, beta, zero_division)
    pi = marginals.to(exact(marginals))
    if average == "samples":
        return float(expected_f1_of_samples(pi, predicted, zero_division * (1 - pi).prod(-1), beta).mean())
    return float(_expected_ratio(pi, predicted, DIMS[average], beta).mean())


def expected_f1_of_samples(marginals: Tensor, predicted: Tensor, f_of_0: Tensor, beta: float = 1.0) -> Tensor:
    """The expected F-measure of each sample, [samples], as in :func:`expected_f1`.

    Args:
        marginals: [samples, K].
        predicted: bool [samples, K].
        f_of_0: the expected F-measure of predicting nothing, [samples].
        beta: recall is weighted beta times as much as precision.
    """
    return _expected_ratio(marginals, predicted, DIMS["samples"], beta).where(predicted.any(-1), f_of_0)


def _expected_ratio(pi: Tensor, predicted: Tensor, dims: tuple[int, ...], beta: float) -> Tensor:
    return f_measure((pi * predicted).sum(dims), predicted.sum(dims), pi.sum(dims).clamp(min=TINY), beta)


def f_measure(correct: Tensor, predicted: Tensor, positive: Tensor, beta: float) -> Tensor:
    """The F-measure from numbers of correct, predicted and positive entries."""
    return (1 + beta**2) * correct / (predicted + beta**2 * positive)


def log_odds_of_no_label(log_odds: Tensor) -> Tensor:
    """Return the log-odds that a sample of independent labels has none, ``logit(prod(1 - pi))``, [..., 1]."""
    log_p = -F.softplus(log_odds).sum(-1, keepdim=True)
    return log_p - torch.log(-torch.expm1(log_p))


def keep_count(logits: Tensor, k: Tensor) -> Tensor:
    """Apply r-softmax that keeps k labels: ``r = 1 - k/K``; all entries are zero where ``k = 0``.

    Args:
        logits: [..., K].
        k: numbers of labels from 0 to K, integers [..., 1].

    Returns:
        Probabilities [..., K], exactly k of them non-zero, even with ties or where weights underflow. A sample with NaN
        stays NaN, even where k = 0.

    Example:
        >>> keep_count(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([[2], [0]]))
        tensor([[0.9158, 0.0842, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    has_nan = logits.isnan().any(-1, keepdim=True)  # zeros would read as "no label"
    p = r_softmax(logits, rate_of_count(k, logits), mask=(k > 0) | has_nan)
    if all_or_none(p.count_nonzero(-1).unsqueeze(-1) == k):
        return p
    labels = best_labels(logits, k)
    exactly_k = _at_least_tiny(p, labels) * labels
    return p.where(has_nan, exactly_k / exactly_k.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny))


def keep_above(logits: Tensor, threshold: Tensor) -> Tensor:
    r"""Apply t-softmax that keeps the labels above a threshold: ``t = max(z) - theta``; zeros if all lie below.

    .. math:: p_i = w_i e^{z_i} / \sum_j w_j e^{z_j}, \qquad w_i = [z_i - \theta]_+

    Args:
        logits: z, [..., K].
        threshold: theta; broadcasts to [..., 1].

    Returns:
        Probabilities [..., K], non-zero where ``z > theta``, even where they underflow.

    Example:
        >>> keep_above(torch.tensor([[2.0, 1.0, -1.0], [-2.0, -1.0, -3.0]]), torch.tensor(0.0))
        tensor([[0.8446, 0.1554, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    return _at_least_tiny(weighted_softmax(logits, F.relu(logits - threshold)), logits > threshold)


def _at_least_tiny(p: Tensor, labels: Tensor) -> Tensor:
    """Probabilities in which zeros of the labels are replaced by the smallest normal number."""
    return p.where(~labels | (p != 0), torch.finfo(p.dtype).tiny)


def best_labels(scores: Tensor, k: Tensor) -> Tensor:
    """Return the k highest entries of each sample as bool [..., K]; exactly k, even with ties.

    Args:
        scores: [..., K].
        k: numbers of labels, [..., 1].

    Example:
        >>> best_labels(torch.tensor([[2.0, 1.0, 1.0], [2.0, 1.0, 0.0]]), torch.tensor([[2], [0]]))
        tensor([[ True,  True, False],
                [False, False, False]])
    """
    stable = {} if is_exporting() else {"stable": True}  # ONNX's sort always is
    ranks = scores.argsort(dim=-1, descending=True, **stable).argsort(-1)
    return ranks.lt(k)


def rate_of_count(k: Tensor, logits: Tensor) -> Tensor:
    """The rate of zeros that leaves k of the K entries of the logits: ``r = 1 - k/K``, exact for every k."""
    num_labels = logits.shape[-1]
    return (num_labels - k).to(exact(logits)) / num_labels


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
        average, beta, min_labels, max_labels, zero_division, implies, exclusive: see :class:`DecoderOptions`.
            ``min_labels=k, max_labels=k`` predicts the k best labels of every sample.

    Attributes:
        calibration, no_label: the :class:`PlattScaling` of the labels and of "no label".
        threshold: the decision threshold as log-odds, [1] or, for "macro", [K]; 0 before :meth:`fit`; unused by
            "samples".

    Example:
        >>> _ = torch.manual_seed(0)
        >>> scores = torch.randn(500, 3) - 1.5
        >>> y = torch.rand(500, 3) < (2 * scores).sigmoid()
        >>> decoder = Decoder(3).fit(scores, y)
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
        zero_division: float = 1.0,
        implies: Sequence[tuple[int, int]] = (),
        exclusive: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__()
        check_options(average, beta, zero_division)
        check_bounds(num_labels, min_labels, max_labels)
        self.constraints = Constraints(num_labels, implies, exclusive, min_labels, max_labels)
        self.average, self.beta, self.zero_division = average, beta, zero_division
        self.min_labels, self.max_labels = min_labels, max_labels
        self.calibration, self.no_label = PlattScaling(num_labels), PlattScaling(1)
        self.register_buffer("threshold", torch.zeros(num_labels if average == "macro" else 1))

    @property
    def options(self) -> DecoderOptions:
        """The arguments of the constructor besides the number of labels."""
        return {
            "average": self.average,
            "beta": self.beta,
            "min_labels": self.min_labels,
            "max_labels": self.max_labels,
            "zero_division": self.zero_division,
            "implies": self.constraints.implies,
            "exclusive": self.constraints.exclusive,
        }

    def reset(self) -> None:
        """Return to the state before :meth:`fit`."""
        self.calibration.reset()
        self.no_label.reset()
        self.threshold.zero_()

    @torch.no_grad()
    def fit(
        self,
        scores: Tensor,
        y: Tensor,
        no_label: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        calibrate: bool = True,
    ) -> Self:
        """Fit calibration and thresholds.

        Args:
            scores: [samples, K], of held-out samples; NaN where there is no score.
            y: labels [samples, K], 0 or 1; NaN where unknown.
            no_label: scores of "no label", [samples, 1]. Default: computed as for independent labels.
            weight: weights of the samples, [samples, 1].
            calibrate: False takes the scores as log-odds and fits the thresholds only, which needs no labels.
        """
        if calibrate:
            self.calibration.fit(scores, y, weight)
            no_label = _no_label_score(self.calibration(scores)) if no_label is None else no_label
            some = (y == 1).any(-1, keepdim=True)
            empty = (~some).double().where(some | ~y.isnan().any(-1, keepdim=True), torch.nan)  # NaN: may have labels
            self.no_label.fit(no_label, empty, weight)
        if self.average != "samples":
            log_odds, known = self.log_odds(scores).where(~scores.isnan(), 0), ~scores.isnan()
            weight = known if weight is None else known * weight
            threshold = expected_f1_threshold(log_odds, self.average, beta=self.beta, weight=weight)[0]
            self.threshold.copy_(threshold.nan_to_num(neginf=0.0))
        return self

    def forward(self, scores: Tensor, no_label: Tensor | None = None) -> Decoded:
        """Map scores [..., K], and of "no label" [..., 1], to labels."""
        return self.decide(self.log_odds(scores), no_label)

    def log_odds(self, scores: Tensor) -> Tensor:
        """Calibrated log-odds of the labels, [..., K]."""
        return self.constraints.coherent(self.calibration(scores))

    def no_label_log_odds(self, log_odds: Tensor, no_label: Tensor | None = None) -> Tensor:
        """Calibrated log-odds of "no label", [..., 1], from those of the labels, or from a score of its own."""
        calibrated: Tensor = self.no_label(_no_label_score(log_odds) if no_label is None else no_label)
        return calibrated

    def decide(self, log_odds: Tensor, no_label: Tensor | None = None) -> Decoded:
        """Map calibrated log-odds [..., K], and a score of "no label" [..., 1], to labels."""
        if self.average == "samples":
            empty = self.no_label_log_odds(log_odds, no_label)
            k = expected_f1_count(
                log_odds,
                empty,
                beta=self.beta,
                min_labels=self.min_labels,
                max_labels=self.max_labels,
                zero_division=self.zero_division,
            )
            return self._constrained(Decoded(log_odds, log_odds, k), self.zero_division * empty.sigmoid())
        margins = log_odds - self.threshold.to(log_odds.dtype)
        k = (margins > 0).sum(-1, keepdim=True).clamp(self.min_labels, self.max_labels)
        return self._constrained(Decoded(log_odds, margins, k))

    def _constrained(self, decoded: Decoded, f_of_0: Tensor | None = None) -> Decoded:
        """Replace label sets that break a constraint by the best ones that do not."""
        labels = decoded.labels if self.constraints else None
        if labels is None or not (broken := self.constraints.broken(labels)).any():
            return decoded
        pi, threshold = decoded.log_odds.sigmoid().nan_to_num(), self.threshold.sigmoid()
        for sample in map(tuple, broken.nonzero().tolist()):
            if f_of_0 is None:
                best = self.constraints.best((pi[sample] - threshold).tolist())
            else:
                best = self.constraints.best_f_measure(pi[sample].tolist(), self.beta, float(f_of_0[sample]))
            labels[sample] = False
            labels[(*sample, sorted(best))] = True
        margins = decoded.margins.clamp(min=UNLIKELY)
        lowest = margins.where(labels, torch.inf).amin(-1, keepdim=True)
        others = decoded.margins.minimum((lowest - 1).minimum(2 * lowest))  # the labels have the highest margins
        margins = margins.where(labels, others).where(broken[..., None], decoded.margins)
        return Decoded(decoded.log_odds, margins, labels.sum(-1, keepdim=True))

    @torch.no_grad()
    def at_threshold(self, threshold: Tensor) -> "Decoder":
        """The decoder that predicts labels whose calibrated log-odds reach a threshold, [1] or [K], whatever their F1.

        Raises:
            ValueError: labels exclude each other.
        """
        rules = self.constraints
        if rules.exclusive:
            raise ValueError("Decoder: exclusive labels cannot keep a guarantee; leave out exclusive")
        average: Average = "micro" if len(threshold) == 1 else "macro"
        decoder = Decoder(len(self.calibration.slope), average, implies=rules.implies)
        if len(threshold) > 1:
            threshold = -rules.coherent(-threshold)  # a parent is predicted wherever its child is
        decoder.to(self.threshold.device)
        decoder.calibration, decoder.no_label = self.calibration, self.no_label
        nearest = threshold.to(decoder.threshold.dtype)  # labels above it are predicted: the greatest number below it
        below = nearest.nextafter(nearest.new_tensor(-torch.inf))
        decoder.threshold.copy_(nearest.where(nearest < threshold, below))
        return decoder

    def extra_repr(self) -> str:
        """The options shown by ``repr``."""
        bounds = f", min_labels={self.min_labels}, max_labels={self.max_labels}"
        empty = f", zero_division={self.zero_division:g}" if self.average == "samples" else ""
        return f"average={self.average}, beta={self.beta}{bounds if self.min_labels or self.max_labels else ''}{empty}"


def _no_label_score(log_odds: Tensor) -> Tensor:
    """A finite score of "no label" from log-odds of the labels, [..., 1]."""
    return log_odds_of_no_label(log_odds.nan_to_num(nan=-30.0)).clamp(-30, 30)


def check_options(average: str, beta: float, zero_division: float = 1.0) -> None:
    """Raise ValueError unless ``average`` is one of ``AVERAGES``, beta positive and finite, zero_division 0 or 1."""
    if average not in AVERAGES:
        raise ValueError(f"expected F1: average must be one of {', '.join(map(repr, AVERAGES))}, got {average!r}")
    if not (isinstance(beta, Real) and 0 < beta < math.inf):
        raise ValueError(f"expected F1: beta must be positive and finite, got {beta!r}; beta=1 is F1")
    if zero_division not in (0, 1):
        raise ValueError(f"expected F1: zero_division must be 0 or 1, got {zero_division!r}")


def check_bounds(num_labels: int, min_labels: int, max_labels: int | None) -> None:
    """Raise ValueError unless ``0 <= min_labels <= max_labels <= num_labels``."""
    most = num_labels if max_labels is None else max_labels
    is_integer = isinstance(min_labels, Integral) and isinstance(most, Integral)
    if not (is_integer and 0 <= min_labels <= most <= num_labels):
        raise ValueError(
            f"expected F1: 0 <= min_labels <= max_labels <= {num_labels} (the number of labels) must hold for integers,"
            f" got min_labels={min_labels!r}, max_labels={max_labels!r}"
        )
