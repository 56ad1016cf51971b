"""The time of a training step and a prediction with each multi-label head, against binary cross-entropy.

The network is that of the comparison: a hidden layer of 128 and the head. A step is forward, loss, backward and Adam.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from rsoftmax.labels import MultiLabelHead
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case
from rsoftmax_lab.bench.timing import Call
from rsoftmax_lab.comparison import METHODS, Training

SHAPES = ((128, 20), (128, 983), (64, 100_000))  # rows in a batch, labels
QUICK_SHAPES = ((16, 20),)


def groups(settings: Settings) -> list[Group]:
    """All methods of the comparison, by threads, shape and mode."""
    shapes, seconds = (QUICK_SHAPES, 0.1) if settings.quick else (SHAPES, 4.0)
    return [
        Group(
            {"mode": mode, "rows": rows, "labels": labels, "threads": threads, "measure": "us"},
            partial(_calls, mode, rows, labels),
            seconds,
        )
        for threads, (rows, labels), mode in product(settings.threads, shapes, MODES)
    ]


def _calls(mode: str, rows: int, labels: int) -> Sequence[tuple[Case, Call]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, Training.hidden, generator=generator)
    y = torch.rand(rows, labels, generator=generator) < min(0.5, 10 / labels)
    return [({"method": method}, MODES[mode](*_network(method, labels), x, y)) for method in METHODS]


def _network(method: str, labels: int) -> tuple[nn.Module, MultiLabelHead]:
    torch.manual_seed(0)
    hidden = nn.Sequential(nn.Linear(Training.hidden, Training.hidden), nn.ReLU())
    head = METHODS[method].head
    by_rows: dict[str, Any] = {"average": "samples"} if head["rule"] == "expected_f1" else {}
    return hidden, MultiLabelHead(Training.hidden, labels, **head, **by_rows)


def _step(hidden: nn.Module, head: MultiLabelHead, x: Tensor, y: Tensor) -> Call:
    optimizer = torch.optim.Adam([*hidden.parameters(), *head.parameters()], lr=Training.lr)

    def step() -> None:
        optimizer.zero_grad()
        head.loss(head.scores(hidden(x)), y).backward()
        optimizer.step()

    step()  # allocates Adam's moments before the measured steps
    return step


def _prediction(hidden: nn.Module, head: MultiLabelHead, x: Tensor, y: Tensor) -> Call:
    def predict() -> Tensor:
        with torch.no_grad():
            labels: Tensor = head(hidden(x)).labels
            return labels

    return predict


MODES = {"training step": _step, "prediction": _prediction}

BENCHMARK = Benchmark(
    file="bench_heads.jsonl",
    groups=groups,
    baseline={"method": "bce"},
    label="{method}",
    title="{mode}, {rows} x {labels} labels, threads: {threads}",
    place="{rows} x {labels} labels, threads: {threads}",
    goals=(
        Goal(
            "a training step with the expected-F1 rule, against bce",
            1.15,
            {"method": ("r_softmax_expected_f1",), "mode": ("training step",)},
        ),
    ),
    threads=(1,),  # as in the comparison
)
