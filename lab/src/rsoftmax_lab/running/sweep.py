"""A grid of independent runs, distributed over processes or a cluster, that can be stopped and resumed at any time.

A grid is a list of frozen dataclasses whose defaults are the paper's numbers. A run is identified by its differences
from the defaults, which its row records: ``{"run": {"classes": 30, "method": "zlpr"}, "seconds": 8.1, ...}``. The
program that started the sweep writes the rows as runs finish, so workers on other machines need no shared disk. Several
programs can sweep over one file concurrently: they share the runs.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console

from rsoftmax_lab.running import claims, engines, journal, ranks
from rsoftmax_lab.running.claims import Claims
from rsoftmax_lab.running.engines import Workers
from rsoftmax_lab.running.interrupts import interruptible
from rsoftmax_lab.running.progress import progress, shown
from rsoftmax_lab.running.rows import finished
from rsoftmax_lab.running.runs import Row, differences, key
from rsoftmax_lab.running.spread import done_here, spread

Run = TypeVar("Run")

LOOK_SECONDS = 0.5  # between two checks for rows of other programs


def sweep(
    runs: Sequence[Run],
    function: Callable[[Run], Row],
    path: Path,
    *,
    engine: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Do the runs that are missing from the file, and append a row for each.

    Args:
        runs: frozen dataclasses; duplicates are done once.
        function: does a run; returns its row, a dictionary that JSON can represent.
        path: the file of rows; its folder is created.
        engine: "local" for processes on this machine; "ray" or "dask" for a cluster.
        address: the address of the cluster. Default: Ray and Dask start one on this machine.
        jobs: the number of concurrent runs. Default: one per core of this machine or of the cluster.
        console: shows progress and notices.

    Returns:
        The rows of the finished runs, in the order of ``runs``, without duplicates and without failed runs.

    Each run uses one thread. A run that raises or kills its process leaves a row with its error and does not stop the
    others; the next sweep tries it again. Ctrl+C stops immediately, loses only the runs in progress, and prints how to
    resume. With one local job, runs are done in this process: a run that kills its process ends the sweep.

    If another program is doing a run, the sweep waits for its row, and does the run itself if that program exits
    without writing one.

    Under torchrun there is no engine: all processes share one run at a time, and rank 0 writes. There a run that raises
    stops the sweep, because the other processes would wait for the failed one; runs of other programs are left to them.
    """
    engines.check(engine, address)
    console = console or Console(soft_wrap=True, quiet=not ranks.first())
    say = partial(console.print, markup=False)  # errors and paths may contain square brackets
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {key(differences(run)): run for run in runs}
    start = journal.size(path)
    have = ranks.agreed(finished(journal.read(path, say)))
    todo = {name: run for name, run in wanted.items() if name not in have}
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} runs are already in {path}")
    try:
        work = _Work(function, todo, path, start, console)
        rows = work.do(partial(engines.started, engine, address, jobs)) if todo else []
    except KeyboardInterrupt:
        done = len(wanted.keys() & finished(journal.read(path, say)).keys())
        say(f"\nstopped; {done} of {len(wanted)} runs are in {path}; rerun the command to resume")
        raise
    have |= finished(rows)
    failed = [row for row in rows if "error" in row]
    for row in failed:
        say(f"failed: {shown(row['run'])}: {row['error']}", style="red")
    if failed:
        say(f"{len(failed)} of {len(wanted)} runs failed; rerun the command to try them again")
    return [have[name] for name in wanted if name in have]


class _Work(Generic[Run]):
    """The remaining runs of a sweep.

    Args:
        function: does a run.
        left: the runs, by name.
        path: the file of rows.
        start: the size of the file when the remaining runs were determined.
        console: shows progress and notices.
    """

    def __init__(
        self, function: Callable[[Run], Row], left: dict[str, Run], path: Path, start: int, console: Console
    ) -> None:
        self.function, self.left, self.path, self.start, self.console = function, dict(left), path, start, console
        self.rows: list[Row] = []

    def do(self, workers: Callable[[], AbstractContextManager[Workers]]) -> list[Row]:
        """Do the runs and write their rows as they finish; returns the rows of all runs, by any program."""
        with ExitStack() as stack:
            stack.enter_context(interruptible())
            self.step = stack.enter_context(progress(self.console, len(self.left)))
            if ranks.together():
                self._together(stack)
            else:
                self._share(stack.enter_context(workers()), stack.enter_context(claims.on(self.path)))
        return self.rows

    def _share(self, workers: Workers, mine: Claims) -> None:
        """Do the runs that no other program is doing, until all are done."""
        announced = False
        while self.left:
            with closing(spread(workers, self.function, self._claimed(mine))) as rows:
                for row in rows:
                    journal.append(self.path, row)
                    mine.release(key(row["run"]))
                    self._done(row)
            for row in [row for name, row in self._written().items() if name in self.left]:
                self._done(row)
            if self.left and not announced:
                self._say(f"another program is doing {len(self.left)} of the runs; waiting for its rows")
                announced = True
            if self.left:
                time.sleep(LOOK_SECONDS)

    def _claimed(self, mine: Claims) -> Iterator[Run]:
        """The runs that this program can do, each claimed when it is requested."""
        for name, run in list(self.left.items()):
            if mine.take(name):
                if name in self._written():  # finished by another program since it was listed
                    mine.release(name)
                else:
                    yield run

    def _together(self, stack: ExitStack) -> None:
        """Do the runs one at a time in all processes of torchrun; raise on failure, so that none waits forever."""
        free = None
        if ranks.first():
            mine = stack.enter_context(claims.on(self.path))
            free = [name for name in self.left if mine.take(name)]
        free = ranks.agreed(free)
        if len(free) < len(self.left):
            self._say(f"another program is doing {len(self.left) - len(free)} of the runs; they are left to it")
        for name in free:
            row = done_here(self.function, self.left[name])
            if ranks.first():
                journal.append(self.path, row)
            if "error" in row:
                raise RuntimeError(f"{shown(row['run'])}: {row['error']}\n{row['traceback']}")
            self._done(row)

    def _written(self) -> dict[str, Row]:
        """The rows written since the sweep began, including failed ones, by the name of their run."""
        found = journal.read(self.path, lambda torn: None, self.start)
        return {key(row["run"]): row for row in found if "run" in row}

    def _done(self, row: Row) -> None:
        self.left.pop(key(row["run"]), None)
        self.step(row)
        self.rows.append(row)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)
