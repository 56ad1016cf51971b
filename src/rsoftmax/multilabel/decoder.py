"""From log-odds to labels, for the F1 that counts: a module whose state is a calibration and the cuts."""

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from rsoftmax.multilabel.calibration import PlattScaling
from rsoftmax.multilabel.decoding import best_labels
from rsoftmax.multilabel.expected_f1 import (
    Average,
    check_average,
    check_beta,
    expected_f1_count,
    expected_f1_cut,
    no_independent_label,
)


class Decoded(NamedTuple):
    """The answer of a :class:`Decoder`.

    Attributes:
        odds: calibrated log-odds of the labels, [..., K].
        margin: the same less the cut; its order is the order in which labels are taken.
        k: the number of labels, [..., 1], int64.
    """

    odds: Tensor
    margin: Tensor
    k: Tensor

    @property
    def labels(self) -> Tensor:
        """The labels [..., K], bool: the k with the highest margin."""
        return best_labels(self.margin, self.k)


class Decoder(nn.Module):
    """The labels that maximise the expected F1 of one kind, from scores of any origin.

    Args:
        labels: their number, K.
        average: which F1 counts. "samples": each row for itself, :func:`expected_f1_count`; "micro" and "macro": the
            labels above one cut, or above a cut for each label, :func:`expected_f1_cut`.
        beta: recall counts beta times as much as precision.
        at_least: the smallest number of labels of a row.
        at_most: the largest; None: K. With ``at_least=k, at_most=k`` every row gets its k best labels.

    Attributes:
        calibration, none: the :class:`PlattScaling` of the labels and of "no label".
        cut: log-odds, [1] or, for "macro", [K]; 0, the marginal of one half, before :meth:`fit`. Unused by "samples".

    Example:
        >>> _ = torch.manual_seed(0)
        >>> u = torch.randn(500, 3) - 1.5
        >>> y = torch.rand(500, 3) < (2 * u).sigmoid()
        >>> decoder = Decoder(3, average="micro").fit(u, y)
        >>> decoder.cut.sigmoid().round(decimals=2)
        tensor([0.3000])
        >>> decoder(torch.tensor([[0.1, -0.2, -2.0]])).labels
        tensor([[ True,  True, False]])

    The state is in buffers, so ``state_dict`` has it. NaN scores give NaN log-odds.
    """

    cut: Tensor

    def __init__(
        self,
        labels: int,
        average: Average = "samples",
        beta: float = 1.0,
        at_least: int = 0,
        at_most: int | None = None,
    ) -> None:
        super().__init__()
        check_average(average)
        check_beta(beta)
        _check_bounds(at_least, at_most, labels)
        self.average, self.beta, self.at_least, self.at_most = average, beta, at_least, at_most
        self.calibration, self.none = PlattScaling(labels), PlattScaling(1)
        self.register_buffer("cut", torch.zeros(labels if average == "macro" else 1))

    def reset(self) -> None:
        """Forget what was learned."""
        self.calibration.reset()
        self.none.reset()
        self.cut.zero_()

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
        """Learn calibration and cuts.

        Args:
            u: scores [rows, K] of rows that were not learned from; NaN where there is none.
            y: labels [rows, K], 0 or 1; NaN where it is not known.
            none: scores [rows, 1] of "no label"; None: as of independent labels.
            weight: of the rows, [rows, 1].
            calibrate: False leaves the scores as they are and finds the cuts only, for which no label is needed.
        """
        if calibrate:
            self.calibration.fit(u, y, weight)
            empty = torch.where(y.isnan().any(-1) & ~(y == 1).any(-1), torch.nan, (~(y == 1).any(-1)).double())
            self.none.fit(_independent(self.calibration(u)) if none is None else none, empty[:, None], weight)
        if self.average != "samples":
            odds, known = self.calibration(u), ~u.isnan()
            counted = known if weight is None else known * weight
            cut = expected_f1_cut(odds.where(known, 0), self.average, beta=self.beta, weight=counted)[0]
            self.cut.copy_(cut.nan_to_num(neginf=0.0))  # of a label without a score: one half, as before
        return self

    def forward(self, u: Tensor, none: Tensor | None = None) -> Decoded:
        """From scores [..., K], and of "no label" [..., 1], to the labels."""
        return self.decided(self.calibration(u), none)

    def decided(self, odds: Tensor, none: Tensor | None = None) -> Decoded:
        """The same from log-odds that are calibrated already."""
        if self.average == "samples":
            empty = self.none(_independent(odds) if none is None else none)
            k = expected_f1_count(odds, empty, beta=self.beta, at_least=self.at_least, at_most=self.at_most)
            return Decoded(odds, odds, k)
        margin = odds - self.cut.to(odds.dtype)
        k = (margin > 0).sum(-1, keepdim=True).clamp(self.at_least, self.at_most)
        return Decoded(odds, margin, k)

    def extra_repr(self) -> str:
        """What ``repr`` shows: the settings."""
        bounds = f", at_least={self.at_least}, at_most={self.at_most}" if self.at_least or self.at_most else ""
        return f"average={self.average}, beta={self.beta}{bounds}"

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """States that were saved before there was a decoder have none: it stays as it is."""
        if not any(name.startswith(prefix) for name in state_dict):
            state_dict.update({prefix + name: value for name, value in self.state_dict().items()})
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _independent(odds: Tensor) -> Tensor:
    """The score of "no label" if nothing else is known; finite."""
    return no_independent_label(odds.nan_to_num(nan=-30.0)).clamp(-30, 30)


def _check_bounds(at_least: int, at_most: int | None, labels: int) -> None:
    if not 0 <= at_least <= (labels if at_most is None else at_most) <= labels:
        raise ValueError(
            f"expected F1: needs 0 <= at_least <= at_most <= {labels}, the number of labels;"
            f" got at_least={at_least!r}, at_most={at_most!r}"
        )
