"""A number for each layer and head, with the layers' names."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class HeadTable:
    """A number for each layer and head; ``print(table)`` shows it, with each layer's mean first.

    Attributes:
        title: what the numbers are.
        layers: the layers' names, in the order of the rows.
        values: ``[layers, heads]``; NaN fills the rows of layers that have fewer heads.
    """

    title: str
    layers: tuple[str, ...]
    values: Tensor

    @classmethod
    def of(cls, title: str, rows: dict[str, Tensor]) -> Self:
        """The table of these rows, each a tensor ``[heads]``."""
        values = [row.detach().float().cpu() for row in rows.values()]
        return cls(title, tuple(rows), pad_sequence(values, batch_first=True, padding_value=torch.nan))

    def mean(self) -> float:
        """The mean over all heads of all layers."""
        return float(self.values.nanmean())

    def __str__(self) -> str:
        wide = max(map(len, (self.title, *self.layers)))
        lines = [[self.title, "mean", *map(str, range(self.values.shape[1]))]]
        for name, row in zip(self.layers, self.values, strict=True):
            lines.append([name, *(f"{number:.3f}" for number in [row.nanmean().item(), *row[~row.isnan()].tolist()])])
        return "\n".join(" ".join([f"{name:{wide}}", *(f"{cell:>6}" for cell in row)]) for name, *row in lines)
