"""How time and memory are measured.

Calls take turns, in a new order each round, and a ratio is formed within its round: what else the machine does meets
all of them alike. What is kept is the median over rounds and its quartiles.
"""

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
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import rsoftmax
from rsoftmax_lab.bench.rows import Spread

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler counts bytes here, and has nothing else to say

Call = Callable[[], object]
MODES = ("forward", "forward+backward")


def in_mode(mode: str, function: Callable[..., Tensor], *inputs: Tensor) -> Call:
    """A call of the function, or of the function and its gradients in all inputs, which are copied for that."""
    if mode == "forward":
        return partial(function, *inputs)
    leaves = [x.clone().requires_grad_() for x in inputs]
    g = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).to(inputs[0].device)
    return lambda: torch.autograd.grad(function(*leaves), leaves, g)


def take_turns(calls: Sequence[Call], base: int, seconds: float, rounds: int) -> list[Spread]:
    """Time calls in turns, for so many seconds and rounds at least; ratios are to the call at position ``base``."""
    loops = [_loops(call) for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    turns = list(range(len(calls)))
    shuffle = random.Random(0).shuffle
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[base]) < rounds:
        shuffle(turns)
        for turn in turns:
            times[turn].append(_seconds(calls[turn], loops[turn]))
    return [spread(mine, times[base]) for mine in times]


def spread(times: Sequence[float], base: Sequence[float]) -> Spread:
    """Seconds of each round, beside those of the baseline, as a row has them: in microseconds."""
    low, middle, high = statistics.quantiles([t / b for t, b in zip(times, base, strict=True)], n=4)
    return Spread(1e6 * statistics.median(times), middle, low, high, len(times))


def _loops(call: Call) -> int:
    """Enough repetitions for the clock: about a millisecond, once warm."""
    cold = _seconds(call, 1)
    return 1 if cold > 0.05 else max(1, round(1e-3 / _seconds(call, 2)))


def _seconds(call: Call, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # the device has done what the calls asked for
    return (time.perf_counter() - start) / loops


def extra_bytes(call: Call, device: str = "cpu") -> int:
    """The most that torch had allocated at once during a call; the kernels' scratch, a few rows, is not in it."""
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
    """So many threads for torch's operations."""
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
    return f"{model}, {os.cpu_count()} cores, {rsoftmax.kernels.in_use()}"
