"""The grid of Table 2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rsoftmax.attention.transformers.api import SHAPES
from rsoftmax.registry import MAPPINGS
from rsoftmax_lab.experiments.glue.data import HUB, TASKS
from rsoftmax_lab.running import schema
from rsoftmax_lab.running.runs import BaseRun

COMPARED = ("softmax", "sparsemax", "sparsehourglass", "r_softmax")
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 5e-4)
RATES = (0.05, 0.1, 0.15, 0.2, 0.5)

EDGE = "edge"  # the schedule in which the edge grows instead of r
OWN = ("t", "k")  # parameters that are constant during training
SCORES = schema.fields({"accuracy": schema.share}, {"f1": schema.share})


@dataclass(frozen=True)
class Run(BaseRun):
    """One fine-tuning.

    Attributes:
        epochs: the number of epochs; None: the paper's, 5 on MRPC and 3 on the other tasks.
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
    REQUIRED: ClassVar = {
        "seconds": schema.number,
        "rows": schema.fields({"train": schema.number, "validation": schema.number, "dev": schema.positive}),
        "validation": schema.maybe(SCORES),
        "dev": SCORES,
        "sparsity": schema.share,
    }
    OPTIONAL: ClassVar = {
        "version": schema.of_type(str),
        "kernels": schema.of_type(str),
        "step": schema.fields({"seconds": schema.positive, "sdpa_seconds": schema.positive, "ratio": schema.positive}),
    }

    task: str
    mapping: str = "softmax"
    r: float | None = None
    lr: float = 2e-5
    epochs: float | None = None
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
            ("mapping", self.mapping, MAPPINGS),
            ("schedule", self.schedule, (*SHAPES, EDGE)),
        ):
            if value not in known:
                raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")
        if takes(self.mapping, "r") == (self.r is None) or (self.r is not None and not 0 <= self.r <= 1):
            wanted = "must be in [0, 1]" if takes(self.mapping, "r") else "must not be given"
            raise ValueError(f"r {wanted} with {self.mapping}, got {self.r}")
        for letter in OWN:
            value = getattr(self, letter)
            if value is not None and not (takes(self.mapping, letter) and value > 0):
                raise ValueError(
                    f"{letter} must be above 0 and needs {letter}_softmax, got {value} with {self.mapping}"
                )
        if self.edge is not None and not (takes(self.mapping, "edge") and 0 <= self.edge < math.inf):
            raise ValueError(
                "edge must be finite, at least 0 and needs a mapping with one; without it weights are the paper's,"
                f" got {self.edge} with {self.mapping}"
            )
        if self.r is not None and self.edge is not None and self.schedule == EDGE:
            raise ValueError(f"with the schedule {EDGE!r} the edge grows; edge must not be given, got {self.edge}")
        if not isinstance(self.model, str):
            raise ValueError(f"model must be a name, got {self.model!r}")
        for what, number in (("epochs", self.num_epochs), ("lr", self.lr)):
            if not 0 < number < math.inf:
                raise ValueError(f"{what} must be above 0, got {number}")

    @property
    def num_epochs(self) -> float:
        """The number of epochs."""
        return _paper_epochs(self.task) if self.epochs is None else self.epochs


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
        own: dict[str, Any] = {
            name: value for name, value in (("t", t), ("k", k), ("edge", edge)) if takes(mapping, name)
        }
        many = None if epochs == _paper_epochs(task) else epochs
        return Run(task, mapping, r, lr, many, seed, **rest, **own)

    return [
        run(task, mapping, r, lr, seed)
        for seed in range(seeds)
        for task in tasks
        for mapping in mappings
        for r in (rates if takes(mapping, "r") else (None,))
        for lr in learning_rates
    ]


def quick_grid(tasks: Sequence[str] = ("MRPC", "RTE"), **rest: Any) -> list[Run]:
    """A grid with few rows, one epoch and one point of the paper's grid."""
    small = {"learning_rates": (5e-5,), "rates": (0.15,), "epochs": 1, "max_train_samples": 192, "max_eval_samples": 96}
    return grid(tasks, **{**small, "validation_samples": 64, **rest})


def takes(mapping: str, name: str) -> bool:
    """Whether a mapping has a parameter or option of this name.

    Example:
        >>> takes("r_softmax", "r"), takes("r_softmax", "edge"), takes("sparsemax", "edge")
        (True, True, False)
    """
    if mapping not in MAPPINGS:
        return False
    one = MAPPINGS[mapping]
    return name in (one.parameter and one.parameter.name, *(option.name for option in one.options))


def _paper_epochs(task: str) -> float:
    return 5 if task == "MRPC" else 3
