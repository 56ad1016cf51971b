"""One run: one model on one dataset, evaluated with several decision rules."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.utils import check_random_state

from rsoftmax.labels import AVERAGES, ExpectedF1Classifier, SparseLabelClassifier, calibration_curve
from rsoftmax.labels.estimators.expected_f1 import FoldModel
from rsoftmax.labels.estimators.targets import stratified_folds
from rsoftmax_lab.comparison import TUNE, Labels, Marginals, Samples, scores
from rsoftmax_lab.experiments.users.data import load
from rsoftmax_lab.experiments.users.grid import Run
from rsoftmax_lab.experiments.users.methods import EXPECTED_F1, HALF, METHODS, ONE_FIT, OUT_OF_BAG, TUNED, TUNED_CV
from rsoftmax_lab.experiments.users.once import Once, forget
from rsoftmax_lab.running.runs import Row

FOLDS = 5
SHARE = 1 / FOLDS  # held out from a single fit: the same rows as the first of five folds

Found = dict[str, Labels]  # for each F1, the labels predicted to maximize it


def run(folder: Path, run: Run) -> Row:
    """Fit and score; returns the row of a run on a dataset of the folder."""
    train, test = load(folder, run.dataset, run.rows)
    estimator, rules = METHODS[run.method].make(run.seed), METHODS[run.method].rules
    found: dict[str, dict[str, float]] = {}
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels too rare for the folds; fits without convergence
        if HALF in rules:
            found |= _cut(estimator, run.seed, train, test)
        if EXPECTED_F1 in rules:
            found[EXPECTED_F1] = _expected_f1(estimator, run.seed, train, test)
        if ONE_FIT in rules:
            found[ONE_FIT] = _expected_f1(estimator, run.seed, train, test, cv=SHARE)
        if OUT_OF_BAG in rules:
            found[OUT_OF_BAG] = _expected_f1(estimator, run.seed, train, test, cv="oob")
        if TUNED_CV in rules:
            found[TUNED_CV] = _tuned_cv(estimator, train, test)
    return {"rules": {rule: {"test": found[rule]} for rule in rules}}


def _cut(estimator: Any, seed: int, train: Samples, test: Samples) -> dict[str, dict[str, float]]:
    """One fit on four of the five folds of :class:`ExpectedF1Classifier`; thresholds are tuned on the fifth."""
    fold = stratified_folds(train.Y, FOLDS, check_random_state(seed))
    learned, validation = (Samples(train.X[part], train.Y[part]) for part in (fold != 0, fold == 0))
    marginals = _fitted(estimator, learned, validation)
    asked, pi = marginals(validation.X), marginals(test.X)
    return {
        HALF: _scored(dict.fromkeys(AVERAGES, pi > 0.5), pi, test.Y),
        TUNED: _scored({average: pi >= TUNE[average](asked, validation.Y) for average in AVERAGES}, pi, test.Y),
    }


def _fitted(estimator: Any, train: Samples, validation: Samples) -> Callable[[Any], Marginals]:
    """A function from features to marginals. Networks stop early on the validation rows; unseen labels get 0."""
    if isinstance(estimator, SparseLabelClassifier):
        network = estimator.fit(train.X, train.Y, validation=(validation.X, validation.Y))
        return lambda X: network.predict_proba(X).astype(np.float64)
    model = FoldModel(Once(estimator)).fit(train.X, train.Y.astype(np.int64))
    return lambda X: np.nan_to_num(expit(model.log_odds(X)))


def _tuned_cv(estimator: Any, train: Samples, test: Samples) -> dict[str, float]:
    """scikit-learn's own tuning of thresholds for F1, label by label: five fits and one more for each."""
    tuned = TunedThresholdClassifierCV(estimator, scoring="f1")
    model = FoldModel(tuned).fit(train.X, train.Y.astype(np.int64))
    labels = np.zeros(test.Y.shape, dtype=bool)
    labels[:, model.varying_] = np.stack([one.predict(test.X) for one in model.models_], axis=1)
    return _scored(dict.fromkeys(AVERAGES, labels), np.nan_to_num(expit(model.log_odds(test.X))), test.Y)


def _expected_f1(estimator: Any, seed: int, train: Samples, test: Samples, **settings: Any) -> dict[str, float]:
    """Networks decide themselves; other models, and ensembles, through :class:`ExpectedF1Classifier`."""
    found: Found = {}
    for average in AVERAGES:
        if isinstance(estimator, SparseLabelClassifier):
            model = estimator.set_params(average=average)
        else:
            several = isinstance(estimator, list)
            once = [Once(one) for one in estimator] if several else Once(estimator)
            model = ExpectedF1Classifier(once, average=average, random_state=seed, **settings)
        found[average] = model.fit(train.X, train.Y).predict(test.X).astype(bool)
    return _scored(found, model.predict_proba(test.X).astype(np.float64), test.Y)  # the same for all averages


def _scored(found: Found, pi: Marginals, Y: Labels) -> dict[str, float]:
    """Each F1 of the labels predicted for it, in per cent; Brier score and calibration error of the marginals."""
    f1 = {average: scores(Y, found[average])[average] for average in AVERAGES}
    curve = calibration_curve(torch.from_numpy(pi), torch.from_numpy(Y))
    return f1 | {"brier": round(100 * curve.brier, 4), "ece": round(100 * curve.error, 4)}
