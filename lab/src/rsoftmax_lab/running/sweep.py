"""A grid of independent runs, spread over processes or a cluster, that can be stopped and started again at any time.

A grid is a list of frozen dataclasses whose defaults are the paper's numbers. What a run differs in is its name, and
stands in its row: ``{"run": {"classes": 30, "method": "zlpr"}, "seconds": 8.1, ...}``. Rows are written as runs finish,
all by the program that started the sweep, so workers on other machines need no shared disk.
"""

import json
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import joblib
from rich.console import Console

from rsoftmax_lab.running import engines, journal, ranks
from rsoftmax_lab.running.interrupts import interruptible
from rsoftmax_lab.running.progress import progress, shown
from rsoftmax_lab.running.rows import finished
from rsoftmax_lab.running.runs import Row, differences, key

Run = TypeVar("Run")


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
        runs: frozen dataclasses.
        function: what to do with a run; its answer, a dictionary that JSON can hold, becomes the row.
        path: the file of rows; its folder is created.
        engine: "local" for processes on this machine; "ray" or "dask" for a cluster, through their joblib back ends.
        address: where the cluster is; without it ray and dask start one on this machine.
        jobs: how many runs at a time; by default one for each core, of this machine or of the cluster.
        console: where progress and notices go.

    Returns:
        The finished rows of ``runs``, in their order; without those that failed.

    Each run gets one thread. A run that raises, or takes its process down, leaves a row with its error and does not
    stop the others; as that is not a finished row, the next start tries it again. Ctrl-C stops at once, loses only the
    runs that are under way, and says how to go on.

    Under torchrun there is no engine: all processes do one run at a time, together, and the first one writes. There a
    run that raises does stop the others, because the processes that did not raise wait for the one that did.
    """
    engines.check(engine, address)
    console = console or Console(soft_wrap=True, quiet=not ranks.first())
    say = partial(console.print, markup=False)  # errors and files may hold square brackets
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {key(differences(run)): run for run in runs}
    have = ranks.agreed(finished(journal.read(path, say)))
    todo = {name: run for name, run in wanted.items() if name not in have}
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} runs are in {path} already")
    try:
        rows = (
            _do_all(function, todo, path, partial(engines.spread_over, engine, address, jobs), console) if todo else []
        )
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


def _do_all(
    function: Callable[[Run], Row],
    todo: dict[str, Run],
    path: Path,
    engine: Callable[[], AbstractContextManager[None]],
    console: Console,
) -> list[Row]:
    """Do the runs and write their rows as they come."""
    done = []
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        step = stack.enter_context(progress(console, len(todo)))
        if ranks.together():
            rows: Generator[Row] = (_do(function, run) for run in todo.values())
        else:
            stack.enter_context(engine())
            rows = _spread_until_done(function, todo)
        for row in stack.enter_context(closing(rows)):
            _write(path, row)
            step(row)
            done.append(row)
    return done


def _write(path: Path, row: Row) -> None:
    """Append the row, if this is the process that writes; stop if others would wait for ever for a run that failed."""
    if ranks.first():
        journal.append(path, row)
    if "error" in row and ranks.together():
        raise RuntimeError(f"{shown(row['run'])}: {row['error']}\n{row['traceback']}")


def _spread_until_done(function: Callable[[Run], Row], todo: dict[str, Run]) -> Generator[Row]:
    """The rows of all runs, also if workers die.

    A worker that dies takes the sweep down and cannot say which run it died of. Runs start in order, so it is among the
    first ones left; those are done one by one, to learn which, and the rest goes on as before.
    """
    left = dict(todo)
    while left:
        try:
            for row in _spread(function, list(left.values())):
                del left[key(row["run"])]
                yield row
        except Exception:  # of the engine: what a run raises is in its row
            for name in list(left)[: joblib.effective_n_jobs(None)]:
                yield _alone(function, left.pop(name))


def _alone(function: Callable[[Run], Row], run: Run) -> Row:
    """The row of a run that has all workers to itself."""
    try:
        (row,) = _spread(function, [run])
        return row
    except Exception as error:
        return _row(run, error=f"its worker died ({type(error).__name__})", traceback=str(error))


def _spread(function: Callable[[Run], Row], runs: list[Run]) -> Iterator[Row]:
    spread = joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
    rows: Iterator[Row] = spread(joblib.delayed(_do)(function, run) for run in runs)
    return rows


def _do(function: Callable[[Run], Row], run: Run) -> Row:
    """One run, in the worker: its row, or a row with its error."""
    import torch
    from threadpoolctl import threadpool_limits

    if not ranks.together():  # else the launcher says how many
        torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        with nullcontext() if ranks.together() else threadpool_limits(1):
            answer = function(run)
        row = _row(run, seconds=round(time.perf_counter() - start, 3), **answer)
        json.dumps(row, allow_nan=False)  # what JSON cannot hold is this run's failure, not the sweep's
        return row
    except Exception as error:
        return _row(run, error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())


def _row(run: Any, **rest: Any) -> Row:
    return {"run": differences(run), "finished": datetime.now(UTC).isoformat(timespec="seconds"), **rest}
