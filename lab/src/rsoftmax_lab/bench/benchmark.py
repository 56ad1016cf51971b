"""A benchmark: groups of calls that take turns, one of them the baseline, and goals for the ratios to it."""

import json
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from rsoftmax_lab.bench.timing import Call, Spread

Case = dict[str, Any]  # what is measured: method, mode, shape, ...
Record = dict[str, Any]  # a case with its cost and the machine; a line of a file of results
COST = (*Spread._fields, "kl", "extra_bytes", "machine", "torch")  # the fields of a record besides its case


@dataclass(frozen=True)
class Settings:
    """The user's settings."""

    threads: tuple[int, ...] = (1,)  # the thread counts to measure
    quick: bool = False  # only a few of the cases, each for a short time
    model: str = ""  # a folder or hub id
    device: str = "cpu"  # of the tensors: "cpu" or "cuda"
    texts: str = ""  # a text file


@dataclass(frozen=True)
class Group:
    """Calls that are measured together, interleaved."""

    case: Case  # the fields that their cases share
    calls: Callable[[], Iterable[tuple[Case, Call]]]  # creates them, each with the remaining fields of its case
    seconds: float = 0.0  # the minimum time to measure
    rounds: int = 9  # the minimum number of rounds
    measure: str = "us"  # or "bytes": memory alone
    memory: bool = True  # whether it is measured, for which every call is made once more


@dataclass(frozen=True)
class Goal:
    """A claim: the ratio of some cases to the baseline is at most ``at_most``."""

    title: str  # the claim in words
    at_most: float
    cases: Mapping[str, Container[Any]]  # fields of the records that it covers, with the values to include
    against: Case = field(default_factory=dict)  # compare with the case that differs in these fields, not the baseline

    def ratios(self, records: Sequence[Record]) -> list[tuple[float, Record]]:
        """The selected records with their ratios, the slowest first."""
        covered = [record for record in records if all(record.get(name) in some for name, some in self.cases.items())]
        if not self.against:
            ratios = [(record["ratio"], record) for record in covered]
        else:
            medians = [(record["machine"], case_of(record), record["median"]) for record in records]
            others = [_first(medians, record["machine"], case_of(record) | self.against) for record in covered]
            ratios = [(record["median"] / us, record) for record, us in zip(covered, others, strict=True)]
        return sorted(ratios, key=itemgetter(0), reverse=True)


def _first(medians: Iterable[tuple[str, Case, float]], machine: str, case: Case) -> float:
    return next(median for where, what, median in medians if (where, what) == (machine, case))


@dataclass(frozen=True)
class Benchmark:
    """The declaration of a benchmark."""

    file: str  # the name of the file of records
    groups: Callable[[Settings], Iterable[Group]]  # in order; ValueError if the settings are not supported
    baseline: Case  # the fields that identify the baseline among the calls of a group
    label: str  # the label of a record in its table, a format string of the record
    title: str  # the title of a table, likewise
    slowest: str  # the slowest case in the verdict, likewise
    goals: tuple[Goal, ...]  # the claims to check
    threads: tuple[int, ...] = tuple(sorted({1, os.cpu_count() or 1}))  # the default thread counts
    options: tuple[str, ...] = ()  # which of "model", "texts" and "device" it takes; a model is required
    with_model: "Benchmark | None" = None  # runs in its place if a model is given
    keeps_memory: bool = True  # whether the allocator keeps what is freed, or is as users have it
    keeps_groups: bool = False  # whether groups of a file, of any model and machine, stay as they are
    draw: Callable[[Sequence[Record], Path], None] | None = None  # draws a figure of all records


def case_of(record: Record) -> Case:
    """The fields of a record that say what was measured."""
    return {name: value for name, value in record.items() if name not in COST}


def read(path: Path) -> list[Record]:
    """The records of a file."""
    records: list[Record] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for number, record in enumerate(records, start=1):
        if missing := {"measure", "threads", *Spread._fields} - record.keys():
            raise ValueError(f"{path}, line {number}: not a benchmark record, it lacks {', '.join(sorted(missing))}")
    return records
