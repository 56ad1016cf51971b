"""The labels with the highest expected F-measure, from any scikit-learn classifier."""

import warnings
from collections.abc import Iterable
from typing import Any, Self

import joblib
import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer
from sklearn.utils import Bunch, Tags, _safe_indexing, check_random_state, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metadata_routing import _routing_enabled as routing_enabled
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    _num_samples,
    check_consistent_length,
    check_is_fitted,
    has_fit_parameter,
)
from torch import Tensor
from tqdm.auto import tqdm

from rsoftmax.labels.calibration import PlattScaling
from rsoftmax.labels.decoding import DEFAULTS, Average, Decoder, expected_f1, expected_f1_threshold
from rsoftmax.labels.estimators.targets import Matrix, Targets, label_score, stratified_folds
from rsoftmax.labels.evaluation import evaluate

__all__ = ["ExpectedF1Classifier"]

CALIBRATIONS = ("platt", None)
OOB = "oob"
TINY = np.finfo(np.float64).tiny
Array = NDArray[np.float64]
Split = tuple[NDArray[np.intp], NDArray[np.intp]]


class FoldModel:
    """An estimator fitted on the rows of a fold, with scores for all labels in one format.

    Args:
        estimator: any classifier; one that takes a single label at a time is cloned for each label.

    Attributes:
        models_: the fitted clone, or one clone per label.

    The estimator is not fitted to labels that all rows or no rows have: their log-odds are NaN. Where labels are
    unknown (NaN), each label has a clone that is fitted on the rows for which it is known.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Matrix, Y: NDArray[Any], params: dict[str, Any] | None = None) -> Self:
        """Fit clones of the estimator, with arguments of its ``fit`` for these rows; a frozen one is not fitted."""
        self.labels_ = Y.shape[1]
        if isinstance(self.estimator, FrozenEstimator):
            self.varying_, self.models_ = np.arange(self.labels_), [self.estimator]
            return self
        self.varying_ = np.flatnonzero((Y == 1).any(0) & (Y == 0).any(0))
        known = ~np.isnan(Y.astype(np.float64))
        if len(self.varying_) > 1 and known.all() and _takes_labels(self.estimator):
            self.models_ = [clone(self.estimator).fit(X, Y[:, self.varying_].astype(np.int64), **(params or {}))]
        else:
            self.models_ = [self._fit_label(X, Y[:, k], known[:, k], params or {}) for k in self.varying_]
        return self

    def log_odds(self, X: Matrix) -> Array:
        """Return log-odds [rows, K]; NaN for labels that did not vary."""
        found = np.full((_num_samples(X), self.labels_), np.nan)
        if self.models_:
            labels = len(self.varying_) // len(self.models_)
            found[:, self.varying_] = np.concatenate([_log_odds(model, X, labels) for model in self.models_], axis=1)
        return found

    def oob_log_odds(self, Y: NDArray[Any]) -> Array:
        """Return out-of-bag log-odds [rows, K] of the rows of ``fit``; NaN also for rows that are in every bag."""
        found = np.full(Y.shape, np.nan)
        if self.models_:
            for model, labels in zip(self.models_, self.varying_.reshape(len(self.models_), -1), strict=True):
                known = ~np.isnan(Y[:, labels[0]].astype(np.float64))
                found[np.ix_(known, labels)] = _oob_log_odds(model)
        return found

    def _fit_label(self, X: Matrix, y: NDArray[Any], known: NDArray[np.bool_], params: dict[str, Any]) -> Any:
        if not known.all():
            rows = np.flatnonzero(known)
            X, y, params = _safe_indexing(X, rows), y[rows], _check_method_params(X, params, rows)
        return clone(self.estimator).fit(X, y.astype(np.int64), **params)


class LabelMetaClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of multi-label meta-estimators: targets, out-of-fold scores, metadata routing.

    Subclasses have the attributes ``estimator``, ``cv``, ``n_jobs``, ``random_state`` and ``verbose``.
    """

    _other_weights = "the weights are used for calibration and thresholds only"  # if the estimator takes none
    _targets: Targets
    _constant: Array
    estimator: Any
    cv: Any
    n_jobs: int | None
    random_state: Any
    verbose: int

    def predict(self, X: Matrix) -> Any:
        """Predict labels in the format of ``y``; for 1-d targets, classes [rows]."""
        odds = self._odds(X)
        if self._targets.one_class:
            return self.classes_[odds.argmax(1)]
        return self._targets.answer(self._targets.as_given(self._decide(odds)), X)

    def predict_labels(self, X: Matrix) -> list[list[Any]]:
        """Predict the names of the labels of each row."""
        return self._targets.names(self._targets.as_given(self._decide(self._odds(X))))

    def predict_proba(self, X: Matrix) -> Array:
        """Predict the marginal probability of each label, [rows, K]; for 1-d targets, normalised to sum to one."""
        pi: Array = torch.from_numpy(self._odds(X)).sigmoid().numpy()
        return pi / pi.sum(1, keepdims=True) if self._targets.one_class else pi

    def decision_function(self, X: Matrix) -> Array:
        """Compute log-odds [rows, K]; for two classes, their difference [rows]."""
        odds = self._odds(X)
        return odds[:, 1] - odds[:, 0] if self._targets.one_class and odds.shape[1] == 2 else odds

    def get_metadata_routing(self) -> MetadataRouter:
        """Route metadata of ``fit`` to the estimators and the splitter, and that of ``score`` to the scorer."""
        router = MetadataRouter(owner=self).add_self_request(self)
        to_fit = MethodMapping().add(caller="fit", callee="fit")
        router.add(**dict(self._named_estimators()), method_mapping=to_fit)
        router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        if getattr(self, "scoring", None) is not None:
            scorer = get_scorer(self.scoring)
            router.add(scorer=scorer, method_mapping=MethodMapping().add(caller="score", callee="score"))
        return router

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        inner = [get_tags(estimator).input_tags for estimator in self._estimators()]
        tags.input_tags.sparse = all(tag.sparse for tag in inner)
        tags.input_tags.allow_nan = all(tag.allow_nan for tag in inner)
        tags.classifier_tags.multi_label = True
        return tags

    def _odds(self, X: Matrix) -> Array:
        raise NotImplementedError

    def _decide(self, odds: Array) -> NDArray[np.bool_]:
        raise NotImplementedError

    @property
    def _owner(self) -> str:
        return type(self).__name__

    @property
    def _oob(self) -> bool:
        return isinstance(self.cv, str) and self.cv == OOB

    def _estimators(self) -> list[Any]:
        return list(self.estimator) if isinstance(self.estimator, list | tuple) else [self.estimator]

    def _named_estimators(self) -> list[tuple[str, Any]]:
        several = isinstance(self.estimator, list | tuple)
        return [(f"estimator{i}" if several else "estimator", one) for i, one in enumerate(self._estimators())]

    def _check(self, X: Matrix, y: Matrix, sample_weight: Matrix) -> tuple[Matrix, NDArray[Any], Array | None]:
        """Rows, labels [rows, K] with NaN where unknown, and weights."""
        (X,) = indexable(X)
        self._targets = Targets(y, owner=self._owner, can_split=False)
        Y = self._targets.indicator(y)
        check_consistent_length(X, Y)
        self.classes_ = self._targets.classes
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, Y, dtype=np.float64)
        return X, Y.toarray() if sp.issparse(Y) else np.asarray(Y), weight

    def _route(self, weight: Array | None, params: dict[str, Any]) -> Bunch:
        """The arguments of the estimators' ``fit`` and of the splitter's ``split``."""
        if routing_enabled():
            given = {} if weight is None else {"sample_weight": weight}
            return process_routing(self, "fit", **given, **params)
        groups = {"groups": params["groups"]} if params.get("groups") is not None else {}
        others = {name: value for name, value in params.items() if name != "groups"}
        routed = Bunch(splitter=Bunch(split=groups))
        for name, estimator in self._named_estimators():
            argument = None if weight is None else weight_name(estimator)
            routed[name] = Bunch(fit=others | ({} if argument is None else {argument: weight}))
            if weight is not None and argument is None and not isinstance(estimator, FrozenEstimator):
                warnings.warn(
                    f"{self._owner}: {type(estimator).__name__} takes no sample_weight; {self._other_weights}",
                    stacklevel=4,
                )
        return routed

    def _cross_fit(
        self, X: Matrix, Y: NDArray[Any], splits: list[Split], routed: Bunch
    ) -> tuple[list[Array], list[list[FoldModel]]]:
        """The log-odds of held-out rows by each estimator, NaN for rows that are in no test fold; its fold models."""
        rows = np.arange(len(Y))
        tasks = [
            (i, estimator, routed[name].fit, train, test)
            for i, (name, estimator) in enumerate(self._named_estimators())
            for train, test in ([(rows, rows)] if isinstance(estimator, FrozenEstimator) else splits)
        ]
        done = joblib.Parallel(self.n_jobs, return_as="generator")(
            joblib.delayed(_fit_and_score)(estimator, X, Y, params, train, test, oob=self._oob)
            for _, estimator, params, train, test in tasks
        )
        held_out = [np.full(Y.shape, np.nan) for _ in self._estimators()]
        models: list[list[FoldModel]] = [[] for _ in held_out]
        bar = tqdm(done, total=len(tasks), unit="fit", disable=not self.verbose)
        for (model, odds), (i, *_, test) in zip(bar, tasks, strict=True):
            held_out[i][test] = odds
            models[i].append(model)
        return held_out, models

    def _refit(self, X: Matrix, Y: NDArray[Any], models: list[list[FoldModel]], routed: Bunch) -> list[list[FoldModel]]:
        """One model per estimator, fitted on all rows."""
        return [
            folds if isinstance(one, FrozenEstimator) else [FoldModel(one).fit(X, Y, routed[name].fit)]
            for folds, (name, one) in zip(models, self._named_estimators(), strict=True)
        ]

    def _splits(self, X: Matrix, Y: NDArray[Any], routed: Bunch) -> list[Split]:
        """The train and test rows of each fit; of a fraction, one split."""
        if all(isinstance(one, FrozenEstimator) for one in self._estimators()):
            return []
        if hasattr(self.cv, "split") and not isinstance(self.cv, str):
            y = self.classes_[Y.argmax(1)] if self._targets.one_class else np.nan_to_num(Y)
            return list(self.cv.split(X, y, **routed.splitter.split))
        if isinstance(self.cv, Iterable) and not isinstance(self.cv, str):
            return [(np.asarray(train), np.asarray(test)) for train, test in self.cv]
        share = isinstance(self.cv, float) and 0 < self.cv < 1
        folds = max(round(1 / self.cv), 2) if share else self.cv
        if not isinstance(folds, int | np.integer) or min(folds, len(Y)) < 2:
            raise ValueError(
                f"{self._owner}: cv must be a number of folds of at least 2, a fraction of rows to hold out, a splitter"
                f" or splits, for at least two rows; got cv={self.cv!r} and n_samples = {len(Y)}"
            )
        folds = min(int(folds), len(Y))
        fold = stratified_folds(np.nan_to_num(Y), folds, check_random_state(self.random_state))
        self._warn_of_rare(Y, fold)
        return [(np.flatnonzero(fold != i), np.flatnonzero(fold == i)) for i in range(1 if share else folds)]

    def _warn_of_rare(self, Y: NDArray[Any], fold: NDArray[np.intp]) -> None:
        if self._targets.one_class:
            return
        in_folds = np.stack([(Y[fold == i] == 1).any(0) for i in np.unique(fold)]).sum(0)
        for meaning, rare in (("never occur", in_folds == 0), ("occur in one fold only", in_folds == 1)):
            if rare.any():
                listed = ", ".join(map(repr, self.classes_[rare][:5].tolist()))
                warnings.warn(
                    f"{self._owner}: {rare.sum()} of {len(rare)} labels {meaning}: {listed}"
                    f"{', ...' if rare.sum() > 5 else ''}; held-out rows cannot tell how well they are predicted",
                    stacklevel=5,
                )

    def _fill(self, odds: Array) -> Array:
        """Set the log-odds of labels that never or always occurred in training to -inf or inf."""
        constant = ~np.isnan(self._constant)
        odds[:, constant] = self._constant[constant]
        return odds

    def _check_odds(self, odds: Array) -> Array:
        if np.isnan(odds).any():
            raise ValueError(f"{self._owner}: an estimator returned NaN for {np.isnan(odds).any(1).sum()} rows")
        return odds

    def _copy_attributes(self, models: list[list[FoldModel]]) -> None:
        for name in ("n_features_in_", "feature_names_in_"):
            for model in (one for folds in models for fold in folds for one in fold.models_):
                if hasattr(model, name):
                    setattr(self, name, getattr(model, name))


class ExpectedF1Classifier(LabelMetaClassifier):
    """Predicts the labels with the highest expected F-measure, on top of any classifier: no threshold to tune.

    The estimator is fitted on all folds but one, for each fold. The scores of the held-out rows are calibrated label by
    label, and the calibrated marginals alone yield the decision thresholds. Predictions average the log-odds of the
    fold models, or come from one model that is fitted on all rows.

    Args:
        estimator: a classifier with ``predict_proba`` or ``decision_function``, for multi-label targets or for one
            label at a time; a list of them, whose marginals are averaged; or a ``FrozenEstimator``, fitted on other
            rows, for which all rows passed here are held out.
        average: the F1 to maximise: "micro" has one threshold, "macro" one per label, "samples" decides row by row.
        beta: recall is weighted beta times as much as precision.
        min_labels: the minimum number of labels per row.
        max_labels: the maximum number of labels per row; None: all.
        calibration: "platt": Platt scaling per label; None: scores are log-odds already.
        cv: the number of folds, stratified by labels; "oob": one fit on all rows, for estimators with out-of-bag
            predictions (``oob_score``) such as random forests; a fraction 1/n such as 0.2: one fit, with one of n folds
            held out; or a scikit-learn splitter, or splits.
        ensemble: True keeps the fold models; False fits one model on all rows and keeps it alone.
        scoring: what ``score`` returns: a scorer or its name, such as "f1_micro". Default: the F-measure of ``average``
            and ``beta``, so that a grid search over these compares different measures.
        n_jobs: the number of parallel fits, as in joblib.
        random_state: seeds the folds.
        verbose: 1 shows a progress bar of fits.

    Attributes:
        classes_: the labels: a data frame's columns, names, or column numbers; for 1-d targets, the classes.
        thresholds_: the decision thresholds as marginals: [1] for "micro", [K] for "macro", None for "samples".
        thresholds_std_: the standard deviation of the thresholds over single folds; NaN for one split.
        expected_score_: the expected F-measure under the marginals of held-out rows, computed without their labels.
        evaluation_: the :class:`rsoftmax.labels.Evaluation` of the same rows against their labels: cross-validated,
            except that calibration and thresholds were fitted on them. None if no label varies.
        models_: for each estimator, its fitted models.
        decoder_: the :class:`rsoftmax.labels.Decoder`: calibration and thresholds.
        n_features_in_: the number of features, if the estimators report it.

    Example:
        >>> from sklearn.datasets import make_multilabel_classification
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> X, Y = make_multilabel_classification(400, n_classes=6, random_state=0)
        >>> forest = RandomForestClassifier(50, random_state=0)
        >>> model = ExpectedF1Classifier(forest, random_state=0).fit(X[:300], Y[:300])
        >>> model.thresholds_.round(1)
        array([0.3])
        >>> model.predict(X[300:302])
        array([[0, 1, 0, 0, 0, 1],
               [0, 0, 0, 0, 0, 0]])

    ``y`` may be a matrix, dense or sparse, with NaN or -1 for unknown labels; a data frame; lists or sets of names.
    Predictions have the same format. A 1-d ``y`` of classes means that every row has one: the most probable is
    predicted. Labels that never occur are never predicted, and labels that always occur are always predicted. A warning
    names labels that occur in at most one fold. With scikit-learn's metadata routing, ``sample_weight`` and ``groups``
    go to the estimators, the splitter and the scorer that request them.
    """

    def __init__(
        self,
        estimator: Any,
        *,
        average: Average = "micro",
        beta: float = 1.0,
        min_labels: int = 0,
        max_labels: int | None = None,
        calibration: str | None = "platt",
        cv: Any = 5,
        ensemble: bool = True,
        scoring: Any = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.average = average
        self.beta = beta
        self.min_labels = min_labels
        self.max_labels = max_labels
        self.calibration = calibration
        self.cv = cv
        self.ensemble = ensemble
        self.scoring = scoring
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Matrix, y: Matrix, sample_weight: Matrix = None, **fit_params: Any) -> Self:
        """Fit the estimators, their calibration and the thresholds.

        Args:
            X: features, in any format that the estimators take.
            y: labels [rows, K], 0 or 1, NaN or -1 where unknown; sets of names; or classes [rows].
            sample_weight: weights of the rows, [rows]: for estimators that take them, calibration and thresholds.
            fit_params: ``groups`` for the splitter, and arguments of the estimators' ``fit``.
        """
        X, Y, weight = self._check(X, y, sample_weight)
        decoder = Decoder(len(self.classes_), **{name: getattr(self, name) for name in DEFAULTS})
        if self.calibration not in CALIBRATIONS:
            raise ValueError(f"{self._owner}: calibration must be one of {CALIBRATIONS}, got {self.calibration!r}")
        routed = self._route(weight, fit_params)
        splits = self._splits(X, Y, routed)
        held_out, models = self._cross_fit(X, Y, splits, routed)
        self.models_ = models if self.ensemble or self._oob else self._refit(X, Y, models, routed)
        self._limits = [_limits(odds) for odds in held_out]
        self._constant = self._constants(Y)
        known = torch.from_numpy(Y.astype(np.float64))
        counted = None if weight is None else torch.from_numpy(weight / max(weight.mean(), TINY))[:, None]
        self._members = self._member_calibrations(held_out, known, counted)
        odds = self._average(held_out)
        self.decoder_ = decoder.fit(odds, known, weight=counted, calibrate=self.calibration is not None)
        self._summarise(odds, known, splits)
        self._copy_attributes(models)
        return self

    @property
    def thresholds_(self) -> Array | None:
        """The decision thresholds as marginals; None for "samples"."""
        return None if self.average == "samples" else self.decoder_.threshold.double().sigmoid().numpy()

    def score(self, X: Matrix, y: Matrix, sample_weight: Matrix = None, **score_params: Any) -> float:
        """Return the score that ``scoring`` names. Default: F-beta of ``average``; for 1-d targets, accuracy."""
        if self.scoring is None:
            return label_score(self, X, y, sample_weight)
        given = score_params | ({} if sample_weight is None else {"sample_weight": sample_weight})
        if routing_enabled():
            given = process_routing(self, "score", **given).scorer.score
        as_matrix = self._targets.kind in ("classes", "matrix")
        model = self if as_matrix else _IndicatorModel(self)
        return float(get_scorer(self.scoring)(model, X, y if as_matrix else self._targets.indicator(y), **given))

    def predict_labels(self, X: Matrix) -> list[list[Any]]:
        """Predict the names of the labels of each row; for 1-d targets, one class."""
        if self._targets.one_class:
            return [[name] for name in self.predict(X).tolist()]
        return super().predict_labels(X)

    def _constants(self, Y: NDArray[Any]) -> Array:
        """As :func:`constant_labels`; labels that no model has learned are constant, too."""
        constant = constant_labels(Y)
        learned = np.concatenate([model.varying_ for folds in self.models_ for model in folds])
        open_labels = np.setdiff1d(np.flatnonzero(np.isnan(constant)), learned)
        constant[open_labels] = np.where(np.nanmean(Y[:, open_labels], 0) > 0.5, np.inf, -np.inf)
        return constant

    def _splits(self, X: Matrix, Y: NDArray[Any], routed: Bunch) -> list[Split]:
        """As in the base class; out-of-bag, all rows are fitted and scored."""
        return [(np.arange(len(Y)),) * 2] if self._oob else super()._splits(X, Y, routed)

    def _odds(self, X: Matrix) -> Array:
        """Calibrated log-odds [rows, K]; infinite for labels that never or always occurred."""
        check_is_fitted(self, "decoder_")
        members = zip(self.models_, self._limits, strict=True)
        scores = [_mean([model.log_odds(X).clip(*limits) for model in models]) for models, limits in members]
        return self._check_odds(self._fill(self.decoder_.calibration(self._average(scores)).numpy()))

    def _decide(self, odds: Array) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.decoder_.decide(torch.from_numpy(odds)).labels.numpy()
        return found

    def _member_calibrations(self, held_out: list[Array], known: Tensor, weight: Tensor | None) -> list[PlattScaling]:
        """Calibrations of the single estimators, needed to average the marginals of several."""
        members = [PlattScaling(len(self.classes_)) for _ in held_out]
        if len(members) > 1 and self.calibration is not None:
            for scaling, odds, limits in zip(members, held_out, self._limits, strict=True):
                scaling.fit(torch.from_numpy(odds.clip(*limits)), known, weight)
        return members

    def _average(self, scores: list[Array]) -> Tensor:
        """The log-odds of the mean of the estimators' marginals, [rows, K]; NaN where none has a score."""
        odds = [
            scaling(torch.from_numpy(score.clip(*limits)))
            for score, scaling, limits in zip(scores, self._members, self._limits, strict=True)
        ]
        return odds[0] if len(odds) == 1 else torch.stack(odds).sigmoid().nanmean(0).logit()

    def _summarise(self, odds: Tensor, known: Tensor, splits: list[Split]) -> None:
        """Thresholds of single folds, the expected score and the evaluation on held-out rows."""
        odds = self.decoder_.calibration(odds)
        scored = ~odds.isnan().all(1)
        folds = [torch.from_numpy(test) for _, test in splits]
        thresholds = [self._threshold(odds[test]) for test in folds] if self.average != "samples" else []
        self.thresholds_std_ = (
            np.std(thresholds, 0, ddof=1) if len(thresholds) > 1 else np.full(self.decoder_.threshold.shape, np.nan)
        )
        odds, known = torch.from_numpy(self._fill(odds[scored].numpy().copy())), known[scored]
        odds = odds.where(~odds.isnan(), -30.0)
        found = self.decoder_.decide(odds).labels
        self.expected_score_ = expected_f1(odds.sigmoid(), found, self.average, beta=self.beta)
        names = list(map(str, self.classes_.tolist()))
        self.evaluation_ = None if known.isnan().all() else evaluate(odds.sigmoid(), found, known, names)

    def _threshold(self, odds: Tensor) -> Array:
        known = ~odds.isnan()
        threshold = expected_f1_threshold(odds.where(known, 0), self.average, beta=self.beta, weight=known)[0]
        found: Array = threshold.sigmoid().numpy()
        return found


class _IndicatorModel(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose predictions are a matrix of 0 and 1, for scikit-learn's scorers."""

    def __init__(self, model: Any) -> None:
        self.model, self.classes_ = model, model.classes_

    def predict(self, X: Matrix) -> Matrix:
        return self.model._targets.indicator(self.model.predict(X))

    def predict_proba(self, X: Matrix) -> Array:
        found: Array = self.model.predict_proba(X)
        return found


def constant_labels(Y: NDArray[Any]) -> Array:
    """inf for labels that every row has, -inf for labels that no row has, otherwise NaN, [K]; NaN in Y is unknown."""
    some = (Y == 1).any(0)
    return np.where(some & (Y != 0).all(0), np.inf, np.where(some, np.nan, -np.inf))


def _fit_and_score(
    estimator: Any,
    X: Matrix,
    Y: NDArray[Any],
    params: dict[str, Any],
    train: NDArray[np.intp],
    test: NDArray[np.intp],
    oob: bool,
) -> tuple[FoldModel, Array]:
    params = _check_method_params(X, params, indices=train)
    oob = oob and not isinstance(estimator, FrozenEstimator)
    model = FoldModel(_with_oob(estimator) if oob else estimator).fit(_safe_indexing(X, train), Y[train], params)
    return model, model.oob_log_odds(Y) if oob else model.log_odds(_safe_indexing(X, test))


def _mean(scores: list[Array]) -> Array:
    """The mean over the models that know a label; NaN if none does."""
    mean: Array = torch.from_numpy(np.stack(scores)).nanmean(0).numpy()
    return mean


def _limits(odds: Array) -> tuple[float, float]:
    """Where to clip: marginals of 0 and 1 are moved to half the distance of the nearest other one."""
    finite = odds[np.isfinite(odds)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    return float(low - np.log(2)), float(high + np.log(2))


def weight_name(estimator: Any) -> str | None:
    """Return the argument of ``fit`` for sample weights; in a pipeline, that of its last step.

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


def _last_step(estimator: Any) -> Any:
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return estimator


def _with_oob(estimator: Any) -> Any:
    """A clone that keeps its out-of-bag predictions."""
    found = clone(estimator)
    if not hasattr(_last_step(found), "oob_score"):
        raise ValueError(
            f'cv="oob" needs an estimator with out-of-bag predictions, such as RandomForestClassifier(),'
            f" got {estimator!r}"
        )
    _last_step(found).set_params(oob_score=True)
    return found


def _oob_log_odds(model: Any) -> Array:
    """[rows, labels]; NaN for rows that are in every bag."""
    votes: Array = np.asarray(_last_step(model).oob_decision_function_, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds: Array = (np.log(votes[:, 1]) - np.log(votes[:, 0])).reshape(len(votes), -1)
    return odds


def _takes_labels(estimator: Any) -> bool:
    tags = get_tags(_last_step(estimator))
    return bool(tags.classifier_tags and (tags.classifier_tags.multi_label or tags.target_tags.multi_output))


def _log_odds(model: Any, X: Matrix, labels: int) -> Array:
    """From ``predict_proba``, an array or a list of arrays, or else ``decision_function``."""
    if hasattr(model, "predict_proba"):
        p = model.predict_proba(X)
        return logit(_from_list(model, p) if isinstance(p, list) else _from_array(p, labels))
    if hasattr(model, "decision_function"):
        scores: Array = np.asarray(model.decision_function(X), dtype=np.float64)
        if scores.ndim == 1 and labels == 2:  # two classes
            return np.stack([-scores, scores], axis=1)
        return scores.reshape(len(scores), -1)
    raise ValueError(f"{model!r} has neither predict_proba nor decision_function, one of which is needed for scores")


def _from_array(p: Matrix, labels: int) -> Array:
    found: Array = np.asarray(p.toarray() if sp.issparse(p) else p, dtype=np.float64)
    return found[:, 1:] if labels == 1 and found.shape[1] == 2 else found


def _from_list(model: Any, p: list[Array]) -> Array:
    """From the format of forests: one array per label, with a column for each of its classes."""
    classes = getattr(model, "classes_", None) or [np.arange(2)] * len(p)
    columns = [
        column[:, 1] if column.shape[1] == 2 else np.full(len(column), float(of_label[0]))
        for column, of_label in zip(p, classes, strict=True)
    ]
    return np.stack(columns, axis=1)


def logit(p: Array) -> Array:
    """Log-odds; infinite for 0 and 1."""
    with np.errstate(divide="ignore"):
        odds: Array = np.log(p) - np.log1p(-p)
    return odds
