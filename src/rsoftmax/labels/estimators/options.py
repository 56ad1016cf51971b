"""The options of :class:`rsoftmax.labels.SparseLabelClassifier` that few users change, as two arguments of it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from rsoftmax.labels.head import resolve_rule

__all__ = ["PLAIN", "HeadOptions", "TrainingOptions"]

Auto = Literal["auto"]


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and int(value) >= 1


SIZE_OR_AUTO = lambda value: value == "auto" or _is_size(value), "a positive integer or 'auto'"
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "calibration": (lambda value: value in ("platt", None), "'platt' or None"),
    "preprocessing": (lambda value: value in ("auto", None), "'auto' or None"),
    "dropout": (lambda value: 0 <= value < 1, "in [0, 1)"),
    "input_dropout": (lambda value: 0 <= value < 1, "in [0, 1)"),
    "lr": (lambda value: value > 0, "positive"),
    "weight_decay": (lambda value: value >= 0, "non-negative"),
    "batch_size": SIZE_OR_AUTO,
    "max_epochs": SIZE_OR_AUTO,
    "patience": (_is_size, "a positive integer"),
    "validation_fraction": (lambda value: 0 < value < 1, "in (0, 1)"),
    "n_estimators": SIZE_OR_AUTO,
    "hidden_layer_sizes": (
        lambda value: isinstance(value, Sequence) and all(map(_is_size, value)),
        "a sequence of positive integers such as (128,)",
    ),
}


def check_ranges(owner: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting is out of its range."""
    for name, (is_inside, text) in RANGES.items():
        if name in settings:
            with suppress(TypeError):  # a type that has no order
                if is_inside(settings[name]):
                    continue
            raise ValueError(f"{owner}: {name} must be {text}, got {settings[name]!r}")


@dataclass(frozen=True)
class HeadOptions:
    """The head of each network: its rule, mapping and loss, and its calibration.

    Attributes:
        mapping: from logits to probabilities, or "auto"; see :class:`rsoftmax.labels.MultiLabelHead`.
        rule: how the number of labels is decided, or "auto", as in the head.
        loss: the training loss, or "auto", as in the head.
        calibration: "platt": Platt scaling per label on held-out samples; None: no calibration.
    """

    mapping: str = "auto"
    rule: str | None = "auto"
    loss: str = "auto"
    calibration: Literal["platt"] | None = "platt"

    def __post_init__(self) -> None:
        resolve_rule(self.mapping, self.loss, self.rule)
        check_ranges("HeadOptions", vars(self))


@dataclass(frozen=True)
class TrainingOptions:
    """How networks are trained: preprocessing of features, regularisation, AdamW, early stopping.

    Attributes:
        preprocessing: "auto": dense features are mapped to a normal distribution by their quantiles, sparse counts are
            weighted by TF-IDF. None: no preprocessing.
        dropout: dropout rate of the hidden layers.
        input_dropout: dropout rate of the features.
        lr: learning rate.
        weight_decay: weight decay of AdamW; 0 makes it Adam.
        batch_size: samples per step, in training and prediction; "auto": 32, or 128 for 4000 samples or more.
        max_epochs: the number of epochs; with early stopping, the largest number. "auto": 150, or fewer if there are
            so many samples and labels that training would be slow.
        early_stopping: stop when the loss on held-out samples has not fallen for ``patience`` epochs, and restore the
            weights of the best epoch.
        patience: a number of epochs, for early stopping.
        validation_fraction: the fraction of samples held out from a single network, for early stopping.

    Example:
        >>> TrainingOptions(lr=1e-2).lr
        0.01
        >>> TrainingOptions(dropout=1)
        Traceback (most recent call last):
        ValueError: TrainingOptions: dropout must be in [0, 1), got 1

    In a grid search the values of ``training`` are such objects: ``{"training": [TrainingOptions(lr=lr) for lr in
    (1e-3, 1e-2)]}``.
    """

    preprocessing: Auto | None = "auto"
    dropout: float = 0.5
    input_dropout: float = 0.2
    lr: float = 1e-3
    weight_decay: float = 0.0
    batch_size: int | Auto = "auto"
    max_epochs: int | Auto = "auto"
    early_stopping: bool = True
    patience: int = 5
    validation_fraction: float = 0.2

    def __post_init__(self) -> None:
        check_ranges("TrainingOptions", vars(self))

    @classmethod
    def plain(cls, **options: Any) -> Self:
        """As the paper trains: no preprocessing, no dropout, no early stopping, batches of 128."""
        plain = {
            "preprocessing": None,
            "dropout": 0.0,
            "input_dropout": 0.0,
            "batch_size": 128,
            "early_stopping": False,
        }
        return cls(**plain | options)


PLAIN: dict[str, Any] = {
    "average": "samples",
    "hidden_layer_sizes": (128,),
    "n_estimators": 1,
    "head": HeadOptions(calibration=None),
    "training": TrainingOptions.plain(),
}
"""A single network as the paper trains it: the arguments of :class:`rsoftmax.labels.SparseLabelClassifier`."""
