"""The rules that decide which labels a row has, one class each, and the table of them.

A rule owns everything in which one way to find the number of labels differs from another: the layers it adds to the
head, the scores it makes of their outputs, how it decodes these, and its loss; also the mappings it goes with and the
losses that teach it. The head does the rest. A further rule is one class and one row of ``RULES``.

The argument of the head that names a rule is called ``rate``: the number of labels k and r-softmax's rate of zeros
``r = 1 - k/K`` say the same, and a user of r-softmax has to choose where that rate comes from.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax import losses
from rsoftmax.domains import RATE
from rsoftmax.losses import Reduction
from rsoftmax.mappings import MAPPINGS, r_softmax
from rsoftmax.multilabel.decoder import Decoder
from rsoftmax.multilabel.decoding import keep_above, keep_count, rate_of_count
from rsoftmax.multilabel.scores import Output, Scores
from rsoftmax.tensors import exact

# The losses that teach an order of the labels.
RANKING = (
    "cross_entropy", "sparsemax_huber_loss", "sparsemax_hinge_loss", "sparsehourglass_loss",
    "binary_cross_entropy", "zlpr_loss",
)  # fmt: skip
MEANING_OF_R = "it is the share of labels to set to zero"


class Rule(ABC):
    """How a head finds the labels of a row, and what it learns for that.

    Args:
        mapping: one of ``mappings``.
        loss: one of ``losses``, or "auto".
        r: the rate of zeros, for rules to which it is given.

    Attributes:
        name: the value of the argument ``rate`` that stands for the rule.
        mappings: the names of the mappings it goes with, the default first.
        losses: the names of the losses in :mod:`rsoftmax.losses` that teach what it needs, the default first.
        criterion: the name of the loss in use.
    """

    name: ClassVar[str | None]
    mappings: ClassVar[tuple[str, ...]]
    losses: ClassVar[tuple[str, ...]]
    r: float | None

    def __init__(self, mapping: str, loss: str = "auto", r: float | None = None) -> None:
        self.mapping = mapping
        self.criterion = self.default_loss() if loss == "auto" else self._checked_loss(loss)
        self.r = self._checked_r(r)

    def layers(self, labels: int) -> dict[str, int]:
        """The head's linear layers for K labels: name, as in the ``state_dict``, and number of outputs."""
        return {"logits": labels}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """The scores, from the output of each layer."""
        return Scores(outputs["logits"])

    @abstractmethod
    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """The probabilities, and with r_softmax the rate of zeros, from the scores.

        The decoder holds what the head was told about the F1 that counts; a rule may have no use for it.
        """

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        """What to minimise, given labels y [..., K]."""
        loss: Tensor = getattr(losses, self.criterion)(scores.u, y, reduction=reduction)
        return loss

    def weighted_loss(self, scores: Scores, y: Tensor, weight: Tensor) -> Tensor:
        """The loss of each row, [...], with a weight for each entry, [..., K]; for binary cross-entropy."""
        if self.criterion != "binary_cross_entropy":
            raise ValueError(
                f"MultiLabelHead: loss={self.criterion!r} takes a weight for each row, [..., 1], and none for single"
                " labels; loss='binary_cross_entropy' does, with rate='expected_f1', 'threshold' or 'zero'"
            )
        y, weight = (entries.to(scores.u.dtype) for entries in (y, weight))
        return F.binary_cross_entropy_with_logits(scores.u, y, weight, reduction="none").sum(-1)

    def default_loss(self) -> str:
        """The loss that "auto" stands for."""
        return self.losses[0]

    def _checked_r(self, r: float | None) -> float | None:
        if r is not None:
            raise ValueError(f"MultiLabelHead: r={r!r} needs rate='fixed', got rate={self.name!r}; {MEANING_OF_R}")
        return None

    def _checked_loss(self, loss: str) -> str:
        if loss not in self.losses:
            raise ValueError(
                f"MultiLabelHead: loss={loss!r} does not teach what mapping={self.mapping!r} with rate={self.name!r}"
                f" needs; use 'auto' or one of {', '.join(map(repr, self.losses))}"
            )
        return loss


class _Thresholded(Rule):
    """Rules with a threshold theta, which :func:`rsoftmax.losses.t_softmax_loss` takes beside the logits."""

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        if self.criterion != "t_softmax_loss":
            return super().loss(scores, y, reduction)
        return losses.t_softmax_loss(scores.z, y, scores.required("theta"), reduction=reduction)


class _Ranked(Rule):
    """Rules that need an order of the labels; :func:`rsoftmax.losses.r_softmax_loss` takes r beside the logits."""

    mappings = ("r_softmax",)
    losses = ("r_softmax_loss", *RANKING)

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        if self.criterion != "r_softmax_loss":
            return super().loss(scores, y, reduction)
        return losses.r_softmax_loss(scores.z, y, self._rate_in_training(scores.z, y), reduction=reduction)

    @abstractmethod
    def _rate_in_training(self, z: Tensor, y: Tensor) -> float | Tensor: ...


class ExpectedF1(_Thresholded):
    """The k best labels, k maximising the expected F1 under the marginals ``sigmoid(z - theta)``.

    That there is no label is learned as one more label, from one more output of the same layer: labels are not
    independent where every row has at least one.
    """

    name = "expected_f1"
    mappings = ("r_softmax",)
    losses = ("binary_cross_entropy", "t_softmax_loss")

    def layers(self, labels: int) -> dict[str, int]:
        """The labels and "no label"; the threshold."""
        return {"logits": labels + 1, "threshold": 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """The last logit is that of "no label"."""
        logits = outputs["logits"]
        z, none = logits.split((logits.shape[-1] - 1, 1), -1)  # whose backward is cheaper than that of two slices
        return Scores(z, outputs["threshold"], none=none)

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """The labels with the highest expected F1, kept by r-softmax."""
        found = decoder(scores.u, scores.required("none") - scores.required("theta"))
        return _keep(scores, found.k, found.margin)._replace(odds=found.odds)

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        """That of K + 1 labels, the last being "no label"."""
        return super().loss(*_with_none(scores, y), reduction)

    def weighted_loss(self, scores: Scores, y: Tensor, weight: Tensor) -> Tensor:
        """That of K + 1 labels; "no label" counts where it is known: all labels are, or a positive one is."""
        some = (y.bool() & (weight > 0)).any(-1, keepdim=True)
        known = some | (weight > 0).all(-1, keepdim=True)
        return super().weighted_loss(*_with_none(scores, y), torch.cat([weight, known.to(weight.dtype)], -1))


class Count(_Ranked):
    """The k best labels, k predicted by a layer of its own: the paper's head.

    In training eq. 5 takes the true number of labels, so that the scores do not depend on predicted counts, which are
    taught by a cross-entropy of their own.

    Reference: Bałazy et al., r-softmax (2023), section 4.1.
    """

    name = "count"

    def layers(self, labels: int) -> dict[str, int]:
        """The labels; their counts 0..K."""
        return {"logits": labels, "count": labels + 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits of labels and of counts."""
        return Scores(outputs["logits"], c=outputs["count"])

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """The most probable count, kept by r-softmax."""
        return _keep(scores, scores.required("c").argmax(-1, keepdim=True), scores.z)

    def loss(self, scores: Scores, y: Tensor, reduction: Reduction) -> Tensor:
        """That of the labels and that of their count."""
        count = losses.label_count_loss(scores.required("c"), y, reduction=reduction)
        return super().loss(scores, y, reduction) + count

    def _rate_in_training(self, z: Tensor, y: Tensor) -> Tensor:
        return rate_of_count(y.sum(-1, keepdim=True), z)


class Fixed(_Ranked):
    """The share ``1 - r`` of best labels."""

    name = "fixed"
    r: float

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """r-softmax with the rate that was given."""
        z = scores.z
        r = torch.full((*z.shape[:-1], 1), self.r, dtype=exact(z), device=z.device)
        return Output(*scores, r, r_softmax(z, r))

    def _rate_in_training(self, z: Tensor, y: Tensor) -> float:
        return self.r

    def _checked_r(self, r: float | None) -> float:
        if r is None:
            raise ValueError(f"MultiLabelHead: rate='fixed' needs r, say r=0.9; {MEANING_OF_R}")
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
        """The labels; the threshold."""
        return {"logits": labels, "threshold": 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits and their threshold."""
        return Scores(outputs["logits"], outputs["threshold"])

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """t-softmax of what lies above the threshold."""
        return Output(*scores, None, keep_above(scores.z, scores.required("theta")))


class Zero(Threshold):
    """The labels above 0: a threshold that is not learned."""

    name = "zero"
    losses = ("binary_cross_entropy", "zlpr_loss", "t_softmax_loss")

    def layers(self, labels: int) -> dict[str, int]:
        """The labels."""
        return {"logits": labels}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits, and 0 for their threshold."""
        z = outputs["logits"]
        return Scores(z, z.new_zeros(1))


class _KeepingOrder:
    """The mappings that keep the order of scores and have no rule of their own, as the table has them now."""

    def __get__(self, *_: object) -> tuple[str, ...]:
        first = ("sparsemax", "r_softmax", "t_softmax")
        return first[0], *(name for name, row in MAPPINGS.items() if row.keeps_order and name not in first)


class ByMapping(Rule):
    """The labels that the mapping itself leaves non-zero; a parameter of the mapping has the value of its example."""

    name = None
    mappings = _KeepingOrder()
    losses = RANKING

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """The mapping of the logits."""
        row = MAPPINGS[self.mapping]
        parameter = [row.parameter.example] if row.parameter else []
        return Output(*scores, None, row.function(scores.z, *parameter))

    def default_loss(self) -> str:
        """The mapping's own loss; for mappings without one the hinge, which asks for nothing but an order."""
        own = {
            "softmax": "cross_entropy",
            "sparsemax": "sparsemax_huber_loss",
            "sparsehourglass": "sparsehourglass_loss",
        }
        return own.get(self.mapping, "sparsemax_hinge_loss")


def _keep(scores: Scores, k: Tensor, z: Tensor) -> Output:
    return Output(*scores, rate_of_count(k, z), keep_count(z, k))


def _with_none(scores: Scores, y: Tensor) -> tuple[Scores, Tensor]:
    """Scores and labels of K + 1 labels, the last being "no label"."""
    z = torch.cat([scores.z, scores.required("none")], -1)
    return Scores(z, scores.theta), torch.cat([y, y.any(-1, keepdim=True).logical_not()], -1)


RULES: dict[str | None, type[Rule]] = {
    rule.name: rule for rule in (ExpectedF1, Count, Fixed, Threshold, Zero, ByMapping)
}  # for a mapping, its first rule is the default

LOSSES: dict[str | None, tuple[str, ...]] = {name: rule.losses for name, rule in RULES.items()}
RATES: dict[str, tuple[str, ...]] = {
    mapping: tuple(name for name, rule in RULES.items() if name and mapping in rule.mappings)
    for mapping in ("r_softmax", "t_softmax")
}
