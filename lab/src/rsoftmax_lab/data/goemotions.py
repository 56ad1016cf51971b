"""GoEmotions: ``train.tsv``, ``dev.tsv`` and ``test.tsv``, a text and label indices per line, and ``labels.txt``.

Reference: Demszky et al., GoEmotions: a dataset of fine-grained emotions (2020).
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor


class Split(NamedTuple):
    """Texts and their labels y, [texts, K], 0 or 1."""

    texts: list[str]
    y: Tensor


class GoEmotions(NamedTuple):
    """The names of the labels, and the splits."""

    labels: list[str]
    train: Split
    dev: Split
    test: Split


@lru_cache(maxsize=1)
def read(folder: Path) -> GoEmotions:
    """The dataset in a folder; errors name the file and the line."""
    path = folder / "labels.txt"
    if not path.is_file():
        raise FileNotFoundError(f"the file {str(path)!r} does not exist; expected one label name per line")
    labels = path.read_text(encoding="utf-8").splitlines()
    return GoEmotions(labels, *(_split(folder / f"{split}.tsv", len(labels)) for split in ("train", "dev", "test")))


def tfidf() -> TfidfVectorizer:
    """TF-IDF of uni- and bigrams."""
    return TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)


def _split(path: Path, num_labels: int) -> Split:
    if not path.is_file():
        raise FileNotFoundError(f"the file {str(path)!r} does not exist; expected lines of text, tab, label indices")
    texts, y = [], []
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            text, *cells = line.rstrip("\r\n").split("\t")
            try:
                indices = [range(num_labels).index(int(index)) for index in cells[0].split(",")]
            except (IndexError, ValueError):
                expected = f"expected comma-separated numbers from 0 to {num_labels - 1} after a tab"
                raise ValueError(f"{path}, line {number}: {expected}") from None
            texts.append(text)
            y.append(torch.zeros(num_labels).index_fill(0, torch.tensor(indices), 1.0))
    if not texts:
        raise ValueError(f"{path}: the file is empty")
    return Split(texts, torch.stack(y))
