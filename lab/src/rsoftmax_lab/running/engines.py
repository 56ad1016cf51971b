"""Where runs are executed: in this process, in local processes, or on a Ray or Dask cluster."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import joblib

ANSWER_SECONDS = 20  # the timeout of a cluster's response
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")


class Workers(NamedTuple):
    """Executes runs.

    Attributes:
        submit: as in ``concurrent.futures``. If the worker process dies, the future holds an exception.
        capacity: the number of concurrent calls; queried repeatedly, because a cluster may grow.
        here: whether calls run in this process, before ``submit`` returns.
    """

    submit: Callable[..., Future[Any]]
    capacity: Callable[[], int]
    here: bool = False


def check(engine: str, address: str | None) -> None:
    """Reject an unknown engine, and an address that would have no effect."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "local" and address is not None:
        raise ValueError(f"address={address!r} needs engine 'ray' or 'dask'; local processes have no address")


def started(engine: str, address: str | None, jobs: int | None) -> AbstractContextManager[Workers]:
    """The workers of an engine; what was started for them is stopped at the end of the block.

    Args:
        engine: a key of ``ENGINES``.
        address: the address of the cluster. Default: start one on this machine.
        jobs: the number of concurrent runs. Default: one per core.
    """
    return ENGINES[engine](address, jobs)


def _local(address: str | None, jobs: int | None) -> AbstractContextManager[Workers]:
    jobs = jobs or joblib.cpu_count()
    return nullcontext(Workers(_called_here, lambda: 1, here=True)) if jobs == 1 else _processes(jobs)


def _called_here(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(function(*arguments))
    return done


@contextmanager
def _processes(jobs: int) -> Iterator[Workers]:
    from joblib.externals.loky import get_reusable_executor

    executor = partial(  # returns the current pool, or a new one if one of its processes has died
        get_reusable_executor,
        max_workers=jobs,
        timeout=300,
        env=ONE_THREAD,
        initializer=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),  # the parent process stops them
    )
    try:
        yield Workers(lambda *call: executor().submit(*call), lambda: jobs)
    except BaseException:  # abandon pending calls; otherwise let the processes finish
        with _silent_threads():
            executor().shutdown(kill_workers=True)
        raise
    executor().shutdown()


@contextmanager
def _silent_threads() -> Iterator[None]:
    """Suppress exceptions in threads: loky's management thread may fail when its processes are killed."""
    usual, threading.excepthook = threading.excepthook, lambda _: None
    try:
        yield
    finally:
        threading.excepthook = usual


@contextmanager
def _ray(address: str | None, jobs: int | None) -> Iterator[Workers]:
    try:
        import ray
    except ModuleNotFoundError as missing:
        raise _missing("ray", missing) from None
    alone = not ray.is_initialized()
    if alone:
        local = {} if address else {"num_cpus": jobs or joblib.cpu_count(), "include_dashboard": False}
        if address:
            _ask_ray(address)
        ray.init(address=address, log_to_driver=False, **local)

    def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = ray.remote(max_retries=0, num_cpus=1)(function).remote(*arguments).future()
        return future

    try:
        yield Workers(submit, lambda: jobs or max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        if alone:
            ray.shutdown()


def _ask_ray(address: str) -> None:
    """Check that a cluster responds, in a process with a timeout: Ray's own attempt takes minutes."""
    program = [sys.executable, "-c", "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)", address]
    path = os.pathsep.join(filter(None, sys.path))
    try:
        asked = subprocess.run(
            program, env={**os.environ, "PYTHONPATH": path}, timeout=ANSWER_SECONDS, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise _silent("ray", address, f"no response within {ANSWER_SECONDS} seconds") from None
    if asked.returncode:
        raise _silent("ray", address, (asked.stderr.strip().splitlines() or ["unknown reason"])[-1])


@contextmanager
def _dask(address: str | None, jobs: int | None) -> Iterator[Workers]:
    try:
        import dask
        from dask.distributed import Client, LocalCluster
    except ModuleNotFoundError as missing:
        raise _missing("dask", missing) from None
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):  # do not retry a run that kills its worker
        cluster = nullcontext(address) if address else LocalCluster(
            n_workers=jobs or joblib.cpu_count(), threads_per_worker=1, dashboard_address=None
        )  # fmt: skip
        with cluster as where, _connected(Client, where, address) as client:
            executor = client.get_executor(pure=False, retries=0)
            yield Workers(executor.submit, lambda: jobs or max(1, sum(client.nthreads().values())))


def _connected(client: Callable[[Any], Any], where: Any, address: str | None) -> Any:
    try:
        return client(where)
    except OSError as error:
        if address is None:
            raise
        raise _silent("dask", address, str(error)) from None


ENGINES: dict[str, Callable[[str | None, int | None], AbstractContextManager[Workers]]] = {
    "local": _local,
    "ray": _ray,
    "dask": _dask,
}


def _silent(engine: str, address: str, reason: str) -> ValueError:
    return ValueError(f"no {engine} cluster responds at {address!r}: {reason}")


def _missing(engine: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"engine {engine!r} needs {missing.name}; run: pip install 'rsoftmax-lab[{engine}]'", name=missing.name
    )
