"""The ``y`` of scikit-learn: a matrix of labels, sets of names, or one class per sample; and scores."""

from collections import Counter
from collections.abc import Collection, Iterable
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
        y: labels [samples, K], 0 or 1, as an array, a sparse matrix or a data frame, NaN or -1 where unknown; lists or
            sets of names, one per sample; strings of names, if the estimator has a ``label_separator`` such as ";";
            or classes [samples].
        estimator: named in errors.
        classes: all classes, if ``y`` is 1-d and may lack some; all names, if it holds sets; the names of the columns
            of a matrix, which may then have a single one.

    Attributes:
        kind: "classes": every sample has exactly one, because ``y`` is 1-d or a single column; "matrix"; "frame": a
            data frame; "sets": of names; "joined": names in one string.
        classes: the classes; a data frame's columns; the names; otherwise the column numbers.
        sparse: whether ``y`` is a sparse matrix.
    """

    def __init__(self, y: Matrix, estimator: Any, classes: Matrix = None) -> None:
        self.owner, self.separator = type(estimator).__name__, getattr(estimator, "label_separator", None)
        if y is None:
            raise ValueError(f"This {self.owner} estimator requires y to be passed, but the target y is None.")
        y = y if hasattr(y, "__len__") or sp.issparse(y) else np.asarray(y)
        self.kind = self._kind(y, classes, hasattr(estimator, "label_separator"))
        self.sparse: bool = sp.issparse(y)
        self.container: type = list
        if self.kind in ("frame", "sets"):
            self.container = type(y) if self.kind == "frame" else type(next(iter(y), []))
        self.classes: NDArray[Any] = self._classes(y, classes)

    @property
    def one_class(self) -> bool:
        """Whether every sample has exactly one class."""
        return self.kind == "classes"

    def indicator(self, y: Matrix, classes: Matrix = None) -> Matrix:
        """Return the labels as a matrix [samples, K] of 0 and 1, dense or CSR, NaN where unknown."""
        if classes is not None and not np.array_equal(np.unique(classes), np.unique(self.classes)):
            raise ValueError(f"{self.owner}: {classes=} differ from those of the targets, {self.classes}; omit them")
        if self.kind == "classes":
            y = _column(y)
            self._refuse(np.setdiff1d(y, self.classes))
            return y[:, None] == self.classes
        if self.kind in ("matrix", "frame"):
            return self._check_matrix(y)
        samples, columns = self._sets(y), {name: column for column, name in enumerate(self.classes)}
        Y = np.zeros((len(samples), len(columns)), dtype=np.int64)
        for indicator, names in zip(Y, samples, strict=True):
            self._refuse([name for name in names if name not in columns])
            indicator[[columns[name] for name in names]] = 1
        return Y

    def inverse_transform(self, Y: Matrix, X: Matrix = None) -> Any:
        """Return a matrix of 0 and 1 in the format of the first ``y``; a data frame has the index of X."""
        if self.kind == "frame":
            return self.container(Y, columns=self.classes, index=getattr(X, "index", None))
        if self.kind == "joined":
            return np.array([str(self.separator).join(map(str, names)) for names in self.names(Y)], dtype=object)
        return [self.container(names) for names in self.names(Y)] if self.kind == "sets" else Y

    def names(self, Y: Matrix) -> list[list[Any]]:
        """Return the names of the labels of each sample."""
        Y = sp.csr_array(Y)
        return [self.classes[labels].tolist() for labels in np.split(Y.indices, Y.indptr[1:-1])]

    def matrix(self, batches: Iterable[NDArray[np.bool_]]) -> Matrix:
        """Return the labels of batches of samples as one matrix of 0 and 1, sparse if the targets were."""
        if self.sparse:
            return sp.vstack([sp.csr_array(Y.astype(np.int64)) for Y in batches], "csr")
        return np.concatenate([Y.astype(np.int64) for Y in batches])

    def _kind(self, y: Matrix, classes: Matrix, can_split: bool) -> Kind:
        if sp.issparse(y) or getattr(y, "ndim", 0) > 1:
            single = y.shape[1] == 1 and np.shape(classes) != (1,)
            return "classes" if single else "frame" if hasattr(y, "columns") else "matrix"
        if _holds_names(y):
            return "sets"
        if self.separator:
            return "joined"
        if self.separator is None:
            self._refuse_joined(y, can_split)
        if np.ndim(y) == 2 and not np.shape(y)[1]:
            raise ValueError(f"{self.owner}: no sample has a label; y holds empty lists only")
        return "matrix" if np.ndim(y) == 2 and np.shape(y)[1] != 1 else "classes"

    def _refuse_joined(self, y: Matrix, can_split: bool) -> None:
        """Refuse strings such as "a;c", which would become one class for each combination of labels."""
        texts = {text for text in np.ravel(np.asarray(y, dtype=object)) if isinstance(text, str)}
        for separator in SEPARATORS:
            joined = sorted(text for text in texts if separator in text)
            parts = [part.strip() for text in texts for part in text.split(separator)]
            if joined and (separator != "," or len(set(parts)) < len(parts)):
                labels, classes = f"y=[s.split({separator!r}) for s in y]", "y=LabelEncoder().fit_transform(y)"
                if can_split:
                    labels, classes = f"label_separator={separator!r}", "label_separator=''"
                raise ValueError(
                    f"{self.owner}: y holds {joined[0]!r}, which looks like several labels in one string;"
                    f" for labels pass {labels}, for classes pass {classes}"
                )

    def _classes(self, y: Matrix, classes: Matrix) -> NDArray[Any]:
        if self.kind in ("sets", "joined"):
            unique = {name for names in self._sets(y) for name in names} if classes is None else set(classes)
            try:
                names = sorted(unique)
            except TypeError as error:
                types = ", ".join(sorted({type(name).__name__ for name in unique}))
                raise ValueError(f"{self.owner}: y must hold names of one type, got {types}; use str") from error
            return np.array(names, dtype=None if all(isinstance(name, str) for name in names) else object)
        if self.kind == "classes":
            y = _column(y, warn=True)
            check_classification_targets(y)
            return np.unique(y if classes is None else classes)
        columns = y.columns if self.kind == "frame" else range(np.shape(y)[1])
        columns = classes if np.shape(classes) == np.shape(columns) else columns
        if repeated := [name for name, count in Counter(columns).items() if count > 1]:
            raise ValueError(f"{self.owner}: y has several columns {repeated[0]!r}; rename them, or keep one")
        return np.asarray(columns)

    def _sets(self, y: Matrix) -> list[Collection[Any]]:
        if self.kind == "sets":
            return list(y)
        if not all(isinstance(names, str) for names in y):
            raise ValueError(f"{self.owner}: label_separator={self.separator!r} needs a string for each sample of y")
        return [[name.strip() for name in names.split(self.separator) if name.strip()] for names in y]

    def _refuse(self, unknown: Matrix) -> None:
        if len(unknown):
            raise ValueError(f"{self.owner}: y holds {unknown[0]!r}, which is not among classes={self.classes}")

    def _check_matrix(self, y: Matrix) -> Matrix:
        if self.kind == "frame" and hasattr(y, "columns"):
            y = self._columns(y)
        y = sp.csr_array(y) if sp.issparse(y) else np.asarray(y)
        y = np.array(y.tolist()) if y.dtype == object else y  # of numbers, such as a column of pandas' "Int64"
        if y.ndim != 2 or y.shape[1] != len(self.classes):
            raise ValueError(
                f"{self.owner}: y must be [samples, {len(self.classes)}] of 0 and 1, as in the first call,"
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
        if Counter(y.columns) != Counter(self.classes):
            raise ValueError(f"{self.owner}: y must have the columns {self.classes}, got {np.asarray(y.columns)}")
        missing = hasattr(y, "isna") and y.isna().any(axis=None)
        values = y.to_numpy(na_value=np.nan) if missing else np.asarray(y)
        columns = list(y.columns)
        return values[:, [columns.index(name) for name in self.classes]]


def label_score(model: Any, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> float:
    """F-beta with the options of the model; for 1-d targets, accuracy. Unknown labels are ignored."""
    predicted, targets = model.predict(X), model._targets
    if targets.one_class:
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))
    y, predicted = targets.indicator(y), targets.indicator(predicted)
    if has_unknown(y):
        y, predicted = (Y.toarray() if sp.issparse(Y) else Y for Y in (y, predicted))
        known = ~np.isnan(y).all(1)
        y, predicted = np.nan_to_num(y[known]), np.where(np.isnan(y), 0, predicted)[known]
        sample_weight = None if sample_weight is None else np.asarray(sample_weight)[known]
    options = {"beta": model.beta, "average": model.average, "sample_weight": sample_weight}
    return float(fbeta_score(y, predicted, zero_division=model.zero_division, **options))


def has_unknown(Y: Matrix) -> bool:
    """Whether a matrix of labels contains NaN."""
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
    samples = list(y) if hasattr(y, "__iter__") else []
    if not samples or not all(isinstance(names, list | tuple | set | frozenset) for names in samples):
        return False
    texts = any(isinstance(name, str) for names in samples for name in names)
    return texts or isinstance(samples[0], set | frozenset) or len({len(names) for names in samples}) > 1
