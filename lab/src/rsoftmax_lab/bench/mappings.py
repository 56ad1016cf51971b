"""The time of every mapping against torch.softmax, for many shapes and kinds of logits."""

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from rsoftmax import MAPPINGS, r_softmax, use_kernels
from rsoftmax.kernels import KERNELS
from rsoftmax.mappings import ALPHA
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case, Row
from rsoftmax_lab.bench.timing import MODES, Call, in_mode

SHAPES = ((64, 20), (1024, 80), (12288, 128), (6144, 512), (4096, 1000), (256, 30522), (8, 1_000_000))
QUICK_SHAPES = ((64, 20), (1024, 80), (512, 1000))
KINDS = ("normal", "heavy tail", "sorted", "ties", "masked")
BASELINE = "torch.softmax"
FAST = "native"
OTHERS = tuple(name for name in KERNELS if name != FAST)
Shape = tuple[int, int]
Mapped = Callable[..., Tensor]  # (x, mask), where a mask may be None


@dataclass(frozen=True)
class Method:
    """A method: its name, its parameter as printed, the call, and the kernels or package that compute it."""

    name: str
    parameter: str
    call: Mapped
    kernels: str = FAST

    @property
    def case(self) -> Case:
        """The fields of its rows."""
        return {"method": self.name, "parameter": self.parameter, "kernels": self.kernels}


Methods = Callable[[int], Iterator[Method]]  # for so many rows


def scores(kind: str, rows: int, n: int) -> tuple[Tensor, Tensor | None]:
    """Rows of one kind, with a mask if the kind has one."""
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


def fast_methods(rows: int) -> Iterator[Method]:
    """Every mapping with its native kernels; r_softmax also at other rates and with one rate per row."""
    yield from every_mapping(FAST)
    for r in (0.1, 0.9):
        yield Method("r_softmax", f"r={r}", _with(r_softmax, r))
    yield Method("r_softmax", "r=0.5 for each row", _with(r_softmax, torch.full((rows, 1), 0.5)))


def slow_methods(rows: int) -> Iterator[Method]:
    """Every mapping with other kernels, the quantile formula, and the entmax package if installed."""
    for kernels in OTHERS:
        yield from every_mapping(kernels)
    yield Method("quantile formula", "r=0.5", quantile_formula, "torch")
    try:
        entmax = importlib.import_module("entmax")
    except ModuleNotFoundError:
        return
    for name in ("sparsemax", "entmax15", "sparsemax_bisect"):
        yield Method(f"entmax.{name}", "", _masked_first(getattr(entmax, name)), "entmax")
    bisection = _masked_first(partial(entmax.entmax_bisect, alpha=ALPHA.example))
    yield Method("entmax.entmax_bisect", f"alpha={ALPHA.example}", bisection, "entmax")


def every_mapping(kernels: str) -> Iterator[Method]:
    """The registered mappings, each with its example parameter."""
    for name, mapping in MAPPINGS.items():
        if (parameter := mapping.parameter) is None:
            yield Method(name, "", _with(mapping.function), kernels)
        else:
            value = parameter.example
            shown = f"{parameter.name}={parameter.example:g}"
            yield Method(name, shown, _with(mapping.function, value), kernels)


def quantile_formula(x: Tensor, mask: Tensor | None) -> Tensor:
    """A direct implementation of Eq. 3; torch.quantile does not support masks."""
    w = torch.relu(x - torch.quantile(x, 0.5, dim=-1, keepdim=True))
    e = w * torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _with(function: Callable[..., Tensor], *value: float | Tensor) -> Mapped:
    return lambda x, mask: function(x, *value, mask=mask)


def _masked_first(function: Callable[..., Tensor]) -> Mapped:
    return lambda x, mask: function(x if mask is None else x.masked_fill(~mask, -math.inf), dim=-1)


baseline = Method(BASELINE, "", _masked_first(torch.softmax), "torch")


def groups(settings: Settings) -> list[Group]:
    """By threads and shape: fast methods on all kinds of logits, slow ones on normal logits, for less time."""
    found = []
    kinds = KINDS[:1] if settings.quick else KINDS
    for threads, shape in product(settings.threads, QUICK_SHAPES if settings.quick else SHAPES):
        for kind, mode in product(kinds, MODES):
            seconds = 0.3 if settings.quick else 1.0
            found.append(_group(fast_methods, mode, kind, shape, threads, settings.device, seconds, rounds=9))
        for mode in MODES:
            found.append(_group(slow_methods, mode, KINDS[0], shape, threads, settings.device, seconds=0.3, rounds=3))
    return found


def _group(
    methods: Methods, mode: str, kind: str, shape: Shape, threads: int, device: str, seconds: float, rounds: int
) -> Group:
    rows, n = shape
    common = {"mode": mode, "kind": kind, "rows": rows, "n": n, "output_bytes": 4 * rows * n, "threads": threads}
    calls = partial(_calls, methods, mode, kind, shape, device)
    return Group(common | {"device": device, "measure": "us"}, calls, seconds, rounds)


def _calls(methods: Methods, mode: str, kind: str, shape: Shape, device: str) -> Sequence[tuple[Case, Call]]:
    x, mask = (part if part is None else part.to(device) for part in scores(kind, *shape))
    assert x is not None
    calls = {method: in_mode(mode, partial(method.call, mask=mask), x) for method in (baseline, *methods(shape[0]))}
    return [(method.case, _on(method.kernels, call)) for method, call in calls.items()]


def _on(kernels: str, call: Call) -> Call:
    """The call with other kernels than the default."""
    return use_kernels(kernels)(call) if kernels in OTHERS else call


def _goal(method: str, mode: str, shortest: int, longest: int, at_most: float) -> Goal:
    lengths = range(shortest, longest + 1)
    cases = {"method": (method,), "mode": (mode,), "kernels": (FAST,), "n": lengths}
    return Goal(f"{method} {mode}, n {shortest}{'' if shortest == longest else f' to {longest}'}", at_most, cases)


def _memory(row: Row) -> str:
    return f"{(row.extra_bytes or 0) / row['output_bytes']:.1f}"


def _draw(rows: Sequence[Row], path: Path) -> None:
    from rsoftmax_lab.bench.ratios import draw  # matplotlib is imported when the rows are complete

    draw(rows, path)


BENCHMARK = Benchmark(
    file="bench.jsonl",
    groups=groups,
    baseline={"method": BASELINE},
    label="{method} {parameter} ({kernels})",
    title="{mode}, {rows} x {n}, {kind}, threads: {threads}",
    place="{rows} x {n}, {kind}, {parameter}, threads: {threads}",
    goals=(
        # The first three cover small calls, dominated by Python overhead.
        *(_goal(name, "forward", 20, 20, 2.5) for name in ("t_softmax", "r_softmax", "sparsemax")),
        _goal("t_softmax", "forward", 80, 1_000_000, 1.0),
        _goal("t_softmax", "forward+backward", 80, 1_000_000, 1.3),
        _goal("r_softmax", "forward", 512, 1_000_000, 1.35),
        _goal("r_softmax", "forward+backward", 512, 1_000_000, 1.5),
        _goal("r_softmax", "forward", 80, 256, 1.3),
        _goal("r_softmax", "forward+backward", 80, 256, 1.5),
        _goal("sparsemax", "forward", 80, 1_000_000, 1.5),
        _goal("sparsemax", "forward+backward", 80, 1_000_000, 1.5),
    ),
    columns={"extra memory / output": _memory},
    takes_device=True,
    draw=_draw,
)
