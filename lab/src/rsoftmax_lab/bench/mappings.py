"""What the mappings cost, beside torch.softmax in the same run.

Calls take turns, in a new order each round, and a ratio is formed within its round: what else the machine does meets
all of them alike. A row holds the median over rounds and its quartiles.
"""

import importlib
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, product
from pathlib import Path
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import rsoftmax
from rsoftmax import MAPPINGS, use_kernels

SHAPES = ((64, 20), (1024, 80), (12288, 128), (6144, 512), (4096, 1000), (256, 30522), (8, 1_000_000))
KINDS = ("normal", "heavy tail", "sorted", "ties", "masked")
RATES = (0.1, 0.5, 0.9)
MODES = ("forward", "forward+backward")
BASELINE = "torch.softmax"
os.environ.setdefault(
    "KINETO_LOG_LEVEL", "99"
)  # the profiler is used for its count of bytes and has nothing else to say
Call = Callable[[Tensor, Tensor | None], Tensor]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Method:
    """A way to map rows: its name, its parameter as shown, and the call."""

    name: str
    parameter: str
    call: Call
    kernels: str = "native"


@dataclass
class Timing:
    """One row of results: times in microseconds, ratios to torch.softmax in the same rounds."""

    method: str
    parameter: str
    kernels: str
    mode: str
    kind: str
    rows: int
    n: int
    threads: int
    median_us: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    extra_bytes: int
    output_bytes: int
    machine: str = field(default_factory=lambda: machine())
    torch: str = torch.__version__


def machine() -> str:
    """The CPU, its cores and the kernels' instruction set."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, {rsoftmax.kernels.in_use()}"


def scores(kind: str, rows: int, n: int) -> tuple[Tensor, Tensor | None]:
    """Rows of one kind, and a mask where the kind has one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, n, generator=generator)
    match kind:
        case "heavy tail":
            return x / torch.rand(rows, n, generator=generator), None
        case "sorted":
            return x.sort(-1).values, None
        case "ties":
            return (2 * x).round(), None
        case "masked":
            return x, torch.rand(rows, n, generator=generator) < 0.7
    return x, None


def fast_methods(rows: int) -> list[Method]:
    """Every mapping with its native kernels, r_softmax at several rates, as a number and for each row."""
    return [
        *_mappings("native"),
        *(Method("r_softmax", f"r={r}", _with(rsoftmax.r_softmax, r)) for r in RATES),
        Method("r_softmax", "r=0.5 for each row", _with(rsoftmax.r_softmax, torch.full((rows, 1), 0.5))),
    ]


def slow_methods() -> list[Method]:
    """The reference, the quantile formula written plainly, and the entmax package where it is installed."""
    methods = [*_mappings("reference"), Method("quantile formula", "r=0.5", quantile_formula, "torch")]
    try:
        entmax = importlib.import_module("entmax")
    except ModuleNotFoundError:
        return methods
    return methods + [
        Method(f"entmax.{name}", "", _masked_first(getattr(entmax, name)), "entmax")
        for name in ("sparsemax", "entmax15", "sparsemax_bisect")
    ]


def quantile_formula(x: Tensor, mask: Tensor | None) -> Tensor:
    """Eq. 3 as a reader of the paper would type it; torch.quantile cannot leave masked entries out."""
    w = torch.relu(x - torch.quantile(x, 0.5, dim=-1, keepdim=True))
    e = w * torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _mappings(kernels: str) -> Iterator[Method]:
    for name, mapping in MAPPINGS.items():
        if mapping.parameter is None:
            yield Method(name, "", _with(mapping.function), kernels)
        elif mapping.parameter.per_row and name != "r_softmax":
            value = mapping.parameter.example
            yield Method(name, f"{mapping.parameter.name}={value:g}", _with(mapping.function, value), kernels)
    if kernels == "reference":
        yield Method("r_softmax", "r=0.5", _with(rsoftmax.r_softmax, 0.5), kernels)
    yield Method("weighted_softmax", "w=1", _with(rsoftmax.weighted_softmax, torch.ones(1)), kernels)


def _with(function: Callable[..., Tensor], *value: float | Tensor) -> Call:
    return lambda x, mask: function(x, *value, mask=mask)


def _masked_first(function: Callable[..., Tensor]) -> Call:
    return lambda x, mask: function(x if mask is None else x.masked_fill(~mask, -math.inf), dim=-1)


baseline = Method(BASELINE, "", _masked_first(torch.softmax), "torch")


@dataclass(frozen=True)
class Spread:
    """What a call cost over the rounds, in microseconds and as a ratio to another call in the same round."""

    median_us: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int


def take_turns(
    calls: Mapping[Key, Callable[[], object]], base: Key, seconds: float, rounds: int = 9
) -> dict[Key, Spread]:
    """Time calls in turns, for so many seconds and rounds at least, beside the one with the key ``base``."""
    loops = {key: _loops(call) for key, call in calls.items()}
    times: dict[Key, list[float]] = {key: [] for key in calls}
    turns = list(calls)
    shuffle = random.Random(0).shuffle
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[base]) < rounds:
        shuffle(turns)
        for key in turns:
            times[key].append(_seconds(calls[key], loops[key]))
    spreads = {}
    for key, mine in times.items():
        low, middle, high = statistics.quantiles([m / b for m, b in zip(mine, times[base], strict=True)], n=4)
        spreads[key] = Spread(1e6 * statistics.median(mine), middle, low, high, len(mine))
    return spreads


def _seconds(call: Callable[[], object], loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - start) / loops


def _loops(call: Callable[[], object]) -> int:
    """Enough repetitions for the clock: about a millisecond, once warm."""
    cold = _seconds(call, 1)
    return 1 if cold > 0.05 else max(1, round(1e-3 / _seconds(call, 2)))


def extra_bytes(call: Callable[[], object]) -> int:
    """The most that torch had allocated at once during a call; the kernels' scratch, a few rows, is not in it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    assert profiler.profiler is not None
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return int(max(accumulate((event.nbytes() for event in events if event.name() == "[memory]"), initial=0)))


def time_together(
    methods: list[Method], mode: str, kind: str, shape: tuple[int, int], seconds: float, rounds: int = 9
) -> list[Timing]:
    """Time the methods and torch.softmax in turns, for so many seconds and rounds at least."""
    x, mask = scores(kind, *shape)
    calls = {method: _bound(method, mode, x, mask) for method in (baseline, *methods)}
    return [
        Timing(
            method=method.name,
            parameter=method.parameter,
            kernels=method.kernels,
            mode=mode,
            kind=kind,
            rows=shape[0],
            n=shape[1],
            threads=torch.get_num_threads(),
            **asdict(spread),
            extra_bytes=extra_bytes(calls[method]),
            output_bytes=x.nbytes,
        )
        for method, spread in take_turns(calls, baseline, seconds, rounds).items()
    ]


def _bound(method: Method, mode: str, x: Tensor, mask: Tensor | None) -> Callable[[], object]:
    def forward() -> object:
        return method.call(x, mask)

    leaf, g = x.clone().requires_grad_(), torch.randn(x.shape, generator=torch.Generator().manual_seed(1))

    def both() -> object:
        return torch.autograd.grad(method.call(leaf, mask), leaf, g)

    call = forward if mode == "forward" else both
    return use_kernels("reference")(call) if method.kernels == "reference" else call


def run(threads: list[int], quick: bool) -> Iterator[list[Timing]]:
    """The whole benchmark, group by group; ``quick`` takes few shapes, kinds and seconds."""
    shapes = ((64, 20), (1024, 80), (512, 1000)) if quick else SHAPES
    before = torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            for shape in shapes:
                for kind in KINDS[:1] if quick else KINDS:
                    for mode in MODES:
                        yield time_together(fast_methods(shape[0]), mode, kind, shape, 0.3 if quick else 1.0)
                for mode in MODES:
                    yield time_together(slow_methods(), mode, KINDS[0], shape, 0.3, rounds=3)
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Goal:
    """A claim about ratios to torch.softmax, and which rows it speaks of."""

    method: str
    mode: str
    shortest: int
    longest: int
    ratio: float


GOALS = (
    # The first speaks of small calls, which cost what Python costs.
    *(Goal(name, "forward", 20, 20, 3.0) for name in ("t_softmax", "r_softmax", "sparsemax")),
    Goal("t_softmax", "forward", 80, 1_000_000, 1.0),
    Goal("t_softmax", "forward+backward", 80, 1_000_000, 1.3),
    Goal("r_softmax", "forward", 512, 1_000_000, 1.3),
    Goal("r_softmax", "forward+backward", 512, 1_000_000, 1.5),
    Goal("r_softmax", "forward", 16, 511, 2.0),
    Goal("r_softmax", "forward+backward", 16, 511, 2.0),
    Goal("sparsemax", "forward", 80, 1_000_000, 1.5),
    Goal("sparsemax", "forward+backward", 80, 1_000_000, 1.5),
)


def measured(goal: Goal, timings: list[Timing]) -> list[Timing]:
    """The rows that a goal speaks of, the costliest first."""
    found = [
        t
        for t in timings
        if (t.method, t.mode, t.kernels) == (goal.method, goal.mode, "native") and goal.shortest <= t.n <= goal.longest
    ]
    return sorted(found, key=lambda t: -t.ratio)


def read(path: Path) -> list[Timing]:
    """The rows of a finished run."""
    return [Timing(**json.loads(line)) for line in path.read_text().splitlines()]


def write(rows: Sequence[Any], path: Path) -> None:
    """Write the rows, which are dataclasses, whole or not at all."""
    draft = path.with_suffix(".part")
    draft.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    draft.replace(path)


def headline(timings: list[Timing]) -> str:
    """A Markdown table of forward / forward+backward ratios, one thread, normal scores."""
    wanted = ("softmax", "t_softmax t=2", *(f"r_softmax r={r}" for r in RATES), "sparsemax", "entmax15")
    others = ("quantile formula r=0.5", "entmax.sparsemax", "entmax.entmax15")
    shapes = [shape for shape in SHAPES if shape in {(t.rows, t.n) for t in timings}]
    chosen = {
        (_title(t), t.rows, t.n, t.mode): t.ratio
        for t in timings
        if t.threads == 1 and t.kind == KINDS[0] and t.kernels != "reference"
    }
    lines = [["one thread", *(f"{rows} x {n}" for rows, n in shapes)], ["---"] * (len(shapes) + 1)]
    for title in (*wanted, *others):
        ratios = [[chosen.get((title, *shape, mode)) for mode in MODES] for shape in shapes]
        if any(pair[0] for pair in ratios):
            lines.append([f"`{title}`", *(" / ".join(f"{r:.2f}" if r else "-" for r in pair) for pair in ratios)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdict(timings: list[Timing]) -> str:
    """A Markdown table of goals, with the median and the costliest of the cases that each speaks of."""
    lines = [["goal", "at most", "median case", "costliest case", "cases within"], ["---"] * 5]
    for goal in GOALS:
        if cases := measured(goal, timings):
            worst, ratios = cases[0], [case.ratio for case in cases]
            where = f"{worst.rows} x {worst.n}, {worst.kind}, {worst.parameter}, threads: {worst.threads}"
            lines.append(
                [
                    f"{goal.method} {goal.mode}, n {goal.shortest} to {goal.longest}",
                    f"{goal.ratio}",
                    f"{statistics.median(ratios):.2f}",
                    f"{worst.ratio:.2f} ({where})",
                    f"{sum(ratio <= goal.ratio for ratio in ratios)} of {len(ratios)}",
                ]
            )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _title(timing: Timing) -> str:
    return f"{timing.method} {timing.parameter}".strip()


def draw(timings: list[Timing], path: Path) -> None:
    """Ratios by shape, forward and with backward, for each number of threads; normal scores."""
    shown = {
        "t_softmax t=2": "#2f6690",
        "r_softmax r=0.1": "#e9a03b",
        "r_softmax r=0.5": "#d1603d",
        "r_softmax r=0.9": "#8f2d56",
        "sparsemax": "#3a7d44",
        "entmax15": "#7a6c5d",
        "quantile formula r=0.5": "#999999",
        "entmax.sparsemax": "#bbbbbb",
    }
    threads = sorted({t.threads for t in timings})
    shapes = sorted({(t.n, t.rows) for t in timings})
    figure = Figure(figsize=(12, 3.6 * len(threads)), layout="constrained")
    axes = figure.subplots(len(threads), len(MODES), sharex=True, sharey=True, squeeze=False)
    for (count, mode), axis in zip(product(threads, MODES), axes.flat, strict=True):
        axis.axhline(1, color="black", linewidth=0.8)
        for title, colour in shown.items():
            mine = [
                t
                for t in timings
                if (t.threads, t.mode, t.kind) == (count, mode, KINDS[0])
                and t.kernels != "reference"
                and _title(t) == title
            ]
            mine.sort(key=lambda t: t.n)
            places = [shapes.index((t.n, t.rows)) for t in mine]
            spread = [[t.ratio - t.ratio_low for t in mine], [t.ratio_high - t.ratio for t in mine]]
            look = {"color": colour, "marker": "o", "markersize": 3, "label": title}
            axis.errorbar(places, [t.ratio for t in mine], yerr=spread, **look)
        axis.set_yscale("log")
        axis.set_xticks(range(len(shapes)), [f"{rows}\nx {n}" for n, rows in shapes], fontsize=8)
        axis.set_title(f"{mode}, {count} thread{'s' * (count > 1)}", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
    axes[0, 0].legend(fontsize=7, ncols=2)
    figure.supylabel("time / time of torch.softmax", fontsize=9)
    figure.supxlabel(f"rows x row length. {timings[0].machine}, torch {timings[0].torch}", fontsize=8)
    figure.savefig(path, dpi=120)
