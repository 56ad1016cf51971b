"""The grid of Table 2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.schedules import SHAPES
from rsoftmax_lab.experiments.glue.data import HUB, TASKS
from rsoftmax_lab.running import shapes
from rsoftmax_lab.running.runs import BaseRun

COMPARED = ("softmax", "sparsemax", "sparsehourglass", "r_softmax")
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 5e-4)
RATES = (0.05, 0.1, 0.15, 0.2, 0.5)

EDGE = "edge"  # the schedule in which the edge grows instead of r
OWN = ("t", "k")  # parameters that are constant during training
SCORES = shapes.fields({"accuracy": shapes.share}, {"f1": shapes.share})


@dataclass(frozen=True)
class Run(BaseRun):
    """One fine-tuning.

    Attributes:
        r: the rate at the end of training, for mappings that take one.
        schedule: how r grows, or "edge": r is constant, and the edge grows to the paper's weights.
        t, k: the parameter of t_softmax or k_softmax, the same from the first step on; None: its example.
        edge: the width of the edge, for mappings that have one; None: the paper's weights.
        max_train_samples: the number of training rows, drawn at random; None for all.
        max_eval_samples: the number of dev rows to score, the same for every seed; None for all.
        validation_samples: the number of held-out training rows for selection, drawn at random; at most a tenth.
        bf16: whether matrices are multiplied in bfloat16.
        model: the encoder's name.
        data: the name of the folder or hub dataset.
    """

    PLACE = ("task",)
    VARIED = ("mapping", "r", "t", "k", "edge", "lr", "seed")
    ANSWERS: ClassVar = {
        "seconds": shapes.number,
        "rows": shapes.fields({"train": shapes.number, "validation": shapes.number, "dev": shapes.positive}),
        "validation": shapes.maybe(SCORES),
        "dev": SCORES,
        "sparsity": shapes.share,
    }
    ADDED: ClassVar = {
        "version": shapes.of_type(str),
        "kernels": shapes.of_type(str),
        "step": shapes.fields({"seconds": shapes.positive, "sdpa_seconds": shapes.positive, "ratio": shapes.positive}),
    }

    task: str
    mapping: str = "softmax"
    r: float | None = None
    lr: float = 2e-5
    epochs: float = 3
    seed: int = 0
    batch_size: int = 32
    max_length: int = 128
    schedule: str = "linear"
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    validation_samples: int = 500
    bf16: bool = False
    model: str = "google-bert/bert-base-uncased"
    data: str = HUB
    t: float | None = None
    k: float | None = None
    edge: float | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("task", self.task, TASKS),
            ("mapping", self.mapping, ROW_MAPPINGS),
            ("schedule", self.schedule, (*SHAPES, EDGE)),
        ):
            if value not in known:
                raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")
        if takes_r(self.mapping) == (self.r is None) or (self.r is not None and not 0 <= self.r <= 1):
            wanted = "must be in [0, 1]" if takes_r(self.mapping) else "must not be given"
            raise ValueError(f"r {wanted} with {self.mapping}, got {self.r}")
        for letter in OWN:
            value = getattr(self, letter)
            if value is not None and not (_letter(self.mapping) == letter and value > 0):
                raise ValueError(
                    f"{letter} must be above 0 and needs {letter}_softmax, got {value} with {self.mapping}"
                )
        if self.edge is not None and not (has_edge(self.mapping) and 0 <= self.edge < math.inf):
            raise ValueError(
                "edge must be finite, at least 0 and needs a mapping with one; without it weights are the paper's,"
                f" got {self.edge} with {self.mapping}"
            )
        if self.r is not None and self.edge is not None and self.schedule == EDGE:
            raise ValueError(f"with the schedule {EDGE!r} the edge grows; edge must not be given, got {self.edge}")
        if not isinstance(self.model, str):
            raise ValueError(f"model must be a name, got {self.model!r}")
        for what, number in (("epochs", self.epochs), ("lr", self.lr)):
            if not 0 < number < math.inf:
                raise ValueError(f"{what} must be above 0, got {number}")


def grid(
    tasks: Sequence[str] = tuple(TASKS),
    mappings: Sequence[str] = COMPARED,
    learning_rates: Sequence[float] = LEARNING_RATES,
    rates: Sequence[float] = RATES,
    seeds: int = 1,
    epochs: float | None = None,
    t: float | None = None,
    k: float | None = None,
    edge: float | None = None,
    **rest: Any,
) -> list[Run]:
    """The grid of Table 2, or a part of it; ``t``, ``k`` and ``edge`` go to the mappings that have them."""

    def run(task: str, mapping: str, r: float | None, lr: float, seed: int) -> Run:
        own: dict[str, Any] = {letter: value for letter, value in (("t", t), ("k", k)) if _letter(mapping) == letter}
        own["edge"] = edge if has_edge(mapping) else None
        many = (5 if task == "MRPC" else 3) if epochs is None else epochs
        return Run(task, mapping, r, lr, many, seed, **rest, **own)

    return [
        run(task, mapping, r, lr, seed)
        for seed in range(seeds)
        for task in tasks
        for mapping in mappings
        for r in (rates if takes_r(mapping) else (None,))
        for lr in learning_rates
    ]


def quick_grid(tasks: Sequence[str] = ("MRPC", "RTE"), **rest: Any) -> list[Run]:
    """A grid with few rows, one epoch and one point of the paper's grid."""
    small = {"learning_rates": (5e-5,), "rates": (0.15,), "epochs": 1, "max_train_samples": 192, "max_eval_samples": 96}
    return grid(tasks, **{**small, "validation_samples": 64, **rest})


def takes_r(mapping: str) -> bool:
    """Whether the mapping's parameter is the rate r."""
    return _letter(mapping) == "r"


def has_edge(mapping: str) -> bool:
    """Whether the mapping has the option ``edge``."""
    return mapping in ROW_MAPPINGS and any(option.name == "edge" for option in ROW_MAPPINGS[mapping].options)


def _letter(mapping: str) -> str | None:
    parameter = ROW_MAPPINGS[mapping].parameter if mapping in ROW_MAPPINGS else None
    return None if parameter is None else parameter.name
