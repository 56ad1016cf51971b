"""Label sets with a guaranteed recall or precision, from any scikit-learn classifier."""

import warnings
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.utils import check_random_state
from torch import Tensor

from rsoftmax.labels.estimators.meta import LabelMetaClassifier, Split, constant_labels
from rsoftmax.labels.estimators.targets import Matrix
from rsoftmax.labels.models.card import list_names
from rsoftmax.labels.risk_control import By, guaranteed_threshold

__all__ = ["RiskControlledClassifier"]


class RiskControlledClassifier(LabelMetaClassifier):
    """Predicts label sets with a guaranteed recall or precision, on top of any classifier.

    The estimator is fitted on some of the samples. The scores of the others, which it has not seen, yield the threshold
    above which labels are predicted. The guarantee holds for samples that are exchangeable with these, whatever their
    distribution and however good the classifier. Sets are as small as the recall allows, or as large as the precision
    allows: a poor classifier needs larger sets for a recall, and finds smaller ones for a precision.

    Args:
        estimator: a classifier with ``predict_proba`` or ``decision_function``, for multi-label targets or for one
            label at a time; or a ``FrozenEstimator``, fitted on other samples: all passed here are held out.
        recall: the guaranteed recall, such as 0.9.
        precision: the guaranteed precision, with ``confidence``; pass either recall or precision.
        by: "samples": the mean recall of samples that have a label, or the mean precision; "micro": over all entries;
            "label": for each label, with a threshold of its own.
        confidence: None: in expectation over held-out and new samples, for recall only; or the probability, over the
            held-out ones, with which the guarantee holds, such as 0.95; with "label", for all labels at once.
        cv: what is held out: an integer n for one of n parts drawn at random, a fraction, a splitter or splits with a
            single split. A guarantee needs one model that has not seen the samples: folds cannot be averaged.
        n_jobs: the number of parallel fits, as in joblib.
        random_state: seeds the split.
        verbose: 1 shows a progress bar of fits.

    Attributes:
        classes_: the labels: a data frame's columns, names, or column numbers.
        thresholds_: the thresholds on ``decision_function``, [1], or [K] for "label".
        uncontrolled_: for "label", the labels with too few held-out samples for a guarantee; they use the threshold of
            "micro", and a warning lists them.
        models_: for the estimator, its fitted model.

    Example:
        >>> from sklearn.datasets import make_multilabel_classification
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, Y = make_multilabel_classification(1000, n_classes=6, random_state=0)
        >>> model = RiskControlledClassifier(LogisticRegression(), recall=0.9, random_state=0).fit(X[:600], Y[:600])
        >>> predicted, Y = model.predict(X[600:]), Y[600:]
        >>> some = Y.any(1)
        >>> round(float(((predicted * Y).sum(1)[some] / Y.sum(1)[some]).mean()), 1)
        0.9

    For a 1-d ``y`` of classes ``predict_labels`` returns the guaranteed sets, and ``predict`` the most probable class.
    Sets are the supports of t-softmax, see :mod:`rsoftmax.labels.risk_control`. For thresholds on calibrated
    marginals wrap the estimator: ``RiskControlledClassifier(ExpectedF1Classifier(forest), recall=0.9)``.

    References: Angelopoulos et al., Conformal risk control (2022), Learn then test (2021).
    """

    _use_of_weights = "the weights are not used"

    def __init__(
        self,
        estimator: Any,
        *,
        recall: float | None = None,
        precision: float | None = None,
        by: By = "samples",
        confidence: float | None = None,
        cv: Any = 5,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.recall = recall
        self.precision = precision
        self.by = by
        self.confidence = confidence
        self.cv = cv
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Matrix, y: Matrix, sample_weight: Matrix = None, **fit_params: Any) -> Self:
        """Fit the estimator on some samples and the thresholds on the others.

        Args:
            X: features, in any format that the estimator takes.
            y: labels [samples, K], 0 or 1, NaN or -1 where unknown; or sets of names.
            sample_weight: weights of the samples, [samples], for the estimator alone; held-out samples count equally.
            fit_params: ``groups`` for the splitter, and arguments of the estimator's ``fit``.
        """
        if (self.recall is None) == (self.precision is None):
            raise ValueError(
                f"{self._owner}: pass either recall or precision, got recall={self.recall!r},"
                f" precision={self.precision!r}"
            )
        X, Y, weight = self._check(X, y, sample_weight)
        routed = self._route(weight, fit_params)
        splits = self._splits(X, Y, routed)
        held_out, models = self._cross_fit(X, Y, splits, routed)
        test = splits[0][1] if splits else np.arange(len(Y))
        self._constant = constant_labels(Y[splits[0][0]]) if splits else np.full(Y.shape[1], np.nan)
        u, y = self._fill(torch.from_numpy(held_out[0][test])), torch.from_numpy(Y[test].astype(np.float64))
        level: dict[str, Any] = {name: getattr(self, name) for name in ("recall", "precision", "by", "confidence")}
        thresholds, controlled = guaranteed_threshold(u, y, **level)
        self.uncontrolled_ = self.classes_[~controlled.numpy()]
        self.thresholds_, self.models_ = thresholds.numpy(), models
        if len(self.uncontrolled_):
            names = list_names(map(repr, self.uncontrolled_.tolist()))
            warnings.warn(
                f"{self._owner}: {len(self.uncontrolled_)} of {len(self.classes_)} labels have too few held-out samples"
                f" for a guarantee and take the threshold of all labels: {names}",
                stacklevel=2,
            )
        return self

    def _splits(self, X: Matrix, Y: NDArray[Any], routed: Any) -> list[Split]:
        """One split, drawn without looking at the labels."""
        if len(self._named_estimators()) > 1:
            raise ValueError(f"{self._owner}: needs one estimator, got a list; ExpectedF1Classifier averages several")
        if isinstance(self.estimator, FrozenEstimator):
            return []
        if isinstance(self.cv, int | float | np.number) and self.cv > 0:
            n = round(len(Y) * (self.cv if self.cv < 1 else 1 / self.cv))
            order = check_random_state(self.random_state).permutation(len(Y))
            splits = [(np.sort(order[n:]), np.sort(order[:n]))]
        else:
            splits = super()._splits(X, Y, routed)
        if len(splits) != 1 or not all(map(len, splits[0])):
            raise ValueError(
                f"{self._owner}: cv must hold out one part of at least two samples, got cv={self.cv!r} and n_samples ="
                f" {len(Y)}"
            )
        return splits

    def _combine(self, scores: list[list[Tensor]]) -> Tensor:
        return scores[0][0]

    def _decide(self, log_odds: Tensor) -> Tensor:
        return log_odds >= torch.from_numpy(self.thresholds_)
