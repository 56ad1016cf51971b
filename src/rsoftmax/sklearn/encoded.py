"""The classifier's recipe on features that a network gives: nearly normal, and to be used behind the network alone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rsoftmax.multilabel import Evaluation, LabelNetwork
from rsoftmax.sklearn.classifier import SparseLabelClassifier
from rsoftmax.sklearn.merging import merged

CONSTANT = 1e-6  # the spread of a feature that says nothing


def fit_features(
    x: Tensor,
    truth: Tensor,
    held: tuple[Tensor, Tensor] | None,
    names: Sequence[str],
    head: dict[str, Any],
    **settings: Any,
) -> tuple[LabelNetwork, Evaluation]:
    """Train as :class:`SparseLabelClassifier` does, on standardised features.

    Args:
        x: features [rows, d].
        truth: labels [rows, K], 0 or 1, NaN where not known.
        held: features and labels to hold out, in place of folds.
        names: of the labels.
        head: settings of the head.
        settings: of the classifier.

    Returns:
        One network for the features as they came, and what the rows held out say about it.
    """
    shift, spread = x.mean(0), x.std(0, correction=0)
    scale = spread.where(spread > CONSTANT, torch.inf)
    model = SparseLabelClassifier(features="as_is", **{**head, **settings})
    aside = None if held is None else (((held[0] - shift) / scale).numpy(), targets_of(held[1]))
    model.fit(((x - shift) / scale).numpy(), targets_of(truth), validation=aside)
    network = merged([net.module_ for net in model.nets_], model._head(), shift, scale)
    return network, model.evaluation_.named(names)


def targets_of(truth: Tensor) -> Any:
    """Labels [rows, K] as the classifier takes them; a single label as sets, for one column would mean two classes."""
    return truth.numpy() if truth.shape[1] > 1 else [["it"] if has else [] for has in truth[:, 0].bool().tolist()]
