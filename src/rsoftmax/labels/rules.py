"""The rules that decide how many labels a sample has: one class each, and the table of them.

A rule owns everything that distinguishes one way of choosing the number of labels from another: the linear layers it
adds to the head, the scores computed from their outputs, the decoding of these scores, and its loss. It also lists the
mappings and losses it works with. To add a rule, write one class: ``RULES[MyRule.name] = MyRule``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax._tensors import exact
from rsoftmax.labels import losses
from rsoftmax.labels.decoding import Decoder, keep_above, keep_count, rate_of_count
from rsoftmax.mappings import MAPPINGS

__all__ = ["RULES", "Output", "RankingRule", "Rule", "Scores"]

# Losses that train a ranking of the labels.
RANKING_LOSSES = (
    "softmax_cross_entropy", "sparsemax_huber_loss", "sparsemax_hinge_loss", "sparsehourglass_hinge_loss",
    "sigmoid_binary_cross_entropy", "zlpr_loss", "budget_loss",
)  # fmt: skip
MASKABLE = "sigmoid_binary_cross_entropy"  # the loss that takes a weight for each label


class Scores(NamedTuple):
    """What a head computes from features before decoding; all that its loss needs.

    Attributes:
        logits: [..., K].
        threshold: what the logits are compared with, [..., 1]; rules "expected_f1", "threshold" and "zero".
        aux_logits: the logit of the rate of zeros, [..., 1], for rule "rate"; what other rules predict beside the
            labels.
        no_label_logit: [..., 1]; rule "expected_f1".
    """

    logits: Tensor
    threshold: Tensor | None = None
    aux_logits: Tensor | None = None
    no_label_logit: Tensor | None = None

    @property
    def margins(self) -> Tensor:
        """The logits minus the threshold, if there is one, [..., K]: what decisions and most losses depend on."""
        return self.logits if self.threshold is None else self.logits - self.threshold

    @property
    def no_label_margin(self) -> Tensor | None:
        """The logit of "no label" minus the threshold, [..., 1], if there is one."""
        return None if self.no_label_logit is None else Scores(self.no_label_logit, self.threshold).margins

    def require(self, field: str) -> Tensor:
        """Return a field that the rule in use needs."""
        value: Tensor | None = getattr(self, field)
        if value is None:
            raise ValueError(
                f"MultiLabelHead: the rule needs Scores.{field}, got None; pass what head.scores(h) returns, or"
                f" Scores(logits, {field}=...)"
            )
        return value


class Output(NamedTuple):
    """:class:`Scores`, decoded.

    Attributes:
        logits, threshold, aux_logits, no_label_logit: as in :class:`Scores`.
        rate: the rate of zeros, float64 [..., 1], if the mapping is r_softmax; 1 where there is no label.
        probs: probabilities [..., K]; exactly zero for labels that are not predicted, hence everywhere in a sample
            without labels. NaN in a sample whose scores contain NaN.
        log_odds: calibrated log-odds [..., K]; None: the margins are used as log-odds.
    """

    logits: Tensor
    threshold: Tensor | None
    aux_logits: Tensor | None
    no_label_logit: Tensor | None
    rate: Tensor | None
    probs: Tensor
    log_odds: Tensor | None = None

    @property
    def scores(self) -> Scores:
        """The scores that were decoded."""
        return Scores(*self[:4])

    @property
    def marginals(self) -> Tensor:
        """The marginal probability of each label, [..., K]; NaN where the score is NaN.

        The rules "rate" and None train a ranking: their scores become probabilities only after
        :meth:`rsoftmax.labels.MultiLabelHead.calibrate`.
        """
        return (self.scores.margins if self.log_odds is None else self.log_odds).sigmoid()

    @property
    def labels(self) -> Tensor:
        """The predicted labels [..., K], bool: the non-zero probabilities.

        Raises:
            ValueError: the scores of a sample contain NaN. Checked in eager code on the CPU, where reading values is
                free; elsewhere check ``probs`` for NaN.
        """
        if self.probs.device.type == "cpu" and not torch.compiler.is_compiling() and self.probs.isnan().any():
            raise ValueError(
                f"MultiLabelHead: the scores of {int(self.probs.isnan().any(-1).sum())} samples contain NaN; cannot"
                " decode labels. Check the features and the weights for NaN"
            )
        return self.probs > 0


class Rule(ABC):
    """How a head decides on the labels of a sample, and how that is trained.

    Args:
        mapping: one of ``mappings``.
        loss: one of ``losses``, or "auto".

    Attributes:
        name: the value of the argument ``rule`` that selects the rule.
        mappings: names of the mappings it works with, the default first.
        losses: names of the losses in :mod:`rsoftmax.labels.losses` that train what it needs, the default first.
        criterion: the name of the loss in use.
        logit_mlps: the head's networks that map the K logits to a number, by name, with their numbers of hidden units.
    """

    name: ClassVar[str | None]
    mappings: ClassVar[tuple[str, ...]]
    losses: ClassVar[tuple[str, ...]]
    logit_mlps: ClassVar[Mapping[str, int]] = {}

    def __init__(self, mapping: str, loss: str = "auto") -> None:
        self.mapping = mapping
        self.criterion = self.default_loss() if loss == "auto" else loss
        if self.criterion not in self.losses:
            raise ValueError(
                f"MultiLabelHead: loss={loss!r} does not work with mapping={mapping!r}, rule={self.name!r};"
                f" use 'auto' or one of {', '.join(map(repr, self.losses))}"
            )

    def layers(self, num_labels: int) -> dict[str, int]:
        """The head's linear layers for K labels: their names in the ``state_dict`` and numbers of outputs."""
        return {"logits": num_labels}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Compute the scores from the output of each layer and network."""
        return Scores(outputs["logits"], outputs.get("threshold"), outputs.get("rate"))

    @abstractmethod
    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Map scores to probabilities and, with r_softmax, the rate of zeros.

        The decoder holds calibration, thresholds and options of the head; only "expected_f1" uses it.
        """

    def loss(self, scores: Scores, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The training loss of each sample, [...], given labels y [..., K].

        With binary cross-entropy each label may have a weight, [..., K].
        """
        if weight is None:
            loss: Tensor = getattr(losses, self.criterion)(*self.loss_arguments(scores, y), reduction="none")
            return loss
        if self.criterion != MASKABLE:
            raise ValueError(
                f"MultiLabelHead: loss={self.criterion!r} takes neither weights of single labels nor unknown"
                f" labels (NaN in y); use loss={MASKABLE!r}, with rule='expected_f1', 'threshold' or 'zero'"
            )
        y, weight = (values.to(scores.margins.dtype) for values in (y, weight))
        return F.binary_cross_entropy_with_logits(scores.margins, y, weight, reduction="none").sum(-1)

    def loss_arguments(self, scores: Scores, y: Tensor) -> tuple[Any, ...]:
        """The arguments of the loss in use."""
        if self.criterion == "multilabel_t_softmax_loss":
            return scores.logits, y, 0.0 if scores.threshold is None else scores.threshold
        return scores.margins, y

    def default_loss(self) -> str:
        """The loss selected by "auto"."""
        return self.losses[0]


class RankingRule(Rule):
    """A rule that chooses k of the labels in the order of their logits, with r_softmax."""

    mappings = ("r_softmax",)
    losses = ("multilabel_r_softmax_loss", *RANKING_LOSSES)

    @abstractmethod
    def training_rate(self, scores: Scores, y: Tensor) -> Tensor:
        """The rate of zeros in eq. 5, [..., 1]."""

    def loss_arguments(self, scores: Scores, y: Tensor) -> tuple[Any, ...]:
        """Eq. 5 takes the rate as well."""
        if self.criterion == "multilabel_r_softmax_loss":
            return scores.logits, y, self.training_rate(scores, y)
        return super().loss_arguments(scores, y)


class ExpectedF1(Rule):
    """The labels that maximise the expected F-measure under the marginals ``sigmoid(logits - threshold)``.

    "No label" is trained as one more label, from one more output of the same layer: labels are not independent where
    every sample has at least one. Scores without ``no_label_logit``, such as the K outputs of another network, train
    the labels alone, and are decoded as independent labels.
    """

    name = "expected_f1"
    mappings = ("r_softmax",)
    losses = ("sigmoid_binary_cross_entropy", "multilabel_t_softmax_loss")

    def layers(self, num_labels: int) -> dict[str, int]:
        """Labels and "no label"; the threshold."""
        return {"logits": num_labels + 1, "threshold": 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Split off the last logit, "no label"."""
        logits = outputs["logits"]
        logits, no_label = logits.split((logits.shape[-1] - 1, 1), -1)  # backward is cheaper than that of two slices
        return Scores(logits, outputs["threshold"], no_label_logit=no_label)

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Select the labels with the highest expected F-measure by r-softmax."""
        decoded = decoder(scores.margins, scores.no_label_margin)
        rate, probs = rate_of_count(decoded.k, decoded.margins), keep_count(decoded.margins, decoded.k)
        return Output(*scores, rate, probs, decoded.log_odds)

    def loss(self, scores: Scores, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of K + 1 labels, the last being "no label".

        With weights, "no label" counts where all labels are known, or a positive one is, with the mean weight of the
        known labels.
        """
        if scores.no_label_logit is None:
            return super().loss(scores, y, weight)
        if weight is not None:
            known = weight > 0
            decided = (y.bool() & known).any(-1, keepdim=True) | known.all(-1, keepdim=True)
            mean = weight.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
            weight = torch.cat([weight, mean * decided], -1)
        logits = torch.cat([scores.logits, scores.no_label_logit], -1)
        y = torch.cat([y, y.any(-1, keepdim=True).logical_not()], -1)
        return super().loss(Scores(logits, scores.threshold), y, weight)


class Rate(RankingRule):
    r"""The best fraction ``1 - r`` of the labels, where a small network on the logits predicts r: the paper's head.

    .. math:: r = \mathrm{sigmoid}(g(z)), \qquad k = \mathrm{round}(K (1 - r))

    In training, eq. 5 takes the predicted rate, which is learned through r-softmax and, by cross-entropy, from the true
    rate.

    Reference: Bałazy et al., r-softmax (2023), section 4.1, which does not say how large the network is.
    """

    name = "rate"
    logit_mlps: ClassVar = {"rate": 64}

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Select the nearest number of labels by r-softmax."""
        r = self.training_rate(scores)
        k = (scores.logits.shape[-1] * (1 - r)).round().nan_to_num().long()
        logits = scores.logits.where(~r.isnan(), torch.nan)
        return Output(*scores, rate_of_count(k, logits), keep_count(logits, k))

    def loss(self, scores: Scores, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of the labels plus that of the rate, which weights of labels leave out: it needs all labels."""
        loss, rate_logit = super().loss(scores, y, weight), scores.require("aux_logits")
        return loss + losses.label_rate_loss(rate_logit, y, reduction="none") if weight is None else loss

    def training_rate(self, scores: Scores, y: Tensor | None = None) -> Tensor:
        """The predicted rate."""
        return scores.require("aux_logits").to(exact(scores.logits)).sigmoid()


class Threshold(Rule):
    """The labels above a threshold predicted from the features.

    Reference: Bałazy et al., r-softmax (2023), section 4.1, version (1).
    """

    name = "threshold"
    mappings = ("t_softmax",)
    losses = ("multilabel_t_softmax_loss", "sigmoid_binary_cross_entropy", "zlpr_loss")

    def layers(self, num_labels: int) -> dict[str, int]:
        """Labels; the threshold."""
        return {"logits": num_labels, "threshold": 1}

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Select the labels above the threshold by t-softmax."""
        return Output(*scores, None, keep_above(scores.logits, scores.require("threshold")))

    def loss(self, scores: Scores, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of the margins; needs the threshold."""
        scores.require("threshold")
        return super().loss(scores, y, weight)


class Zero(Rule):
    """The labels above 0: a constant threshold."""

    name = "zero"
    mappings = ("t_softmax",)
    losses = ("sigmoid_binary_cross_entropy", "zlpr_loss", "multilabel_t_softmax_loss")

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits and a threshold of 0."""
        logits = outputs["logits"]
        return Scores(logits, logits.new_zeros(1))

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Select the labels above 0 by t-softmax."""
        scores = self.scores({"logits": scores.margins})
        return Output(*scores, None, keep_above(scores.logits, scores.require("threshold")))


class _OrderPreserving:
    """The order-preserving mappings without a rule of their own, as registered at the time of access."""

    def __get__(self, *_: object) -> tuple[str, ...]:
        first = ("sparsemax", "r_softmax", "t_softmax")
        return first[0], *(name for name, spec in MAPPINGS.items() if spec.keeps_order and name not in first)


class ByMapping(Rule):
    """The support of the mapping; a parameter of the mapping takes the value of its example."""

    name = None
    mappings = _OrderPreserving()
    losses = RANKING_LOSSES

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Apply the mapping to the logits."""
        spec = MAPPINGS[self.mapping]
        parameter = [spec.parameter.example] if spec.parameter else []
        return Output(*scores, None, spec.function(scores.logits, *parameter))

    def default_loss(self) -> str:
        """The mapping's own loss; for mappings without one the hinge loss, which needs nothing but a ranking."""
        own = {
            "softmax": "softmax_cross_entropy",
            "sparsemax": "sparsemax_huber_loss",
            "sparsehourglass": "sparsehourglass_hinge_loss",
            "budget": "budget_loss",
        }
        return own.get(self.mapping, "sparsemax_hinge_loss")


RULES: dict[str | None, type[Rule]] = {
    rule.name: rule for rule in (ExpectedF1, Rate, Threshold, Zero, ByMapping)
}  # for a mapping, its first rule is the default
