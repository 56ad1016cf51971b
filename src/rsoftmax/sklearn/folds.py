"""Folds in which every label is spread evenly."""

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from rsoftmax.sklearn.data import Matrix


def stratified_folds(Y: Matrix, folds: int, random: np.random.RandomState) -> NDArray[np.intp]:
    """The fold of each row, such that each label has about the same number of rows in all folds.

    Rows with the rarest label go first, each to the fold that lacks most of that label; among equals, to the fold that
    lacks most rows; rows without a label come last.

    Args:
        Y: labels [rows, K], 0 or 1, dense or sparse.
        folds: their number.
        random: breaks the remaining ties.

    Reference: Sechidis et al., On the stratification of multi-label data (2011).
    """
    labels = sp.csr_array(Y)
    rows_with, left = labels.tocsc(), np.asarray(labels.sum(0)).ravel()
    lacking = np.tile(left / folds, (folds, 1))
    places = np.full(folds, labels.shape[0] / folds)
    found = np.full(labels.shape[0], -1, dtype=np.intp)

    def place(row: int, wanted: NDArray[np.float64]) -> None:
        best = np.flatnonzero(wanted == wanted.max())
        best = best[places[best] == places[best].max()]
        fold = found[row] = random.choice(best)
        of_row = labels.indices[labels.indptr[row] : labels.indptr[row + 1]]
        lacking[fold, of_row] -= 1
        left[of_row] -= 1
        places[fold] -= 1

    while (left > 0).any():
        label = np.where(left > 0, left, np.inf).argmin()
        rows = rows_with.indices[rows_with.indptr[label] : rows_with.indptr[label + 1]]
        for row in random.permutation(rows[found[rows] < 0]):
            place(row, lacking[:, label])
    for row in random.permutation(np.flatnonzero(found < 0)):
        place(row, places)
    return found
