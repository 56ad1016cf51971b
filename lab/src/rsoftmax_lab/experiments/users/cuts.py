"""Cuts tuned on validation rows: what a careful user does without this library."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from rsoftmax_lab.contest.data import Labels
from rsoftmax_lab.contest.scores import best_threshold

Marginals = NDArray[np.float64]
GRID = np.linspace(0.01, 0.99, 99)


def micro(pi: Marginals, Y: Labels) -> Marginals:
    """One cut, the best of all for micro-F1."""
    return np.array([best_threshold(pi, Y)])


def macro(pi: Marginals, Y: Labels) -> Marginals:
    """A cut for each label, the best of all for its F1."""
    return np.array([best_threshold(pi[:, label], Y[:, label]) for label in range(Y.shape[1])])


def samples(pi: Marginals, Y: Labels) -> Marginals:
    """One cut, the best of 99 for samples-F1."""
    return GRID[[np.argmax([f1_score(Y, pi >= cut, average="samples", zero_division=1.0) for cut in GRID])]]


TUNE: dict[str, Callable[[Marginals, Labels], Marginals]] = {"micro": micro, "macro": macro, "samples": samples}
