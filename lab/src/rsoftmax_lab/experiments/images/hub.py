"""Labelled images from the Hugging Face Hub."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rsoftmax_lab.experiments.hub import load
from rsoftmax_lab.experiments.images.image_set import ImageSet, Splits


def read(name: str) -> Splits:
    """The splits train and validation of a hub id, or of a folder that ``datasets`` can load.

    There must be a column of images and a column of class labels, possibly nested in a list of objects.
    """
    found = load(name)
    try:
        return splits(found, name)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def splits(found: Any, name: str) -> Splits:
    """Convert a ``DatasetDict``."""
    val = next((split for split in ("validation", "val", "test") if split in found), None)
    if "train" not in found or val is None:
        raise ValueError(f"has the splits {', '.join(found)}; expected train and validation")
    from datasets import Image

    features = found["train"].features
    column = next((name for name, feature in features.items() if isinstance(feature, Image)), None)
    labels = _class_label(dict(features))
    if column is None or labels is None:
        raise ValueError(f"has the columns {', '.join(features)}; expected a column of images and one of class labels")
    path, classes = labels
    return Splits(classes, *(_split(found[split], f"{name}/{split}", column, path, len(classes))
                             for split in ("train", val)))  # fmt: skip


def _split(rows: Any, name: str, column: str, path: tuple[str, ...], labels: int) -> ImageSet:
    from datasets import Image

    rows = rows.cast_column(column, Image(decode=False))
    Y = np.zeros((len(rows), labels), dtype=bool)
    for i, value in enumerate(rows[path[0]]):
        Y[i, list(_values(value, path[1:]))] = True
    names = [f"{name}@{rows._fingerprint}/{i}" for i in range(len(rows))]
    return ImageSet(names, [partial(_bytes, rows, column, i) for i in range(len(rows))], Y, np.zeros_like(Y))


def _bytes(rows: Any, column: str, i: int) -> bytes:
    image = rows[i][column]
    stored: bytes | None = image["bytes"]
    return Path(image["path"]).read_bytes() if stored is None else stored


def _class_label(feature: Any) -> tuple[tuple[str, ...], list[str]] | None:
    """The path through nested features to the first class labels, and their names."""
    from datasets import ClassLabel

    if isinstance(feature, ClassLabel):
        return (), list(feature.names)
    if isinstance(feature, dict):
        for name, inner in feature.items():
            if found := _class_label(inner):
                return (name, *found[0]), found[1]
    return _class_label(feature.feature) if hasattr(feature, "feature") else None


def _values(value: Any, path: tuple[str, ...]) -> Iterator[int]:
    if isinstance(value, list):
        for inner in value:
            yield from _values(inner, path)
    elif isinstance(value, dict):
        yield from _values(value[path[0]], path[1:])
    elif value is not None and value >= 0:  # -1: not known
        yield value
