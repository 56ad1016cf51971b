"""The progress of a sweep: a bar on a terminal, at most ten lines in a log. Both estimate the remaining time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rsoftmax.labels.models.card import printable
from rsoftmax_lab.running.runs import Row

LINES = 10


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[Row], None]]:
    """A function to call with each finished row."""
    if not console.is_terminal:
        yield _Log(console, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, speed_estimate_period=3600) as bar:
        task = bar.add_task("runs", total=total)
        yield lambda row: bar.advance(task)


def shown(changes: Row) -> str:
    """A run in messages."""
    return printable(", ".join(f"{name}={value}" for name, value in changes.items())) or "defaults"


class _Log:
    """Prints a line whenever another tenth of the runs is finished."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.done, self.start = console, total, 0, time.monotonic()

    def __call__(self, row: Row) -> None:
        self.done += 1
        if self.done * LINES // self.total == (self.done - 1) * LINES // self.total:
            return
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        text = f"{self.done} of {self.total} runs finished, {left / 60:.1f} min remaining; last: {shown(row['run'])}"
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
