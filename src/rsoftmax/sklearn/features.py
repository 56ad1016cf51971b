"""Features as a network likes them: each column with a spread of one, and without outliers."""

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, QuantileTransformer, StandardScaler

from rsoftmax.sklearn.data import Matrix

FEATURES = ("auto", "as_is")
QUANTILES = 1000
FARTHEST = 3.0  # in standard deviations
UNEVEN = 1000.0  # the ratio of spreads from which on a network learns from few columns only


def prepared_by(X: Matrix, how: str, random: np.random.RandomState) -> Any:
    """A fitted transformer for these rows, or None if they stay as they are.

    Args:
        X: features [rows, d], dense or sparse.
        how: "auto": dense columns become normal by their quantiles, are clipped at 3 and standardised; sparse counts
            are weighted by TF-IDF and rows scaled to length ``sqrt(d)``; sparse rows with negative values are divided
            by one number. "as_is": nothing.
        random: draws the rows that quantiles are taken from, if there are very many.
    """
    if how == "as_is" or X.ndim != 2:
        _warn_if_uneven(X)
        return None
    return _for_sparse(X) if sp.issparse(X) else _for_dense(X, random)


def _for_dense(X: Matrix, random: np.random.RandomState) -> Any:
    quantiles = QuantileTransformer(
        n_quantiles=min(QUANTILES, len(X)), output_distribution="normal", random_state=random.randint(2**31)
    )
    return make_pipeline(quantiles, FunctionTransformer(_clipped), StandardScaler()).fit(X)


def _for_sparse(X: Matrix) -> Any:
    if (X.data < 0).any():
        size = float(np.sqrt((X.data**2).sum() / max(X.shape[0] * X.shape[1], 1))) or 1.0
        return FunctionTransformer(_times, kw_args={"factor": 1 / size}, accept_sparse=True).fit(X)
    scaling = FunctionTransformer(_times, kw_args={"factor": float(np.sqrt(X.shape[1]))}, accept_sparse=True)
    return make_pipeline(TfidfTransformer(), scaling).fit(X)


def _clipped(X: Matrix) -> Matrix:
    return np.clip(X, -FARTHEST, FARTHEST)


def _times(X: Matrix, factor: float) -> Matrix:
    return X * factor


def _warn_if_uneven(X: Matrix) -> None:
    if sp.issparse(X) or X.ndim != 2:
        return
    spread = X.std(0, dtype=np.float64)
    spread = spread[spread > 0]
    if len(spread) and spread.max() > UNEVEN * spread.min():
        warnings.warn(
            f"SparseLabelClassifier: the spreads of features range from {spread.min():.2g} to {spread.max():.2g};"
            " scale them, or let features='auto' do it",
            stacklevel=5,
        )
