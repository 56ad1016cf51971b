"""A real set as the contest wants it: a share of its training rows to select on, and features standardised."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from rsoftmax_lab.contest.data import Data, Rows
from rsoftmax_lab.experiments.tabular import mulan


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
    learned, selected = (Rows(train.X[part], train.Y[part]) for part in (order[aside:], order[:aside]))
    return Data(*_standardised([learned, selected, Rows(test.X, test.Y)], train.numeric))


def whole(folder: Path, dataset: str) -> tuple[Rows, Rows]:
    """All training rows, and the test rows; numeric features standardised by the former."""
    train, test = _read(folder, dataset)
    learned, judged = _standardised([Rows(train.X, train.Y), Rows(test.X, test.Y)], train.numeric)
    return learned, judged


def _standardised(parts: list[Rows], numeric: NDArray[np.bool_]) -> list[Rows]:
    """The same rows; the first part says how numeric features are scaled."""
    if not numeric.any():
        return parts
    first = parts[0].X
    scaler = StandardScaler(with_mean=not sp.issparse(first)).fit(first[:, numeric])
    return [Rows(_scaled(rows.X, numeric, scaler), rows.Y) for rows in parts]


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
