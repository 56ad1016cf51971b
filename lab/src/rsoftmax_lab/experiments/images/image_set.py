"""Labelled images."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from rsoftmax.labels.models.images import BadImageError, File, open_image
from rsoftmax_lab.comparison import Labels


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
        return replace(
            self,
            names=[self.names[i] for i in index],
            files=[self.files[i] for i in index],
            labels=self.labels[index],
            ignored=self.ignored[index],
        )

    def fingerprint(self) -> str:
        """A hash of the names and sizes of the files, independent of their folder."""
        digest = hashlib.sha256()
        for name, file in zip(self.names, self.files, strict=True):
            digest.update(f"{name}\0{_size(file)}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()


class Splits(NamedTuple):
    """A dataset: the class names, the training images, and the evaluation images."""

    classes: list[str]
    train: ImageSet
    val: ImageSet


def openable(images: ImageSet, skip_bad: bool) -> tuple[ImageSet, list[str]]:
    """The images that can be opened, and the errors of the others; raises without ``skip_bad``."""
    kept, bad = [], []
    for i, (file, name) in enumerate(zip(images.files, images.names, strict=True)):
        try:
            open_image(file, name)
            kept.append(i)
        except BadImageError as error:
            if not skip_bad:
                raise
            bad.append(str(error))
    return images.take(np.array(kept, np.int64)), bad


def report_bad(bad: list[str], total: int, console: Console) -> None:
    """Print the number of skipped images and the first few errors."""
    if bad:
        console.print(f"skipped {len(bad)} of {total} images", *bad[:5], sep="\n  ", markup=False, highlight=False)


def _size(file: File) -> int:
    if not isinstance(file, Path):
        return 0  # content-addressed names
    try:
        return file.stat().st_size
    except (OSError, ValueError):  # ValueError: an invalid file name
        return -1
