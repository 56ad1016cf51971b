"""The labels with the highest expected F-measure, from any scikit-learn classifier."""

from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer
from sklearn.utils import Bunch
from sklearn.utils.metadata_routing import process_routing
from torch import Tensor, nn

from rsoftmax.labels.calibration import PlattScaling
from rsoftmax.labels.constraints import Implications, by_index
from rsoftmax.labels.decoding import DEFAULTS, Average, Decoder, expected_f1, expected_f1_threshold
from rsoftmax.labels.estimators.meta import OOB, Array, FoldModel, LabelMetaClassifier, Split, constant_labels, take
from rsoftmax.labels.estimators.targets import Matrix, Targets, label_score
from rsoftmax.labels.evaluation import CalibrationCurve, Evaluation, evaluate

__all__ = ["ExpectedF1Classifier"]

CALIBRATIONS = ("platt", None)
TINY = np.finfo(np.float64).tiny
Module = TypeVar("Module", bound=nn.Module)


class ExpectedF1Classifier(LabelMetaClassifier):
    """Predicts the labels with the highest expected F-measure, on top of any classifier: no threshold to tune.

    The estimator is fitted on all folds but one, for each fold. The scores of held-out samples are calibrated label by
    label, and the calibrated marginals alone yield the decision thresholds. Predictions average the log-odds of the
    fold models, or come from one model that is fitted on all samples.

    Args:
        estimator: a classifier with ``predict_proba`` or ``decision_function``, for multi-label targets or for one
            label at a time; a list of them, whose marginals are averaged; or a ``FrozenEstimator``, fitted on other
            samples, for which all samples passed here are held out.
        average: the F1 to maximise: "micro" has one threshold, "macro" one per label, "samples" decides sample-wise.
        beta: recall is weighted beta times as much as precision.
        min_labels: the minimum number of labels per sample.
        max_labels: the maximum number of labels per sample; None: all.
        zero_division: the F1 where there is no label and none is predicted, as in scikit-learn's ``f1_score``: 1; or
            0, its default, with which "samples" predicts a label for every sample.
        implies: labels that imply others, such as ``{"corn": "grain"}``: a child and its parent, or a list of parents.
            Whatever has the child is predicted to have the parent, too, which is at least as probable.
        exclusive: groups of labels of which at most one is predicted, such as ``[("buy", "sell")]``.
        calibration: "platt": Platt scaling per label; None: scores are log-odds already.
        cv: the number of folds, stratified by labels; "oob": one fit on all samples, for estimators with out-of-bag
            predictions (``oob_score``) such as random forests; a fraction 1/n such as 0.2: one fit, with one of n folds
            held out; or a scikit-learn splitter, or splits.
        ensemble: True keeps the fold models; False fits one model on all samples and keeps it alone.
        scoring: what ``score`` returns: a scorer or its name, such as "f1_micro". Default: the F-measure of ``average``
            and ``beta``, so that a grid search over these compares different measures.
        n_jobs: the number of parallel fits, as in joblib.
        random_state: seeds the folds.
        verbose: 1 shows a progress bar of fits.

    Attributes:
        classes_: the labels: a data frame's columns, names, or column numbers; for 1-d targets, the classes.
        thresholds_: the decision thresholds as marginals: [1] for "micro", [K] for "macro", None for "samples".
        thresholds_std_: the standard deviation of the thresholds over single folds; NaN for one split.
        expected_score_: the expected F-measure under the marginals of held-out samples, computed without their labels.
        evaluation_: the :class:`rsoftmax.labels.Evaluation` of the same samples against their labels: cross-validated,
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
    Predictions have the same format. A 1-d ``y`` of classes means that every sample has one class: the most probable is
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
        zero_division: float = 1.0,
        implies: Implications = (),
        exclusive: Collection[Collection[Any]] = (),
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
        self.zero_division = zero_division
        self.implies = implies
        self.exclusive = exclusive
        self.calibration = calibration
        self.cv = cv
        self.ensemble = ensemble
        self.scoring = scoring
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Matrix, y: Matrix, sample_weight: Matrix = None, *, classes: Matrix = None, **fit_params: Any
    ) -> Self:
        """Fit the estimators, their calibration and the thresholds.

        Args:
            X: features, in any format that the estimators take.
            y: labels [samples, K], 0 or 1, NaN or -1 where unknown; sets of names; or classes [samples].
            sample_weight: weights of the samples, [samples]: for estimators that take them, calibration and thresholds.
                Samples with weight 0 are left out.
            classes: all classes, if a 1-d ``y`` may lack some; all names, if ``y`` holds sets; the names of the columns
                of a matrix.
            fit_params: ``groups`` for the splitter, and arguments of the estimators' ``fit``.
        """
        X, Y, weight = self._check(X, y, sample_weight, classes)
        used = None
        if weight is not None and not weight.all():
            used = np.flatnonzero(weight)
            (X, Y, fit_params), weight = take(X, Y, fit_params, used), weight[used]
        rules = by_index(self.classes_.tolist(), self.implies, self.exclusive)
        decoder = Decoder(len(self.classes_), **{name: getattr(self, name) for name in DEFAULTS} | rules)
        if self.calibration not in CALIBRATIONS:
            raise ValueError(f"{self._owner}: calibration must be one of {CALIBRATIONS}, got {self.calibration!r}")
        routed = self._route(weight, fit_params)
        splits = self._splits(X, Y, routed, used)
        held_out, models = self._cross_fit(X, Y, splits, routed)
        if not self.ensemble and not self._oob:  # one model per estimator, fitted on all samples
            for folds, (name, estimator) in zip(models, self._named_estimators(), strict=True):
                if not isinstance(estimator, FrozenEstimator):
                    folds[:] = [FoldModel(estimator).fit(X, Y, routed[name].fit)]
        self.models_ = models
        self._constant = constant_labels(Y, [model for folds in self.models_ for model in folds])
        self._limits = [_limits(scores) for scores in held_out]
        y = torch.from_numpy(Y.astype(np.float64))
        scale = None if weight is None else torch.from_numpy(weight / max(weight.mean(), TINY))[:, None]
        self._scalings = [PlattScaling(len(self.classes_)) for _ in held_out]
        if len(held_out) > 1 and self.calibration is not None:  # marginals of several estimators are averaged
            for scaling, scores, limits in zip(self._scalings, held_out, self._limits, strict=True):
                scaling.fit(torch.from_numpy(scores.clip(*limits)), y, scale)
        log_odds = self._average([torch.from_numpy(scores) for scores in held_out])
        self.decoder_ = decoder.fit(log_odds, y, weight=scale, calibrate=self.calibration is not None)
        self._summarise(decoder.log_odds(log_odds), y, splits)
        return self

    @property
    def thresholds_(self) -> Array | None:
        """The decision thresholds as marginals; None for "samples"."""
        return None if self.average == "samples" else self.decoder_.threshold.double().sigmoid().numpy()

    def score(self, X: Matrix, y: Matrix, sample_weight: Matrix = None, **score_params: Any) -> float:
        """Return the score that ``scoring`` names. Default: F-beta of ``average``; for 1-d targets, accuracy."""
        if self.scoring is None:
            return label_score(self, X, y, sample_weight)
        params = score_params | ({} if sample_weight is None else {"sample_weight": sample_weight})
        if get_config()["enable_metadata_routing"]:
            params = process_routing(self, "score", **params).scorer.score
        model = self
        if self._targets.kind not in ("classes", "matrix"):  # scorers take matrices of 0 and 1
            model, y = copy(self), self._targets.indicator(y)
            model._targets = Targets(y, self, self.classes_)
        return float(get_scorer(self.scoring)(model, X, y, **params))

    def predict_labels(self, X: Matrix) -> list[list[Any]]:
        """Predict the names of the labels of each sample; for 1-d targets, one class."""
        return [[c] for c in self.predict(X).tolist()] if self._targets.one_class else super().predict_labels(X)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with arrays in place of what torch holds: skops can save them."""
        state = dict(super().__getstate__())
        if "decoder_" in state:
            state["decoder_"] = {"options": self.decoder_.options, "state": _arrays(self.decoder_)}
            state["_scalings"] = [_arrays(scaling) for scaling in self._scalings]
            state["evaluation_"] = _with_curve(self.evaluation_, Tensor.numpy)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "decoder_" in state:
            num_labels, decoder = len(state["classes_"]), state["decoder_"]
            state["decoder_"] = _with_arrays(Decoder(num_labels, **decoder["options"]), decoder["state"])
            state["_scalings"] = [_with_arrays(PlattScaling(num_labels), arrays) for arrays in state["_scalings"]]
            state["evaluation_"] = _with_curve(state["evaluation_"], torch.from_numpy)
        super().__setstate__(state)

    @property
    def _oob(self) -> bool:
        return isinstance(self.cv, str) and self.cv == OOB

    def _splits(self, X: Matrix, Y: NDArray[Any], routed: Bunch, used: NDArray[np.intp] | None = None) -> list[Split]:
        """As in the base class; out-of-bag, all samples are fitted and scored.

        If only some samples are ``used``, X and Y hold these, and the user's own splits are renumbered.
        """
        if self._oob:
            return [(np.arange(len(Y)),) * 2]
        splits = super()._splits(X, Y, routed)
        if used is None or not isinstance(self.cv, Iterable):
            return splits
        parts = [[np.searchsorted(used, part[np.isin(part, used)]) for part in split] for split in splits]
        return [(train, test) for train, test in parts]

    def _combine(self, scores: list[list[Tensor]]) -> Tensor:
        """Calibrated."""
        members = zip(scores, self._limits, strict=True)
        means = [torch.stack([u.clip(*limits) for u in folds]).nanmean(0) for folds, limits in members]
        return self.decoder_.log_odds(self._average(means))

    def _decide(self, log_odds: Tensor) -> Tensor:
        return self.decoder_.decide(log_odds).labels

    def _average(self, scores: list[Tensor]) -> Tensor:
        """The log-odds of the mean of the estimators' marginals, [samples, K]; NaN where none has a score."""
        members = zip(scores, self._scalings, self._limits, strict=True)
        log_odds = [scaling(u.clip(*limits)) for u, scaling, limits in members]
        return log_odds[0] if len(log_odds) == 1 else torch.stack(log_odds).sigmoid().nanmean(0).logit()

    def _summarise(self, log_odds: Tensor, y: Tensor, splits: list[Split]) -> None:
        """Thresholds of single folds, the expected score and the evaluation on held-out samples."""
        self.thresholds_std_ = np.full(self.decoder_.threshold.shape, np.nan)
        if self.average != "samples" and len(splits) > 1:
            known = ~log_odds.isnan()
            folds = [(log_odds[test].where(known[test], 0), known[test]) for _, test in splits]
            thresholds = [expected_f1_threshold(u, self.average, beta=self.beta, weight=w)[0] for u, w in folds]
            self.thresholds_std_ = torch.stack(thresholds).sigmoid().numpy().std(0, ddof=1)
        scored = ~log_odds.isnan().all(1)
        log_odds, y = self._fill(log_odds[scored]), y[scored]
        log_odds = log_odds.where(~log_odds.isnan(), -30.0)
        pi, predicted = log_odds.sigmoid(), self.decoder_.decide(log_odds).labels
        self.expected_score_ = expected_f1(
            pi, predicted, self.average, beta=self.beta, zero_division=self.zero_division
        )
        names = list(map(str, self.classes_.tolist()))
        self.evaluation_ = None if y.isnan().all() else evaluate(pi, predicted, y, names)


def _arrays(module: nn.Module) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def _with_arrays(module: Module, arrays: dict[str, Any]) -> Module:
    module.load_state_dict({name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()})
    return module


def _with_curve(evaluation: Evaluation | None, convert: Callable[[Any], Any]) -> Evaluation | None:
    """The evaluation with another kind of arrays in its curve."""
    if evaluation is None:
        return None
    predicted, observed, entries = map(convert, evaluation.curve[:3])
    return replace(evaluation, curve=CalibrationCurve(predicted, observed, entries, evaluation.curve.brier))


def _limits(log_odds: Array) -> tuple[float, float]:
    """Where to clip: marginals of 0 and 1 are moved to half the distance of the nearest other one."""
    finite = log_odds[np.isfinite(log_odds)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    return float(low - np.log(2)), float(high + np.log(2))
