"""Tables of text, for Markdown and for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.table import Table as RichTable
from rich.text import Text

from rsoftmax.labels.models.card import printable
from rsoftmax_lab.report.mean import Mean


class Bold(str):
    """A cell to be shown in bold."""


@dataclass(frozen=True)
class Table:
    """Cells of text; the first column is left-aligned, the others are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def rich(self, title: str) -> RichTable:
        """For the terminal."""
        table = RichTable(title=Text(title), title_justify="left")
        for place, column in enumerate(self.columns):
            table.add_column(Text(printable(column)), justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*(Text(printable(cell), style="bold" if isinstance(cell, Bold) else "") for cell in row))
        return table


def best_in_bold(means: Mapping[str, Sequence[Mean | None]], *, lowest: bool = False) -> list[list[str]]:
    """One row for each name that has a mean; the best value of each column, and its ties as printed, in bold.

    Args:
        means: by name, one for each column.
        lowest: whether lower is better.

    Example:
        >>> best_in_bold({"a": [Mean(2.0, None), None], "b": [Mean(1.0, None), Mean(3.0, None)], "c": [None, None]})
        [['a', '2.00', ''], ['b', '1.00', '3.00']]
    """
    choose = min if lowest else max
    columns = zip(*means.values(), strict=True)
    best = [choose((mean.value for mean in column if mean), default=0.0) for column in columns]

    def cell(mean: Mean | None, top: float) -> str:
        if mean is None:
            return ""
        return Bold(mean) if f"{mean.value:.2f}" == f"{top:.2f}" else str(mean)

    return [
        [name, *(cell(mean, top) for mean, top in zip(line, best, strict=True))]
        for name, line in means.items()
        if any(line)
    ]


class Claim(NamedTuple):
    """A claim of the paper or of ours, the numbers that test it, and whether it holds."""

    text: str
    numbers: list[str]
    holds: bool | None


def weighed(claims: list[Claim], columns: Sequence[str]) -> Table:
    """A table with a row for each claim: its numbers, and whether it holds."""
    verdict = {True: "yes", False: "no", None: "?"}
    return Table(["claim", *columns, "holds"], [[claim.text, *claim.numbers, verdict[claim.holds]] for claim in claims])
