"""The base of the multi-label meta-estimators: clones fitted on folds, held-out log-odds, metadata routing."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import joblib
import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer
from sklearn.model_selection import check_cv
from sklearn.utils import Bunch, Tags, check_random_state, get_tags, indexable

# names with an underscore: scikit-learn's estimators share them, and they have no public counterpart
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import _check_method_params as check_method_params
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import _num_samples as num_samples
from sklearn.utils.validation import check_consistent_length, check_is_fitted, has_fit_parameter
from torch import Tensor
from torch.nn import functional
from tqdm.auto import tqdm

from rsoftmax.labels.estimators import saving
from rsoftmax.labels.estimators.splits import stratified_parts
from rsoftmax.labels.estimators.targets import Matrix, Targets
from rsoftmax.labels.models.card import list_names

OOB = "oob"
Array = NDArray[np.float64]
Split = tuple[NDArray[np.intp], NDArray[np.intp]]


class FoldModel:
    """An estimator fitted on the samples of a fold, with the log-odds of all labels in one format.

    Args:
        estimator: any classifier; one for a single label at a time is cloned for each label.

    Attributes:
        models_: the fitted clone, or one clone per label.
        varying_: the labels that some samples have and others do not; the log-odds of the others are NaN.

    Where labels are unknown (NaN), each label has a clone that is fitted on the samples for which it is known.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Matrix, Y: NDArray[Any], params: dict[str, Any] | None = None) -> Self:
        """Fit clones of the estimator, with arguments of its ``fit`` for these samples; a frozen one is not fitted."""
        self.num_labels_ = Y.shape[1]
        if isinstance(self.estimator, FrozenEstimator):
            self.varying_, self.models_ = np.arange(self.num_labels_), [self.estimator]
            return self
        self.varying_ = np.flatnonzero((Y == 1).any(0) & (Y == 0).any(0))
        known, tags = _known(Y), get_tags(last_step(self.estimator))
        multilabel = tags.classifier_tags and (tags.classifier_tags.multi_label or tags.target_tags.multi_output)
        at_once = len(self.varying_) > 1 and known.all() and multilabel
        self.models_ = []
        for k in [self.varying_] if at_once else self.varying_:
            x, y, arguments = X, Y[:, k], params or {}
            if not known[:, k].all():
                x, y, arguments = take(X, y, arguments, np.flatnonzero(known[:, k]))
            self.models_.append(clone(self.estimator).fit(x, y.astype(np.int64), **arguments))
        return self

    def log_odds(self, X: Matrix) -> Array:
        """Return log-odds [samples, K]; NaN for labels that did not vary."""
        scores = [torch.from_numpy(_log_odds(model, X, self.labels_each)) for model in self.models_]
        return self.in_order(scores).numpy() if scores else np.full((num_samples(X), self.num_labels_), np.nan)

    @property
    def labels_each(self) -> int:
        """The number of labels of each model."""
        return len(self.varying_) // max(len(self.models_), 1)

    def in_order(self, scores: Sequence[Tensor]) -> Tensor:
        """Log-odds [samples, K] of all labels from those of each model; NaN for labels that did not vary."""
        columns = np.full(self.num_labels_, len(self.varying_))
        columns[self.varying_] = np.arange(len(self.varying_))
        return functional.pad(torch.cat([*scores], 1), (0, 1), value=math.nan)[:, torch.from_numpy(columns)]

    def oob_log_odds(self, Y: NDArray[Any]) -> Array:
        """Return out-of-bag log-odds [samples, K] of the samples of ``fit``; NaN also for those in every bag."""
        log_odds = np.full(Y.shape, np.nan)
        for model, labels in zip(self.models_, np.array_split(self.varying_, len(self.models_) or 1), strict=False):
            votes = np.asarray(last_step(model).oob_decision_function_, dtype=np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.log(votes[:, 1]) - np.log(votes[:, 0])
            log_odds[np.ix_(_known(Y[:, labels[0]]), labels)] = ratio.reshape(len(votes), -1)
        return log_odds


class LabelMetaClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Base class of multi-label meta-estimators: targets, log-odds of held-out samples, metadata routing.

    Subclasses have the attributes ``estimator``, ``cv``, ``n_jobs``, ``random_state`` and ``verbose``, and implement
    ``_combine`` and ``_decide``, in torch, with which they are exported.
    """

    _use_of_weights = "the weights are used for calibration and thresholds only"  # if the estimator takes none
    _targets: Targets
    _constant: Array  # log-odds of labels that never or always occurred in training, otherwise NaN
    models_: list[list[FoldModel]]
    estimator: Any
    cv: Any
    n_jobs: int | None
    random_state: Any
    verbose: int

    def predict(self, X: Matrix) -> Any:
        """Predict labels in the format of ``y``; for 1-d targets, classes [samples]."""
        log_odds = self._checked_log_odds(X)
        if self._targets.one_class:
            return self.classes_[log_odds.argmax(1).numpy()]
        return self._targets.inverse_transform(self._targets.matrix([self._decide(log_odds).numpy()]), X)

    def predict_labels(self, X: Matrix) -> list[list[Any]]:
        """Predict the names of the labels of each sample."""
        return self._targets.names(self._decide(self._checked_log_odds(X)).numpy())

    def predict_proba(self, X: Matrix) -> Array:
        """Predict the marginal probability of each label, [samples, K]; for 1-d targets, normalised to sum to one."""
        marginals: Array = self._marginals(self._checked_log_odds(X)).numpy()
        return marginals

    def decision_function(self, X: Matrix) -> Array:
        """Compute log-odds [samples, K]; for two classes, their difference [samples]."""
        log_odds: Array = self._checked_log_odds(X).numpy()
        two_classes = self._targets.one_class and log_odds.shape[1] == 2
        return log_odds[:, 1] - log_odds[:, 0] if two_classes else log_odds

    def save(self, path: str | Path) -> None:
        """Save the fitted estimator in one file without pickle, by skops.

        Raises:
            ValueError: it contains what skops cannot save, such as a lambda or a torch model.
        """
        check_is_fitted(self, "models_")
        saving.save(self, path)

    @classmethod
    def load(cls, path: str | Path, *, trusted: Collection[str] = ()) -> Self:
        """Load a saved estimator; its predictions are the same, with the same version of scikit-learn.

        Args:
            path: a file written by :meth:`save`.
            trusted: types that may be loaded besides those of scikit-learn, such as "xgboost.sklearn.XGBClassifier".

        Raises:
            ValueError: the file is damaged, of another class, or contains a type that is not trusted.
        """
        model = saving.load(path, trusted)
        if not isinstance(model, cls):
            raise ValueError(f"{path} holds a {type(model).__name__}, not a {cls.__name__}")
        return model

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
        inputs = [get_tags(estimator).input_tags for _, estimator in self._named_estimators()]
        tags.input_tags.sparse = all(tag.sparse for tag in inputs)
        tags.input_tags.allow_nan = all(tag.allow_nan for tag in inputs)
        tags.classifier_tags.multi_label = True
        return tags

    @abstractmethod
    def _combine(self, scores: list[list[Tensor]]) -> Tensor:
        """Log-odds [samples, K] from those of each of ``models_``; NaN for labels that did not vary in training."""

    @abstractmethod
    def _decide(self, log_odds: Tensor) -> Tensor:
        """The labels, bool [samples, K]."""

    def _checked_log_odds(self, X: Matrix) -> Tensor:
        check_is_fitted(self, "models_")
        log_odds = self._log_odds([[torch.from_numpy(model.log_odds(X)) for model in folds] for folds in self.models_])
        if log_odds.isnan().any():
            raise ValueError(
                f"{self._owner}: an estimator returned NaN for {log_odds.isnan().any(1).sum()} samples; check its"
                " predict_proba"
            )
        return log_odds

    def _log_odds(self, scores: list[list[Tensor]]) -> Tensor:
        """Log-odds [samples, K] from those of each of ``models_``."""
        return self._fill(self._combine(scores))

    @property
    def _owner(self) -> str:
        return type(self).__name__

    def _named_estimators(self) -> list[tuple[str, Any]]:
        if isinstance(self.estimator, list | tuple):
            return [(f"estimator{i}", estimator) for i, estimator in enumerate(self.estimator)]
        return [("estimator", self.estimator)]

    def _check(
        self, X: Matrix, y: Matrix, sample_weight: Matrix, classes: Matrix = None
    ) -> tuple[Matrix, NDArray[Any], Array | None]:
        """Features, labels [samples, K] with NaN where unknown, and weights."""
        (X,) = indexable(X)
        self._targets = Targets(y, self, classes)
        Y = self._targets.indicator(y)
        check_consistent_length(X, Y)
        self.classes_ = self._targets.classes
        Y = Y.toarray() if sp.issparse(Y) else np.asarray(Y)
        if sample_weight is None:
            return X, Y, None
        return X, Y, check_sample_weight(sample_weight, Y, dtype=np.float64, ensure_non_negative=True)

    def _route(self, weight: Array | None, params: dict[str, Any]) -> Bunch:
        """The arguments of the estimators' ``fit`` and of the splitter's ``split``."""
        if get_config()["enable_metadata_routing"]:
            return process_routing(self, "fit", **({} if weight is None else {"sample_weight": weight}), **params)
        params = dict(params)
        groups = params.pop("groups", None)
        routed = Bunch(splitter=Bunch(split={} if groups is None else {"groups": groups}))
        for name, estimator in self._named_estimators():
            argument = None if weight is None else weight_argument(estimator)
            routed[name] = Bunch(fit=params | ({} if argument is None else {argument: weight}))
            if weight is not None and argument is None and not isinstance(estimator, FrozenEstimator):
                warnings.warn(
                    f"{self._owner}: {type(estimator).__name__} takes no sample_weight; {self._use_of_weights}",
                    stacklevel=4,
                )
        return routed

    def _cross_fit(
        self, X: Matrix, Y: NDArray[Any], splits: list[Split], routed: Bunch
    ) -> tuple[list[Array], list[list[FoldModel]]]:
        """The log-odds of held-out samples by each estimator, NaN for samples in no test fold; its fold models."""
        every = np.arange(len(Y))
        tasks = [
            (i, estimator, routed[name].fit, train, test)
            for i, (name, estimator) in enumerate(self._named_estimators())
            for train, test in ([(every, every)] if isinstance(estimator, FrozenEstimator) else splits)
        ]
        fits = joblib.Parallel(self.n_jobs, return_as="generator")(
            joblib.delayed(_fit_and_score)(estimator, X, Y, params, train, test, self.cv)
            for _, estimator, params, train, test in tasks
        )
        held_out = [np.full(Y.shape, np.nan) for _ in self._named_estimators()]
        models: list[list[FoldModel]] = [[] for _ in held_out]
        bar = tqdm(fits, total=len(tasks), unit="fit", disable=not self.verbose)
        for (model, log_odds), (i, *_, test) in zip(bar, tasks, strict=True):
            held_out[i][test] = log_odds
            models[i].append(model)
        for fitted in (fitted for folds in models for model in folds for fitted in model.models_):
            for name in ("n_features_in_", "feature_names_in_"):
                if hasattr(fitted, name):
                    setattr(self, name, getattr(fitted, name))
        return held_out, models

    def _splits(self, X: Matrix, Y: NDArray[Any], routed: Bunch) -> list[Split]:
        """The train and test samples of each fit; for a fraction, one split."""
        if all(isinstance(estimator, FrozenEstimator) for _, estimator in self._named_estimators()):
            return []
        if not isinstance(self.cv, str) and (hasattr(self.cv, "split") or isinstance(self.cv, Iterable)):
            y = self.classes_[Y.argmax(1)] if self._targets.one_class else np.nan_to_num(Y)
            splits = check_cv(self.cv).split(X, y, **routed.splitter.split)
            return [(np.asarray(train), np.asarray(test)) for train, test in splits]
        folds: Any = self.cv
        if fraction := isinstance(folds, float) and 0 < folds < 1:
            folds = max(round(1 / folds), 2)
        if not isinstance(folds, int | np.integer) or min(folds, len(Y)) < 2:
            raise ValueError(
                f"{self._owner}: cv must be a number of folds of at least 2, a fraction of samples to hold out, a"
                f" splitter or splits, for at least two samples; got cv={self.cv!r} and n_samples = {len(Y)}"
            )
        folds = min(int(folds), len(Y))
        fold = stratified_parts(np.nan_to_num(Y), [1 / folds] * folds, check_random_state(self.random_state))
        self._warn_of_rare_labels(Y, fold)
        return [(np.flatnonzero(fold != i), np.flatnonzero(fold == i)) for i in range(1 if fraction else folds)]

    def _warn_of_rare_labels(self, Y: NDArray[Any], fold: NDArray[np.intp]) -> None:
        in_folds = np.stack([(Y[fold == i] == 1).any(0) for i in np.unique(fold)]).sum(0)
        for meaning, rare in (("never occur", in_folds == 0), ("occur in one fold only", in_folds == 1)):
            if rare.any() and not self._targets.one_class:
                names = list_names(map(repr, self.classes_[rare].tolist()))
                warnings.warn(
                    f"{self._owner}: {rare.sum()} of {len(rare)} labels {meaning}: {names};"
                    " held-out samples cannot tell how well they are predicted",
                    stacklevel=5,
                )

    def _marginals(self, log_odds: Tensor) -> Tensor:
        pi = log_odds.sigmoid()
        return pi / pi.sum(1, keepdim=True) if self._targets.one_class else pi

    def _fill(self, log_odds: Tensor) -> Tensor:
        """Set the log-odds of labels that never or always occurred in training to -inf or inf."""
        constant = torch.from_numpy(self._constant)
        return log_odds.where(constant.isnan(), constant)


def constant_labels(Y: NDArray[Any], models: Iterable[FoldModel] = ()) -> Array:
    """The log-odds of labels that do not vary, [K]: inf if every sample has it, -inf if none has it, otherwise NaN.

    With models, labels that none of them has learned are constant, too. NaN in Y is unknown.
    """
    some = (Y == 1).any(0)
    constant = np.where(some & (Y != 0).all(0), np.inf, np.where(some, np.nan, -np.inf))
    learned = [model.varying_ for model in models] or [np.arange(Y.shape[1])]
    others = np.setdiff1d(np.flatnonzero(np.isnan(constant)), np.concatenate(learned))
    constant[others] = np.where(np.nanmean(Y[:, others], 0) > 0.5, np.inf, -np.inf)
    return constant


def weight_argument(estimator: Any) -> str | None:
    """Return the argument of ``fit`` for sample weights; in a pipeline, that of its last step.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> from sklearn.pipeline import make_pipeline
        >>> weight_argument(make_pipeline(LogisticRegression())), weight_argument(KNeighborsClassifier())
        ('logisticregression__sample_weight', None)
    """
    if hasattr(estimator, "steps"):
        step, last = estimator.steps[-1]
        argument = weight_argument(last)
        return None if argument is None else f"{step}__{argument}"
    return "sample_weight" if has_fit_parameter(estimator, "sample_weight") else None


def logit(p: Array) -> Array:
    """Log-odds; infinite for 0 and 1."""
    with np.errstate(divide="ignore"):
        log_odds: Array = np.log(p) - np.log1p(-p)
    return log_odds


def _fit_and_score(
    estimator: Any, X: Matrix, Y: NDArray[Any], params: dict[str, Any], train: Any, test: Any, cv: Any
) -> tuple[FoldModel, Array]:
    oob = isinstance(cv, str) and cv == OOB and not isinstance(estimator, FrozenEstimator)
    if oob:
        estimator = clone(estimator)
        if not hasattr(last_step(estimator), "oob_score"):
            raise ValueError(
                "cv='oob' needs an estimator with out-of-bag predictions, such as RandomForestClassifier(),"
                f" got {estimator!r}"
            )
        last_step(estimator).set_params(oob_score=True)
    model = FoldModel(estimator).fit(*take(X, Y, params, train))
    return model, model.oob_log_odds(Y) if oob else model.log_odds(safe_indexing(X, test))


def take(X: Matrix, Y: NDArray[Any], params: dict[str, Any], samples: Any) -> tuple[Any, NDArray[Any], dict[str, Any]]:
    """Some of the samples, with their targets and their part of the arguments of ``fit``."""
    return safe_indexing(X, samples), Y[samples], check_method_params(X, params, samples)


def _known(Y: NDArray[Any]) -> NDArray[np.bool_]:
    return ~np.isnan(Y.astype(np.float64))


def last_step(estimator: Any) -> Any:
    """The estimator itself, or the last one of a pipeline."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return estimator


def _log_odds(model: Any, X: Matrix, num_labels: int) -> Array:
    """From ``predict_proba`` or else ``decision_function``."""
    if not hasattr(model, "predict_proba"):
        if not hasattr(model, "decision_function"):
            raise ValueError(f"{model!r} needs predict_proba or decision_function; it has neither")
        scores = np.asarray(model.decision_function(X), dtype=np.float64)
        two_classes = scores.ndim == 1 and num_labels == 2
        return np.stack([-scores, scores], axis=1) if two_classes else scores.reshape(len(scores), -1)
    p = model.predict_proba(X)
    if isinstance(p, list):  # of forests: one array per label, with a column for each of its classes
        classes = getattr(model, "classes_", None) or [np.arange(2)] * len(p)
        columns = [q[:, 1] if q.shape[1] == 2 else np.full(len(q), c[0]) for q, c in zip(p, classes, strict=True)]
        return logit(np.stack(columns, axis=1).astype(np.float64))
    p = np.asarray(p.toarray() if sp.issparse(p) else p, dtype=np.float64)
    return logit(p[:, 1:] if num_labels == 1 and p.shape[1] == 2 else p)
