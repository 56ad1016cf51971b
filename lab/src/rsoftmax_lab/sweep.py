"""A sweep: many independent runs on all cores or on a cluster, which can be stopped and resumed at any time.

Runs are distributed by joblib. The program that started the sweep appends a record for each run as it finishes, so
workers on other machines need no shared disk; what is already in the file is not repeated.
"""

import fcntl
import json
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import joblib
import torch
import typer
from joblib.externals.loky.process_executor import BrokenProcessPool
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from rsoftmax.labels.models.card import printable
from rsoftmax_lab.records import Record, Run, append, differences, finished, key, read

ENGINES = ("local", "ray", "dask")
LOG_LINES = 10

Function = Callable[[Run], Record]


# ---------------------------------------------------------------------------------- options of every experiment

Seeds = Annotated[int, typer.Option(min=1, help="The number of seeds; 1 with --quick.")]
Quick = Annotated[bool, typer.Option("--quick", help="Do a few of the runs: minutes instead of hours.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The folder of results; finished runs are skipped. Default: results; results/quick with --quick."
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="The number of concurrent runs. Default: one per core.")]
Engine = Annotated[str, typer.Option(help="Where to run: local (processes on this machine), ray or dask (a cluster).")]
MulanFolder = Annotated[Path, typer.Option(help="A folder with one folder per dataset, in Mulan's ARFF format.")]
Only = Annotated[list[str] | None, typer.Option(help="A dataset to run; repeatable. Default: all.")]
Address = Annotated[str | None, typer.Option(help="The address of the cluster. Default: start one on this machine.")]


@dataclass(frozen=True)
class Sweep:
    """The options that all experiments share: the size of the grid, where to run it, and where to write its records."""

    quick: bool = False
    out: Path | None = None
    jobs: int | None = None
    engine: str = "local"
    address: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of results."""
        return self.out or Path("results/quick" if self.quick else "results")

    def on_device(self) -> "Sweep":
        """One run at a time unless ``jobs`` says otherwise if there is an accelerator, which they would share."""
        return replace(self, jobs=self.jobs or 1) if torch.accelerator.is_available() else self

    def do(self, name: str, runs: Sequence[Run], function: Function[Run]) -> Path:
        """Do the runs of ``rsoftmax reproduce NAME``; returns the folder. Exits with an error if any of them fails."""
        runs = list({key(differences(run)): run for run in runs}.values())  # an option may be given twice
        path = self.folder / f"{name}.jsonl"
        try:
            records = sweep(
                runs, function, path, engine=self.engine, address=self.address, jobs=self.jobs, quick=self.quick
            )
        except (ModuleNotFoundError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--engine") from None
        except OSError as error:  # not writable, or the disk is full
            raise typer.BadParameter(str(error), param_hint="--out") from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if len(records) < len(runs):
            raise typer.Exit(1)
        return self.folder


# ---------------------------------------------------------------------------------- the sweep


def sweep(
    runs: Sequence[Run],
    function: Function[Run],
    path: Path,
    *,
    engine: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    quick: bool = False,
    console: Console | None = None,
    progress: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Do the runs that are missing from the file, and append a record for each.

    Args:
        runs: frozen dataclasses; duplicates are done once.
        function: does a run; returns its results, a dictionary that JSON can represent.
        path: the file of records; its folder is created.
        engine: "local" for processes on this machine; "ray" or "dask" for a cluster.
        address: the address of the cluster. Default: Ray and Dask start one on this machine.
        jobs: the number of concurrent runs. Default: one per core of this machine or of the cluster.
        quick: whether the runs are a small part of the experiment; their records say so, for the report.
        console: shows progress and notices.
        progress: called with each new record, in place of the progress bar.

    Returns:
        The records of the finished runs, in the order of ``runs``, without duplicates and without failed runs.

    Each run uses one thread. A run that raises or kills its process leaves a record with its error and does not stop
    the others; the next sweep tries it again. Ctrl+C stops immediately, loses only the runs in progress, and prints how
    to resume. With one local job, runs are done in this process: a run that kills its process ends the sweep.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "local" and address is not None:
        raise ValueError(f"address={address!r} needs engine 'ray' or 'dask'; local processes have no address")
    console = console or Console(soft_wrap=True)
    say = partial(console.print, markup=False)  # errors and paths may contain square brackets
    wanted = {key(differences(run)): run for run in runs}
    done = finished(read(path, say))
    todo = {name: run for name, run in wanted.items() if name not in done}
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} runs are already in {path}")
    failed = []
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            stack.enter_context(_only_writer(path))
            advance = progress or stack.enter_context(_progress(console, len(todo)))
            stack.enter_context(warnings.catch_warnings(action="ignore", category=UserWarning))  # joblib's, on Ctrl+C
            records = stack.enter_context(closing(_records(function, list(todo.values()), engine, address, jobs)))
            for record in records:
                append(path, record | ({"quick": True} if quick else {}))
                advance(record)
                failed += [record] if "error" in record else []
                done |= finished([record])
    except KeyboardInterrupt:
        count = len(wanted.keys() & finished(read(path, say)).keys())
        say(f"\nstopped; {count} of {len(wanted)} runs are in {path}; rerun the command to resume")
        raise
    for record in failed:
        say(f"failed: {_title(record)}: {record['error']}", style="red")
    if failed:
        say(f"{len(failed)} of {len(wanted)} runs failed; rerun the command to try them again")
    return [done[name] for name in wanted if name in done]


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Stop if another sweep is writing the file: both would do the same runs."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"another program is writing {path}; wait for it, or choose another folder") from None
        yield


def _records(
    function: Function[Run], runs: list[Run], engine: str, address: str | None, jobs: int | None
) -> Generator[Record]:
    """The records of the runs in the order of completion."""
    if not runs:
        return
    if engine == "local" and (jobs or joblib.cpu_count()) == 1:
        for run in runs:  # Ctrl+C in this process is not a failure of the run
            yield _do(function, run, (Exception, SystemExit))
        return
    with _workers(engine, address, jobs):
        while runs:
            started: list[Run] = []
            try:
                for record in _parallel(function, runs, started):
                    yield record
                    runs = [run for run in runs if key(differences(run)) != key(record["run"])]
            except BrokenProcessPool:  # a worker that dies takes other runs with it: repeat these one at a time
                for run in [run for run in runs if run in started]:
                    yield from _alone(function, run)
                runs = [run for run in runs if run not in started]


def _parallel(function: Function[Run], runs: list[Run], started: list[Run]) -> Iterator[Record]:
    """The records of the runs; a run is added to ``started`` when it is given to a worker."""

    def tasks() -> Iterator[Any]:
        for run in list(runs):
            started.append(run)
            yield joblib.delayed(_do)(function, run, BaseException)  # workers ignore Ctrl+C

    yield from joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")(tasks())


def _alone(function: Function[Run], run: Run) -> Iterator[Record]:
    try:
        yield from _parallel(function, [run], [])
    except BrokenProcessPool as error:
        yield _record(run, error=f"the worker died ({type(error).__name__})", traceback=str(error))


def _do(function: Function[Run], run: Run, failures: Any) -> Record:
    """Do one run: its record, or a record with its error."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        with threadpool_limits(1):
            results = function(run)
        record = _record(run, seconds=round(time.perf_counter() - start, 3), **results)
        json.dumps(record, allow_nan=False)  # what JSON cannot represent is a failure of this run, not of the sweep
        return record
    except failures as error:
        return _record(run, error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())


def _record(run: Any, **rest: Any) -> Record:
    return {"run": differences(run), "finished": datetime.now(UTC).isoformat(timespec="seconds"), **rest}


# ---------------------------------------------------------------------------------- workers


@contextmanager
def _workers(engine: str, address: str | None, jobs: int | None) -> Iterator[None]:
    """Let joblib use the workers of an engine within the block; a cluster that was started for it is stopped."""
    try:
        cluster = {"local": _local, "ray": _ray, "dask": _dask}[engine](address, jobs)
        with cluster:
            yield
    except ModuleNotFoundError as missing:
        hint = f"engine {engine!r} needs {missing.name}; run: pip install 'rsoftmax-lab[{engine}]'"
        raise ModuleNotFoundError(hint, name=missing.name) from None


@contextmanager
def _local(address: str | None, jobs: int | None) -> Iterator[None]:
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the parent process stops them
    with joblib.parallel_config("loky", n_jobs=jobs or -1, inner_max_num_threads=1, initializer=ignore):
        yield


@contextmanager
def _ray(address: str | None, jobs: int | None) -> Iterator[None]:
    import ray
    from ray.util.joblib.ray_backend import RayBackend

    local = {} if address else {"num_cpus": jobs or joblib.cpu_count(), "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, **local)
    except ConnectionError as error:
        raise ValueError(f"no ray cluster responds at {address!r}: {error}") from None
    joblib.register_parallel_backend("ray", type("_", (RayBackend,), {"supports_return_generator": True}))
    try:
        with joblib.parallel_config("ray", n_jobs=jobs or -1):
            yield
    finally:
        ray.shutdown()


@contextmanager
def _dask(address: str | None, jobs: int | None) -> Iterator[None]:
    from dask.distributed import Client

    local = {"n_workers": jobs or joblib.cpu_count(), "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = Client(address) if address else Client(**local)
    except OSError as error:
        raise ValueError(f"no dask cluster responds at {address!r}: {error}") from None
    with client, joblib.parallel_config("dask", n_jobs=jobs or -1):
        yield


# ---------------------------------------------------------------------------------- progress


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Record], None]]:
    """A function to call with each record: moves a bar on a terminal, prints at most ten lines in a log."""
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("remaining:"))
    start, done = time.monotonic(), 0

    def advance(record: Record) -> None:
        nonlocal done
        done += 1
        bar.advance(task)
        if not console.is_terminal and done * LOG_LINES // total > (done - 1) * LOG_LINES // total:
            minutes = (time.monotonic() - start) / done * (total - done) / 60
            text = f"{done} of {total} runs finished, {minutes:.1f} min remaining; last: {_title(record)}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    shown = total > 0 and console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, speed_estimate_period=3600, disable=not shown
    ) as bar:
        task = bar.add_task("", total=total)
        yield advance


def _title(record: Record) -> str:
    """A run in messages."""
    return printable(", ".join(f"{name}={value}" for name, value in record["run"].items())) or "defaults"
