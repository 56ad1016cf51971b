"""Where runs are done: in processes of this machine, or on a cluster of ray or dask, all through joblib."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import joblib


def check(engine: str, address: str | None) -> None:
    """Refuse an engine that there is not, and an address where none is needed."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "local" and address is not None:
        raise ValueError(f"address={address!r} needs engine 'ray' or 'dask'; processes on this machine have none")


@contextmanager
def spread_over(engine: str, address: str | None, jobs: int | None) -> Iterator[None]:
    """What joblib does inside is done by this engine.

    Args:
        engine: a key of ``ENGINES``.
        address: where the cluster is; without it, one is started on this machine.
        jobs: how many runs at a time; by default one for each core.
    """
    with ExitStack() as stack:
        options = ENGINES[engine](stack, address, jobs)
        stack.enter_context(joblib.parallel_config(**options))
        yield


def _local(stack: ExitStack, address: str | None, jobs: int | None) -> dict[str, Any]:
    ignore_interrupts = partial(
        signal.signal, signal.SIGINT, signal.SIG_IGN
    )  # the program that started them stops them
    return {
        "backend": "loky",
        "n_jobs": jobs or joblib.cpu_count(),
        "inner_max_num_threads": 1,
        "initializer": ignore_interrupts,
    }


def _ray(stack: ExitStack, address: str | None, jobs: int | None) -> dict[str, Any]:
    try:
        import ray
        from ray.util.joblib.ray_backend import RayBackend
    except ModuleNotFoundError as missing:
        raise _missing("ray", missing) from None

    class StreamingRayBackend(RayBackend):  # type: ignore[misc]
        """Ray's back end gives results one by one, but inherits the answer of one that does not."""

        supports_return_generator = True

    if not ray.is_initialized():
        local = {} if address else {"num_cpus": jobs or joblib.cpu_count(), "include_dashboard": False}
        with _answering("ray", address):
            ray.init(address=address, log_to_driver=False, **local)
        stack.callback(ray.shutdown)
    joblib.register_parallel_backend("ray", StreamingRayBackend)
    return {"backend": "ray", "n_jobs": jobs or -1}


def _dask(stack: ExitStack, address: str | None, jobs: int | None) -> dict[str, Any]:
    try:
        from dask.distributed import Client, LocalCluster
    except ModuleNotFoundError as missing:
        raise _missing("dask", missing) from None
    where = address or stack.enter_context(
        LocalCluster(n_workers=jobs or joblib.cpu_count(), threads_per_worker=1, dashboard_address=None)
    )
    with _answering("dask", address):
        stack.enter_context(Client(where))
    return {"backend": "dask", "n_jobs": jobs or -1}


# Each starts what it needs, to be stopped with the stack, and returns the settings of joblib.
ENGINES: dict[str, Callable[[ExitStack, str | None, int | None], dict[str, Any]]] = {
    "local": _local,
    "ray": _ray,
    "dask": _dask,
}


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
