"""The labels with the highest expected F1, from any scikit-learn classifier."""

import warnings
from collections.abc import Callable
from typing import Any, Self

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Tags, _safe_indexing, check_random_state, get_tags, indexable
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted
from torch import Tensor
from tqdm.auto import tqdm

from rsoftmax.multilabel import Average, Decoder, PlattScaling
from rsoftmax.sklearn.data import Matrix
from rsoftmax.sklearn.folds import stratified_folds
from rsoftmax.sklearn.marginals import LabelModel, weight_name
from rsoftmax.sklearn.scoring import label_score
from rsoftmax.sklearn.targets import Targets

OWNER = "ExpectedF1Classifier"
CALIBRATIONS = ("platt", None)
TINY = np.finfo(np.float64).tiny


class ExpectedF1Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Any classifier, with the labels that maximise the F1 that counts: no threshold to tune.

    The estimator is fitted on all folds but one and asked about that one, for each fold. These out-of-fold scores are
    calibrated, label by label, and the calibrated marginals alone say where to cut. A prediction is the mean of the
    log-odds of the fold models: on the training rows of four sets that was better than one more fit on all rows, and it
    costs less to fit.

    Args:
        estimator: a classifier with ``predict_proba`` or ``decision_function``, for multi-label targets or for one
            label at a time; a list of them, whose marginals are averaged; or a ``FrozenEstimator``, fitted on other
            rows, for which all rows given here are out-of-fold.
        average: the F1 that counts: "micro" has one cut, "macro" a cut for each label, "samples" decides row by row.
        beta: recall counts beta times as much as precision.
        calibration: "platt", or None: scores are log-odds already.
        cv: the number of folds, in each of which all labels are spread evenly; or a splitter of scikit-learn.
        at_least: the smallest number of labels of a row.
        at_most: the largest; None: all.
        n_jobs: how many fits run at once, as joblib counts.
        random_state: seed of the folds.
        progress: show a bar of fits.

    Attributes:
        classes_: the labels: a data frame's columns, names, or column numbers; for 1-d targets, the classes.
        cuts_: the cut, or the cuts, as marginals: one for "micro", [K] for "macro", None for "samples".
        models_: for each estimator, its fold models, :class:`rsoftmax.sklearn.marginals.LabelModel`.
        decoder_: the :class:`rsoftmax.multilabel.Decoder`, calibration and cuts.
        n_features_in_: the number of features, if the estimators say it.

    Example:
        >>> from sklearn.datasets import make_multilabel_classification
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> X, Y = make_multilabel_classification(400, n_classes=6, random_state=0)
        >>> forest = RandomForestClassifier(50, random_state=0)
        >>> model = ExpectedF1Classifier(forest, random_state=0).fit(X[:300], Y[:300])
        >>> model.cuts_.round(1)
        array([0.3])
        >>> model.predict(X[300:302])
        array([[0, 1, 0, 0, 0, 1],
               [0, 0, 0, 0, 0, 0]])

    ``y`` may be a matrix, dense or sparse, a data frame, lists or sets of names; ``predict`` answers in kind. A 1-d
    ``y`` of classes means that every row has one: the most probable is predicted. Labels that never occur are never
    predicted, those that always occur always; labels that occur in one fold only have no out-of-fold scores worth the
    name; a warning names both.
    """

    def __init__(
        self,
        estimator: Any,
        average: Average = "micro",
        beta: float = 1.0,
        calibration: str | None = "platt",
        cv: Any = 5,
        at_least: int = 0,
        at_most: int | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        *,
        progress: bool = False,
    ) -> None:
        self.estimator = estimator
        self.average = average
        self.beta = beta
        self.calibration = calibration
        self.cv = cv
        self.at_least = at_least
        self.at_most = at_most
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> Self:
        """Fit the estimators, their calibration and the cuts.

        Args:
            X: features, in any form that the estimators take.
            y: labels [rows, K], 0 or 1; sets of names; or classes [rows].
            sample_weight: of the rows, [rows]; for estimators that take it, for calibration and for the cuts.
        """
        (X,) = indexable(X)
        self._targets = Targets(y, owner=OWNER)
        Y = _dense(self._targets.indicator(y))
        check_consistent_length(X, Y)
        self.classes_ = self._targets.classes
        decoder = Decoder(len(self.classes_), self.average, self.beta, self.at_least, self.at_most)
        if self.calibration not in CALIBRATIONS:
            raise ValueError(f"{OWNER}: calibration must be one of {CALIBRATIONS}, got {self.calibration!r}")
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, Y, dtype=np.float64)
        held_out, self.models_ = self._fits(X, Y, weight)
        self._limits = [_limits(odds) for odds in held_out]
        self._constant = np.where(Y.all(0), np.inf, np.where(Y.any(0), np.nan, -np.inf))
        known = torch.from_numpy(Y).double()
        counted = None if weight is None else torch.from_numpy(weight / max(weight.mean(), TINY))[:, None]
        self._members = self._member_calibrations(held_out, known, counted)
        odds = self._averaged(held_out)
        self.decoder_ = decoder.fit(odds, known, weight=counted, calibrate=self.calibration is not None)
        self._copy_attributes()
        return self

    @property
    def cuts_(self) -> NDArray[np.float64] | None:
        """The cuts as marginals; None if rows decide for themselves."""
        return None if self.average == "samples" else self.decoder_.cut.double().sigmoid().numpy()

    def predict(self, X: Matrix) -> Any:
        """The labels, in the form in which they came; for 1-d targets, the classes [rows]."""
        odds = self._odds(X)
        if self._targets.one_class:
            return self.classes_[odds.argmax(1)]
        return self._targets.answer(self._found(odds), X)

    def predict_labels(self, X: Matrix) -> list[list[Any]]:
        """The names of the labels of each row."""
        return self._targets.names(self._found(self._odds(X)))

    def predict_proba(self, X: Matrix) -> NDArray[np.float64]:
        """The calibrated marginals [rows, K]; for 1-d targets they are divided by their sum."""
        odds = self._odds(X)
        pi: NDArray[np.float64] = torch.from_numpy(odds).sigmoid().numpy()
        return pi / pi.sum(1, keepdims=True) if self._targets.one_class else pi

    def decision_function(self, X: Matrix) -> NDArray[np.float64]:
        """The calibrated log-odds [rows, K]; for two classes, the difference [rows]."""
        odds = self._odds(X)
        return odds[:, 1] - odds[:, 0] if self._targets.one_class and odds.shape[1] == 2 else odds

    def score(self, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> float:
        """The F1 that was asked for; for 1-d targets, accuracy."""
        return label_score(self, X, y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        inner = [get_tags(estimator).input_tags for estimator in self._estimators()]
        tags.input_tags.sparse = all(tag.sparse for tag in inner)
        tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
        tags.classifier_tags.multi_label = True
        return tags

    def _estimators(self) -> list[Any]:
        return list(self.estimator) if isinstance(self.estimator, list | tuple) else [self.estimator]

    def _fits(
        self, X: Matrix, Y: NDArray[np.int64], weight: NDArray[np.float64] | None
    ) -> tuple[list[NDArray[np.float64]], list[list[LabelModel]]]:
        """The out-of-fold log-odds of each estimator, and its fold models."""
        estimators, rows = self._estimators(), np.arange(len(Y))
        frozen = [isinstance(estimator, FrozenEstimator) for estimator in estimators]
        if weight is not None:
            _warn_of_unweighted([one for one, fitted in zip(estimators, frozen, strict=True) if not fitted])
        folds = [] if all(frozen) else self._splits(X, Y)
        splits = [[(rows, rows)] if fitted else folds for fitted in frozen]
        tasks = [(i, train, test) for i, of_estimator in enumerate(splits) for train, test in of_estimator]
        calls = [(_fit_and_ask, (estimators[i], X, Y, weight, train, test)) for i, train, test in tasks]
        done = self._in_parallel(calls)
        held_out = [np.full(Y.shape, np.nan) for _ in estimators]
        models: list[list[LabelModel]] = [[] for _ in estimators]
        for (i, _, test), (model, odds) in zip(tasks, done, strict=True):
            held_out[i][test] = odds
            models[i].append(model)
        return held_out, models

    def _in_parallel(self, calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Any]:
        parallel = joblib.Parallel(self.n_jobs, return_as="generator")
        done = parallel(joblib.delayed(function)(*arguments) for function, arguments in calls)
        return list(tqdm(done, total=len(calls), unit="fit", disable=not self.progress))

    def _splits(self, X: Matrix, Y: NDArray[np.int64]) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        if hasattr(self.cv, "split"):
            return list(self.cv.split(X, Y))
        folds = min(self.cv, len(Y))
        if not isinstance(folds, int | np.integer) or folds < 2:
            raise ValueError(
                f"{OWNER}: needs two folds and two rows at least, got cv={self.cv!r} and n_samples = {len(Y)}"
            )
        fold = stratified_folds(Y, int(folds), check_random_state(self.random_state))
        self._warn_of_rare(Y, fold)
        return [(np.flatnonzero(fold != i), np.flatnonzero(fold == i)) for i in range(folds)]

    def _warn_of_rare(self, Y: NDArray[np.int64], fold: NDArray[np.intp]) -> None:
        if self._targets.one_class:
            return
        in_folds = np.stack([Y[fold == i].any(0) for i in np.unique(fold)]).sum(0)
        for meaning, rare in (("never", in_folds == 0), ("in one fold only", in_folds == 1)):
            if rare.any():
                warnings.warn(
                    f"{OWNER}: {rare.sum()} of {len(rare)} labels occur {meaning},"
                    f" {', '.join(map(repr, self.classes_[rare][:5].tolist()))}{', ...' if rare.sum() > 5 else ''};"
                    " nothing can be said of how well they are found",
                    stacklevel=4,
                )

    def _member_calibrations(
        self, held_out: list[NDArray[np.float64]], known: Tensor, weight: Tensor | None
    ) -> list[PlattScaling]:
        """Calibrations of the single estimators, needed to average marginals of several."""
        members = [PlattScaling(len(self.classes_)) for _ in held_out]
        if len(members) > 1 and self.calibration is not None:
            for scaling, odds, limits in zip(members, held_out, self._limits, strict=True):
                scaling.fit(torch.from_numpy(odds.clip(*limits)), known, weight)
        return members

    def _averaged(self, scores: list[NDArray[np.float64]]) -> Tensor:
        """One log-odds for each entry: of the mean of the estimators' marginals; NaN where none has a score."""
        odds = [
            scaling(torch.from_numpy(score.clip(*limits)))
            for score, scaling, limits in zip(scores, self._members, self._limits, strict=True)
        ]
        return odds[0] if len(odds) == 1 else torch.stack(odds).sigmoid().nanmean(0).logit()

    def _odds(self, X: Matrix) -> NDArray[np.float64]:
        """Calibrated log-odds [rows, K]; infinite for labels that never or always occurred."""
        check_is_fitted(self, "decoder_")
        members = zip(self.models_, self._limits, strict=True)
        scores = [_mean([model.log_odds(X).clip(*limits) for model in models]) for models, limits in members]
        odds = self.decoder_.calibration(self._averaged(scores)).numpy()
        constant = ~np.isnan(self._constant)
        odds[:, constant] = self._constant[constant]
        if np.isnan(odds).any():
            raise ValueError(f"{OWNER}: an estimator answers with NaN for {np.isnan(odds).any(1).sum()} rows")
        return np.asarray(odds)

    def _found(self, odds: NDArray[np.float64]) -> Matrix:
        return self._targets.as_given(self.decoder_.decided(torch.from_numpy(odds)).labels.numpy())

    def _copy_attributes(self) -> None:
        for name in ("n_features_in_", "feature_names_in_"):
            for model in (one for models in self.models_ for fold in models for one in fold.models_):
                if hasattr(model, name):
                    setattr(self, name, getattr(model, name))


def _fit_and_ask(
    estimator: Any,
    X: Matrix,
    Y: NDArray[np.int64],
    weight: NDArray[np.float64] | None,
    train: NDArray[np.intp],
    test: NDArray[np.intp],
) -> tuple[LabelModel, NDArray[np.float64]]:
    model = LabelModel(estimator).fit(_safe_indexing(X, train), Y[train], None if weight is None else weight[train])
    return model, model.log_odds(_safe_indexing(X, test))


def _warn_of_unweighted(estimators: list[Any]) -> None:
    for estimator in estimators:
        if weight_name(estimator) is None:
            warnings.warn(
                f"{OWNER}: {type(estimator).__name__} takes no sample_weight; the weights count in calibration and cuts"
                " only",
                stacklevel=4,
            )


def _mean(scores: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Of the models that know a label; NaN if none does."""
    mean: NDArray[np.float64] = torch.from_numpy(np.stack(scores)).nanmean(0).numpy()
    return mean


def _limits(odds: NDArray[np.float64]) -> tuple[float, float]:
    """Where to clip: marginals of 0 and 1 become half as far from these as the nearest other one is."""
    finite = odds[np.isfinite(odds)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    return float(low - np.log(2)), float(high + np.log(2))


def _dense(Y: Matrix) -> NDArray[np.int64]:
    labels = np.asarray(Y.toarray() if hasattr(Y, "toarray") else Y, dtype=np.float64)
    if np.isnan(labels).any():
        raise ValueError(f"{OWNER}: y has labels that are not known; SparseLabelClassifier takes them")
    return labels.astype(np.int64)
