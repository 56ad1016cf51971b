"""Platt scaling and the estimator on top of it, against scikit-learn's calibration."""

import warnings
from typing import Any

import numpy as np
import torch
from fuzz_draw import Draw
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import f1_score, log_loss
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC

from rsoftmax.labels import ExpectedF1Classifier, PlattScaling

BASES = (
    lambda seed: SGDClassifier(random_state=seed),
    lambda seed: LinearSVC(random_state=seed),
    lambda seed: LogisticRegression(),
    lambda seed: GaussianNB(),
    lambda seed: KNeighborsClassifier(),
    lambda seed: RandomForestClassifier(20, random_state=seed),
)


class Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose scores are its features."""

    def fit(self, x: Any, y: Any) -> "Scores":
        self.classes_ = np.array([0, 1])
        return self

    def decision_function(self, x: Any) -> Any:
        return x[:, 0]

    def predict(self, x: Any) -> Any:
        return (x[:, 0] > 0).astype(int)


def check_scaling(draw: Draw) -> None:
    """The log-loss of one label is that of scikit-learn's sigmoid, or less; 1 % is left for the shrinkage."""
    rows = draw.integer(100, 600)
    scores = draw.normal(rows) * 10 ** draw.number(-3, 3) + draw.number(-3, 3)
    odds = (scores - scores.mean()) / scores.std() * draw.number(0.2, 6) + draw.number(-2, 2)
    y = torch.rand(rows, generator=torch.Generator().manual_seed(draw.integer(0, 1 << 30))) < odds.sigmoid()
    if draw.chance(0.3):
        scores[draw.integer(0, rows - 1)] *= 10 ** draw.number(1, 4)
    if not 10 <= y.sum() <= rows - 10:
        return
    x = scores.numpy()[:, None]
    theirs = CalibratedClassifierCV(FrozenEstimator(Scores().fit(x, y)), method="sigmoid").fit(x, y.numpy())
    mine = PlattScaling(1).fit(scores[:, None], y[:, None].double())(scores[:, None]).sigmoid()
    losses = [
        log_loss(y.numpy(), np.clip(p, 1e-12, 1 - 1e-12)) for p in (mine[:, 0].numpy(), theirs.predict_proba(x)[:, 1])
    ]
    assert losses[0] <= 1.01 * losses[1] + 1e-3, losses


def check_estimator(draw: Draw) -> None:
    """The micro-F1 is at least that of calibrated marginals above one half, but for chance."""
    seed = draw.integer(0, 1 << 20)
    labels = draw.integer(2, 6)
    x, y = make_multilabel_classification(
        900, n_features=draw.integer(5, 20), n_classes=labels, n_labels=draw.integer(1, 3), random_state=seed
    )
    x = x * 10 ** draw.number(-2, 2)
    base, half = draw.one_of(*BASES)(seed), len(x) // 2
    if not ((y[:half].sum(0) > 10) & (y[:half].sum(0) < half - 10)).all():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ExpectedF1Classifier(base, random_state=seed).fit(x[:half], y[:half])
        plain = MultiOutputClassifier(CalibratedClassifierCV(base, method="sigmoid")).fit(x[:half], y[:half])
    marginals = np.asarray(model.predict_proba(x[half:]))
    assert np.isfinite(marginals).all()
    assert ((marginals >= 0) & (marginals <= 1)).all()
    found, theirs = (f1_score(y[half:], m.predict(x[half:]), average="micro", zero_division=0) for m in (model, plain))
    assert found >= theirs - 0.05, (type(base).__name__, found, theirs)
