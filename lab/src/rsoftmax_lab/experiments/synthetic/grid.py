"""The grid of Figure 2."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from rsoftmax_lab.comparison import METHODS, USERS, Training

CLASSES = (10, 20, 30)
LENGTH = 2000
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # (a): average number of labels, as a fraction of the classes
LENGTHS = (200, 500, 1000, 2000, 4000)  # (b): average length, with labels for half of the classes


class Draw(NamedTuple):
    """A point of Figure 2: the settings of the generated data."""

    classes: int
    labels: int
    length: int


@dataclass(frozen=True)
class Run(Training):
    """One method on one draw."""

    PLACE = Draw._fields

    classes: int = 10
    labels: int = 5
    length: int = LENGTH
    samples: int = 5000
    test_samples: int = 1000
    features: int = 128
    allow_unlabeled: bool = True

    @property
    def point(self) -> Draw:
        """The data of the comparison."""
        return Draw(self.classes, self.labels, self.length)


def grid(seeds: int = 3) -> list[Run]:
    """The full Figure 2, without duplicates of the points that (a) and (b) share."""
    return _grid(range(seeds), SHARES, LENGTHS)


def users_grid(seeds: int = 3) -> list[Run]:
    """Classifiers with default settings where per-row rules lose in micro-F1: three labels of 30."""
    most, fewest = max(CLASSES), min(SHARES)
    return [
        Run(method=method, seed=seed, classes=most, labels=round(fewest * most))
        for seed in range(seeds)
        for method in USERS
    ]


def quick_grid(seeds: int = 1) -> list[Run]:
    """A grid with fewer points, documents and epochs."""
    small = {"samples": 1000, "test_samples": 500, "epochs": 12}
    return _grid(range(seeds), (0.1, 0.5, 0.9), (200, 2000), **small)


def _grid(seeds: range, shares: tuple[float, ...], lengths: tuple[int, ...], **rest: Any) -> list[Run]:
    points = [(classes, round(share * classes), LENGTH) for classes in CLASSES for share in shares]
    points += [(classes, classes // 2, length) for classes in CLASSES for length in lengths]
    return [
        Run(method=method, seed=seed, classes=classes, labels=labels, length=length, **rest)
        for seed in seeds
        for classes, labels, length in dict.fromkeys(points)
        for method in METHODS
    ]
