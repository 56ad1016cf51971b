"""What a benchmark declares: groups of calls, the baseline among them, how rows are shown, and goals."""

import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from rsoftmax_lab.bench.rows import Case, Row


@dataclass(frozen=True)
class Settings:
    """What the user asks for.

    Attributes:
        threads: the numbers of threads to measure with.
        quick: few and small cases, in seconds.
        model: a folder, or a name on the hub; for benchmarks of models.
        device: where the tensors are, "cpu" or "cuda".
    """

    threads: tuple[int, ...]
    quick: bool = False
    model: str = ""
    device: str = "cpu"


@dataclass(frozen=True)
class Group:
    """Calls that are measured together, in turns.

    Attributes:
        common: what their cases have in common; ``threads`` and ``measure`` are among it.
        calls: makes them, when their turn comes: for each, what its case has besides, and the call.
        seconds: how long to measure times at least.
        rounds: how often at least.
    """

    common: Case
    calls: Callable[[], Sequence[tuple[Case, Callable[[], object]]]]
    seconds: float = 0.0
    rounds: int = 9


@dataclass(frozen=True)
class Goal:
    """A claim: some cases cost at most so many times what the baseline costs.

    Attributes:
        title: the claim in words.
        at_most: the ratio.
        cases: which rows it speaks of: fields of the case, with the values that count.
        beside: what else to compare with than the baseline: the fields in which the other row's case differs.
    """

    title: str
    at_most: float
    cases: Mapping[str, Container[Any]]
    beside: Case = field(default_factory=dict)

    def measured(self, rows: Sequence[Row]) -> list[tuple[float, Row]]:
        """The rows that it speaks of with their ratios, the costliest first."""
        mine = [row for row in rows if all(row.case.get(name) in values for name, values in self.cases.items())]
        return sorted(((self._ratio(row, rows), row) for row in mine), key=itemgetter(0), reverse=True)

    def _ratio(self, row: Row, rows: Sequence[Row]) -> float:
        if not self.beside:
            return row.spread.ratio
        other = next(one for one in rows if one.case == row.case | self.beside)
        return row.spread.median / other.spread.median


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, declared.

    Attributes:
        file: the name of the file of rows.
        groups: the groups in their order; raises ValueError if the settings cannot be met.
        baseline: the fields that tell the baseline from the other calls of a group.
        label: a row in its table, and
        title: its table, both as a format string of the case.
        place: a case in the verdict, likewise.
        goals: what the verdict is about.
        columns: further columns of the tables.
        threads: the numbers of threads if the user gives none.
        takes_model: whether it needs a model, and takes one.
        takes_device: whether it can run elsewhere than on the CPU.
        draw: writes a picture of all rows, if there is one.
    """

    file: str
    groups: Callable[[Settings], Sequence[Group]]
    baseline: Case
    label: str
    title: str
    place: str
    goals: tuple[Goal, ...]
    columns: Mapping[str, Callable[[Row], str]] = field(default_factory=dict)
    threads: tuple[int, ...] = tuple(sorted({1, os.cpu_count() or 1}))
    takes_model: bool = False
    takes_device: bool = False
    draw: Callable[[Sequence[Row], Path], None] | None = None
