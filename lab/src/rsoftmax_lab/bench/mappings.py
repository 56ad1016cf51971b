"""The time of every mapping against torch.softmax, for many shapes and kinds of logits; a table and a figure of it."""

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rsoftmax import MAPPINGS as REGISTERED
from rsoftmax import r_softmax, use_kernels
from rsoftmax.kernels import KERNELS
from rsoftmax.mappings import ALPHA
from rsoftmax_lab.bench.benchmark import Benchmark, Case, Goal, Group, Record, Settings
from rsoftmax_lab.bench.tables import markdown
from rsoftmax_lab.bench.timing import MODES, Call, in_mode

SHAPES = ((64, 20), (1024, 80), (12288, 128), (6144, 512), (4096, 1000), (256, 30522), (8, 1_000_000))
QUICK = SHAPES[1::2]  # the medians over these are above or below 1 as those over all are
KINDS = ("normal", "heavy tail", "sorted", "ties", "masked")
NORMAL = KINDS[0]
BASELINE = "torch.softmax"
NATIVE = "native"
OTHERS = tuple(name for name in KERNELS if name != NATIVE)


class Method(NamedTuple):
    """A method: its name, its parameter as printed, the call (x, mask), and the kernels or package that compute it."""

    name: str
    parameter: str
    call: Callable[..., Tensor]
    kernels: str = NATIVE


def scores(kind: str, n: int, length: int) -> tuple[Tensor, Tensor | None]:
    """n rows of one kind, with a mask if the kind has one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, length, generator=generator)
    match kind:
        case "heavy tail":
            return x / torch.rand(n, length, generator=generator), None
        case "sorted":
            return x.sort(-1).values, None
        case "ties":
            return (2 * x).round(), None
        case "masked":
            return x, torch.rand(n, length, generator=generator) < 0.7
    return x, None


def native_methods(n: int) -> Iterator[Method]:
    """Every mapping with its native kernels; r_softmax also at other rates and with one rate per row."""
    yield from every_mapping(NATIVE)
    for r in (0.1, 0.9):
        yield Method("r_softmax", f"r={r}", _call(r_softmax, r))
    yield Method("r_softmax", "r=0.5 for each row", _call(r_softmax, torch.full((n, 1), 0.5)))


def other_methods(n: int) -> Iterator[Method]:
    """Every mapping with other kernels, the quantile formula, and the entmax package if installed."""
    for kernels in OTHERS:
        yield from every_mapping(kernels)
    yield Method("quantile formula", "r=0.5", quantile_formula, "torch")
    try:
        entmax = importlib.import_module("entmax")
    except ModuleNotFoundError:
        return
    for name in ("sparsemax", "entmax15", "sparsemax_bisect"):
        yield Method(f"entmax.{name}", "", _mask_to_neg_inf(getattr(entmax, name)), "entmax")
    bisection = _mask_to_neg_inf(partial(entmax.entmax_bisect, alpha=ALPHA.example))
    yield Method("entmax.entmax_bisect", f"alpha={ALPHA.example}", bisection, "entmax")


def every_mapping(kernels: str) -> Iterator[Method]:
    """The registered mappings, each with its example parameter."""
    for name, mapping in REGISTERED.items():
        if (parameter := mapping.parameter) is None:
            yield Method(name, "", _call(mapping.function), kernels)
        else:
            shown = f"{parameter.name}={parameter.example:g}"
            yield Method(name, shown, _call(mapping.function, parameter.example), kernels)


def quantile_formula(x: Tensor, mask: Tensor | None) -> Tensor:
    """A direct implementation of Eq. 3; torch.quantile does not support masks."""
    w = torch.relu(x - torch.quantile(x, 0.5, dim=-1, keepdim=True))
    e = w * torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _call(function: Callable[..., Tensor], *value: float | Tensor) -> Callable[..., Tensor]:
    return lambda x, mask: function(x, *value, mask=mask)


def _mask_to_neg_inf(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, mask: function(x if mask is None else x.masked_fill(~mask, -math.inf), dim=-1)


def groups(settings: Settings) -> Iterator[Group]:
    """By shape: native methods on all kinds of logits, others on normal logits, for less time."""
    for shape in QUICK if settings.quick else SHAPES:
        case = {"rows": shape[0], "n": shape[1], "device": settings.device}
        for kind, mode in product(KINDS[:1] if settings.quick else KINDS, MODES):
            native = partial(calls, native_methods, mode, kind, shape, settings.device)
            yield Group({"mode": mode, "kind": kind, **case}, native, seconds=1.0)
        for mode in MODES:
            others = partial(calls, other_methods, mode, NORMAL, shape, settings.device)
            yield Group({"mode": mode, "kind": NORMAL, **case}, others, seconds=0.3, rounds=3)


def calls(
    methods: Callable[[int], Iterator[Method]], mode: str, kind: str, shape: tuple[int, int], device: str
) -> Iterator[tuple[Case, Call]]:
    """torch.softmax and the methods on the same scores, in one mode."""
    x, mask = scores(kind, *shape)
    x, mask = x.to(device), None if mask is None else mask.to(device)
    baseline = Method(BASELINE, "", _mask_to_neg_inf(torch.softmax), "torch")
    for name, parameter, function, kernels in (baseline, *methods(shape[0])):
        call = in_mode(mode, partial(function, mask=mask), x)
        case = {"method": name, "parameter": parameter, "kernels": kernels}
        yield case, use_kernels(kernels)(call) if kernels in OTHERS else call


# ---------------------------------------------------------------------------------------------- a table and a figure

COLOURS = {  # the methods shown, by name and parameter
    "softmax": "#5fa8d3",
    "t_softmax t=2": "#2f6690",
    "r_softmax r=0.1": "#e9a03b",
    "r_softmax r=0.5": "#d1603d",
    "r_softmax r=0.9": "#8f2d56",
    "sparsemax": "#3a7d44",
    "entmax15": "#7a6c5d",
    "quantile formula r=0.5": "#999999",
    "entmax.sparsemax": "#bbbbbb",
    "entmax.entmax15": "#d9c9b0",
}
Selected = dict[tuple[str, int, int, str], Record]  # by name with parameter, shape and mode


def _select(records: Sequence[Record], threads: int) -> Selected:
    """The records on normal logits, without the kernels that are not the default."""
    return {
        (f"{record['method']} {record['parameter']}".strip(), record["rows"], record["n"], record["mode"]): record
        for record in records
        if record["kind"] == NORMAL and record["kernels"] not in OTHERS and record["threads"] == threads
    }


def headline(records: Sequence[Record]) -> str:
    """A Markdown table of forward / forward+backward ratios, one thread."""
    selected = _select(records, threads=1)
    shapes = [shape for shape in SHAPES if any(key[1:3] == shape for key in selected)]
    lines = []
    for name in COLOURS:
        pairs = [[selected.get((name, *shape, mode)) for mode in MODES] for shape in shapes]
        if any(forward for forward, _ in pairs):
            cells = [" / ".join(f"{record['ratio']:.2f}" if record else "-" for record in pair) for pair in pairs]
            lines.append([f"`{name}`", *cells])
    return markdown(["one thread", *(f"{n} x {length}" for n, length in shapes)], lines)


def draw(records: Sequence[Record], path: Path) -> None:
    """Plot ratios by shape, forward and forward+backward, for each thread count."""
    from matplotlib.figure import Figure  # imported when the records are complete

    counts = sorted({record["threads"] for record in records})
    shapes = sorted({(record["rows"], record["n"]) for record in records}, key=lambda shape: shape[::-1])
    figure = Figure(figsize=(12, 3.6 * len(counts)), layout="constrained")
    axes = figure.subplots(len(counts), len(MODES), sharex=True, sharey=True, squeeze=False)
    for (threads, mode), axis in zip(product(counts, MODES), axes.flat, strict=True):
        selected = _select(records, threads)
        axis.axhline(1, color="black", linewidth=0.8)
        for name, colour in COLOURS.items():
            line = {i: selected[key] for i, shape in enumerate(shapes) if (key := (name, *shape, mode)) in selected}
            low, ratios, high = ([r[field] for r in line.values()] for field in ("ratio_low", "ratio", "ratio_high"))
            axis.fill_between(list(line), low, high, color=colour, alpha=0.2, linewidth=0)
            axis.plot(list(line), ratios, color=colour, marker="o", markersize=3, label=name)
        axis.set_yscale("log")
        axis.set_xticks(range(len(shapes)), [f"{n}\nx {length}" for n, length in shapes], fontsize=8)
        axis.grid(axis="y", alpha=0.3)
        axis.set_title(f"{mode}, {threads} thread{'s' * (threads > 1)}", fontsize=10)
    axes[0, 0].legend(fontsize=7, ncols=2)
    figure.supylabel("time / time of torch.softmax", fontsize=9)
    figure.supxlabel(f"rows x row length. {records[0]['machine']}, torch {records[0]['torch']}", fontsize=8)
    figure.savefig(path, dpi=120)


def _goal(method: str, mode: str, shortest: int, longest: int, at_most: float) -> Goal:
    lengths = range(shortest, longest + 1)
    cases = {"method": (method,), "mode": (mode,), "kernels": (NATIVE,), "n": lengths}
    return Goal(f"{method} {mode}, n {shortest}{'' if shortest == longest else f' to {longest}'}", at_most, cases)


MAPPINGS = Benchmark(
    file="bench.jsonl",
    groups=groups,
    baseline={"method": BASELINE},
    label="{method} {parameter} ({kernels})",
    title="{mode}, {rows} x {n}, {kind}, threads: {threads}",
    slowest="{rows} x {n}, {kind}, {parameter}, threads: {threads}",
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
    options=("device",),
    draw=draw,
)
