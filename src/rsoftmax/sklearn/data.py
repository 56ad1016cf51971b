"""Features and labels on their way into a network: rows as they came, batches made dense one at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.data import Dataset

Matrix = Any  # what scikit-learn takes: an array, a sparse matrix, a data frame, lists


class Rows(Dataset[Any]):
    """Features, labels and weights, taken many rows at a time; on the CPU, whatever torch's default device.

    Args:
        X: features, dense or sparse, the rows first.
        Y: labels [rows, K], dense or sparse, NaN where not known.
        weight: of the rows, [rows].
        class_weight: of negative and positive entries of each label, [2, K].
    """

    def __init__(self, X: Matrix, Y: Matrix = None, weight: Matrix = None, class_weight: Tensor | None = None) -> None:
        self.X: Matrix = _held(X)
        self.Y: Matrix = None if Y is None else _held(Y)
        self.weight = None if weight is None else _tensor(weight)
        self.class_weight = class_weight
        self.gaps = isinstance(self.Y, Tensor) and bool(self.Y.isnan().any())

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, index: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor | None] | None]:
        return _dense(self.X, index), None if self.Y is None else self._labels(index)

    def part(self, index: Tensor) -> "Rows":
        """Some of the rows, with their labels and weights."""
        weight = None if self.weight is None else self.weight[index]
        return Rows(self.X[index.numpy()], self.Y[index.numpy()], weight, self.class_weight)

    def labels(self) -> Tensor:
        """All labels, dense; NaN where not known."""
        return _dense(self.Y, torch.arange(len(self), device="cpu"))

    def _labels(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Labels, and weights [rows, 1], [rows, K] or None; a label that is not known has the weight 0."""
        y = _dense(self.Y, index)
        weight = None if self.weight is None else self.weight[index, None]
        if self.gaps or self.class_weight is not None:
            known = (~y.isnan()).to(y.dtype)
            y = y.nan_to_num()
            weight = known if weight is None else known * weight
            if self.class_weight is not None:
                weight = weight * torch.where(y == 1, self.class_weight[1], self.class_weight[0])
        return y, weight


class Batches:
    """A data loader that cuts whole batches out of :class:`Rows`; a generator, if given, draws their order."""

    def __init__(self, rows: Rows, batch_size: int, generator: torch.Generator | None = None) -> None:
        self.rows, self.batch_size, self.generator = rows, batch_size, generator

    def __iter__(self) -> Iterator[Any]:
        n, g = len(self.rows), self.generator
        order = torch.arange(n, device="cpu") if g is None else torch.randperm(n, generator=g, device="cpu")
        return map(self.rows.__getitem__, order.split(self.batch_size))


def _held(rows: Matrix) -> Matrix:
    """Sparse matrices and tensors as they are; anything else as a tensor."""
    return rows if sp.issparse(rows) or isinstance(rows, Tensor) else _tensor(rows)


def _dense(rows: Matrix, index: Tensor) -> Tensor:
    return _tensor(rows[index.numpy()].toarray()) if sp.issparse(rows) else rows[index]


def _tensor(rows: Matrix) -> Tensor:
    contiguous = np.ascontiguousarray(rows)  # torch does not take negative strides
    return torch.tensor(contiguous, dtype=torch.float32, device="cpu")
