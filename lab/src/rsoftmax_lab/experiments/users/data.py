"""A real dataset: all training rows, and the test rows."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from rsoftmax_lab.comparison import Samples
from rsoftmax_lab.experiments import sets


def load(folder: Path, dataset: str, rows: int = 0) -> tuple[Samples, Samples]:
    """The first ``rows`` training rows (all if 0) and the test rows, standardized by the former."""
    train, test = sets.read(folder, dataset)
    first = slice(rows or None)
    learned, judged = sets.standardised(
        [Samples(train.X[first], train.Y[first]), Samples(test.X, test.Y)], train.numeric
    )
    return _ready(learned), _ready(judged)


def _ready(rows: Samples) -> Samples:
    """Sparse features with the index type that scikit-learn's trees need."""
    if not sp.issparse(rows.X):
        return rows
    X = sp.csr_array(rows.X)
    return Samples(sp.csr_array((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape), rows.Y)
