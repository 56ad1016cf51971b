"""The scores of any scikit-learn classifier for multi-label targets, as log-odds in one form."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples

from rsoftmax.sklearn.data import Matrix


class LabelModel:
    """One estimator, fitted to the labels that vary among its rows.

    Args:
        estimator: any classifier; one that takes a single label at a time is put into a ``OneVsRestClassifier``.

    Labels that all rows share, or that no row has, are not shown to the estimator: its answer for them is NaN.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Matrix, Y: NDArray[np.int64]) -> "LabelModel":
        """Fit a copy of the estimator; a frozen one stays as it is."""
        self.labels_ = Y.shape[1]
        if isinstance(self.estimator, FrozenEstimator):
            self.varying_, self.model_ = np.arange(self.labels_), self.estimator
            return self
        count = Y.sum(0)
        self.varying_ = np.flatnonzero((count > 0) & (count < len(Y)))
        if len(self.varying_):
            several = len(self.varying_) > 1
            y = Y[:, self.varying_] if several else Y[:, self.varying_[0]]
            self.model_ = _for_labels(clone(self.estimator), several).fit(X, y)
        return self

    def log_odds(self, X: Matrix) -> NDArray[np.float64]:
        """Log-odds [rows, K]; NaN for labels that did not vary."""
        found = np.full((_num_samples(X), self.labels_), np.nan)
        if len(self.varying_):
            found[:, self.varying_] = _log_odds(self.model_, X, len(self.varying_))
        return found


def _for_labels(estimator: Any, several: bool) -> Any:
    last = estimator
    while hasattr(last, "steps"):
        last = last.steps[-1][1]
    tags = get_tags(last)
    takes_labels = tags.classifier_tags and (tags.classifier_tags.multi_label or tags.target_tags.multi_output)
    return estimator if takes_labels or not several else OneVsRestClassifier(estimator)


def _log_odds(model: Any, X: Matrix, labels: int) -> NDArray[np.float64]:
    """From ``predict_proba``, an array or a list of arrays, or else ``decision_function``."""
    if hasattr(model, "predict_proba"):
        p = model.predict_proba(X)
        columns = _of_list(model, p) if isinstance(p, list) else _of_array(p, labels)
        return logit(columns)
    if hasattr(model, "decision_function"):
        scores: NDArray[np.float64] = np.asarray(model.decision_function(X), dtype=np.float64)
        return scores.reshape(len(scores), -1)
    raise ValueError(f"ExpectedF1Classifier: {model!r} has neither predict_proba nor decision_function")


def _of_array(p: Matrix, labels: int) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.asarray(p.toarray() if sp.issparse(p) else p, dtype=np.float64)
    return found[:, 1:] if labels == 1 and found.shape[1] == 2 else found


def _of_list(model: Any, p: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """As forests answer: for each label an array with a column for each of its classes, 0 and 1 or one of them."""
    classes = getattr(model, "classes_", None) or [np.arange(2)] * len(p)
    columns = [_of_positive(column, of_label) for column, of_label in zip(p, classes, strict=True)]
    return np.stack(columns, axis=1)


def _of_positive(p: NDArray[np.float64], classes: NDArray[Any]) -> NDArray[np.float64]:
    if p.shape[1] == 2:
        return p[:, 1]
    return np.full(len(p), float(classes[0]))


def logit(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds; infinite for 0 and 1."""
    with np.errstate(divide="ignore"):
        odds: NDArray[np.float64] = np.log(p) - np.log1p(-p)
    return odds
