"""The time and memory of attention with each mapping, against torch's."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.attention import sparse_attention
from rsoftmax_lab.bench.benchmark import Benchmark, Case, Goal, Group, Settings
from rsoftmax_lab.bench.timing import MODES, Call, in_mode

Shape = tuple[int, int, int, int]  # batch, heads, length, width
SHAPES = ((8, 12, 128, 64), (2, 12, 512, 64), (1, 12, 2048, 64))
CACHES = ((1, 8, 4096, 64), (1, 8, 16384, 64), (1, 8, 65536, 64))  # one query per head attends to so many keys
MEMORY = ((1, 12, 2048, 64), (1, 12, 8192, 64))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CAUSAL, PADDING = "forward, causal", "forward, padding"  # padding: the last quarter of the keys
SPREAD = "forward, causal, scores of deviation 3"  # as in pretrained models
SDPA, EAGER = "scaled_dot_product_attention", "eager softmax"


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention that materializes the matrix of weights."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


METHODS: dict[tuple[str, str], Callable[..., Tensor]] = {  # called with queries, keys and values
    (SDPA, ""): F.scaled_dot_product_attention,
    (EAGER, ""): eager,
    ("softmax", ""): partial(sparse_attention, mapping="softmax"),
    ("r_softmax", "r=0.15"): partial(sparse_attention, mapping="r_softmax", r=0.15),
    ("r_softmax", "r=0.5"): partial(sparse_attention, mapping="r_softmax", r=0.5),
    ("r_softmax", "r=0.9"): partial(sparse_attention, mapping="r_softmax", r=0.9),
    ("sparsemax", ""): partial(sparse_attention, mapping="sparsemax"),
    ("t_softmax", "t=2"): partial(sparse_attention, mapping="t_softmax", t=2.0),
    ("t_softmax", "t=6, edge=0"): partial(sparse_attention, mapping="t_softmax", t=6.0, edge=0.0),
}
MASKED = ((SDPA, ""), ("r_softmax", "r=0.5"), ("r_softmax", "r=0.9"))  # also timed with masks
PRETRAINED = ((SDPA, ""), ("t_softmax", "t=6, edge=0"))
DECODED = (*MASKED, (EAGER, ""))  # also timed with one query


def groups(settings: Settings) -> Iterator[Group]:
    """Times of all methods by shape, of some with masks and with one query; then the memory of long sequences."""
    quick = settings.quick

    def group(mode: str, shape: Shape, methods: Iterable[tuple[str, str]], measure: str = "us") -> Group:
        case = {"mode": mode, **dict(zip(("batch", "heads", "length", "width"), shape, strict=True))}
        return Group(case, partial(calls, mode, shape, methods), seconds=1.5, rounds=5, measure=measure)

    shapes = SHAPES[1:] if quick else SHAPES
    yield from (group(mode, shape, METHODS) for shape, mode in product(shapes, MODES))
    yield from (group(mode, shape, MASKED) for shape, mode in product(shapes, (CAUSAL, PADDING)))
    yield from (group(SPREAD, shape, PRETRAINED) for shape in shapes)
    for shape, dtype in product(CACHES[:1] if quick else CACHES, DTYPES):
        yield group(f"one query, {dtype}", shape, DECODED)
    for shape in MEMORY[:1] if quick else MEMORY:
        yield group("forward", shape, ((SDPA, ""), (EAGER, ""), ("r_softmax", "r=0.5")), "bytes")
        yield group("forward+backward", shape, ((SDPA, ""), ("r_softmax", "r=0.5")), "bytes")  # eager: too many bytes


def calls(mode: str, shape: Shape, methods: Iterable[tuple[str, str]]) -> Iterator[tuple[Case, Call]]:
    """The methods on the same inputs in one mode."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    if mode.startswith("one query"):
        q, k, v = (x.to(DTYPES[mode.rpartition(" ")[2]]) for x in (q, k, v))
        q = q[..., -1:, :].contiguous()
    length = shape[2]
    keep = (torch.arange(length) < length * 3 // 4).expand(shape[0], 1, length, length)
    causal = {"is_causal": True}
    options: Any = {CAUSAL: causal, SPREAD: causal, PADDING: {"attn_mask": keep}}.get(mode, {})
    if mode == SPREAD:
        q = 3 * q
    for method, parameter in methods:
        call = partial(METHODS[method, parameter], **options)
        name = {"method": method, "parameter": parameter}
        yield name, in_mode(mode if mode in MODES else "forward", call, q, k, v)


# Maximum ratios to torch's attention on one thread: forward, with 512 keys or more.
AT_MOST = {("softmax", ""): 0.95, ("r_softmax", "r=0.5"): 1.0, ("r_softmax", "r=0.9"): 0.7}
LONG = (512, 2048)
MEASURED: dict[str, tuple[object, ...]] = {
    "method": ("softmax", "r_softmax", "sparsemax", "t_softmax"),
    "measure": ("us",),
}


def _time_goals() -> Iterator[Goal]:
    for (method, parameter), at_most in AT_MOST.items():
        cases = {"method": (method,), "parameter": (parameter,), "mode": ("forward",), "length": LONG}
        yield Goal(f"{parameter or method}, forward, 512 keys or more", at_most, MEASURED | cases)
    yield Goal("t=6 and edge=0, causal, 512 keys or more", 0.55, MEASURED | {"mode": (SPREAD,), "length": LONG})
    yield Goal("forward+backward, 512 keys or more", 1.0, MEASURED | {"mode": MODES[1:], "length": LONG})
    yield Goal("any length", 1.05, MEASURED | {"mode": MODES})


def _cache_goal(dtype: str, against: str) -> Goal:
    cases = {"method": ("r_softmax",), "parameter": ("r=0.9",), "mode": (f"one query, {dtype}",)}
    return Goal(f"r=0.9, one query, {dtype}, against {against}", 0.55, cases, {"method": against, "parameter": ""})


ATTENTION = Benchmark(
    file="bench_attention.jsonl",
    groups=groups,
    baseline={"method": SDPA},
    label="{method} {parameter}",
    title="{mode}, ({batch}, {heads}, {length}, {width}), threads: {threads}",
    slowest="({batch}, {heads}, {length}, {width}), {parameter}, threads: {threads}",
    goals=(
        *_time_goals(),
        _cache_goal("float32", SDPA),
        _cache_goal("bfloat16", EAGER),
        *(
            Goal(f"memory, {mode}", 1.2, {"method": ("r_softmax",), "mode": (mode,), "measure": ("bytes",)})
            for mode in MODES
        ),
    ),
)
