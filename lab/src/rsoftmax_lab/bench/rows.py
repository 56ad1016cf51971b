"""A row of results: a case, what it cost, and the machine; and the file of rows."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rsoftmax_lab.running import journal

Case = dict[str, Any]
"""What was measured: the method, its mode and shape, the threads, and the measure, "us" or "bytes"."""


@dataclass(frozen=True)
class Spread:
    """What a call cost over the rounds, and as a ratio to the baseline in the same round, with quartiles."""

    median: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int


@dataclass(frozen=True)
class Row:
    """One row of results.

    Attributes:
        case: what was measured.
        spread: what it cost, in the unit that ``case["measure"]`` names.
        machine: the CPU, its cores and the kernels.
        torch: the version.
        extra_bytes: the most that torch had allocated at once during a call; None in older files of some benchmarks.
    """

    case: Case
    spread: Spread
    machine: str
    torch: str
    extra_bytes: int | None = None

    def __getitem__(self, name: str) -> Any:
        return self.case[name]


def read(path: Path, notice: Callable[[str], None] = print) -> list[Row]:
    """The rows of a file; ``notice`` is told about each line that is not whole."""
    return [_row(path, line) for line in journal.read(path, notice)]


def append(path: Path, row: Row) -> None:
    """Add a row at the end of a file."""
    about = {"extra_bytes": row.extra_bytes, "machine": row.machine, "torch": row.torch}
    journal.append(path, {**row.case, **asdict(row.spread), **about})


def _row(path: Path, line: dict[str, Any]) -> Row:
    case = dict(line)
    if "median_us" in case:  # what rows of times were called while memory had rows of another kind
        case |= {"measure": "us", "median": case.pop("median_us")}
    try:
        spread = Spread(**{field.name: case.pop(field.name) for field in fields(Spread)})
        about = {name: case.pop(name) for name in ("machine", "torch")}
    except KeyError as missing:
        raise ValueError(f"{path}: a row without {missing} is not one of a benchmark: {line}") from None
    return Row(spread=spread, extra_bytes=case.pop("extra_bytes", None), **about, case=case)
