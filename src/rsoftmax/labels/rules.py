"""The rules that decide which labels a row has: one class each, and the table of them.

A rule owns everything that distinguishes one way of finding the number of labels from another: the linear layers it
adds to the head, the scores computed from their outputs, the decoding of these scores, and its loss. It also lists the
mappings and losses it works with. To add a rule, write one class and add it to ``RULES``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax._tensors import exact
from rsoftmax.labels import losses
from rsoftmax.labels.decoding import Decoder, keep_above, keep_count, rate_of_count
from rsoftmax.labels.losses import Reduction
from rsoftmax.mappings import MAPPINGS, r_softmax
from rsoftmax.registry import RATE

__all__ = ["RULES", "Output", "Rule", "Scores"]

# Losses that train a ranking of the labels.
RANKING = (
    "cross_entropy", "sparsemax_huber_loss", "sparsemax_hinge_loss", "sparsehourglass_loss",
    "binary_cross_entropy", "zlpr_loss",
)  # fmt: skip
MEANING_OF_R = "r is the fraction of labels set to zero"
MASKABLE = "binary_cross_entropy"  # the loss that takes a weight for each label


class Scores(NamedTuple):
    """What a head computes from features before decoding; all that its loss needs.

    Attributes:
        z: logits of the labels, [..., K].
        theta: the threshold that logits are compared with, [..., 1]; rules "expected_f1", "threshold" and "zero".
        c: the logit of the rate of zeros, [..., 1], rule "rate"; logits of the counts 0..K, [..., K + 1], rule "count".
        none: the logit of "no label", [..., 1]; rule "expected_f1".
    """

    z: Tensor
    theta: Tensor | None = None
    c: Tensor | None = None
    none: Tensor | None = None

    @property
    def u(self) -> Tensor:
        """The logits minus the threshold, if there is one, [..., K]: what decisions and most losses depend on."""
        return self.z if self.theta is None else self.z - self.theta

    def require(self, field: str) -> Tensor:
        """Return a field that the rule in use needs."""
        value: Tensor | None = getattr(self, field)
        if value is None:
            raise ValueError(
                f"MultiLabelHead: the rule needs Scores.{field}, got None; pass what head.scores(h) returns"
            )
        return value


class Output(NamedTuple):
    """:class:`Scores`, decoded.

    Attributes:
        z, theta, c, none: as in :class:`Scores`.
        r: the rate of zeros, float64 [..., 1], if the mapping is r_softmax; 1 where there is no label.
        p: probabilities [..., K]; exactly zero for labels that are not predicted, hence everywhere in a row without
            labels. NaN in a row whose scores hold NaN.
        odds: calibrated log-odds [..., K]; None: the scores are used as log-odds.
    """

    z: Tensor
    theta: Tensor | None
    c: Tensor | None
    none: Tensor | None
    r: Tensor | None
    p: Tensor
    odds: Tensor | None = None

    @property
    def scores(self) -> Scores:
        """The scores that were decoded."""
        return Scores(*self[:4])

    @property
    def marginals(self) -> Tensor:
        """The marginal probability of each label, [..., K]; NaN where the score is NaN.

        The rules "rate", "count", "fixed" and None train a ranking: their scores become probabilities only after
        :meth:`rsoftmax.labels.MultiLabelHead.calibrate`.
        """
        return (self.scores.u if self.odds is None else self.odds).sigmoid()

    @property
    def labels(self) -> Tensor:
        """The predicted labels [..., K], bool: the non-zero probabilities.

        Raises:
            ValueError: a row holds NaN. Checked in eager code on the CPU, where reading values is free; elsewhere check
                ``p`` for NaN.
        """
        if self.p.device.type == "cpu" and not torch.compiler.is_compiling() and self.p.isnan().any():
            raise ValueError(
                f"MultiLabelHead: {int(self.p.isnan().any(-1).sum())} rows have NaN scores, which is not 'no label';"
                " check the features and the weights for NaN"
            )
        return self.p > 0


class Rule(ABC):
    """How a head decides on the labels of a row, and how that is trained.

    Args:
        mapping: one of ``mappings``.
        loss: one of ``losses``, or "auto".
        r: the rate of zeros, for rules that take one.

    Attributes:
        name: the value of the argument ``rule`` that selects the rule.
        mappings: names of the mappings it works with, the default first.
        losses: names of the losses in :mod:`rsoftmax.labels.losses` that train what it needs, the default first.
        criterion: the name of the loss in use.
        on_logits: the head's networks that map the K logits to a number, by name, with their numbers of hidden units.
    """

    name: ClassVar[str | None]
    mappings: ClassVar[tuple[str, ...]]
    losses: ClassVar[tuple[str, ...]]
    on_logits: ClassVar[Mapping[str, int]] = {}
    r: float | None

    def __init__(self, mapping: str, loss: str = "auto", r: float | None = None) -> None:
        self.mapping = mapping
        self.criterion = self.default_loss() if loss == "auto" else self._check_loss(loss)
        self.r = self._check_r(r)

    def layers(self, labels: int) -> dict[str, int]:
        """The head's linear layers for K labels: their names in the ``state_dict`` and numbers of outputs."""
        return {"logits": labels}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Compute the scores from the output of each layer and network."""
        return Scores(outputs["logits"])

    @abstractmethod
    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Map scores to probabilities and, with r_softmax, the rate of zeros.

        The decoder holds calibration, thresholds and options of the head; only "expected_f1" uses it.
        """

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        """The training loss, given labels y [..., K]."""
        loss: Tensor = getattr(losses, self.criterion)(scores.u, y, reduction=reduction)
        return loss

    def weighted_loss(self, scores: Scores, y: Tensor, weight: Tensor) -> Tensor:
        """The loss of each row, [...], with a weight for each entry, [..., K]; binary cross-entropy only."""
        if self.criterion != MASKABLE:
            raise ValueError(
                f"MultiLabelHead: loss={self.criterion!r} takes neither weights of single labels nor unknown"
                f" labels (NaN in y); use loss={MASKABLE!r}, with rule='expected_f1', 'threshold' or 'zero'"
            )
        y, weight = (entries.to(scores.u.dtype) for entries in (y, weight))
        return F.binary_cross_entropy_with_logits(scores.u, y, weight, reduction="none").sum(-1)

    def default_loss(self) -> str:
        """The loss selected by "auto"."""
        return self.losses[0]

    def _check_r(self, r: float | None) -> float | None:
        if r is not None:
            raise ValueError(f"MultiLabelHead: r={r!r} needs rule='fixed', got rule={self.name!r}; {MEANING_OF_R}")
        return None

    def _check_loss(self, loss: str) -> str:
        if loss not in self.losses:
            raise ValueError(
                f"MultiLabelHead: loss={loss!r} does not work with mapping={self.mapping!r}, rule={self.name!r};"
                f" use 'auto' or one of {', '.join(map(repr, self.losses))}"
            )
        return loss


class _Thresholded(Rule):
    """Rules with a threshold theta, which is an argument of :func:`rsoftmax.labels.losses.t_softmax_loss`."""

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        if self.criterion != "t_softmax_loss":
            return super().loss(scores, y, reduction)
        return losses.t_softmax_loss(scores.z, y, scores.require("theta"), reduction=reduction)


class _Ranked(Rule):
    """Rules that need a ranking of the labels; :func:`rsoftmax.labels.losses.r_softmax_loss` takes the rate r."""

    mappings = ("r_softmax",)
    losses = ("r_softmax_loss", *RANKING)

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        if self.criterion != "r_softmax_loss":
            return super().loss(scores, y, reduction)
        return losses.r_softmax_loss(scores.z, y, self._training_rate(scores, y), reduction=reduction)

    @abstractmethod
    def _training_rate(self, scores: Scores, y: Tensor) -> float | Tensor: ...


class ExpectedF1(_Thresholded):
    """The labels that maximise the expected F-measure under the marginals ``sigmoid(z - theta)``.

    "No label" is trained as one more label, from one more output of the same layer: labels are not independent where
    every row has at least one.
    """

    name = "expected_f1"
    mappings = ("r_softmax",)
    losses = ("binary_cross_entropy", "t_softmax_loss")

    def layers(self, labels: int) -> dict[str, int]:
        """Labels and "no label"; the threshold."""
        return {"logits": labels + 1, "threshold": 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Split off the last logit, "no label"."""
        logits = outputs["logits"]
        z, none = logits.split((logits.shape[-1] - 1, 1), -1)  # backward is cheaper than that of two slices
        return Scores(z, outputs["threshold"], none=none)

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Keep the labels with the highest expected F-measure by r-softmax."""
        found = decoder(scores.u, scores.require("none") - scores.require("theta"))
        return _keep(scores, found.k, found.margin)._replace(odds=found.odds)

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        """The loss of K + 1 labels, the last being "no label"."""
        return super().loss(*_with_none(scores, y), reduction)

    def weighted_loss(self, scores: Scores, y: Tensor, weight: Tensor) -> Tensor:
        """The loss of K + 1 labels; "no label" counts where all labels are known, or a positive one is.

        Its weight is the mean weight of the known labels.
        """
        counted = weight > 0
        known = (y.bool() & counted).any(-1, keepdim=True) | counted.all(-1, keepdim=True)
        mean = weight.sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)
        return super().weighted_loss(*_with_none(scores, y), torch.cat([weight, mean * known], -1))


class Rate(_Ranked):
    r"""The best fraction ``1 - r`` of the labels, where a small network on the logits predicts r: the paper's head.

    .. math:: r = \mathrm{sigmoid}(g(z)), \qquad k = \mathrm{round}(K (1 - r))

    In training, eq. 5 takes the predicted rate, which is learned through r-softmax and, by cross-entropy, from the true
    rate.

    Reference: Bałazy et al., r-softmax (2023), section 4.1, which does not say how large the network is.
    """

    name = "rate"
    on_logits: ClassVar = {"rate": 64}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits of labels and of the rate."""
        return Scores(outputs["logits"], c=outputs["rate"])

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Keep the nearest number of labels by r-softmax."""
        r = _rate(scores)
        k = (scores.z.shape[-1] * (1 - r)).round().nan_to_num().long()
        return _keep(scores, k, scores.z.where(~r.isnan(), torch.nan))

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        """The loss of the labels plus that of the rate."""
        return super().loss(scores, y, reduction) + losses.label_rate_loss(scores.require("c"), y, reduction=reduction)

    def _training_rate(self, scores: Scores, y: Tensor) -> Tensor:
        return _rate(scores)


class Count(_Ranked):
    """The k best labels, where a layer on the features predicts k.

    In training, eq. 5 takes the true number of labels, so that the scores do not depend on predicted counts. The counts
    are trained by cross-entropy. This reads the paper's section 4.1 differently from :class:`Rate`.
    """

    name = "count"

    def layers(self, labels: int) -> dict[str, int]:
        """Labels; counts 0..K."""
        return {"logits": labels, "count": labels + 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits of labels and of counts."""
        return Scores(outputs["logits"], c=outputs["count"])

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Keep the most probable number of labels by r-softmax."""
        return _keep(scores, scores.require("c").argmax(-1, keepdim=True), scores.z)

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        """The loss of the labels plus that of their count."""
        count = losses.label_count_loss(scores.require("c"), y, reduction=reduction)
        return super().loss(scores, y, reduction) + count

    def _training_rate(self, scores: Scores, y: Tensor) -> Tensor:
        return rate_of_count(y.sum(-1, keepdim=True), scores.z)


class Fixed(_Ranked):
    """The best fraction ``1 - r`` of the labels."""

    name = "fixed"
    r: float

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Apply r-softmax with the given rate."""
        z = scores.z
        r = torch.full((*z.shape[:-1], 1), self.r, dtype=exact(z), device=z.device)
        return Output(*scores, r, r_softmax(z, r))

    def _training_rate(self, scores: Scores, y: Tensor) -> float:
        return self.r

    def _check_r(self, r: float | None) -> float:
        if r is None:
            raise ValueError(f"MultiLabelHead: rule='fixed' needs r, such as r=0.9; {MEANING_OF_R}")
        if not RATE.contains(r):
            raise ValueError(f"MultiLabelHead: r must be {RATE.text}, got {r!r}; {RATE.remedy}")
        return r


class Threshold(_Thresholded):
    """The labels above a threshold predicted from the features.

    Reference: Bałazy et al., r-softmax (2023), section 4.1, version (1).
    """

    name = "threshold"
    mappings = ("t_softmax",)
    losses = ("t_softmax_loss", "binary_cross_entropy", "zlpr_loss")

    def layers(self, labels: int) -> dict[str, int]:
        """Labels; the threshold."""
        return {"logits": labels, "threshold": 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits and the threshold."""
        return Scores(outputs["logits"], outputs["threshold"])

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Keep the labels above the threshold by t-softmax."""
        return Output(*scores, None, keep_above(scores.z, scores.require("theta")))


class Zero(Threshold):
    """The labels above 0: a fixed threshold."""

    name = "zero"
    losses = ("binary_cross_entropy", "zlpr_loss", "t_softmax_loss")

    def layers(self, labels: int) -> dict[str, int]:
        """Labels."""
        return {"logits": labels}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits and a threshold of 0."""
        z = outputs["logits"]
        return Scores(z, z.new_zeros(1))


class _KeepingOrder:
    """The order-preserving mappings without a rule, as registered at the time of access."""

    def __get__(self, *_: object) -> tuple[str, ...]:
        first = ("sparsemax", "r_softmax", "t_softmax")
        return first[0], *(name for name, row in MAPPINGS.items() if row.keeps_order and name not in first)


class ByMapping(Rule):
    """The support of the mapping; a parameter of the mapping takes the value of its example."""

    name = None
    mappings = _KeepingOrder()
    losses = RANKING

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Apply the mapping to the logits."""
        row = MAPPINGS[self.mapping]
        parameter = [row.parameter.example] if row.parameter else []
        return Output(*scores, None, row.function(scores.z, *parameter))

    def default_loss(self) -> str:
        """The mapping's own loss; for mappings without one the hinge loss, which needs nothing but a ranking."""
        own = {
            "softmax": "cross_entropy",
            "sparsemax": "sparsemax_huber_loss",
            "sparsehourglass": "sparsehourglass_loss",
        }
        return own.get(self.mapping, "sparsemax_hinge_loss")


def _keep(scores: Scores, k: Tensor, z: Tensor) -> Output:
    return Output(*scores, rate_of_count(k, z), keep_count(z, k))


def _rate(scores: Scores) -> Tensor:
    """The predicted rate of zeros, [..., 1]."""
    return scores.require("c").to(exact(scores.z)).sigmoid()


def _with_none(scores: Scores, y: Tensor) -> tuple[Scores, Tensor]:
    """Scores and labels of K + 1 labels, the last being "no label"."""
    z = torch.cat([scores.z, scores.require("none")], -1)
    return Scores(z, scores.theta), torch.cat([y, y.any(-1, keepdim=True).logical_not()], -1)


RULES: dict[str | None, type[Rule]] = {
    rule.name: rule for rule in (ExpectedF1, Rate, Count, Fixed, Threshold, Zero, ByMapping)
}  # for a mapping, its first rule is the default
