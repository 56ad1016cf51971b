"""The output layer of a multi-label network: the layers that its rule needs, a loss, calibration and decoding."""

from numbers import Integral
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from rsoftmax._tensors import all_or_none
from rsoftmax.labels.decoding import DEFAULTS, Decoder, DecoderOptions
from rsoftmax.labels.losses import Reduction, check_labels, reduce_samples
from rsoftmax.labels.rules import MASKABLE, RULES, Output, Rule, Scores

__all__ = ["MultiLabelHead", "resolve_rule"]


class MultiLabelHead(nn.Module):
    r"""The output layer of a multi-label network, with its loss.

    .. math:: z = W h + b, \qquad p = \mathrm{mapping}(z, r(h)), \qquad \text{labels} = \{i : p_i > 0\}

    Args:
        in_features: size d of the features.
        num_labels: the number of labels, K.
        mapping: an order-preserving mapping; its parameters other than t and r stay at their example values. "auto":
            the mapping that belongs to the rule.
        loss: a name in :mod:`rsoftmax.labels.losses`, or "auto": the default of the rule or the mapping.
        rule: how the number of labels is decided, see :mod:`rsoftmax.labels`. "auto": the first rule of the mapping:
            "expected_f1" for r_softmax and for mapping="auto", "threshold" for t_softmax, None for the others.
        decoder: average, beta, min_labels, max_labels, ..., for ``rule="expected_f1"``; see
            :class:`rsoftmax.labels.DecoderOptions`.

    Returns:
        From features h [..., d]: an :class:`Output`.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> head = MultiLabelHead(16, num_labels=5)
        >>> h, y = torch.randn(2, 16), torch.tensor([[1, 0, 0, 1, 0], [0, 0, 1, 0, 0]])
        >>> output = head(h)
        >>> output.labels
        tensor([[ True, False, False, False,  True],
                [ True,  True,  True,  True, False]])
        >>> head.loss(output, y)
        tensor(5.0694, grad_fn=<MeanBackward0>)
        >>> MultiLabelHead(16, num_labels=5, rule="threshold")
        MultiLabelHead(
          mapping=t_softmax, rule=threshold, loss=multilabel_t_softmax_loss
          (logits): Linear(in_features=16, out_features=5, bias=True)
          (threshold): Linear(in_features=16, out_features=1, bias=True)
          (decoder): Decoder(
            average=micro, beta=1.0
            (calibration): PlattScaling(5, shrinkage=1.0)
            (no_label): PlattScaling(1, shrinkage=1.0)
          )
        )

    The rules "threshold" and "expected_f1" depend on ``z - theta`` only, the log-odds of the labels. The loss needs
    :meth:`scores` only, which saves decoding during training. A sample takes ``O(K log K)`` time and ``O(K)`` memory.
    A sample whose features contain NaN gets NaN probabilities, and reading its labels raises.

    A network of your own with K outputs needs no layers of the head: ``head.loss(logits, y)``,
    ``head.calibrate(logits, y)`` and ``head.decode(logits)`` take plain tensors. With "expected_f1" they are log-odds
    of independent labels; "rate" and "threshold" need :class:`Scores` with what these rules predict besides.

    Reference: Bałazy et al., r-softmax (2023), section 4.1, for "rate" and "threshold".
    """

    def __init__(
        self,
        in_features: int,
        num_labels: int,
        mapping: str = "auto",
        loss: str = "auto",
        rule: str | None = "auto",
        **decoder: Unpack[DecoderOptions],
    ) -> None:
        super().__init__()
        if not all(isinstance(size, Integral) and size >= 1 for size in (in_features, num_labels)):
            sizes = f"{in_features=}, {num_labels=}"
            raise ValueError(f"MultiLabelHead: in_features and num_labels must be positive integers, got {sizes}")
        self.num_labels = num_labels
        self.rule = resolve_rule(mapping, loss, rule)
        for name, outputs in self.rule.layers(num_labels).items():
            self.add_module(name, nn.Linear(in_features, outputs))
        for name, units in self.rule.logit_mlps.items():
            self.add_module(name, nn.Sequential(nn.Linear(num_labels, units), nn.ReLU(), nn.Linear(units, 1)))
        self.decoder = Decoder(num_labels, **decoder)
        changed = [f"{name}={value!r}" for name, value in decoder.items() if value != DEFAULTS.get(name)]
        if changed and self.rule.name != "expected_f1":
            raise ValueError(
                f"MultiLabelHead: {', '.join(changed)} needs rule='expected_f1', got rule={self.rule.name!r}"
            )

    @property
    def mapping(self) -> str:
        """The name of the mapping in use."""
        return self.rule.mapping

    @property
    def criterion(self) -> str:
        """The name of the loss in use."""
        return self.rule.criterion

    def forward(self, h: Tensor) -> Output:
        """Map features [..., d] to scores and probabilities."""
        return self.decode(self.scores(h))

    def scores(self, h: Tensor) -> Scores:
        """Map features [..., d] to scores, all that the loss needs."""
        outputs = {name: getattr(self, name)(h) for name in self.rule.layers(self.num_labels)}
        outputs |= {name: getattr(self, name)(outputs["logits"]) for name in self.rule.logit_mlps}
        return self.rule.scores(outputs)

    def decode(self, scores: Scores | Tensor) -> Output:
        """Map scores, or logits [..., K], to probabilities."""
        scores = _as_scores(scores)
        output = self.rule.decode(scores, self.decoder)
        if output.log_odds is None:
            output = output._replace(log_odds=self.decoder.log_odds(scores.margins))
        return output

    def loss(
        self,
        output: Output | Scores | Tensor,
        y: Tensor,
        *,
        reduction: Reduction = "batchmean",
        weight: Tensor | None = None,
    ) -> Tensor:
        """Compute the training loss.

        Args:
            output: of :meth:`forward` or :meth:`scores`, or the logits of any network, [..., K].
            y: labels [..., K], 0 or 1. With binary cross-entropy a label may be NaN: unknown, and ignored.
            reduction: as in :mod:`rsoftmax.labels.losses`.
            weight: weights of the samples, [..., 1]; with binary cross-entropy also of the labels, [..., K].
                "batchmean" divides by the number of samples.

        Returns:
            The loss; a scalar, or [...] with ``reduction="none"``.
        """
        scores = _as_scores(output)
        check_labels("MultiLabelHead.loss", y, scores.logits.shape, unknown=True)
        if y.is_floating_point():
            known = ~y.isnan()
            all_known = all_or_none(known)  # None: reading values is not free
            if all_known is False or (all_known is None and self.criterion == MASKABLE):
                y, weight = y.nan_to_num(), known.to(scores.logits.dtype) if weight is None else known * weight
        per_sample = weight is not None and weight.shape[-1] == 1
        loss = self.rule.loss(scores, y, None if per_sample else weight)
        if weight is not None and per_sample:
            loss = loss * weight.squeeze(-1)
        return reduce_samples("MultiLabelHead.loss", loss, reduction)

    def calibrate(
        self,
        scores: Output | Scores | Tensor,
        y: Tensor,
        *,
        weight: Tensor | None = None,
        calibrate_scores: bool = True,
    ) -> Self:
        """Fit calibration and thresholds on held-out samples; both are buffers of the decoder.

        Args:
            scores: scores, or logits, of these samples, [samples, K].
            y: their labels, [samples, K], 0 or 1; NaN where unknown.
            weight: weights of the samples, [samples, 1].
            calibrate_scores: False takes the scores as log-odds and fits the thresholds only.
        """
        scores = _as_scores(scores)
        margins, y = scores.margins.detach(), y.to(torch.float64)
        self.decoder.fit(margins, y, scores.no_label_margin, weight=weight, calibrate=calibrate_scores)
        return self

    def set_threshold(self, threshold: Tensor) -> Self:
        """Predict the labels whose calibrated log-odds reach a threshold, [1] or [K], whatever their expected F1."""
        if self.rule.name != "expected_f1":
            raise ValueError(f"MultiLabelHead: a threshold needs rule='expected_f1', got rule={self.rule.name!r}")
        self.decoder = self.decoder.at_threshold(threshold)
        return self

    def extra_repr(self) -> str:
        """The choices shown by ``repr``."""
        return f"mapping={self.mapping}, rule={self.rule.name}, loss={self.criterion}"


def resolve_rule(mapping: str = "auto", loss: str = "auto", rule: str | None = "auto") -> Rule:
    """Create the rule that the arguments of :class:`MultiLabelHead` select."""
    names = [name for name, cls in RULES.items() if mapping in ("auto", *cls.mappings)]
    if rule == "auto" and names:
        rule = names[0]
    if rule not in names:
        table = "; ".join(f"{name!r} with {', '.join(cls.mappings)}" for name, cls in RULES.items())
        raise ValueError(
            f"MultiLabelHead: rule={rule!r} does not work with mapping={mapping!r}. The rules, and the order-preserving"
            f" mappings that they work with: {table}. 'auto' selects the one that belongs to the other"
        )
    cls = RULES[rule]
    return cls(cls.mappings[0] if mapping == "auto" else mapping, loss)


def _as_scores(output: Output | Scores | Tensor) -> Scores:
    """The scores of an output, or plain logits as scores."""
    if isinstance(output, Tensor):
        return Scores(output)
    return output.scores if isinstance(output, Output) else output
