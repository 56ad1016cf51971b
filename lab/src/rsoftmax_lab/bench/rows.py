"""A row of results: the case, its cost and the machine; reading and writing files of rows."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rsoftmax_lab import records

Case = dict[str, Any]
"""What was measured: method, mode, shape, threads, and the measure, "us" or "bytes"."""


@dataclass(frozen=True)
class Spread:
    """The cost of a call over the rounds, and its ratio to the baseline in the same round, with quartiles."""

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
        spread: its cost, in the unit of ``case["measure"]``.
        machine: the CPU, its cores and the kernels' instruction set.
        torch: the version.
        extra_bytes: the peak memory that torch allocated during a call; None in some older files.
    """

    case: Case
    spread: Spread
    machine: str
    torch: str
    extra_bytes: int | None = None

    def __getitem__(self, name: str) -> Any:
        return self.case[name]


def read(path: Path, notice: Callable[[str], None] = print) -> list[Row]:
    """The rows of a file; ``notice`` is called with a message for each incomplete line."""
    return [_row(path, line) for line in records.read(path, notice)]


def append(path: Path, row: Row) -> None:
    """Append a row to a file."""
    about = {"extra_bytes": row.extra_bytes, "machine": row.machine, "torch": row.torch}
    records.append(path, {**row.case, **asdict(row.spread), **about})


def _row(path: Path, line: dict[str, Any]) -> Row:
    case = dict(line)
    if "median_us" in case:  # the field's name in older rows
        case |= {"measure": "us", "median": case.pop("median_us")}
    try:
        spread = Spread(**{field.name: case.pop(field.name) for field in fields(Spread)})
        about = {name: case.pop(name) for name in ("machine", "torch")}
    except KeyError as missing:
        raise ValueError(f"{path}: not a benchmark row, {missing} is missing: {line}") from None
    return Row(spread=spread, extra_bytes=case.pop("extra_bytes", None), **about, case=case)
