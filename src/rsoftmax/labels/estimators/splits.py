"""Splits for cross-validation and testing in which every label has its share of samples."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.model_selection import BaseCrossValidator, BaseShuffleSplit, ShuffleSplit
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils import check_random_state, indexable

from rsoftmax.labels.estimators.targets import Matrix, Targets

__all__ = ["MultilabelStratifiedKFold", "MultilabelStratifiedShuffleSplit", "multilabel_train_test_split"]


class MultilabelStratifiedKFold(BaseCrossValidator):  # type: ignore[misc]
    """Cross-validation folds that each have about the same share of every label.

    scikit-learn's ``StratifiedKFold`` for several labels per sample. It can be passed as ``cv`` wherever scikit-learn
    takes a splitter. If ``split`` gets groups, all samples of a group are in one fold.

    Args:
        n_splits: the number of folds.
        shuffle: assign samples in random order. If False, the same data always give the same folds.
        random_state: seed or generator of the random order.

    Example:
        >>> import numpy as np
        >>> Y = np.tile([[1, 0], [1, 1], [0, 0], [1, 0]], (5, 1))
        >>> splitter = MultilabelStratifiedKFold(n_splits=5)
        >>> [Y[test].sum(0).tolist() for _, test in splitter.split(Y, Y)]
        [[3, 1], [3, 1], [3, 1], [3, 1], [3, 1]]

    The sizes of folds may differ by more than one sample, because labels come first. Unknown labels count as absent.
    """

    __metadata_request__split = {"groups": True}  # noqa: RUF012

    def __init__(self, n_splits: int = 5, *, shuffle: bool = False, random_state: Any = None) -> None:
        self.n_splits, self.shuffle, self.random_state = n_splits, shuffle, random_state

    def get_n_splits(self, X: Matrix = None, y: Matrix = None, groups: Matrix = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def _iter_test_indices(self, X: Matrix, y: Matrix, groups: Matrix = None) -> Iterator[NDArray[np.intp]]:
        owner, folds = type(self).__name__, self.n_splits
        if not isinstance(folds, int | np.integer) or folds < 2:
            raise ValueError(f"{owner}: n_splits must be an integer of at least 2, got {folds!r}")
        if not self.shuffle and self.random_state is not None:
            raise ValueError(f"{owner}: random_state={self.random_state!r} has an effect only with shuffle=True")
        random = check_random_state(self.random_state) if self.shuffle else None
        fold = stratified_parts(_indicator(y, self), [1 / folds] * folds, random, groups)
        _check_parts(fold, folds, owner)
        for i in range(folds):
            yield np.flatnonzero(fold == i)


class MultilabelStratifiedShuffleSplit(BaseShuffleSplit):  # type: ignore[misc]
    """Random splits into training and test samples that have about the same share of every label.

    scikit-learn's ``StratifiedShuffleSplit`` for several labels per sample. If ``split`` gets groups, no group is in
    both parts.

    Args:
        n_splits: the number of splits.
        test_size: the share of test samples, or their number, reached approximately. Default: the rest, or 0.1.
        train_size: likewise for the training samples. Default: the rest.
        random_state: seed or generator of the random order.

    Example:
        >>> import numpy as np
        >>> Y = np.tile([[1, 0], [1, 1], [0, 0], [1, 0]], (5, 1))
        >>> splitter = MultilabelStratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
        >>> [(len(train), Y[test].sum(0).tolist()) for train, test in splitter.split(Y, Y)]
        [(16, [3, 1])]
    """

    __metadata_request__split = {"groups": True}  # noqa: RUF012

    def _iter_indices(
        self, X: Matrix, y: Matrix = None, groups: Matrix = None
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        Y, random = _indicator(y, self), check_random_state(self.random_state)
        n = Y.shape[0]
        sizes = ShuffleSplit(1, test_size=self.test_size, train_size=self.train_size, random_state=0)
        train, test = (len(part) / n for part in next(sizes.split(np.empty(n))))
        for _ in range(self.n_splits):
            shares = [train, test, 1 - train - test] if train + test < 1 else [train, test]
            part = stratified_parts(Y, shares, random, groups)
            _check_parts(part, 2, type(self).__name__)
            yield np.flatnonzero(part == 0), np.flatnonzero(part == 1)


def multilabel_train_test_split(
    *arrays: Any,
    stratify: Matrix = None,
    groups: Matrix = None,
    test_size: float | None = 0.25,
    train_size: float | None = None,
    random_state: Any = None,
) -> list[Any]:
    """Split arrays into training and test samples that have about the same share of every label.

    Args:
        arrays: arrays, sparse matrices, data frames or lists of the same length.
        stratify: the labels, in any format that the estimators take. Default: the last of ``arrays``.
        groups: a value for each sample; samples with the same value are in the same part.
        test_size: see :class:`MultilabelStratifiedShuffleSplit`.
        train_size: likewise.
        random_state: seed or generator of the random order.

    Returns:
        The training and the test part of each array, in this order.

    Example:
        >>> X, y = list(range(8)), [["a"], ["a", "b"], [], ["b"]] * 2
        >>> X_train, X_test, y_train, y_test = multilabel_train_test_split(X, y, test_size=0.5, random_state=0)
        >>> sorted(map(sorted, y_train)) == sorted(map(sorted, y_test))
        True
    """
    if not arrays:
        raise ValueError("multilabel_train_test_split: no arrays; pass at least the labels")
    arrays, y = indexable(*arrays), arrays[-1] if stratify is None else stratify
    splitter = MultilabelStratifiedShuffleSplit(
        1, test_size=test_size, train_size=train_size, random_state=random_state
    )
    parts = next(splitter.split(arrays[0], y, groups))
    return [safe_indexing(array, part) for array in arrays for part in parts]


def stratified_parts(
    Y: Matrix, shares: Sequence[float], random: np.random.RandomState | None = None, groups: Matrix = None
) -> NDArray[np.intp]:
    """Return the part of each sample, such that each part has about its share of every label.

    Samples with the rarest label are assigned first, each to the part that has the least of that label relative to its
    share; among equals to the part that has the fewest samples. Samples without a label come last.

    Args:
        Y: labels [samples, K], 0 or 1, dense or sparse.
        shares: of the parts, all positive; their sum is 1.
        random: order of the samples, and choice among equal parts. None: first come, first served.
        groups: a value for each sample; samples with the same value are assigned together. Large groups come first.

    For equal shares this is the algorithm of Sechidis et al., On the stratification of multi-label data (2011). For
    others, where theirs fills the larger part first, the parts take turns as in the Sainte-Laguë method.
    """
    labels, item = sp.csr_array(Y).astype(np.int64), np.arange(np.shape(Y)[0])
    if groups is not None:
        item = np.unique(np.asarray(groups), return_inverse=True)[1].ravel()
        labels = sp.csr_array((np.ones_like(item), (item, np.arange(len(item))))) @ labels
    labels.eliminate_zeros()
    sizes, columns, left = np.bincount(item), labels.tocsc(), np.asarray(labels.sum(0)).ravel()
    part = np.full(len(sizes), -1, dtype=np.intp)
    with_label, samples = [[0] * len(shares) for _ in left], [0] * len(shares)  # in each part

    def least(counts: list[int], new: int, parts: Sequence[int]) -> list[int]:
        quotients = {p: (2 * counts[p] + new) / shares[p] for p in parts}
        return [p for p in parts if quotients[p] == min(quotients.values())]

    def assign(items: NDArray[np.intp], new: NDArray[np.int64], counts: list[int]) -> None:
        order = random.permutation(len(items)) if random else np.arange(len(items))
        for i in order[np.argsort(-new[order], kind="stable")].tolist():
            best = least(samples, sizes[items[i]], least(counts, new[i], range(len(shares))))
            p = part[items[i]] = best[random.randint(len(best)) if random else 0]
            of_item = slice(*labels.indptr[items[i] : items[i] + 2])
            for label, count in zip(labels.indices[of_item].tolist(), labels.data[of_item].tolist(), strict=True):
                with_label[label][p] += count
            left[labels.indices[of_item]] -= labels.data[of_item]
            samples[p] += sizes[items[i]]

    while (left > 0).any():
        label = np.where(left > 0, left, np.inf).argmin()
        of_label = slice(*columns.indptr[label : label + 2])
        unassigned = part[columns.indices[of_label]] < 0
        assign(columns.indices[of_label][unassigned], columns.data[of_label][unassigned], with_label[label])
    rest = np.flatnonzero(part < 0)
    assign(rest, sizes[rest], samples)
    return part[item]


def _indicator(y: Matrix, splitter: Any) -> Matrix:
    """The labels as a matrix of 0 and 1, where unknown labels are absent."""
    Y = Targets(y, splitter).indicator(y)
    if sp.issparse(Y):
        return sp.csr_array((np.nan_to_num(Y.data), Y.indices, Y.indptr), Y.shape)
    return np.nan_to_num(Y)


def _check_parts(part: NDArray[np.intp], parts: int, owner: str) -> None:
    if empty := set(range(parts)) - set(part.tolist()):
        raise ValueError(
            f"{owner}: {len(part)} samples are too few, or their groups too large, for {parts} parts: {len(empty)} of"
            " them would be empty; ask for fewer or larger parts"
        )
