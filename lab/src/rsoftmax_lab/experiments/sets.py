"""Tabular datasets for the comparisons: read once, numeric features standardized."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from rsoftmax_lab.comparison import Samples
from rsoftmax_lab.experiments import mulan


@lru_cache(maxsize=1)  # consecutive runs use the same data
def read(folder: Path, dataset: str) -> tuple[mulan.Table, mulan.Table]:
    """The training and test rows of a dataset."""
    return mulan.read(folder / dataset)


def standardised(parts: Sequence[Samples], numeric: NDArray[np.bool_]) -> list[Samples]:
    """Standardize numeric features by the statistics of the first part; one-hot features stay 0 and 1."""
    if not numeric.any():
        return list(parts)
    first = parts[0].X
    scaler = StandardScaler(with_mean=not sp.issparse(first)).fit(first[:, numeric])
    return [Samples(_scaled(rows.X, numeric, scaler), rows.Y) for rows in parts]


def _scaled(X: Any, numeric: NDArray[np.bool_], scaler: StandardScaler) -> Any:
    if sp.issparse(X):
        factors = np.ones(X.shape[1], np.float32)
        factors[numeric] = 1 / scaler.scale_
        return sp.csr_array(X.multiply(factors))
    X = X.copy()
    X[:, numeric] = scaler.transform(X[:, numeric])
    return X
