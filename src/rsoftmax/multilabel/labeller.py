"""What every model that gives labels to items can do, whether items are texts, pictures or rows of a table."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from rsoftmax.multilabel.evaluation import Evaluation, evaluated
from rsoftmax.multilabel.scores import Output

Labels = Sequence[Collection[str]] | Tensor
"""The names of the labels of each item, or a matrix [items, K] of 0 and 1, NaN where a label is not known."""


class Labeller(ABC):
    """Labels by name, from the :class:`Output` of items. A class of models adds what is abstract here."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The labels, in the order of the columns."""

    @abstractmethod
    def outputs(self, items: Sequence[Any], *, progress: bool = False) -> Output:
        """What the model says of items, decoded."""

    @abstractmethod
    def example(self) -> dict[str, Tensor]:
        """The tensors of two items, by name, as :meth:`answer` takes them."""

    @abstractmethod
    def answer(self, **tensors: Tensor) -> Output:
        """What the model says of tensors, decoded."""

    def about(self) -> dict[str, Any]:
        """What a program that has only tensors needs to know about them."""
        return {}

    def cut(self, items: Sequence[Any]) -> list[int]:
        """The places of items that are longer than what the model reads of them."""
        return []

    def predict(
        self, items: Sequence[Any], *, every_label: bool = False, progress: bool = False
    ) -> list[dict[str, float]]:
        """The labels of each item with their marginals, the most probable first.

        Args:
            items: texts, pictures or rows, as the model was trained on.
            every_label: all labels with their marginals, and not only those that the model answers with.
            progress: show a bar.
        """
        output = self._checked(self.outputs(items, progress=progress))
        chosen = torch.ones_like(output.p).bool() if every_label else output.p > 0
        return [self._named(row, kept) for row, kept in zip(output.marginals, chosen, strict=True)]

    def predict_labels(self, items: Sequence[Any], *, progress: bool = False) -> list[list[str]]:
        """The names of the labels of each item, the most probable first."""
        return [list(found) for found in self.predict(items, progress=progress)]

    def evaluate(self, items: Sequence[Any], labels: Labels, *, progress: bool = False) -> Evaluation:
        """Compare the answers with the labels that the items have."""
        truth = indicator(labels, self.names)
        check_lengths(items, truth)
        output = self._checked(self.outputs(items, progress=progress))
        return evaluated(output.marginals, output.p > 0, truth, self.names)

    def _named(self, marginals: Tensor, kept: Tensor) -> dict[str, float]:
        order = marginals.argsort(descending=True, stable=True).tolist()
        return {self.names[place]: float(marginals[place]) for place in order if kept[place]}

    def _checked(self, output: Output) -> Output:
        if output.p.isnan().any() or output.marginals.isnan().any():
            raise ValueError(
                f"{type(self).__name__}: its answer is NaN for {int(output.p.isnan().any(-1).sum())} of"
                f" {len(output.p)} items, which is not 'no label'; look for NaN in its weights"
            )
        return output


def indicator(labels: Labels, names: Sequence[str]) -> Tensor:
    """Labels as a matrix [items, K] of 0 and 1.

    Args:
        labels: names, or the matrix itself.
        names: of the labels, in the order of the columns.

    Example:
        >>> indicator([["joy"], ["anger", "joy"], []], ["anger", "joy"])
        tensor([[0., 1.],
                [1., 1.],
                [0., 0.]])
    """
    if not isinstance(labels, Sequence) and str(getattr(labels, "dtype", "")) != "object":  # as pandas has lists
        matrix = torch.as_tensor(labels, dtype=torch.float32)
        if matrix.ndim != 2 or matrix.shape[1] != len(names):
            raise ValueError(f"labels must be names or a matrix [items, {len(names)}], got {[*matrix.shape]}")
        if (wrong := matrix[(matrix != 0) & (matrix != 1) & ~matrix.isnan()]).numel():
            raise ValueError(f"labels must be 0 or 1, or NaN where a label is not known; got {wrong[0].item()}")
        return matrix
    columns = {name: column for column, name in enumerate(names)}
    matrix = torch.zeros(len(labels), len(names))
    for row, found in enumerate(labels):
        if isinstance(found, str):
            raise ValueError(f"row {row + 1}: its labels are the text {found!r}; write a list of names, [{found!r}]")
        if not isinstance(found, Collection):
            raise ValueError(f"row {row + 1}: its labels are {found!r}; write a list of names, [] for none")
        for name in found:
            if name not in columns:
                raise ValueError(f"row {row + 1}: the label {name!r} is none of the model's: {', '.join(names)}")
            matrix[row, columns[name]] = 1
    return matrix


def check_lengths(items: Sequence[Any], truth: Tensor) -> None:
    """Refuse items without labels and labels without items."""
    if len(items) != len(truth) or not len(truth):
        raise ValueError(f"there must be labels for each item, and an item at least; got {len(items)} and {len(truth)}")
