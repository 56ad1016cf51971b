"""Labelled pictures, wherever they come from."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from rsoftmax.pictures import BadPictureError, File, open_picture
from rsoftmax_lab.contest.data import Labels


@dataclass(frozen=True)
class Pictures:
    """The pictures of one split.

    Attributes:
        names: what they are called.
        files: where each is: a path, or a function that gives its bytes.
        labels: [pictures, K].
        ignored: [pictures, K], labels that are not counted as right or wrong; absent in training.
    """

    names: Sequence[str]
    files: Sequence[File]
    labels: Labels
    ignored: Labels

    def __len__(self) -> int:
        return len(self.names)

    def take(self, index: NDArray[np.int64]) -> "Pictures":
        """Some of them."""
        return replace(
            self,
            names=[self.names[i] for i in index],
            files=[self.files[i] for i in index],
            labels=self.labels[index],
            ignored=self.ignored[index],
        )

    def fingerprint(self) -> str:
        """Changes with the names and sizes of the files, not with the folder that they are in."""
        digest = hashlib.sha256()
        for name, file in zip(self.names, self.files, strict=True):
            digest.update(f"{name}\0{_size(file)}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()


class Splits(NamedTuple):
    """A set of pictures: what there is to see, the pictures to learn from, and those to be judged on."""

    classes: list[str]
    train: Pictures
    val: Pictures


def openable(pictures: Pictures, skip_bad: bool) -> tuple[Pictures, list[str]]:
    """The pictures that can be opened, and what is wrong with the others; raises without ``skip_bad``."""
    kept, bad = [], []
    for i, (file, name) in enumerate(zip(pictures.files, pictures.names, strict=True)):
        try:
            open_picture(file, name)
            kept.append(i)
        except BadPictureError as error:
            if not skip_bad:
                raise
            bad.append(str(error))
    return pictures.take(np.array(kept, np.int64)), bad


def report_bad(bad: list[str], total: int, console: Console) -> None:
    """Say how many pictures were left out, and what is wrong with the first few."""
    if bad:
        console.print(f"left out: {len(bad)} of {total} pictures", *bad[:5], sep="\n  ", markup=False, highlight=False)


def _size(file: File) -> int:
    if not isinstance(file, Path):
        return 0  # the names of such files change with what they hold
    try:
        return file.stat().st_size
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return -1
