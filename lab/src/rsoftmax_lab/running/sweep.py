"""A grid of independent runs, spread over processes or a cluster, that can be stopped and started again at any time.

A grid is a list of frozen dataclasses whose defaults are the paper's numbers. What a run differs in is its name, and
stands in its row: ``{"run": {"classes": 30, "method": "zlpr"}, "seconds": 8.1, ...}``. Rows are written as runs finish,
all by the program that started the sweep, so workers on other machines need no shared disk. Several programs may sweep
over one file at a time: they share the runs.
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

LOOK_SECONDS = 0.5  # between two looks at what other programs have done


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
    """Do the runs that the file does not hold yet, and append a row for each.

    Args:
        runs: frozen dataclasses; one that is there twice is done once.
        function: what to do with a run; its answer, a dictionary that JSON can hold, becomes the row.
        path: the file of rows; its folder is created.
        engine: "local" for processes on this machine; "ray" or "dask" for a cluster.
        address: where the cluster is; without it ray and dask start one on this machine.
        jobs: how many runs at a time; by default one for each core, of this machine or of the cluster.
        console: where progress and notices go.

    Returns:
        The finished rows of ``runs``, in their order, each once; without those that failed.

    Each run gets one thread. A run that raises, or takes its process down, leaves a row with its error and does not
    stop the others; as that is not a finished row, the next start tries it again. Ctrl-C stops at once, loses only the
    runs that are under way, and says how to go on. One local job is done in this process: there Ctrl-C in a run is
    Ctrl-C, and a run that takes its process down ends the sweep.

    A run that another program is doing is waited for, and done here if that program ends without a row of it.

    Under torchrun there is no engine: all processes do one run at a time, together, and the first one writes. There a
    run that raises does stop the others, because the processes that did not raise wait for the one that did; and runs
    that another program is doing are left to it.
    """
    engines.check(engine, address)
    console = console or Console(soft_wrap=True, quiet=not ranks.first())
    say = partial(console.print, markup=False)  # errors and files may hold square brackets
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {key(differences(run)): run for run in runs}
    start = journal.size(path)
    have = ranks.agreed(finished(journal.read(path, say)))
    todo = {name: run for name, run in wanted.items() if name not in have}
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} runs are in {path} already")
    try:
        work = _Work(function, todo, path, start, console)
        rows = work.do(partial(engines.started, engine, address, jobs)) if todo else []
    except KeyboardInterrupt:
        done = len(wanted.keys() & finished(journal.read(path, say)).keys())
        say(f"\nstopped; {done} of {len(wanted)} runs are in {path}; the same command goes on from there")
        raise
    have |= finished(rows)
    failed = [row for row in rows if "error" in row]
    for row in failed:
        say(f"failed: {shown(row['run'])}: {row['error']}", style="red")
    if failed:
        say(f"{len(failed)} of {len(wanted)} runs failed; the same command tries them again")
    return [have[name] for name in wanted if name in have]


class _Work(Generic[Run]):
    """The runs of a sweep that are left to do.

    Args:
        function: what to do with a run.
        left: the runs, by name.
        path: the file of rows.
        start: the size of the file when the runs that are left were counted.
        console: where progress and notices go.
    """

    def __init__(
        self, function: Callable[[Run], Row], left: dict[str, Run], path: Path, start: int, console: Console
    ) -> None:
        self.function, self.left, self.path, self.start, self.console = function, dict(left), path, start, console
        self.rows: list[Row] = []

    def do(self, workers: Callable[[], AbstractContextManager[Workers]]) -> list[Row]:
        """Do the runs and write their rows as they come; the rows of all, by whichever program."""
        with ExitStack() as stack:
            stack.enter_context(interruptible())
            self.step = stack.enter_context(progress(self.console, len(self.left)))
            if ranks.together():
                self._together(stack)
            else:
                self._share(stack.enter_context(workers()), stack.enter_context(claims.on(self.path)))
        return self.rows

    def _share(self, workers: Workers, mine: Claims) -> None:
        """Do what no other program is doing, until all is done."""
        told = False
        while self.left:
            with closing(spread(workers, self.function, self._claimed(mine))) as rows:
                for row in rows:
                    journal.append(self.path, row)
                    mine.release(key(row["run"]))
                    self._done(row)
            for row in [row for name, row in self._written().items() if name in self.left]:
                self._done(row)
            if self.left and not told:
                self._say(f"another program is doing {len(self.left)} of the runs; waiting for its rows")
                told = True
            if self.left:
                time.sleep(LOOK_SECONDS)

    def _claimed(self, mine: Claims) -> Iterator[Run]:
        """The runs that this program can do, each claimed when it is asked for."""
        for name, run in list(self.left.items()):
            if mine.take(name):
                if name in self._written():  # finished by another program since it was listed
                    mine.release(name)
                else:
                    yield run

    def _together(self, stack: ExitStack) -> None:
        """Do the runs one after the other, in all processes of torchrun; stop if others would wait for ever."""
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
        """The rows since the sweep began, failed ones too, by the name of their run."""
        found = journal.read(self.path, lambda torn: None, self.start)
        return {key(row["run"]): row for row in found if "run" in row}

    def _done(self, row: Row) -> None:
        self.left.pop(key(row["run"]), None)
        self.step(row)
        self.rows.append(row)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)
