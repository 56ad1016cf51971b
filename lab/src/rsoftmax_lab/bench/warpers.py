"""The time of sampling from sparse distributions, against warpers of Transformers that keep as many tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper

from rsoftmax.sampling import KSoftmaxLogitsWarper, TSoftmaxLogitsWarper
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case
from rsoftmax_lab.bench.timing import Call

SMALL, LARGE = 1000, (50257, 152064)  # vocabularies: a small one, GPT-2's and Qwen's
SHAPES = tuple(product((1, 8, 64), (SMALL, *LARGE)))  # rows, tokens
QUICK_SHAPES = ((2, SMALL),)
KEPT, MIN_P, T = 50, 0.05, 3.0  # exp(-3) = 0.05

WARPERS: dict[str, Callable[[], Any]] = {
    "top-k": lambda: TopKLogitsWarper(KEPT),
    "min-p": lambda: MinPLogitsWarper(MIN_P),
    "k-softmax": lambda: KSoftmaxLogitsWarper(KEPT),
    "t-softmax": lambda: TSoftmaxLogitsWarper(T),
}


def groups(settings: Settings) -> list[Group]:
    """All warpers, by threads and shape."""
    shapes, seconds = (QUICK_SHAPES, 0.1) if settings.quick else (SHAPES, 2.0)
    return [
        Group(
            {"rows": rows, "tokens": tokens, "threads": threads, "measure": "us"},
            partial(_calls, rows, tokens),
            seconds,
        )
        for threads, (rows, tokens) in product(settings.threads, shapes)
    ]


def _calls(rows: int, tokens: int) -> Sequence[tuple[Case, Call]]:
    scores = 3 * torch.randn(rows, tokens, generator=torch.Generator().manual_seed(0))
    return [({"warper": name}, partial(make(), None, scores)) for name, make in WARPERS.items()]


K, T_SOFTMAX, MIN_P_ROW = {"warper": ("k-softmax",)}, {"warper": ("t-softmax",)}, {"warper": "min-p"}
BENCHMARK = Benchmark(
    file="bench_warpers.jsonl",
    groups=groups,
    baseline={"warper": "top-k"},
    label="{warper}",
    title="{rows} x {tokens} tokens, threads: {threads}",
    place="{rows} x {tokens} tokens, threads: {threads}",
    goals=(
        Goal("k-softmax of the 50 best tokens, against top-k", 1.0, {**K, "tokens": LARGE}),
        Goal("t-softmax, against min-p", 1.0, {**T_SOFTMAX, "tokens": LARGE}, against=MIN_P_ROW),
        Goal("k-softmax, 1,000 tokens", 1.5, {**K, "tokens": (SMALL,)}),
        Goal("t-softmax, 1,000 tokens", 1.5, {**T_SOFTMAX, "tokens": (SMALL,)}, against=MIN_P_ROW),
    ),
)
