"""The same contest on real sets, with their own split into training and test rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from rsoftmax_lab.contest.play import METHODS, Data, Rows, Training, play
from rsoftmax_lab.experiments.tabular import mulan


@dataclass(frozen=True)
class Run(Training):
    """One method on one set."""

    PLACE = ("dataset",)

    dataset: str = "emotions"
    validation_share: float = 0.2

    @property
    def point(self) -> str:
        """On what the contest is held."""
        return self.dataset


def grid(datasets: Sequence[str], seeds: int = 3) -> list[Run]:
    """Every method on every set."""
    return _grid(datasets, seeds)


def quick_grid(datasets: Sequence[str]) -> list[Run]:
    """The same with one seed and few epochs."""
    return _grid(datasets, 1, epochs=10)


def _grid(datasets: Sequence[str], seeds: int, **rest: Any) -> list[Run]:
    return [
        Run(method=method, seed=seed, dataset=dataset, **rest)
        for dataset in datasets
        for seed in range(seeds)
        for method in METHODS
    ]


def run(folder: Path, run: Run) -> dict[str, Any]:
    """Train and score: the row of a run."""
    return play(run, load(folder, run.dataset, run.validation_share, run.seed))


def load(folder: Path, dataset: str, validation_share: float, seed: int) -> Data:
    """A set, with a share of its training rows, drawn by the seed, to select on. Rows without a label stay.

    Numeric features are standardised by the rows that are trained on; nominal ones are 0 and 1 and stay so.
    """
    train, test = _read(folder, dataset)
    order = np.random.default_rng(seed).permutation(len(train.Y))
    aside = round(validation_share * len(order))
    if not 0 < aside < len(order):
        raise ValueError(
            f"{dataset}: a share of {validation_share} of {len(order)} training rows, to select on, is {aside} rows;"
            " there must be some to select on and some to train on"
        )
    data = Data(
        Rows(train.X[order[aside:]], train.Y[order[aside:]]),
        Rows(train.X[order[:aside]], train.Y[order[:aside]]),
        Rows(test.X, test.Y),
    )
    if not train.numeric.any():
        return data
    scaler = StandardScaler(with_mean=not sp.issparse(train.X)).fit(data.train.X[:, train.numeric])
    return Data(*(Rows(_scaled(rows.X, train.numeric, scaler), rows.Y) for rows in data))


def _scaled(X: Any, numeric: NDArray[np.bool_], scaler: StandardScaler) -> Any:
    if sp.issparse(X):
        factors = np.ones(X.shape[1], np.float32)
        factors[numeric] = 1 / scaler.scale_
        return sp.csr_array(X.multiply(factors))
    X = X.copy()
    X[:, numeric] = scaler.transform(X[:, numeric])
    return X


@lru_cache(maxsize=1)  # the runs on one set follow each other
def _read(folder: Path, dataset: str) -> tuple[mulan.Table, mulan.Table]:
    return mulan.read(folder / dataset)
