"""F1 scores, and the threshold that maximizes F1."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from rsoftmax.labels import AVERAGES
from rsoftmax_lab.comparison.data import Labels


def scores(truth: Labels, found: Labels) -> dict[str, float]:
    """Micro, macro and samples F1, in per cent; 100 where no label is true or predicted."""
    return {
        average: round(100 * float(f1_score(truth, found, average=average, zero_division=1.0)), 4)
        for average in AVERAGES
    }


def micro_f1(truth: Labels, found: Labels) -> float:
    """Micro-F1 as a fraction, fast enough for each epoch."""
    size = int(np.count_nonzero(truth)) + int(np.count_nonzero(found))
    return 2 * int(np.count_nonzero(truth & found)) / size if size else 1.0


def best_threshold(values: NDArray[Any], truth: Labels) -> float:
    """The value v for which ``values >= v`` has the highest micro-F1.

    Example:
        >>> best_threshold(np.array([[0.9, 0.25], [0.5, 0.3]]), np.array([[True, False], [True, False]]))
        0.5
    """
    order = np.argsort(values, axis=None)[::-1]
    falling, right = values.ravel()[order], np.cumsum(truth.ravel()[order])
    f1 = 2 * right / (np.arange(1, len(order) + 1) + max(right[-1], 1))
    f1[:-1][falling[:-1] == falling[1:]] = -1  # ties are on the same side of a threshold
    return float(falling[f1.argmax()])
