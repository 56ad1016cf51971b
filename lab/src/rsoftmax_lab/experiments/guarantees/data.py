"""The scores that a logistic regression for each label gives to the test rows, and the labels of these."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from rsoftmax.labels.estimators.expected_f1 import FoldModel
from rsoftmax_lab.comparison import Samples
from rsoftmax_lab.experiments import goemotions, sets
from rsoftmax_lab.experiments.guarantees.grid import TEXTS


class Scored(NamedTuple):
    """Marginals and labels [rows, K] of rows that have a label; float64."""

    pi: Tensor
    y: Tensor


def scored(folder: Path, texts: Path | None, dataset: str) -> Scored:
    """The test rows, scored by a model that is fitted on the training rows; of GoEmotions, dev and test rows."""
    if dataset == TEXTS and texts is not None:
        return _fitted(*_texts(texts))
    train, test = sets.read(folder, dataset)
    return _fitted(*sets.standardised([Samples(train.X, train.Y), Samples(test.X, test.Y)], train.numeric))


def _texts(folder: Path) -> tuple[Samples, Samples]:
    found = goemotions.read(folder)
    words = goemotions.tfidf().fit(found.train.texts)
    held_out = [*found.dev.texts, *found.test.texts]
    truth = torch.cat([found.dev.truth, found.test.truth])
    return (
        Samples(words.transform(found.train.texts), found.train.truth.numpy() == 1),
        Samples(words.transform(held_out), truth.numpy() == 1),
    )


def _fitted(train: Samples, test: Samples) -> Scored:
    model = FoldModel(LogisticRegression(max_iter=1000)).fit(train.X, train.Y.astype(np.int64))
    pi: Any = np.nan_to_num(expit(model.log_odds(test.X)))
    some = test.Y.any(1)
    return Scored(torch.from_numpy(pi[some]), torch.from_numpy(test.Y[some].astype(np.float64)))
