"""The time and memory of attention with each mapping, against torch's."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.attention import sparse_attention
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case
from rsoftmax_lab.bench.timing import MODES, Call, in_mode

SHAPES = ((8, 12, 128, 64), (2, 12, 512, 64), (1, 12, 2048, 64))  # batch, heads, length, width
LONG = (1, 12, 8192, 64)
QUICK_SHAPES = ((2, 4, 64, 16),)
QUICK_LONG = (1, 4, 1024, 16)
CACHES = ((1, 8, 4096, 64), (1, 8, 16384, 64), (1, 8, 65536, 64))  # one query per head attends to so many keys
QUICK_CACHES = ((1, 2, 256, 16),)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MASKS = ("causal", "padding")
SDPA, EAGER = "scaled_dot_product_attention", "eager softmax"
Shape = tuple[int, int, int, int]
Attention = Callable[..., Tensor]  # called with queries, keys and values


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention that materializes the matrix of weights."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


METHODS: dict[tuple[str, str], Attention] = {
    (SDPA, ""): F.scaled_dot_product_attention,
    (EAGER, ""): eager,
    ("softmax", ""): partial(sparse_attention, mapping="softmax"),
    ("r_softmax", "r=0.15"): partial(sparse_attention, mapping="r_softmax", r=0.15),
    ("r_softmax", "r=0.5"): partial(sparse_attention, mapping="r_softmax", r=0.5),
    ("r_softmax", "r=0.9"): partial(sparse_attention, mapping="r_softmax", r=0.9),
    ("sparsemax", ""): partial(sparse_attention, mapping="sparsemax"),
    ("t_softmax", "t=2"): partial(sparse_attention, mapping="t_softmax", t=2.0),
}
MASKED = ((SDPA, ""), ("r_softmax", "r=0.5"), ("r_softmax", "r=0.9"))  # also timed with masks
DECODED = (*MASKED, (EAGER, ""))  # also timed with one query
WEIGHED = ((SDPA, ""), (EAGER, ""), ("r_softmax", "r=0.5"))  # their memory is measured on long sequences


def groups(settings: Settings) -> list[Group]:
    """Times by threads and shape: all methods, some with masks, some with one query; memory on long sequences."""
    shapes, seconds, long = (QUICK_SHAPES, 0.1, QUICK_LONG) if settings.quick else (SHAPES, 1.5, LONG)
    caches = QUICK_CACHES if settings.quick else CACHES
    times = [
        Group(_common(mode, shape, threads, "us"), partial(_calls, tuple(METHODS), mode, shape), seconds, rounds=5)
        for threads, shape, mode in product(settings.threads, shapes, MODES)
    ]
    times += [
        Group(_common(f"forward, {mask}", shape, threads, "us"), partial(_masked_calls, mask, shape), seconds, rounds=5)
        for threads, shape, mask in product(settings.threads, shapes, MASKS)
    ]
    times += [
        Group(
            _common(f"one query, {dtype}", shape, threads, "us"), partial(_cache_calls, dtype, shape), seconds, rounds=5
        )
        for threads, shape, dtype in product(settings.threads, caches, DTYPES)
    ]
    return times + [
        Group(_common(mode, long, settings.threads[-1], "bytes"), partial(_calls, _weighed(mode), mode, long))
        for mode in MODES
    ]


def _weighed(mode: str) -> Sequence[tuple[str, str]]:
    """Eager softmax needs gigabytes, and even more for backward."""
    return WEIGHED if mode == "forward" else [key for key in WEIGHED if key[0] != EAGER]


def _common(mode: str, shape: Shape, threads: int, measure: str) -> Case:
    sizes = dict(zip(("batch", "heads", "length", "width"), shape, strict=True))
    return {"mode": mode, **sizes, "threads": threads, "measure": measure}


def _named(key: tuple[str, str]) -> Case:
    return {"method": key[0], "parameter": key[1]}


def _masked_calls(mask: str, shape: Shape) -> Sequence[tuple[Case, Call]]:
    """The same mask for all methods: causal, or the last quarter of the keys."""
    inputs = _inputs(shape)
    kept = (torch.arange(shape[2]) < shape[2] * 3 // 4).expand(shape[0], 1, shape[2], shape[2])
    calls = []
    for key in MASKED:
        options = {"is_causal": True} if mask == "causal" else {"attn_mask": kept}
        calls.append((_named(key), partial(METHODS[key], *inputs, **options)))
    return calls


def _cache_calls(dtype: str, shape: Shape) -> Sequence[tuple[Case, Call]]:
    """Only the last query of each head."""
    q, k, v = (x.to(DTYPES[dtype]) for x in _inputs(shape))
    return [(_named(key), partial(METHODS[key], q[..., -1:, :].contiguous(), k, v)) for key in DECODED]


def _inputs(shape: Shape) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(3)]


def _calls(keys: Sequence[tuple[str, str]], mode: str, shape: Shape) -> Sequence[tuple[Case, Call]]:
    inputs = _inputs(shape)
    return [(_named(key), in_mode(mode, METHODS[key], *inputs)) for key in keys]


# Maximum ratios to torch's attention: forward and forward+backward with 512 keys or more, then with 128.
AT_MOST = {
    ("softmax", ""): (0.95, 0.85, 0.88, 0.82),
    ("r_softmax", "r=0.15"): (0.95, 0.85, 0.88, 0.82),
    ("r_softmax", "r=0.5"): (0.88, 0.72, 0.82, 0.74),
    ("r_softmax", "r=0.9"): (0.62, 0.43, 0.72, 0.52),
    ("t_softmax", "t=2"): (0.62, 0.45, 0.72, 0.58),
}
LENGTHS = {"512 keys or more": (512, 2048), "128 keys": (128,)}


def _time_goals() -> Iterator[Goal]:
    for (method, parameter), numbers in AT_MOST.items():
        for ((keys, lengths), mode), at_most in zip(product(LENGTHS.items(), MODES), numbers, strict=True):
            cases = {"method": (method,), "parameter": (parameter,), "mode": (mode,), "length": lengths}
            yield Goal(f"{parameter or method}, {mode}, {keys}", at_most, {**cases, "measure": ("us",)})
    cases = {"method": ("r_softmax",), "parameter": ("r=0.5", "r=0.9"), "mode": MODES, "measure": ("us",)}
    yield Goal("r=0.5 and r=0.9, any length, with AVX2", 1.1, cases)


def _cache_goal(dtype: str, against: str) -> Goal:
    cases = {"method": ("r_softmax",), "parameter": ("r=0.9",), "mode": (f"one query, {dtype}",)}
    return Goal(f"r=0.9, one query, {dtype}, against {against}", 0.55, cases, {"method": against, "parameter": ""})


def _memory_goal(mode: str) -> Goal:
    return Goal(f"memory, {mode}", 1.2, {"method": ("r_softmax",), "mode": (mode,), "measure": ("bytes",)})


BENCHMARK = Benchmark(
    file="bench_attention.jsonl",
    groups=groups,
    baseline={"method": SDPA},
    label="{method} {parameter}",
    title="{mode}, ({batch}, {heads}, {length}, {width}), threads: {threads}",
    place="({batch}, {heads}, {length}, {width}), {parameter}, threads: {threads}",
    goals=(
        *_time_goals(),
        _cache_goal("float32", SDPA),
        _cache_goal("bfloat16", EAGER),
        *map(_memory_goal, MODES),
    ),
)
