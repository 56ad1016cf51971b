"""A real dataset with validation rows split off its training rows, and standardized features."""

from pathlib import Path

import numpy as np

from rsoftmax_lab.comparison import Data, Samples
from rsoftmax_lab.experiments import sets


def load(folder: Path, dataset: str, validation_share: float, seed: int) -> Data:
    """A dataset with a random fraction of its training rows as validation rows. Samples without labels are kept.

    Numeric features are standardized by the training rows; one-hot features stay 0 and 1.
    """
    train, test = sets.read(folder, dataset)
    order = np.random.default_rng(seed).permutation(len(train.Y))
    aside = round(validation_share * len(order))
    if not 0 < aside < len(order):
        raise ValueError(
            f"{dataset}: validation_share={validation_share} of {len(order)} training rows is {aside} rows; both parts"
            " need at least one row"
        )
    learned, selected = (Samples(train.X[part], train.Y[part]) for part in (order[aside:], order[:aside]))
    return Data(*sets.standardised([learned, selected, Samples(test.X, test.Y)], train.numeric))
