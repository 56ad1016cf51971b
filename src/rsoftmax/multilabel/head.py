"""The last layer of a multi-label network: it holds the layers that its rule asks for, and the rule does the rest."""

from typing import Self

import torch
from torch import Tensor, nn

from rsoftmax.losses import Reduction
from rsoftmax.multilabel.choices import choose
from rsoftmax.multilabel.decoder import Decoder
from rsoftmax.multilabel.expected_f1 import Average
from rsoftmax.multilabel.scores import Output, Scores


class MultiLabelHead(nn.Module):
    r"""The last layer of a multi-label network, with its own loss.

    .. math:: z = W h + b, \qquad p = \mathrm{mapping}(z, r(h)), \qquad \text{labels} = \{i : p_i > 0\}

    Args:
        in_features: size d of the features.
        labels: their number, K.
        mapping: a mapping that keeps the order of scores; parameters other than t and r stay at the table's example.
            "auto": the one that goes with the rate.
        loss: a name in :mod:`rsoftmax.losses`, or "auto": the one that fits the rate, or else the mapping.
        rate: the rule by which the number of labels is found, see :mod:`rsoftmax.multilabel`; "auto": "fixed" if ``r``
            is given, or else the first that goes with the mapping: "expected_f1" with r_softmax and if both are left
            open, "threshold" with t_softmax, None with the others. It is called the rate because the number of labels k
            and the rate of zeros ``r = 1 - k/K`` say the same.
        r: the rate of zeros, in [0, 1], for ``rate="fixed"``.
        average: the F1 that counts, for ``rate="expected_f1"``: "samples" decides row by row, "micro" by one cut,
            "macro" by a cut for each label; :meth:`calibrate` finds the cuts.
        beta, at_least, at_most: recall counts beta times as much as precision; bounds on the number of labels of a row;
            for ``rate="expected_f1"``, as in :class:`rsoftmax.multilabel.Decoder`.

    Returns:
        From features h [..., d]: an :class:`Output`.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> head = MultiLabelHead(16, labels=5)
        >>> h, y = torch.randn(2, 16), torch.tensor([[1, 0, 0, 1, 0], [0, 0, 1, 0, 0]])
        >>> output = head(h)
        >>> output.labels
        tensor([[ True,  True,  True, False,  True],
                [ True,  True,  True,  True, False]])
        >>> head.loss(output, y)
        tensor(5.0694, grad_fn=<MeanBackward0>)
        >>> MultiLabelHead(16, labels=5, rate="threshold")
        MultiLabelHead(
          mapping=t_softmax, rate=threshold, loss=t_softmax_loss
          (logits): Linear(in_features=16, out_features=5, bias=True)
          (threshold): Linear(in_features=16, out_features=1, bias=True)
          (decoder): Decoder(
            average=samples, beta=1.0
            (calibration): PlattScaling(5, shrinkage=1.0)
            (none): PlattScaling(1, shrinkage=1.0)
          )
        )

    With "threshold" and "expected_f1" everything depends on ``z - theta``, the log-odds of the labels. In training the
    loss needs :meth:`scores` only, which saves decoding them. No step takes more than ``O(K log K)`` time or ``O(K)``
    memory for a row. Features that are not finite are not refused: a row with NaN gets probabilities that are NaN, and
    asking for its labels raises.

    Reference: Bałazy et al., r-softmax (2023), section 4.1, for "count" and "threshold".
    """

    def __init__(
        self,
        in_features: int,
        labels: int,
        mapping: str = "auto",
        loss: str = "auto",
        rate: str | None = "auto",
        *,
        r: float | None = None,
        average: Average = "samples",
        beta: float = 1.0,
        at_least: int = 0,
        at_most: int | None = None,
    ) -> None:
        super().__init__()
        if in_features < 1 or labels < 1:
            raise ValueError(f"MultiLabelHead: needs a feature and a label at least, got {in_features=}, {labels=}")
        self.labels = labels
        self.rule = choose(mapping, loss, rate, r)
        for name, outputs in self.rule.layers(labels).items():
            self.add_module(name, nn.Linear(in_features, outputs))
        self.decoder = Decoder(labels, average, beta, at_least, at_most)
        if self.rate != "expected_f1" and (average, beta, at_least, at_most) != ("samples", 1.0, 0, None):
            raise ValueError(
                f"MultiLabelHead: {average=}, {beta=}, {at_least=}, {at_most=} need rate='expected_f1',"
                f" got rate={self.rate!r}, which finds the labels in its own way"
            )

    @property
    def mapping(self) -> str:
        """The name of the mapping in use."""
        return self.rule.mapping

    @property
    def rate(self) -> str | None:
        """The name of the rule in use."""
        return self.rule.name

    @property
    def criterion(self) -> str:
        """The name of the loss in use."""
        return self.rule.criterion

    @property
    def r(self) -> float | None:
        """The rate of zeros, if it was given."""
        return self.rule.r

    def forward(self, h: Tensor) -> Output:
        """From features [..., d] to scores and probabilities."""
        return self.decode(self.scores(h))

    def scores(self, h: Tensor) -> Scores:
        """The part of :meth:`forward` that the loss needs."""
        return self.rule.scores({name: getattr(self, name)(h) for name in self.rule.layers(self.labels)})

    def decode(self, scores: Scores) -> Output:
        """The rest of :meth:`forward`: from scores to probabilities."""
        output = self.rule.decode(scores, self.decoder)
        return output if output.odds is not None else output._replace(odds=self.decoder.calibration(scores.u))

    def loss(
        self, output: Output | Scores, y: Tensor, *, reduction: Reduction = "mean", weight: Tensor | None = None
    ) -> Tensor:
        """What to minimise.

        Args:
            output: of :meth:`forward` or :meth:`scores`.
            y: labels [..., K], 0 or 1.
            reduction: as in :mod:`rsoftmax.losses`.
            weight: of the rows, [..., 1]; with binary cross-entropy also of the entries, [..., K], 0 for labels that
                are not known. The mean is that over all rows.
        """
        scores = output.scores if isinstance(output, Output) else output
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
        """Learn, from rows that were not trained on, what turns scores into marginals, and the cuts for ``average``.

        Args:
            scores: of these rows, [rows, K].
            y: their labels, [rows, K], 0 or 1; NaN where a label is not known.
            weight: of the rows, [rows, 1].
            calibration: False finds the cuts only.

        What is learned is in buffers and saved with the head.
        """
        scores = scores.scores if isinstance(scores, Output) else scores
        none = None if scores.none is None else scores.none - scores.required("theta")
        y = y.to(torch.float64)
        self.decoder.fit(scores.u.detach(), y, none, weight=weight, calibrate=calibration)
        return self

    def extra_repr(self) -> str:
        """What ``repr`` shows: the choices made."""
        r = "" if self.r is None else f", r={self.r}"
        return f"mapping={self.mapping}, rate={self.rate}{r}, loss={self.criterion}"
