"""What a multi-label head costs, beside the one for binary cross-entropy: a training step, and a prediction.

The network is the contest's: a hidden layer of 128 and the head. A step is forward, loss, backward and Adam.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn

from rsoftmax.multilabel import MultiLabelHead
from rsoftmax_lab.bench.mappings import extra_bytes, machine, take_turns
from rsoftmax_lab.contest.methods import METHODS
from rsoftmax_lab.contest.training import Training

SHAPES = ((128, 20), (128, 983), (64, 100_000))  # rows in a batch, labels
QUICK_SHAPES = ((16, 20),)
MODES = ("training step", "prediction")
BASELINE = "bce"
GOAL = 1.15  # a training step of r-softmax's head with the expected-F1 rate, as a multiple of BCE's


@dataclass
class Row:
    """One row of results: microseconds, the most bytes allocated at once, and ratios of times to the BCE head's."""

    method: str
    mode: str
    rows: int
    labels: int
    threads: int
    median_us: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    extra_bytes: int
    machine: str = field(default_factory=machine)
    torch: str = torch.__version__


def run(quick: bool) -> Iterator[list[Row]]:
    """The whole benchmark, group by group, on one thread, as the contest runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for shape in QUICK_SHAPES if quick else SHAPES:
            for mode in MODES:
                yield _together(mode, *shape, seconds=0.1 if quick else 4.0)
    finally:
        torch.set_num_threads(before)


def _together(mode: str, rows: int, labels: int, seconds: float) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, Training.hidden, generator=generator)
    y = torch.rand(rows, labels, generator=generator) < min(0.5, 10 / labels)
    make = _step if mode == "training step" else _prediction
    calls = {method: make(method, x, y) for method in METHODS}
    spreads = take_turns(calls, BASELINE, seconds)
    return [
        Row(
            method,
            mode,
            rows,
            labels,
            torch.get_num_threads(),
            **asdict(spread),
            extra_bytes=extra_bytes(calls[method]),
        )
        for method, spread in spreads.items()
    ]


def _network(method: str, x: Tensor, y: Tensor) -> tuple[nn.Module, MultiLabelHead]:
    torch.manual_seed(0)
    hidden = nn.Sequential(nn.Linear(x.shape[1], Training.hidden), nn.ReLU())
    return hidden, MultiLabelHead(Training.hidden, y.shape[1], **METHODS[method].head)


def _step(method: str, x: Tensor, y: Tensor) -> Callable[[], object]:
    hidden, head = _network(method, x, y)
    optimizer = torch.optim.Adam([*hidden.parameters(), *head.parameters()], lr=Training.lr)

    def step() -> None:
        optimizer.zero_grad()
        head.loss(head.scores(hidden(x)), y).backward()
        optimizer.step()

    step()  # Adam's moments are there from the first step on, and belong to none of the others
    return step


def _prediction(method: str, x: Tensor, y: Tensor) -> Callable[[], object]:
    hidden, head = _network(method, x, y)

    def predict() -> Tensor:
        with torch.no_grad():
            labels: Tensor = head(hidden(x)).labels
            return labels

    return predict


def verdict(rows: list[Row]) -> str:
    """Whether the goal for a training step was met, by number of labels."""
    found = [row for row in rows if (row.method, row.mode) == ("r_softmax_expected_f1", "training step")]
    costs = ", ".join(f"{row.ratio:.2f} with {row.labels} labels" for row in found)
    met = "met" if all(row.ratio <= GOAL for row in found) else "missed"
    return f"goal, a training step with the expected-F1 rate at most {GOAL} times BCE's: {met} ({costs})"
