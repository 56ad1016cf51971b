"""The paper's Figure 2: synthetic documents, with more and more labels (a), and longer and longer (b).

``make_multilabel_classification`` draws a document's labels, then its words; features are counts of 128 words. As in
the paper: 5000 documents, 80 % to train and 20 % to select on, and a network of two layers. Ours, because the paper
does not say: the points of both axes, that documents may have no label, as is the function's default, and that
features are standardised. Ours too: 1000 more documents of the same draw, which leave the 5000 as they are, for test.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import make_multilabel_classification
from sklearn.preprocessing import StandardScaler

from rsoftmax_lab.contest.play import METHODS, Data, Rows, Training, play

CLASSES = (10, 20, 30)
LENGTH = 2000
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # (a): average number of labels, as a share of the classes
LENGTHS = (200, 500, 1000, 2000, 4000)  # (b): average length, at half of the classes


class Draw(NamedTuple):
    """A point of Figure 2."""

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
        """On what the contest is held."""
        return Draw(self.classes, self.labels, self.length)


def grid(seeds: int = 3) -> list[Run]:
    """Figure 2 in full; the point that (a) and (b) share is there once."""
    return _grid(range(seeds), SHARES, LENGTHS)


def quick_grid(seeds: int = 1) -> list[Run]:
    """The same with fewer points, documents and epochs."""
    small = {"samples": 1500, "test_samples": 500, "epochs": 20}
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


def run(run: Run) -> dict[str, Any]:
    """Train and score: the row of a run."""
    return play(run, draw(run))


def draw(run: Run) -> Data:
    """The documents of a run, features standardised by the training rows."""
    default = Training(seed=run.seed)  # the draw does not depend on the training, but for the seed
    return _draw(replace(run, **{field.name: getattr(default, field.name) for field in fields(Training)}))


@lru_cache(maxsize=1)  # the methods of one draw follow each other
def _draw(run: Run) -> Data:
    X, Y = make_multilabel_classification(
        run.samples + run.test_samples,
        run.features,
        n_classes=run.classes,
        n_labels=run.labels,
        length=run.length,
        allow_unlabeled=run.allow_unlabeled,
        random_state=run.seed,
    )
    train = round(0.8 * run.samples)
    X = StandardScaler().fit(X[:train]).transform(X).astype(np.float32)
    parts = [slice(0, train), slice(train, run.samples), slice(run.samples, None)]
    return Data(*(Rows(X[part], Y[part].astype(bool)) for part in parts))
