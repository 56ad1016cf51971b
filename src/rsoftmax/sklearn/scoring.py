"""The F1 that a classifier was told to maximise."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.metrics import accuracy_score, fbeta_score

from rsoftmax.sklearn.data import Matrix


def label_score(model: Any, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> float:
    """F-beta of ``model.average`` and ``model.beta``; for 1-d targets, accuracy. Labels not known count nowhere."""
    found, targets = model.predict(X), model._targets
    if targets.one_class:
        return float(accuracy_score(y, found, sample_weight=sample_weight))
    truth, found = targets.indicator(y), targets.indicator(found)
    if not sp.issparse(truth) and np.isnan(truth.astype(np.float64)).any():
        found = np.where(np.isnan(truth), 0, found)
        truth = np.nan_to_num(truth)
    scored = fbeta_score(
        truth, found, beta=model.beta, average=model.average, sample_weight=sample_weight, zero_division=1.0
    )
    return float(scored)
