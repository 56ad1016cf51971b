"""A small sweep to start, kill and start again: ``python squares.py FILE ENGINE SECONDS [OUTCOME ...]``."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsoftmax_lab.running.sweep import sweep


@dataclass(frozen=True)
class Square:
    number: int = 0
    seconds: float = 0.0
    outcome: str = "answers"


def square(run: Square) -> dict[str, Any]:
    import torch  # in the workers alone: the program that starts them need not wait for it

    time.sleep(run.seconds)
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
    path, engine, seconds, *outcomes = sys.argv[1:]
    grid = [Square(number, float(seconds)) for number in range(1, 9)]
    grid[2:2] = [Square(outcome=outcome) for outcome in outcomes]
    try:
        sweep(grid, square, Path(path), engine=engine, jobs=2)
    except KeyboardInterrupt:
        sys.exit(130)
