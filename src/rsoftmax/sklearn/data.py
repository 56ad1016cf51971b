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
    """Features and labels, dense or sparse, taken many rows at a time; on the CPU, whatever torch's default device."""

    def __init__(self, X: Matrix, Y: Matrix = None) -> None:
        self.X: Matrix = _held(X)
        self.Y: Matrix = None if Y is None else _held(Y)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        return _dense(self.X, index), None if self.Y is None else _dense(self.Y, index)

    def part(self, index: Tensor) -> "Rows":
        """Some of the rows, with their labels."""
        return Rows(self.X[index.numpy()], self.Y[index.numpy()])


class Batches:
    """A data loader that cuts whole batches out of :class:`Rows`, instead of putting single rows together."""

    def __init__(self, rows: Rows, batch_size: int, shuffle: bool = False) -> None:
        self.rows, self.batch_size, self.shuffle = rows, batch_size, shuffle

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        n = len(self.rows)
        order = torch.randperm(n, device="cpu") if self.shuffle else torch.arange(n, device="cpu")
        return map(self.rows.__getitem__, order.split(self.batch_size))


class Split:
    """Divides rows into those to train on and a share, of at least one row, to validate on."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.seed = share, seed

    def __call__(self, rows: Rows, y: None = None) -> tuple[Rows, Rows]:
        """Rows to train on and rows to validate on, as skorch asks for them."""
        n = len(rows)
        aside = min(max(round(self.share * n), 1), n - 1)
        if not aside:
            raise ValueError(f"SparseLabelClassifier: early stopping needs two rows at least, got {n}")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed), device="cpu")
        return rows.part(order[aside:]), rows.part(order[:aside])


def _held(rows: Matrix) -> Matrix:
    """Sparse matrices and tensors as they are; anything else as a tensor."""
    return rows if sp.issparse(rows) or isinstance(rows, Tensor) else _tensor(rows)


def _dense(rows: Matrix, index: Tensor) -> Tensor:
    return _tensor(rows[index.numpy()].toarray()) if sp.issparse(rows) else rows[index]


def _tensor(rows: Matrix) -> Tensor:
    contiguous = np.ascontiguousarray(rows)  # torch does not take negative strides
    return torch.tensor(contiguous, dtype=torch.float32, device="cpu")
