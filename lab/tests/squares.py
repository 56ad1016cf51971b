"""A small sweep to start, kill and start again: ``python squares.py FILE ENGINE FREE [OUTCOME ...]``.

The first FREE runs answer at once. The others wait until the gate is open, which is a file: a test decides how far a
sweep gets, and no clock does.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsoftmax_lab.sweep import sweep


@dataclass(frozen=True)
class Square:
    number: float = 0
    gate: str = ""  # a file to wait for; none: answer at once
    outcome: str = "answers"


def gate_of(rows: Path) -> Path:
    return rows.with_suffix(".gate")


def waiting_at(gate: Path) -> list[Path]:
    """A file for each process that waits, or waited, at a gate."""
    return list(gate.parent.glob(f"{gate.name}.*"))


def wait_at(gate: str) -> None:
    Path(f"{gate}.{os.getpid()}").touch()
    while not Path(gate).exists():
        time.sleep(0.01)


def square(run: Square) -> dict[str, Any]:
    import torch  # in the workers alone: the program that starts them need not wait for it

    if run.gate:
        wait_at(run.gate)
    if run.outcome == "raises":
        raise ArithmeticError("too square: [rows, 4] [/x]")
    if run.outcome == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if run.outcome == "exits":
        sys.exit(3)
    if run.outcome == "interrupts":
        raise KeyboardInterrupt("no key was pressed")
    if run.outcome == "answers nonsense":
        return {"square": float("nan")}
    return {
        "square": run.number**2,
        "process": os.getpid(),
        "threads": torch.get_num_threads(),
        "omp": os.environ.get("OMP_NUM_THREADS"),
    }


if __name__ == "__main__":
    rows, engine, free, *outcomes = Path(sys.argv[1]), *sys.argv[2:]
    grid = [Square(n, "" if n <= int(free) else str(gate_of(rows))) for n in range(1, 9)]
    grid[2:2] = [Square(outcome=outcome) for outcome in outcomes]
    try:
        sweep(grid, square, rows, engine=engine, jobs=2)
    except KeyboardInterrupt:
        sys.exit(130)
