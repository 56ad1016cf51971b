"""The ``y`` of scikit-learn: a matrix of labels, sets of names, or one class per row; its folds, and scores."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, fbeta_score
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

Matrix = Any  # what scikit-learn takes: an array, a sparse matrix, a data frame, lists
Kind = Literal["classes", "matrix", "frame", "sets", "joined"]
SEPARATORS = (";", "|", ",")


class Targets:
    """The format of the first ``y``, which later ones have to share and in which predictions are returned.

    Args:
        y: labels [rows, K], 0 or 1, as an array, a sparse matrix or a data frame, NaN or -1 where unknown; lists or
            sets of names, one per row; strings of names, if there is a separator; or classes [rows].
        classes: all classes, if ``y`` is 1-d and may lack some; all names, if it holds sets.
        separator: separates the names in a string, such as ";"; "": each string is one class.
        owner: the estimator named in errors.
        can_split: whether the owner has an argument ``label_separator``.

    Attributes:
        kind: "classes": every row has exactly one, because ``y`` is 1-d or a single column; "matrix"; "frame": a data
            frame; "sets": of names; "joined": names in one string.
        classes: the classes; a data frame's columns; the names; otherwise the column numbers.
        sparse: whether ``y`` is a sparse matrix.
    """

    def __init__(
        self,
        y: Matrix,
        classes: Matrix = None,
        *,
        separator: str | None = None,
        owner: str = "SparseLabelClassifier",
        can_split: bool = True,
    ) -> None:
        self.owner, self.separator, self.can_split = owner, separator, can_split
        if y is None:
            raise ValueError(f"This {owner} estimator requires y to be passed, but the target y is None.")
        self.kind = self._kind(y if hasattr(y, "__len__") or sp.issparse(y) else np.asarray(y))
        self.sparse: bool = sp.issparse(y)
        self.answer_type: type = type(next(iter(y), [])) if self.kind == "sets" else type(y)
        self.classes: NDArray[Any] = self._classes(y, classes)

    @property
    def one_class(self) -> bool:
        """Whether every row has exactly one class."""
        return self.kind == "classes"

    def indicator(self, y: Matrix, classes: Matrix = None) -> Matrix:
        """Return the labels as a matrix [rows, K] of 0 and 1, dense or CSR, NaN where unknown."""
        if classes is not None and not np.array_equal(np.unique(classes), np.unique(self.classes)):
            raise ValueError(f"{self.owner}: {classes=} differ from those of the targets, {self.classes}; omit them")
        if self.kind == "classes":
            return self._one_hot(_column(y))
        return self._of_names(self._sets(y)) if self.kind in ("sets", "joined") else self._check_labels(y)

    def answer(self, found: Matrix, X: Matrix = None) -> Any:
        """Return a matrix of 0 and 1 in the format of the first ``y``."""
        if self.kind == "frame":
            return self.answer_type(found, columns=self.classes, index=getattr(X, "index", None))
        if self.kind == "joined":
            return np.array([str(self.separator).join(map(str, row)) for row in self.names(found)], dtype=object)
        return [self.answer_type(row) for row in self.names(found)] if self.kind == "sets" else found

    def as_given(self, found: NDArray[np.bool_]) -> Matrix:
        """Return labels as a matrix of 0 and 1, sparse if the targets were."""
        return sp.csr_array(found.astype(np.int64)) if self.sparse else found.astype(np.int64)

    def names(self, found: Matrix) -> list[list[Any]]:
        """Return the names of the labels of each row."""
        rows = sp.csr_array(found)
        return [self.classes[part].tolist() for part in np.split(rows.indices, rows.indptr[1:-1])]

    def stack(self, batches: Iterable[NDArray[np.bool_]]) -> Matrix:
        """Return the labels of many batches as one matrix, see :meth:`as_given`."""
        found = [self.as_given(batch) for batch in batches]
        return sp.vstack(found, "csr") if self.sparse else np.concatenate(found)

    def _kind(self, y: Matrix) -> Kind:
        if sp.issparse(y) or getattr(y, "ndim", 0) > 1:
            single = y.shape[1] == 1
            return "classes" if single else "frame" if hasattr(y, "columns") else "matrix"
        if _holds_names(y):
            return "sets"
        if self.separator:
            return "joined"
        self._refuse_joined(y)
        if np.ndim(y) == 2 and not np.shape(y)[1]:
            raise ValueError(f"{self.owner}: no row of y has a label")
        return "matrix" if np.ndim(y) == 2 and np.shape(y)[1] != 1 else "classes"

    def _refuse_joined(self, y: Matrix) -> None:
        """Refuse strings such as "a;c", which would become one class for each combination of labels."""
        values = {value for value in np.ravel(np.asarray(y, dtype=object)) if isinstance(value, str)}
        for separator in SEPARATORS if self.separator is None else ():
            joined = sorted(value for value in values if separator in value)
            parts = [part.strip() for value in values for part in value.split(separator)]
            if joined and (separator != "," or len(set(parts)) < len(parts)):
                raise ValueError(
                    f"{self.owner}: y holds {joined[0]!r}, which looks like several labels in one string;"
                    f" {self._remedy(separator)}"
                )

    def _remedy(self, separator: str) -> str:
        if self.can_split:
            return f"label_separator={separator!r} splits it, label_separator='' keeps it as one class"
        return (
            f"for labels pass y=[row.split({separator!r}) for row in y],"
            " for classes pass y=LabelEncoder().fit_transform(y)"
        )

    def _classes(self, y: Matrix, classes: Matrix) -> NDArray[Any]:
        if self.kind in ("sets", "joined"):
            names = {name for row in self._sets(y) for name in row} if classes is None else set(classes)
            return _array_of(sorted(names))
        if self.kind == "classes":
            y = _column(y, warn=True)
            check_classification_targets(y)
            return np.unique(y if classes is None else classes)
        return np.asarray(y.columns) if self.kind == "frame" else np.arange(np.shape(y)[1])

    def _sets(self, y: Matrix) -> list[Collection[Any]]:
        if self.kind == "sets":
            return list(y)
        if not all(isinstance(row, str) for row in y):
            raise ValueError(f"{self.owner}: label_separator={self.separator!r} needs a string for each row of y")
        return [[name.strip() for name in row.split(self.separator) if name.strip()] for row in y]

    def _of_names(self, rows: Sequence[Collection[Any]]) -> NDArray[np.int64]:
        columns = {name: column for column, name in enumerate(self.classes)}
        found = np.zeros((len(rows), len(columns)), dtype=np.int64)
        for row, names in zip(found, rows, strict=True):
            unknown = [name for name in names if name not in columns]
            if unknown:
                raise ValueError(f"{self.owner}: y holds {unknown[0]!r}, which is not among classes={self.classes}")
            row[[columns[name] for name in names]] = 1
        return found

    def _check_labels(self, y: Matrix) -> Matrix:
        if self.kind == "frame" and hasattr(y, "columns"):
            y = self._columns(y)
        y = sp.csr_array(y) if sp.issparse(y) else np.asarray(y)
        if y.ndim != 2 or y.shape[1] != len(self.classes):
            raise ValueError(
                f"{self.owner}: y must be [rows, {len(self.classes)}] of 0 and 1, as in the first call,"
                f" got shape {[*y.shape]}"
            )
        values = y.data if sp.issparse(y) else y
        unknown = (values == -1) | (values != values)
        known = np.where(unknown, 0, values) if unknown.any() else values
        check_classification_targets(_with_values(y, known))
        wrong = known[(known != 0) & (known != 1)]
        if len(wrong):
            raise ValueError(
                f"{self.owner}: y must hold 0 or 1, got {wrong.tolist()[0]!r};"
                " scikit-learn's MultiLabelBinarizer makes such a matrix"
            )
        return _with_values(y, np.where(unknown, np.nan, values)) if unknown.any() else y

    def _columns(self, y: Matrix) -> NDArray[Any]:
        """The columns of a data frame in the order of the first one, with NaN where a value is missing."""
        if set(y.columns) != set(self.classes):
            raise ValueError(f"{self.owner}: y must have the columns {self.classes}, got {np.asarray(y.columns)}")
        missing = hasattr(y, "isna") and y.isna().any(axis=None)
        values = y.to_numpy(dtype=np.float64, na_value=np.nan) if missing else np.asarray(y)
        columns = list(y.columns)
        return values[:, [columns.index(name) for name in self.classes]]

    def _one_hot(self, y: NDArray[Any]) -> NDArray[np.bool_]:
        unknown = np.setdiff1d(y, self.classes)
        if len(unknown):
            raise ValueError(f"{self.owner}: y holds {unknown[0]!r}, which is not among classes={self.classes}")
        found: NDArray[np.bool_] = y[:, None] == self.classes
        return found


def label_score(model: Any, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> float:
    """F-beta of ``model.average`` and ``model.beta``; for 1-d targets, accuracy. Unknown labels are ignored."""
    found, targets = model.predict(X), model._targets
    if targets.one_class:
        return float(accuracy_score(y, found, sample_weight=sample_weight))
    y, found = targets.indicator(y), targets.indicator(found)
    if has_unknown(y):
        y, found = (part.toarray() if sp.issparse(part) else part for part in (y, found))
        known = ~np.isnan(y).all(1)
        y, found = np.nan_to_num(y[known]), np.where(np.isnan(y), 0, found)[known]
        sample_weight = None if sample_weight is None else np.asarray(sample_weight)[known]
    score = fbeta_score(
        y, found, beta=model.beta, average=model.average, sample_weight=sample_weight, zero_division=1.0
    )
    return float(score)


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
    deficit = [[rows / folds] * folds for rows in left.tolist()]  # of each label in each fold
    free = [labels.shape[0] / folds] * folds
    found = np.full(labels.shape[0], -1, dtype=np.intp)

    def assign(row: int, wanted: list[float]) -> None:
        best = _largest(free, _largest(wanted, range(folds)))
        fold = found[row] = best[random.randint(len(best))]
        of_row = labels.indices[labels.indptr[row] : labels.indptr[row + 1]]
        for label in of_row.tolist():
            deficit[label][fold] -= 1
        left[of_row] -= 1
        free[fold] -= 1

    while (left > 0).any():
        label = np.where(left > 0, left, np.inf).argmin()
        rows = rows_with.indices[rows_with.indptr[label] : rows_with.indptr[label + 1]]
        for row in random.permutation(rows[found[rows] < 0]):
            assign(row, deficit[label])
    for row in random.permutation(np.flatnonzero(found < 0)):
        assign(row, free)
    return found


def _largest(values: Sequence[float], places: Sequence[int]) -> list[int]:
    """The places of the largest value."""
    largest = max(values[i] for i in places)
    return [i for i in places if values[i] == largest]


def has_unknown(Y: Matrix) -> bool:
    """Whether a matrix of labels holds NaN."""
    values = np.asarray(Y.data if sp.issparse(Y) else Y)
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def _with_values(y: Matrix, values: NDArray[Any]) -> Matrix:
    return sp.csr_array((values, y.indices, y.indptr), shape=y.shape) if sp.issparse(y) else values


def _column(y: Matrix, warn: bool = False) -> NDArray[Any]:
    y = column_or_1d(y.toarray() if sp.issparse(y) else y, warn=warn)
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    return np.asarray(y)


def _holds_names(y: Matrix) -> bool:
    """A list, or a 1-d array, of sets or of lists that are not the rows of a matrix of numbers."""
    rows = list(y) if hasattr(y, "__iter__") else []
    if not rows or not all(isinstance(row, list | tuple | set | frozenset) for row in rows):
        return False
    names = any(isinstance(name, str) for row in rows for name in row)
    return names or isinstance(rows[0], set | frozenset) or len({len(row) for row in rows}) > 1


def _array_of(names: list[Any]) -> NDArray[Any]:
    return np.array(names) if all(isinstance(name, str) for name in names) else np.array(names, dtype=object)
