"""The output layer of a multi-label network: the layers that its rule needs, a loss, calibration and decoding."""

from collections.abc import Iterable
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from rsoftmax._tensors import all_or_none, shape_of
from rsoftmax.labels.decoding import DEFAULTS, Decoder, DecoderOptions
from rsoftmax.labels.losses import Reduction
from rsoftmax.labels.rules import MASKABLE, RULES, Output, Rule, Scores
from rsoftmax.losses import check_reduction
from rsoftmax.mappings import MAPPINGS

__all__ = ["MultiLabelHead"]


class MultiLabelHead(nn.Module):
    r"""The output layer of a multi-label network, with its loss.

    .. math:: z = W h + b, \qquad p = \mathrm{mapping}(z, r(h)), \qquad \text{labels} = \{i : p_i > 0\}

    Args:
        in_features: size d of the features.
        labels: the number of labels, K.
        mapping: an order-preserving mapping; its parameters other than t and r stay at their example values. "auto":
            the mapping that belongs to the rule.
        loss: a name in :mod:`rsoftmax.labels.losses`, or "auto": the default of the rule or the mapping.
        rule: how the number of labels is decided, see :mod:`rsoftmax.labels`. "auto": "fixed" if ``r`` is given,
            else the first rule of the mapping: "expected_f1" for r_softmax and for mapping="auto", "threshold" for
            t_softmax, None for the others.
        r: the rate of zeros, in [0, 1], for ``rule="fixed"``.
        decoder: average, beta, min_labels, max_labels, for ``rule="expected_f1"``; see
            :class:`rsoftmax.labels.DecoderOptions`.

    Returns:
        From features h [..., d]: an :class:`Output`.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> head = MultiLabelHead(16, labels=5)
        >>> h, y = torch.randn(2, 16), torch.tensor([[1, 0, 0, 1, 0], [0, 0, 1, 0, 0]])
        >>> output = head(h)
        >>> output.labels
        tensor([[ True, False, False, False,  True],
                [ True,  True,  True,  True, False]])
        >>> head.loss(output, y)
        tensor(5.0694, grad_fn=<MeanBackward0>)
        >>> MultiLabelHead(16, labels=5, rule="threshold")
        MultiLabelHead(
          mapping=t_softmax, rule=threshold, loss=t_softmax_loss
          (logits): Linear(in_features=16, out_features=5, bias=True)
          (threshold): Linear(in_features=16, out_features=1, bias=True)
          (decoder): Decoder(
            average=micro, beta=1.0
            (calibration): PlattScaling(5, shrinkage=1.0)
            (none): PlattScaling(1, shrinkage=1.0)
          )
        )

    The rules "threshold" and "expected_f1" depend on ``z - theta`` only, the log-odds of the labels. The loss needs
    :meth:`scores` only, which saves decoding during training. A row takes ``O(K log K)`` time and ``O(K)`` memory.
    A row of features with NaN gets NaN probabilities, and reading its labels raises.

    Reference: Bałazy et al., r-softmax (2023), section 4.1, for "rate" and "threshold".
    """

    def __init__(
        self,
        in_features: int,
        labels: int,
        mapping: str = "auto",
        loss: str = "auto",
        rule: str | None = "auto",
        *,
        r: float | None = None,
        **decoder: Unpack[DecoderOptions],
    ) -> None:
        super().__init__()
        if in_features < 1 or labels < 1:
            raise ValueError(f"MultiLabelHead: needs at least one feature and one label, got {in_features=}, {labels=}")
        self.labels = labels
        self.rule = choose(mapping, loss, rule, r)
        for name, outputs in self.rule.layers(labels).items():
            self.add_module(name, nn.Linear(in_features, outputs))
        for name, units in self.rule.on_logits.items():
            self.add_module(name, nn.Sequential(nn.Linear(labels, units), nn.ReLU(), nn.Linear(units, 1)))
        self.decoder = Decoder(labels, **decoder)
        _check_options(decoder, self.rule.name)

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
        outputs = {name: getattr(self, name)(h) for name in self.rule.layers(self.labels)}
        outputs |= {name: getattr(self, name)(outputs["logits"]) for name in self.rule.on_logits}
        return self.rule.scores(outputs)

    def decode(self, scores: Scores) -> Output:
        """Map scores to probabilities."""
        output = self.rule.decode(scores, self.decoder)
        return output if output.odds is not None else output._replace(odds=self.decoder.calibration(scores.u))

    def loss(
        self, output: Output | Scores, y: Tensor, *, reduction: Reduction = "mean", weight: Tensor | None = None
    ) -> Tensor:
        """Compute the training loss.

        Args:
            output: of :meth:`forward` or :meth:`scores`.
            y: labels [..., K], 0 or 1. With binary cross-entropy a label may be NaN: unknown, and ignored.
            reduction: as in :mod:`rsoftmax.labels.losses`.
            weight: weights of the rows, [..., 1]; with binary cross-entropy also of the entries, [..., K]. "mean"
                divides by the number of rows.

        Returns:
            The loss; a scalar, or [...] with ``reduction="none"``.
        """
        scores = output.scores if isinstance(output, Output) else output
        check_reduction("MultiLabelHead.loss", reduction)
        _check_targets(y, scores.z)
        if _may_be_unknown(y, self.criterion):
            known = ~y.isnan()
            y, weight = y.nan_to_num(), known.to(scores.z.dtype) if weight is None else known * weight
        if weight is None:
            return self.rule.loss(scores, y, reduction)
        if weight.shape[-1] == 1:
            rows = self.rule.loss(scores, y, "none") * weight.squeeze(-1)
        else:
            rows = self.rule.weighted_loss(scores, y, weight)
        return rows if reduction == "none" else rows.sum() if reduction == "sum" else rows.mean()

    def calibrate(
        self, scores: Output | Scores, y: Tensor, *, weight: Tensor | None = None, calibration: bool = True
    ) -> Self:
        """Fit calibration and thresholds on held-out rows; both are buffers of the decoder.

        Args:
            scores: scores of these rows, [rows, K].
            y: their labels, [rows, K], 0 or 1; NaN where unknown.
            weight: weights of the rows, [rows, 1].
            calibration: False fits the thresholds only.
        """
        scores = scores.scores if isinstance(scores, Output) else scores
        none = None if scores.none is None else scores.none - scores.require("theta")
        self.decoder.fit(scores.u.detach(), y.to(torch.float64), none, weight=weight, calibrate=calibration)
        return self

    @torch.no_grad()
    def set_threshold(self, threshold: Tensor) -> Self:
        """Predict the labels whose calibrated log-odds reach a threshold, [1] or [K], whatever their expected F1."""
        if self.rule.name != "expected_f1":
            raise ValueError(f"MultiLabelHead: a threshold needs rule='expected_f1', got rule={self.rule.name!r}")
        decoder = Decoder(self.labels, "micro" if len(threshold) == 1 else "macro").to(self.decoder.threshold.device)
        decoder.calibration, decoder.none = self.decoder.calibration, self.decoder.none
        decoder.threshold.copy_(_below(threshold, decoder.threshold.dtype))  # predicted: above it
        self.decoder = decoder
        return self

    def extra_repr(self) -> str:
        """The choices shown by ``repr``."""
        r = "" if self.rule.r is None else f", r={self.rule.r}"
        return f"mapping={self.mapping}, rule={self.rule.name}{r}, loss={self.criterion}"


def _below(threshold: Tensor, dtype: torch.dtype) -> Tensor:
    """The greatest numbers of a dtype below a threshold, which may have a longer dtype."""
    nearest = threshold.to(dtype)
    return nearest.where(nearest < threshold, nearest.nextafter(nearest.new_tensor(-torch.inf)))


def choose(mapping: str = "auto", loss: str = "auto", rule: str | None = "auto", r: float | None = None) -> Rule:
    """Create the rule that the arguments of :class:`MultiLabelHead` select."""
    _check_mapping(mapping)
    fitting = [name for name, one in RULES.items() if mapping in ("auto", *one.mappings)]
    if rule == "auto":
        rule = "fixed" if r is not None and "fixed" in fitting else fitting[0]
    if rule not in fitting and mapping == "auto":
        raise ValueError(f"MultiLabelHead: rule must be 'auto' or one of {_listed(RULES)}, got {rule!r}")
    if rule not in fitting:
        raise ValueError(_misfit(rule, mapping, fitting))
    chosen = RULES[rule]
    return chosen(chosen.mappings[0] if mapping == "auto" else mapping, loss, r)


def _check_options(decoder: DecoderOptions, rule: str | None) -> None:
    changed = {name: value for name, value in decoder.items() if value != DEFAULTS.get(name)}
    if changed and rule != "expected_f1":
        listed = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        raise ValueError(f"MultiLabelHead: {listed} needs rule='expected_f1', got rule={rule!r}")


def _check_targets(y: Tensor, z: Tensor) -> None:
    if not isinstance(y, Tensor):
        raise TypeError(f"MultiLabelHead.loss: y must be a torch.Tensor, got {type(y).__name__}; use torch.tensor(y)")
    if y.shape != z.shape:
        raise ValueError(f"MultiLabelHead.loss: y of shape {shape_of(y)} must have the shape of z, {shape_of(z)}")
    valid = (y == 0) | (y == 1) | y.isnan()
    if all_or_none(valid) is False:
        raise ValueError(
            f"MultiLabelHead.loss: y of shape {shape_of(y)} must hold 0 or 1, or NaN for an unknown label,"
            f" got {y[~valid][0].item()!r}"
        )


def _may_be_unknown(y: Tensor, criterion: str) -> bool:
    """Whether y holds NaN; where reading values is not free, whether the loss could deal with it."""
    if not y.is_floating_point():
        return False
    known = all_or_none(~y.isnan())
    return criterion == MASKABLE if known is None else not known


def _check_mapping(mapping: str) -> None:
    usable = [name for name in MAPPINGS if any(name in rule.mappings for rule in RULES.values())]
    if mapping not in ("auto", *MAPPINGS):
        raise ValueError(f"MultiLabelHead: mapping must be 'auto' or one of {', '.join(usable)}, got {mapping!r}")
    if mapping not in ("auto", *usable):
        raise ValueError(
            f"MultiLabelHead: mapping={mapping!r} does not preserve the order of logits, which the losses rely on;"
            f" use 'auto' or one of {', '.join(usable)}"
        )


def _misfit(rule: str | None, mapping: str, fitting: list[str | None]) -> str:
    others = [f"{name!r} with mapping={RULES[name].mappings[0]!r}" for name in RULES if name not in fitting]
    return (
        f"MultiLabelHead: rule={rule!r} does not work with mapping={mapping!r}, which takes {_listed(fitting)};"
        f" other rules: {', '.join(others)}. mapping='auto' selects the mapping of the rule"
    )


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(map(repr, names))
