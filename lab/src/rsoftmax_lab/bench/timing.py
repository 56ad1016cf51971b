"""Measurement of time and memory.

Calls are interleaved, in a new order each round, and ratios are computed within a round, so that other load affects all
calls equally. Results are medians over rounds with quartiles; with one thread, of processor time.
"""

import ctypes
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import rsoftmax

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler is only used to count bytes

Call = Callable[[], object]
MODES = ("forward", "forward+backward")
LONG = 2.0  # seconds of a call to which a warm-up makes no difference
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class Spread(NamedTuple):
    """The median cost of a call over the rounds, and its ratio to the baseline in the same round, with quartiles."""

    median: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed, with glibc; up to 32 MiB a block.

    By default it returns the top of the heap to the system, or not, depending on what else lies there. Some calls
    would then pay for a page fault every 4 KiB of their result, and the call next to them would not.
    """
    if platform.libc_ver()[0] == "glibc":
        allocator = ctypes.CDLL(None)
        allocator.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        allocator.mallopt(M_MMAP_THRESHOLD, 2**25)


def in_mode(mode: str, function: Callable[..., Tensor], *inputs: Tensor) -> Call:
    """A call of the function, or of the function and its gradients with respect to copies of all inputs."""
    if mode == "forward":
        return partial(function, *inputs)
    leaves = [x.clone().requires_grad_() for x in inputs]
    g = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).to(inputs[0].device)
    return lambda: torch.autograd.grad(function(*leaves), leaves, g)


def training_step(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Call:
    """A call of forward, loss, backward and the optimizer. The first step, which allocates its state, is taken here."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    step()
    return step


def take_turns(calls: Sequence[Call], base: int, seconds: float, rounds: int) -> list[Spread]:
    """Time interleaved calls for a minimum of seconds and rounds; ratios are to the call at index ``base``.

    Calls are warmed up before, unless all of them take seconds: that is their first round.
    """
    end = time.perf_counter() + seconds
    cold = [_seconds(call, 1) for call in calls]
    loops = [_loops(call, first) for call, first in zip(calls, cold, strict=True)]
    times: list[list[float]] = [[first] if min(cold) > LONG else [] for first in cold]
    order, shuffle = list(range(len(calls))), random.Random(0).shuffle
    while time.perf_counter() < end or len(times[base]) < rounds:
        shuffle(order)
        for i in order:
            times[i].append(_seconds(calls[i], loops[i]))
    return [spread(of_call, times[base]) for of_call in times]


def spread(times: Sequence[float], base: Sequence[float]) -> Spread:
    """Summarize the seconds of each round and of the baseline, in microseconds."""
    ratios = [t / b for t, b in zip(times, base, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
    return Spread(1e6 * statistics.median(times), middle, low, high, len(times))


def _loops(call: Call, cold: float) -> int:
    """The number of repetitions that take about a millisecond; ``cold``: the seconds of the warm-up."""
    return 1 if cold > 0.05 else max(1, round(1e-3 / _seconds(call, 2)))


def _seconds(call: Call, loops: int) -> float:
    is_alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    clock = time.process_time if is_alone else time.perf_counter  # without what others take of the processor
    start = clock()
    for _ in range(loops):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # wait for the device
    return (clock() - start) / loops


def extra_bytes(call: Call, device: str = "cpu") -> int:
    """The peak memory that torch allocates during a call, without the kernels' scratch buffers of a few rows."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    recorded: Any = profiler.profiler
    events = sorted(recorded.kineto_results.events(), key=lambda event: event.start_ns())
    return int(max(accumulate((event.nbytes() for event in events if event.name() == "[memory]"), initial=0)))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine(device: str = "cpu") -> str:
    """The device; or the CPU, its cores and the kernels' instruction set."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, {rsoftmax.kernels.cpu_kernels()}"
