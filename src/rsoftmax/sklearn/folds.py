"""Stratified folds for multi-label targets."""

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from rsoftmax.sklearn.targets import Matrix


def stratified_folds(Y: Matrix, folds: int, random: np.random.RandomState) -> NDArray[np.intp]:
    """Return the fold of each row, such that each label has about as many rows in every fold.

    Rows with the rarest label are assigned first, each to the fold with the largest deficit of that label; among equals
    to the fold with the largest deficit of rows. Rows without a label come last.

    Args:
        Y: labels [rows, K], 0 or 1, dense or sparse.
        folds: the number of folds.
        random: breaks the remaining ties.

    Reference: Sechidis et al., On the stratification of multi-label data (2011).
    """
    labels = sp.csr_array(Y)
    rows_with, left = labels.tocsc(), np.asarray(labels.sum(0)).ravel()
    deficit = np.tile(left / folds, (folds, 1))
    free = np.full(folds, labels.shape[0] / folds)
    found = np.full(labels.shape[0], -1, dtype=np.intp)

    def assign(row: int, wanted: NDArray[np.float64]) -> None:
        best = np.flatnonzero(wanted == wanted.max())
        best = best[free[best] == free[best].max()]
        fold = found[row] = random.choice(best)
        of_row = labels.indices[labels.indptr[row] : labels.indptr[row + 1]]
        deficit[fold, of_row] -= 1
        left[of_row] -= 1
        free[fold] -= 1

    while (left > 0).any():
        label = np.where(left > 0, left, np.inf).argmin()
        rows = rows_with.indices[rows_with.indptr[label] : rows_with.indptr[label + 1]]
        for row in random.permutation(rows[found[rows] < 0]):
            assign(row, deficit[:, label])
    for row in random.permutation(np.flatnonzero(found < 0)):
        assign(row, free)
    return found
