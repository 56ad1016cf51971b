"""Labelled images: sets of them, and readers by layout, VOC's, COCO's or the hub's."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rsoftmax.labels.models.images import BadImageError, File, open_image
from rsoftmax.labels.models.inputs import is_hub_id
from rsoftmax_lab.comparison import Labels
from rsoftmax_lab.data import load_hub


@dataclass(frozen=True)
class ImageSet:
    """The images of one split.

    Attributes:
        names: the names of the images.
        files: their paths, or functions that return their bytes.
        labels: [images, K].
        ignored: [images, K], labels excluded from evaluation; treated as absent in training.
    """

    names: Sequence[str]
    files: Sequence[File]
    labels: Labels
    ignored: Labels

    def __len__(self) -> int:
        return len(self.names)

    def take(self, index: NDArray[np.int64]) -> "ImageSet":
        """A subset of the images."""
        names, files = [self.names[i] for i in index], [self.files[i] for i in index]
        return ImageSet(names, files, self.labels[index], self.ignored[index])

    def fingerprint(self) -> str:
        """A hash of the names and sizes of the files, independent of their folder."""
        digest = hashlib.sha256()
        for name, file in zip(self.names, self.files, strict=True):
            digest.update(f"{name}\0{_size(file)}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()

    def openable(self, skip_bad: bool) -> tuple["ImageSet", list[str]]:
        """The images that can be opened, and the errors of the others; raises without ``skip_bad``."""
        good, errors = [], []
        for i, (file, name) in enumerate(zip(self.files, self.names, strict=True)):
            try:
                open_image(file, name)
                good.append(i)
            except BadImageError as error:
                if not skip_bad:
                    raise
                errors.append(str(error))
        return self.take(np.array(good, np.int64)), errors


class Splits(NamedTuple):
    """A dataset: the class names, the training images, and the evaluation images."""

    classes: list[str]
    train: ImageSet
    val: ImageSet

    def subset(self, n: int) -> "Splits":
        """n images of each split, always the same ones; all if n is 0."""
        if not n:
            return self
        first = [np.sort(np.random.default_rng(0).permutation(len(images))[:n]) for images in self[1:]]
        return Splits(self.classes, self.train.take(first[0]), self.val.take(first[1]))


def _size(file: File) -> int:
    if not isinstance(file, Path):
        return 0  # content-addressed names
    try:
        return file.stat().st_size
    except (OSError, ValueError):  # ValueError: an invalid file name
        return -1


def read(dataset: str, data: str) -> Splits:
    """Read a dataset of images.

    Args:
        dataset: the layout of the folder, "voc" or "coco".
        data: the folder, or a hub id.
    """
    from rsoftmax_lab.data import coco, voc

    if not Path(data).is_dir() and is_hub_id(data):
        return read_hub(data)
    return {"voc": voc.read, "coco": coco.read}[dataset](Path(data).resolve())


def read_hub(name: str) -> Splits:
    """The splits train and validation of a hub id.

    There must be a column of images and a column of class labels, possibly nested in a list of objects.
    """
    splits = load_hub(name)
    val = next((split for split in ("validation", "val", "test") if split in splits), None)
    if "train" not in splits or val is None:
        raise ValueError(f"{name} has the splits {', '.join(splits)}; expected train and validation")
    from datasets import Image

    features = splits["train"].features
    column = next((name for name, feature in features.items() if isinstance(feature, Image)), None)
    labels = _class_label(dict(features))
    if column is None or labels is None:
        expected = "expected a column of images and one of class labels"
        raise ValueError(f"{name} has the columns {', '.join(features)}; {expected}")
    path, classes = labels
    encoded = {split: splits[split].cast_column(column, Image(decode=False)) for split in ("train", val)}
    return Splits(classes, *(_hub_split(encoded[s], f"{name}/{s}", column, path, classes) for s in ("train", val)))


def _hub_split(split: Any, name: str, column: str, path: tuple[str, ...], classes: list[str]) -> ImageSet:
    Y = np.zeros((len(split), len(classes)), dtype=bool)
    for i, value in enumerate(split[path[0]]):
        Y[i, list(_values(value, path[1:]))] = True
    names = [f"{name}@{split._fingerprint}/{i}" for i in range(len(split))]
    return ImageSet(names, [partial(_bytes, split, column, i) for i in range(len(split))], Y, np.zeros_like(Y))


def _bytes(split: Any, column: str, i: int) -> bytes:
    image = split[i][column]
    stored: bytes | None = image["bytes"]
    return Path(image["path"]).read_bytes() if stored is None else stored


def _class_label(feature: Any) -> tuple[tuple[str, ...], list[str]] | None:
    """The path through nested features to the first class labels, and their names."""
    from datasets import ClassLabel

    if isinstance(feature, ClassLabel):
        return (), list(feature.names)
    if isinstance(feature, dict):
        for name, inner in feature.items():
            if label := _class_label(inner):
                return (name, *label[0]), label[1]
    return _class_label(feature.feature) if hasattr(feature, "feature") else None


def _values(value: Any, path: tuple[str, ...]) -> Iterator[int]:
    """The class indices in a nested value."""
    if isinstance(value, list):
        for inner in value:
            yield from _values(inner, path)
    elif isinstance(value, dict):
        yield from _values(value[path[0]], path[1:])
    elif value is not None and value >= 0:  # -1: not known
        yield value
