"""The declaration of a benchmark: groups of calls including the baseline, the format of its rows, and goals."""

import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from rsoftmax_lab.bench.rows import Case, Row


@dataclass(frozen=True)
class Settings:
    """The user's settings.

    Attributes:
        threads: the thread counts to measure.
        quick: only a few small cases, in seconds.
        model: a folder or hub id, for benchmarks of models.
        device: the device of the tensors, "cpu" or "cuda".
        texts: a text file, for benchmarks of models that read one.
    """

    threads: tuple[int, ...]
    quick: bool = False
    model: str = ""
    device: str = "cpu"
    texts: str = ""


@dataclass(frozen=True)
class Group:
    """Calls that are measured together, interleaved.

    Attributes:
        common: the fields that their cases share, including ``threads`` and ``measure``.
        calls: creates the calls when the group is measured; each with the remaining fields of its case.
        seconds: the minimum time to measure.
        rounds: the minimum number of rounds.
    """

    common: Case
    calls: Callable[[], Sequence[tuple[Case, Callable[[], object]]]]
    seconds: float = 0.0
    rounds: int = 9


@dataclass(frozen=True)
class Goal:
    """A claim: the ratio of some cases to the baseline is at most ``at_most``.

    Attributes:
        title: the claim in words.
        at_most: the maximum ratio.
        cases: selects the rows: fields of the case, with the values to include.
        against: compare with another row than the baseline: the fields in which that row's case differs.
    """

    title: str
    at_most: float
    cases: Mapping[str, Container[Any]]
    against: Case = field(default_factory=dict)

    def measured(self, rows: Sequence[Row]) -> list[tuple[float, Row]]:
        """The selected rows with their ratios, the slowest first."""
        mine = [row for row in rows if all(row.case.get(name) in values for name, values in self.cases.items())]
        return sorted(((self._ratio(row, rows), row) for row in mine), key=itemgetter(0), reverse=True)

    def _ratio(self, row: Row, rows: Sequence[Row]) -> float:
        if not self.against:
            return row.spread.ratio
        other = next(one for one in rows if one.case == row.case | self.against)
        return row.spread.median / other.spread.median


@dataclass(frozen=True)
class Benchmark:
    """The declaration of a benchmark.

    Attributes:
        file: the name of the file of rows.
        groups: the groups in order; raises ValueError if the settings are not supported.
        baseline: the fields that identify the baseline among the calls of a group.
        label: the label of a row in its table, a format string of the case.
        title: the title of a table, likewise.
        place: a case in the verdict, likewise.
        goals: the claims to check.
        columns: additional columns of the tables.
        threads: the default thread counts.
        takes_model: whether it needs a model.
        takes_texts: whether it reads a text file.
        with_model: the benchmark that runs in its place if a model is given.
        takes_device: whether it runs on GPUs.
        draw: draws a figure of all rows.
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
    takes_texts: bool = False
    with_model: "Benchmark | None" = None
    takes_device: bool = False
    draw: Callable[[Sequence[Row], Path], None] | None = None
