"""The scores of any scikit-learn classifier for multi-label targets, as log-odds in one form."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples, has_fit_parameter

from rsoftmax.sklearn.data import Matrix


class LabelModel:
    """One estimator, fitted to the labels that vary among its rows.

    Args:
        estimator: any classifier; of one that takes a single label at a time there is a copy for each.

    Attributes:
        models_: the fitted copy, or the copies for the labels one by one.

    Labels that all rows share, or that no row has, are not shown to the estimator: its answer for them is NaN.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Matrix, Y: NDArray[np.int64], weight: NDArray[np.float64] | None = None) -> "LabelModel":
        """Fit copies of the estimator, with weights of the rows if it takes them; a frozen one stays as it is."""
        self.labels_ = Y.shape[1]
        if isinstance(self.estimator, FrozenEstimator):
            self.varying_, self.models_ = np.arange(self.labels_), [self.estimator]
            return self
        count = Y.sum(0)
        self.varying_ = np.flatnonzero((count > 0) & (count < len(Y)))
        together = len(self.varying_) > 1 and _takes_labels(self.estimator)
        targets = [Y[:, self.varying_]] if together else [Y[:, label] for label in self.varying_]
        name = None if weight is None else weight_name(self.estimator)
        given = {} if name is None else {name: weight}
        self.models_ = [clone(self.estimator).fit(X, y, **given) for y in targets]
        return self

    def log_odds(self, X: Matrix) -> NDArray[np.float64]:
        """Log-odds [rows, K]; NaN for labels that did not vary."""
        found = np.full((_num_samples(X), self.labels_), np.nan)
        if self.models_:
            labels = len(self.varying_) // len(self.models_)
            found[:, self.varying_] = np.concatenate([_log_odds(model, X, labels) for model in self.models_], axis=1)
        return found


def weight_name(estimator: Any) -> str | None:
    """The argument of ``fit`` that brings weights of rows to the estimator, in a pipeline to its last step.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> from sklearn.pipeline import make_pipeline
        >>> weight_name(make_pipeline(LogisticRegression())), weight_name(KNeighborsClassifier())
        ('logisticregression__sample_weight', None)
    """
    if hasattr(estimator, "steps"):
        step, last = estimator.steps[-1]
        name = weight_name(last)
        return None if name is None else f"{step}__{name}"
    return "sample_weight" if has_fit_parameter(estimator, "sample_weight") else None


def _takes_labels(estimator: Any) -> bool:
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    tags = get_tags(estimator)
    return bool(tags.classifier_tags and (tags.classifier_tags.multi_label or tags.target_tags.multi_output))


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
