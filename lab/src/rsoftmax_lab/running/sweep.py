"""A grid of independent runs, spread over processes or a cluster, that can be stopped and started again at any time.

A grid is a list of frozen dataclasses whose defaults are the paper's numbers. What a run differs in is its key, and
stands in its row: ``{"run": {"classes": 30, "method": "zlpr"}, "seconds": 8.1, ...}``. Rows are written as runs finish,
all by the program that started the sweep, so workers on other machines need no shared disk.
"""

import json
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import joblib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rsoftmax_lab.running import journal, ranks
from rsoftmax_lab.running.interrupts import interruptible
from rsoftmax_lab.running.journal import Row

ENGINES = ("local", "ray", "dask")
Run = TypeVar("Run")


def differences(run: Any) -> Row:
    """What a run changes of its defaults.

    Example:
        >>> from rsoftmax_lab.experiments.synthetic.run import Run
        >>> differences(Run(classes=30, method="zlpr", epochs=150))
        {'method': 'zlpr', 'classes': 30}
    """
    given = {field.name: getattr(run, field.name) for field in fields(run)}
    return {
        field.name: given[field.name]
        for field in fields(run)
        if field.default is MISSING or given[field.name] != field.default
    }


def key(changes: Row) -> str:
    """The name of a run: its differences, in one spelling. A knob added later leaves the old names alone."""
    return json.dumps(changes, sort_keys=True)


def finished(rows: Iterable[Row]) -> dict[str, Row]:
    """The last successful row of each run, by its key."""
    return {key(row["run"]): row for row in rows if "run" in row and "error" not in row}


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
    _check_engine(engine, address)
    console = console or Console(soft_wrap=True, quiet=not ranks.first())
    say = partial(console.print, markup=False)  # errors and files may hold square brackets
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {key(differences(run)): run for run in runs}
    have = finished(journal.read(path, say))
    if ranks.together():
        have = ranks.agreed(have)
    todo = {name: run for name, run in wanted.items() if name not in have}
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} runs are in {path} already")
    failed: list[Row] = []
    if todo:
        with ExitStack() as stack:
            stack.enter_context(interruptible())
            step = stack.enter_context(_progress(console, len(todo)))
            if ranks.together():
                rows: Generator[Row] = (_do(function, run) for run in todo.values())
            else:
                stack.enter_context(_engine(engine, address, jobs))
                rows = _rows(function, todo)
            stack.callback(rows.close)
            try:
                for row in rows:
                    if ranks.first():
                        journal.append(path, row)
                    name = key(row["run"])
                    if "error" in row:
                        failed.append(row)
                        if ranks.together():
                            raise RuntimeError(f"{_shown(row['run'])}: {row['error']}\n{row['traceback']}")
                    else:
                        have[name] = row
                    step(row)
            except KeyboardInterrupt:
                done = len(wanted.keys() & finished(journal.read(path, say)).keys())
                say(f"\nstopped; {done} of {len(wanted)} runs are in {path}; the same command goes on from there")
                raise
    for row in failed:
        say(f"failed: {_shown(row['run'])}: {row['error']}", style="red")
    if failed:
        say(f"{len(failed)} of {len(wanted)} runs failed; the same command tries them again")
    return [have[name] for name in wanted if name in have]


def _rows(function: Callable[[Run], Row], todo: dict[str, Run]) -> Generator[Row]:
    """The rows as they come.

    A worker that dies takes the sweep down and cannot say which run it died of. Runs start in order, so it is among the
    first ones left; those are done one by one, to learn which, and the rest goes on as before.
    """
    left = dict(todo)
    while left:
        try:
            for row in _spread(function, list(left.values())):
                del left[key(row["run"])]
                yield row
        except Exception:  # of the engine: what a run raises never leaves it
            for name in list(left)[: joblib.effective_n_jobs(None)]:
                run = left.pop(name)
                try:
                    yield from _spread(function, [run])
                except Exception as error:
                    yield _row(run, error=f"its worker died ({type(error).__name__})", traceback=str(error))


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


def _check_engine(engine: str, address: str | None) -> None:
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "local" and address is not None:
        raise ValueError(f"address={address!r} needs engine 'ray' or 'dask'; processes on this machine have none")


@contextmanager
def _engine(engine: str, address: str | None, jobs: int | None) -> Iterator[None]:
    """Everything that joblib spreads inside goes where the engine says."""
    with ExitStack() as stack:
        match engine:
            case "local":
                deaf = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started them
                options = {"backend": "loky", "n_jobs": jobs or joblib.cpu_count(), "inner_max_num_threads": 1,
                           "initializer": deaf}  # fmt: skip
            case "ray":
                options = {"backend": _ray(stack, address, jobs), "n_jobs": jobs or -1}
            case "dask":
                options = {"backend": _dask(stack, address, jobs), "n_jobs": jobs or -1}
        stack.enter_context(joblib.parallel_config(**options))
        yield


def _ray(stack: ExitStack, address: str | None, jobs: int | None) -> str:
    try:
        import ray
        from ray.util.joblib.ray_backend import RayBackend
    except ModuleNotFoundError as missing:
        raise _missing("ray", missing) from None

    class StreamingRayBackend(RayBackend):  # type: ignore[misc]
        """Ray's back end hands over results one by one, but inherits from one that does not, and its answer."""

        supports_return_generator = True

    if not ray.is_initialized():
        local = {} if address else {"num_cpus": jobs or joblib.cpu_count(), "include_dashboard": False}
        with _answering(engine="ray", address=address):
            ray.init(address=address, log_to_driver=False, **local)
        stack.callback(ray.shutdown)
    joblib.register_parallel_backend("ray", StreamingRayBackend)
    return "ray"


def _dask(stack: ExitStack, address: str | None, jobs: int | None) -> str:
    try:
        from dask.distributed import Client, LocalCluster
    except ModuleNotFoundError as missing:
        raise _missing("dask", missing) from None
    where = address or stack.enter_context(
        LocalCluster(n_workers=jobs or joblib.cpu_count(), threads_per_worker=1, dashboard_address=None)
    )
    with _answering(engine="dask", address=address):
        stack.enter_context(Client(where))
    return "dask"


@contextmanager
def _answering(engine: str, address: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if address is None:
            raise
        raise ValueError(f"no {engine} cluster answers at {address!r}: {error}") from None


def _missing(engine: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"engine {engine!r} needs {missing.name}; run: pip install 'rsoftmax-lab[{engine}]'", name=missing.name
    )


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Row], None]]:
    """A bar on a terminal; in a log, a line for each run. Both estimate the time left."""
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


class _Log:
    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.done, self.start = console, total, 0, time.monotonic()

    def __call__(self, row: Row) -> None:
        self.done += 1
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        what = f"failed: {row['error']}" if "error" in row else f"{row['seconds']:.1f} s"
        text = f"{self.done}/{self.total}, {left / 60:.1f} min left: {_shown(row['run'])}: {what}"
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _shown(changes: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in changes.items()) or "defaults"
