"""How far a sweep is: a bar on a terminal; in a log, a line for each run. Both estimate the time left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rsoftmax.printable import printable
from rsoftmax_lab.running.runs import Row


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[Row], None]]:
    """A function to be called with each row, as it comes."""
    if not console.is_terminal:
        yield _Log(console, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, speed_estimate_period=3600) as bar:
        task = bar.add_task("runs", total=total)
        yield lambda row: bar.advance(task)


def shown(changes: Row) -> str:
    """A run, as lines of a log call it."""
    return printable(", ".join(f"{name}={value}" for name, value in changes.items())) or "defaults"


class _Log:
    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.done, self.start = console, total, 0, time.monotonic()

    def __call__(self, row: Row) -> None:
        self.done += 1
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        what = f"failed: {row['error']}" if "error" in row else f"{row['seconds']:.1f} s"
        text = f"{self.done}/{self.total}, {left / 60:.1f} min left: {shown(row['run'])}: {what}"
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
