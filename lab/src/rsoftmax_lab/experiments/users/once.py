"""An estimator that caches its fits, so that repeated fits to the same rows are free."""

from collections import OrderedDict
from typing import Any, Self

import joblib
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import Tags, get_tags

from rsoftmax_lab.comparison import Matrix

KEPT = 10  # cached fits: two estimators of five folds; forests with many labels take gigabytes
_FITS: OrderedDict[str, Any] = OrderedDict()


def forget() -> None:
    """Empty the cache."""
    _FITS.clear()


class Once(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator with a seed whose last fits are cached, because all averages need the same ones.

    Args:
        estimator: any classifier whose fit depends only on its settings and the rows.
        oob_score: whether a forest keeps its out-of-bag predictions.
    """

    def __init__(self, estimator: Any, oob_score: bool = False) -> None:
        self.estimator = estimator
        self.oob_score = oob_score

    def fit(self, X: Matrix, y: NDArray[Any]) -> Self:
        """Fit, or reuse the cached fit to the same rows."""
        estimator = clone(self.estimator)
        if self.oob_score:
            estimator.set_params(oob_score=True)
        name = joblib.hash((estimator, X, y))
        if name not in _FITS:
            _FITS[name] = estimator.fit(X, y)
        _FITS.move_to_end(name)
        while len(_FITS) > KEPT:
            _FITS.popitem(last=False)
        self.model_ = _FITS[name]
        self.classes_ = getattr(self.model_, "classes_", None)
        return self

    @property
    def oob_decision_function_(self) -> Any:
        """The out-of-bag probabilities of the fitted model."""
        return self.model_.oob_decision_function_

    def predict_proba(self, X: Matrix) -> Any:
        """The probabilities of the fitted model."""
        return self.model_.predict_proba(X)

    def __sklearn_tags__(self) -> Tags:
        return get_tags(self.estimator)
