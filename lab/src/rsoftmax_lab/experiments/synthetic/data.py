"""The synthetic documents of Figure 2."""

from dataclasses import fields, replace
from functools import lru_cache

import numpy as np
from sklearn.datasets import make_multilabel_classification
from sklearn.preprocessing import StandardScaler

from rsoftmax_lab.comparison import Data, Samples, Training
from rsoftmax_lab.experiments.synthetic.grid import Run


def draw(run: Run) -> Data:
    """The documents of a run, with features standardized by the training rows."""
    default = Training(seed=run.seed)  # the data depend only on the seed and the data settings
    return _draw(replace(run, **{field.name: getattr(default, field.name) for field in fields(Training)}))


@lru_cache(maxsize=1)  # consecutive runs use the same data
def _draw(run: Run) -> Data:
    X, Y = make_multilabel_classification(
        run.samples + run.test_samples,
        run.features,
        n_classes=run.classes,
        n_labels=run.labels,
        length=run.length,
        allow_unlabeled=run.allow_unlabeled,
        random_state=run.seed,
    )
    train = round(0.8 * run.samples)
    X = StandardScaler().fit(X[:train]).transform(X).astype(np.float32)
    parts = [slice(0, train), slice(train, run.samples), slice(run.samples, None)]
    return Data(*(Samples(X[part], Y[part].astype(bool)) for part in parts))
