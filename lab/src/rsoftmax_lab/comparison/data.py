"""The data of a comparison: features and labels of three splits."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = Any  # features: an array or a sparse matrix
Labels = NDArray[np.bool_]


class Rows(NamedTuple):
    """Features and labels; entries marked in ``ignored`` are excluded from the scores."""

    X: Matrix
    Y: Labels
    ignored: Labels | None = None


class Data(NamedTuple):
    """Training rows, validation rows for selection, and test rows."""

    train: Rows
    validation: Rows
    test: Rows
