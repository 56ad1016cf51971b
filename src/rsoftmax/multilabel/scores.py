"""What a head returns: scores, which are enough for its loss, and their decoding into probabilities and labels."""

from typing import NamedTuple

import torch
from torch import Tensor


class Scores(NamedTuple):
    """What a head computes from features before decoding; all that its loss needs.

    Attributes:
        z: logits of the labels, [..., K].
        theta: the threshold that logits are measured from, [..., 1]; rates "expected_f1", "threshold" and "zero".
        c: logits of the label counts 0..K, [..., K + 1]; rate "count".
        none: the logit of there being no label, [..., 1]; rate "expected_f1".
    """

    z: Tensor
    theta: Tensor | None = None
    c: Tensor | None = None
    none: Tensor | None = None

    @property
    def u(self) -> Tensor:
        """The logits less the threshold, if there is one, [..., K]: what decisions and most losses depend on."""
        return self.z if self.theta is None else self.z - self.theta

    def required(self, field: str) -> Tensor:
        """A field that may be None in general, but not for the rule that asks."""
        value: Tensor | None = getattr(self, field)
        if value is None:
            raise ValueError(
                f"MultiLabelHead: its rate needs Scores.{field}, which is None here; pass what head.scores(h) returns"
            )
        return value


class Output(NamedTuple):
    """:class:`Scores`, decoded.

    Attributes:
        z, theta, c, none: as in :class:`Scores`.
        r: the rate of zeros, float64 [..., 1], if the mapping is r_softmax; 1 where there is no label.
        p: probabilities [..., K]; exactly zero where the label is negative, and everywhere if there is no label. NaN in
            a row whose scores hold NaN.
        odds: calibrated log-odds [..., K]; None: the scores are taken for them.
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
        """The probability of each label for itself, [..., K]; NaN where the score is.

        With the rates "count" and "fixed" and those of a mapping the scores are a ranking, which becomes log-odds by
        :meth:`rsoftmax.multilabel.MultiLabelHead.calibrate` only.
        """
        return (self.scores.u if self.odds is None else self.odds).sigmoid()

    @property
    def labels(self) -> Tensor:
        """The labels [..., K], bool: the non-zero probabilities.

        NaN is not an answer and raises, where looking at values costs nothing: in eager code on the CPU. Elsewhere look
        for NaN in ``p`` before trusting the labels.
        """
        if self.p.device.type == "cpu" and not torch.compiler.is_compiling() and self.p.isnan().any():
            raise ValueError(
                f"MultiLabelHead: {int(self.p.isnan().any(-1).sum())} rows have NaN scores, which is not 'no label';"
                " look for NaN in the features and in the weights"
            )
        return self.p > 0
