"""Thresholds tuned on validation rows: the alternative without this library."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from rsoftmax_lab.comparison.data import Labels
from rsoftmax_lab.comparison.scores import best_threshold

Marginals = NDArray[np.float64]
GRID = np.linspace(0.01, 0.99, 99)


def micro(pi: Marginals, Y: Labels) -> Marginals:
    """The threshold with the best micro-F1."""
    return np.array([best_threshold(pi, Y)])


def macro(pi: Marginals, Y: Labels) -> Marginals:
    """The threshold with the best F1 for each label."""
    return np.array([best_threshold(pi[:, label], Y[:, label]) for label in range(Y.shape[1])])


def samples(pi: Marginals, Y: Labels) -> Marginals:
    """The threshold with the best samples-F1 among 99 candidates."""
    return GRID[[np.argmax([f1_score(Y, pi >= p, average="samples", zero_division=1.0) for p in GRID])]]


TUNE: dict[str, Callable[[Marginals, Labels], Marginals]] = {"micro": micro, "macro": macro, "samples": samples}
