"""A real set as the contest wants it: a share of its training rows to select on, and features standardised."""

from pathlib import Path

import numpy as np

from rsoftmax_lab.contest.data import Data, Rows
from rsoftmax_lab.experiments import sets


def load(folder: Path, dataset: str, validation_share: float, seed: int) -> Data:
    """A set, with a share of its training rows, drawn by the seed, to select on. Rows without a label stay.

    Numeric features are standardised by the rows that are trained on; nominal ones are 0 and 1 and stay so.
    """
    train, test = sets.read(folder, dataset)
    order = np.random.default_rng(seed).permutation(len(train.Y))
    aside = round(validation_share * len(order))
    if not 0 < aside < len(order):
        raise ValueError(
            f"{dataset}: a share of {validation_share} of {len(order)} training rows, to select on, is {aside} rows;"
            " there must be some to select on and some to train on"
        )
    learned, selected = (Rows(train.X[part], train.Y[part]) for part in (order[aside:], order[:aside]))
    return Data(*sets.standardised([learned, selected, Rows(test.X, test.Y)], train.numeric))
