"""How well ten folds preserve the frequencies of labels and of pairs of labels: ours, scikit-multilearn's, random ones.

Prints the table of docs/multilabel.md. Needs Mulan's datasets, a folder for each, and
scikit-multilearn, which takes very long for pairs of hundreds of labels.

    pip install --no-deps scikit-multilearn
    python tools/compare_splits.py MULAN yeast birds bibtex
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.model_selection import KFold
from skmultilearn.model_selection import IterativeStratification

from rsoftmax.labels import MultilabelStratifiedKFold
from rsoftmax_lab.data import mulan

FOLDS = 10
SPLITTERS = {
    "`MultilabelStratifiedKFold`": MultilabelStratifiedKFold(FOLDS, shuffle=True, random_state=0),
    "scikit-multilearn, labels": IterativeStratification(FOLDS, order=1),
    "scikit-multilearn, pairs": IterativeStratification(FOLDS, order=2),
    "`KFold`": KFold(FOLDS, shuffle=True, random_state=0),
}


def difference(events: Any, folds: list[Any]) -> float:
    """Between the frequency of an event in a fold and in all samples, relative to the latter; the mean."""
    whole = events.mean(0)
    return float(np.mean([np.abs(events[fold].mean(0) - whole) / whole for fold in folds]))


def main() -> None:
    print("| dataset | splitter | labels | pairs | size of folds | seconds |\n| --- | --- | --- | --- | --- | --- |")
    for name in mulan.names(folder := Path(sys.argv[1]), sys.argv[2:]):
        labels = sp.csr_array(mulan.read(folder / name)[0].Y).astype(float).tocsc()
        labels = labels[:, labels.sum(0) > 0]
        first, second = sp.triu(labels.T @ labels, 1).nonzero()
        pairs = labels[:, first].multiply(labels[:, second]).tocsr()
        for title, splitter in SPLITTERS.items():
            np.random.seed(0)  # scikit-multilearn has no other way
            dense, start = labels.toarray().astype(int), time.process_time()
            folds = [test for _, test in splitter.split(dense, dense)]
            cells = [f"{100 * difference(events, folds):.1f} %" for events in (labels.tocsr(), pairs)]
            sizes = [len(fold) for fold in folds]
            cells += [f"{min(sizes)} to {max(sizes)}", f"{time.process_time() - start:.2f}"]
            print(f"| {name} | {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
