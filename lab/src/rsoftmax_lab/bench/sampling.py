"""The time of sampling from sparse distributions, against Transformers' warpers that keep as many tokens."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper

from rsoftmax.sampling import KSoftmaxLogitsWarper, TSoftmaxLogitsWarper
from rsoftmax_lab.bench.benchmark import Benchmark, Case, Goal, Group, Settings
from rsoftmax_lab.bench.timing import Call

SMALL, LARGE = 1000, (50257, 152064)  # vocabularies: a small one, GPT-2's and Qwen's
SHAPES = tuple(product((1, 8, 64), (SMALL, *LARGE)))  # texts, tokens
K, MIN_P, T = 50, 0.05, 3.0  # exp(-3) = 0.05

METHODS: dict[str, Callable[[], Any]] = {
    "top-k": lambda: TopKLogitsWarper(K),
    "min-p": lambda: MinPLogitsWarper(MIN_P),
    "k-softmax": lambda: KSoftmaxLogitsWarper(K),
    "t-softmax": lambda: TSoftmaxLogitsWarper(T),
}


def groups(settings: Settings) -> list[Group]:
    """All methods, by shape."""
    shapes = SHAPES[:2] if settings.quick else SHAPES
    return [Group({"rows": n, "tokens": tokens}, partial(calls, n, tokens), seconds=2.0) for n, tokens in shapes]


def calls(n: int, tokens: int) -> Iterator[tuple[Case, Call]]:
    """Each method on the same scores."""
    scores = 3 * torch.randn(n, tokens, generator=torch.Generator().manual_seed(0))
    for name, make in METHODS.items():
        yield {"warper": name}, partial(make(), None, scores)


def _goal(title: str, method: str, tokens: tuple[int, ...], at_most: float) -> Goal:
    against = {"warper": "min-p"} if method == "t-softmax" else {}
    return Goal(title, at_most, {"warper": (method,), "tokens": tokens}, against)


WARPERS = Benchmark(
    file="bench_warpers.jsonl",
    groups=groups,
    baseline={"warper": "top-k"},
    label="{warper}",
    title="{rows} x {tokens} tokens, threads: {threads}",
    slowest="{rows} x {tokens} tokens, threads: {threads}",
    goals=(
        _goal("k-softmax of the 50 best tokens, against top-k", "k-softmax", LARGE, 1.0),
        _goal("t-softmax, against min-p", "t-softmax", LARGE, 1.0),
        _goal("k-softmax, 1,000 tokens", "k-softmax", (SMALL,), 1.5),
        _goal("t-softmax, 1,000 tokens", "t-softmax", (SMALL,), 1.5),
    ),
)
