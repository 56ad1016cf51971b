"""The grid of the real datasets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rsoftmax_lab.comparison import METHODS, Training


@dataclass(frozen=True)
class Run(Training):
    """One method on one dataset."""

    PLACE = ("dataset",)

    dataset: str = "emotions"
    validation_share: float = 0.2

    @property
    def point(self) -> str:
        """The data of the comparison."""
        return self.dataset


def grid(datasets: Sequence[str], seeds: int = 3) -> list[Run]:
    """Every method on every dataset."""
    return _grid(datasets, seeds)


def quick_grid(datasets: Sequence[str]) -> list[Run]:
    """A grid with one seed and few epochs."""
    return _grid(datasets, 1, epochs=10)


def _grid(datasets: Sequence[str], seeds: int, **rest: Any) -> list[Run]:
    return [
        Run(method=method, seed=seed, dataset=dataset, **rest)
        for dataset in datasets
        for seed in range(seeds)
        for method in METHODS
    ]
