"""What a contest is held on: features and labels, in three parts."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = Any  # features: an array or a sparse matrix
Labels = NDArray[np.bool_]


class Rows(NamedTuple):
    """Features and labels; if given, ``ignored`` says which labels count neither as right nor as wrong."""

    X: Matrix
    Y: Labels
    ignored: Labels | None = None


class Data(NamedTuple):
    """Rows to learn from, rows to select on, and rows that nothing is selected on."""

    train: Rows
    validation: Rows
    test: Rows
