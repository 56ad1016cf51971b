"""GoEmotions: ``train.tsv``, ``dev.tsv`` and ``test.tsv``, a text and label indices per line, and ``labels.txt``.

Reference: Demszky et al., GoEmotions: a dataset of fine-grained emotions (2020).
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

SPLITS = ("train", "dev", "test")


class Part(NamedTuple):
    """Texts and their labels, [texts, K], 0 or 1."""

    texts: list[str]
    truth: Tensor

    def first(self, count: int | None) -> "Part":
        """The first rows; all if None."""
        return Part(self.texts[:count], self.truth[:count])


class Texts(NamedTuple):
    """The names of the labels, and the splits."""

    names: list[str]
    train: Part
    dev: Part
    test: Part


@lru_cache(maxsize=1)
def read(folder: Path) -> Texts:
    """The dataset in a folder; errors name the file and the line."""
    path = folder / "labels.txt"
    if not path.is_file():
        raise FileNotFoundError(f"the file {str(path)!r} does not exist; expected one label name per line")
    names = path.read_text(encoding="utf-8").splitlines()
    return Texts(names, *(_part(folder / f"{split}.tsv", len(names)) for split in SPLITS))


def tfidf() -> TfidfVectorizer:
    """TF-IDF of uni- and bigrams."""
    return TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)


def _part(path: Path, labels: int) -> Part:
    if not path.is_file():
        raise FileNotFoundError(f"the file {str(path)!r} does not exist; expected lines of text, tab, label indices")
    texts, rows = [], []
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            cells = line.rstrip("\r\n").split("\t")
            try:
                rows.append(_row(cells[1], labels))
            except (IndexError, ValueError):
                raise ValueError(
                    f"{path}, line {number}: expected comma-separated numbers from 0 to {labels - 1} after a tab"
                ) from None
            texts.append(cells[0])
    if not texts:
        raise ValueError(f"{path}: the file is empty")
    return Part(texts, torch.stack(rows))


def _row(cell: str, labels: int) -> Tensor:
    row = torch.zeros(labels)
    for number in map(int, cell.split(",")):
        if not 0 <= number < labels:
            raise ValueError(number)
        row[number] = 1
    return row
