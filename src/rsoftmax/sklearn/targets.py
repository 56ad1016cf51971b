"""What the ``y`` of scikit-learn means: labels in a matrix of 0 and 1, or a class for each row."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from rsoftmax.sklearn.data import Matrix


class Targets:
    """The form of the first ``y``, which later ones have to share and in which predictions are given.

    Args:
        y: labels [rows, K], 0 or 1, dense or sparse; or classes [rows].
        classes: all classes that will come, if ``y`` is 1-d and may lack some.

    Attributes:
        one_class: every row has exactly one class, because ``y`` is 1-d or a single column.
        classes: the classes; otherwise, the labels' column numbers.
        sparse: labels came as a sparse matrix.
    """

    def __init__(self, y: Matrix, classes: Matrix = None) -> None:
        check_classification_targets(y)
        self.sparse: bool = sp.issparse(y)
        self.one_class: bool = y.ndim != 2 or y.shape[1] == 1
        self.classes: NDArray[Any] = _classes_of(y, classes) if self.one_class else np.arange(y.shape[1])

    def indicator(self, y: Matrix, classes: Matrix = None) -> Matrix:
        """The labels as a matrix [rows, K] of 0 and 1, dense or sparse; raises if they have another form."""
        if classes is not None and not np.array_equal(np.unique(classes), self.classes):
            raise ValueError(
                f"SparseLabelClassifier: {classes=} are not those of the targets, {self.classes}; leave them out"
            )
        return self._one_hot(column_or_1d(y)) if self.one_class else self._checked_labels(y)

    def stacked(self, batches: Iterable[NDArray[np.bool_]]) -> Matrix:
        """The labels of many batches in one matrix of 0 and 1, sparse if the targets were."""
        as_given = sp.csr_array if self.sparse else np.asarray
        found = [as_given(batch.astype(np.int64)) for batch in batches]
        return sp.vstack(found, "csr") if self.sparse else np.concatenate(found)

    def _checked_labels(self, y: Matrix) -> Matrix:
        if y.ndim != 2 or y.shape[1] != len(self.classes):
            raise ValueError(
                f"SparseLabelClassifier: y must be [rows, {len(self.classes)}] of 0 and 1, as at the first call"
            )
        values = y.data if sp.issparse(y) else y
        wrong = values[(values != 0) & (values != 1)]
        if len(wrong):
            raise ValueError(
                f"SparseLabelClassifier: y must hold 0 or 1, got {wrong[0].item()!r};"
                " scikit-learn's MultiLabelBinarizer makes such a matrix"
            )
        return y

    def _one_hot(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        unknown = np.setdiff1d(y, self.classes)
        if len(unknown):
            raise ValueError(f"SparseLabelClassifier: y has {unknown[0]!r}, which is not among classes={self.classes}")
        found: NDArray[np.bool_] = y[:, None] == self.classes
        return found


def _classes_of(y: Matrix, classes: Matrix) -> NDArray[Any]:
    y = column_or_1d(y, warn=True)
    return np.unique(y if classes is None else classes)
