"""Checks of the settings of :class:`rsoftmax.sklearn.SparseLabelClassifier`; its head checks those of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rsoftmax.sklearn.features import FEATURES

RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda value: value > 0, "above 0"),
    "weight_decay": (lambda value: value >= 0, "0 or above"),
    "validation_share": (lambda value: 0 < value < 1, "between 0 and 1"),
    "dropout": (lambda value: 0 <= value < 1, "0 or above and below 1"),
    "input_dropout": (lambda value: 0 <= value < 1, "0 or above and below 1"),
}
SIZES = ("epochs", "batch_size", "patience", "nets")
WORDS: dict[str, tuple[Any, ...]] = {"features": FEATURES, "calibration": ("platt", None)}

# A single network as the paper trains it: features as they are, no dropout, rows decided one by one, no calibration.
PLAIN: dict[str, Any] = {
    "average": "samples",
    "features": "as_is",
    "hidden": (128,),
    "dropout": 0.0,
    "input_dropout": 0.0,
    "nets": 1,
    "batch_size": 128,
    "early_stopping": False,
    "calibration": None,
}


def check_settings(settings: dict[str, Any]) -> None:
    """Raise if one of the settings, by name, cannot be right."""
    hidden = settings["hidden"]
    if not isinstance(hidden, Sequence):
        raise ValueError(f"SparseLabelClassifier: hidden must be sizes of layers, say (128,), got {hidden!r}")
    sizes = {name: settings[name] for name in SIZES} | {f"hidden[{i}]": size for i, size in enumerate(hidden)}
    for name, size in sizes.items():
        if (not isinstance(size, int | np.integer) or size < 1) and (name, size) != ("batch_size", "auto"):
            raise ValueError(f"SparseLabelClassifier: {name} must be a whole number from 1, got {size!r}")
    for name, (inside, text) in RANGES.items():
        if not inside(settings[name]):
            raise ValueError(f"SparseLabelClassifier: {name} must be {text}, got {settings[name]!r}")
    for name, words in WORDS.items():
        if settings[name] not in words:
            raise ValueError(f"SparseLabelClassifier: {name} must be one of {words}, got {settings[name]!r}")
