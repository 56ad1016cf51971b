"""The grid of lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rsoftmax_lab.experiments.lengths.data import TASKS
from rsoftmax_lab.running import schema
from rsoftmax_lab.running.runs import BaseRun

MAPPINGS = ("softmax", "r_softmax", "t_softmax", "entmax15", "sparsemax", "k_softmax")
SCALES = (None, "log n")
TIMES = (1, 4, 16, 64, 256)  # the length in tests, as a multiple of the longest in training


@dataclass(frozen=True)
class Run(BaseRun):
    """One training.

    Attributes:
        mapping: r_softmax has r = 0.5, t_softmax a learned t that starts at 4, k_softmax the task's k.
        scale: "log n" for a learned factor of log n, as in :class:`rsoftmax.nn.MultiheadAttention`.
        steps: of training; None: the task's.
        times: the longest length in tests, as a multiple of the longest in training.
    """

    PLACE = ("task",)
    VARIED = ("mapping", "scale", "seed")
    REQUIRED: ClassVar = {
        "accuracy": schema.each(schema.share),
        "nonzeros": schema.each(schema.positive),
        "learned": schema.each(schema.number),
        "version": schema.of_type(str),
        "kernels": schema.of_type(str),
    }

    task: str
    mapping: str = "softmax"
    scale: str | None = None
    seed: int = 0
    steps: int | None = None
    times: int = 256
    width: int = 64
    lr: float = 2e-3
    parameter_lr: float = 1e-2
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        for what, value, known in (
            ("task", self.task, tuple(TASKS)),
            ("mapping", self.mapping, MAPPINGS),
            ("scale", self.scale, SCALES),
        ):
            if value not in known:
                raise ValueError(f"{what} must be one of {', '.join(map(str, known))}, got {value!r}")


def grid(tasks: Sequence[str] = tuple(TASKS), seeds: int = 5, **rest: Any) -> list[Run]:
    """Every mapping with and without the scale."""
    return [
        Run(task, mapping, scale, seed, **rest)
        for seed in range(seeds)
        for task in tasks
        for mapping in MAPPINGS
        for scale in SCALES
    ]


def quick_grid(tasks: Sequence[str] = tuple(TASKS), **rest: Any) -> list[Run]:
    """Few steps of training and short tests."""
    return grid(tasks, 1, **{"steps": 40, "times": 4, **rest})
