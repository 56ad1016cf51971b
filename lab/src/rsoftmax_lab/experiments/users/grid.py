"""The grid of the comparison with default settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rsoftmax.labels import AVERAGES
from rsoftmax_lab.comparison import check_method
from rsoftmax_lab.experiments.users.methods import METHODS
from rsoftmax_lab.running import schema
from rsoftmax_lab.running.runs import BaseRun
from rsoftmax_lab.running.schema import Schema

MEASURES = (*AVERAGES, "brier", "ece")
QUICK = ("net", "bce", "logistic", "forest")
SCORES = schema.fields({"test": schema.fields(dict.fromkeys(MEASURES, schema.number))})


@dataclass(frozen=True)
class Run(BaseRun):
    """One model on one dataset; ``rows`` is the number of training rows, 0 for all."""

    PLACE: ClassVar[tuple[str, ...]] = ("dataset",)
    VARIED: ClassVar[tuple[str, ...]] = ("method", "seed")
    REQUIRED: ClassVar[Mapping[str, Schema]] = {"rules": schema.each(SCORES)}

    method: str = "net"
    seed: int = 0
    dataset: str = "emotions"
    rows: int = 0

    def __post_init__(self) -> None:
        check_method(self.method, METHODS)

    @property
    def point(self) -> str:
        """The data of the comparison."""
        return self.dataset


def grid(datasets: Sequence[str], seeds: int = 3, methods: Iterable[str] | None = None) -> list[Run]:
    """Every model, or the given ones, on every dataset."""
    return _grid(datasets, seeds, methods or METHODS)


def quick_grid(datasets: Sequence[str], methods: Iterable[str] | None = None) -> list[Run]:
    """A grid with one seed, few models or the given ones, and few rows."""
    return _grid(datasets, 1, methods or QUICK, rows=200)


def _grid(datasets: Sequence[str], seeds: int, methods: Iterable[str], **rest: Any) -> list[Run]:
    return [
        Run(method=method, seed=seed, dataset=dataset, **rest)
        for dataset in datasets
        for seed in range(seeds)
        for method in methods
    ]
