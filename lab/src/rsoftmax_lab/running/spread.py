"""Distributes runs over workers: one row per run, even if a run kills its worker."""

import json
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from rsoftmax_lab.running import ranks
from rsoftmax_lab.running.engines import Workers
from rsoftmax_lab.running.runs import Row, differences

Run = TypeVar("Run")
Function = Callable[[Run], Row]

FAILURES = (Exception, SystemExit)  # Ctrl+C in this process is not a failure of the run


def spread(workers: Workers, function: Function[Run], runs: Iterator[Run]) -> Generator[Row]:
    """The rows of all runs in the order of completion. A run is taken from the iterator when a worker is free.

    A worker that dies may take other runs with it. Lost runs are repeated one at a time at the end, so that a run that
    kills its worker affects no other.
    """
    under_way: dict[Future[Row], Run] = {}
    lost: list[Run] = []
    while True:
        for run in islice(runs, max(0, workers.capacity() - len(under_way))):
            under_way[_submitted(workers, function, run)] = run
        if not under_way:
            break
        for future in wait(under_way, return_when=FIRST_COMPLETED).done:
            run = under_way.pop(future)
            if _died(future):
                lost.append(run)
            else:
                yield future.result()
    for run in lost:
        future = _submitted(workers, function, run)
        wait([future])
        yield _row(run, **_death(future)) if _died(future) else future.result()


def done_here(function: Function[Run], run: Run) -> Row:
    """Do one run in this process: its row, or a row with its error."""
    return _done(function, run, FAILURES)


def _done_by_worker(function: Function[Run], run: Run) -> Row:
    return _done(function, run, BaseException)  # workers ignore Ctrl+C, so any exception comes from the run


def _submitted(workers: Workers, function: Function[Run], run: Run) -> Future[Row]:
    work = done_here if workers.here else _done_by_worker
    try:
        return workers.submit(work, function, run)
    except Exception as error:  # an error of the engine; exceptions of runs are in their rows
        failed: Future[Row] = Future()
        failed.set_exception(error)
        return failed


def _died(future: Future[Row]) -> bool:
    return future.cancelled() or future.exception() is not None


def _death(future: Future[Row]) -> dict[str, str]:
    error = None if future.cancelled() else future.exception()
    return {"error": f"the worker died ({type(error).__name__ if error else 'cancelled'})", "traceback": str(error)}


def _done(function: Function[Run], run: Run, failures: Any) -> Row:
    import torch
    from threadpoolctl import threadpool_limits

    if not ranks.together():  # otherwise the launcher sets the number
        torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        with nullcontext() if ranks.together() else threadpool_limits(1):
            answer = function(run)
        row = _row(run, seconds=round(time.perf_counter() - start, 3), **answer)
        json.dumps(row, allow_nan=False)  # a row that JSON cannot represent is a failure of this run, not of the sweep
        return row
    except failures as error:
        return _row(run, error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())


def _row(run: Any, **rest: Any) -> Row:
    return {"run": differences(run), "finished": datetime.now(UTC).isoformat(timespec="seconds"), **rest}
