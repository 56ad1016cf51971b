"""The base class of models that predict labels by name, from texts, images or rows of a table."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rsoftmax.multilabel.evaluation import Evaluation, evaluate
from rsoftmax.multilabel.head import MultiLabelHead
from rsoftmax.multilabel.rules import Output, Scores

Labels = Sequence[Collection[str]] | Tensor
"""The names of the labels of each item, or a matrix [items, K] of 0 and 1, NaN where a label is unknown."""


class LabelNetwork(nn.Module):
    r"""A small classifier on precomputed features: one optional hidden layer and a :class:`MultiLabelHead`.

    .. math:: h = [V x + a]_+ \text{, or } x, \qquad z = W h + b

    Args:
        features: the number of features.
        labels: the number of labels.
        hidden: the number of hidden units; 0: no hidden layer.
        head: arguments of :class:`MultiLabelHead`: mapping, loss, rule, average, and so on.

    Returns:
        From features [rows, features]: an :class:`Output`.

    Example:
        >>> LabelNetwork(8, labels=3, hidden=16)(torch.ones(2, 8)).marginals.shape
        torch.Size([2, 3])

    An ensemble of such networks whose scores are averaged is one such network, with the hidden units of all of them.
    """

    def __init__(self, features: int, labels: int, hidden: int = 0, **head: Any) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(features, hidden), nn.ReLU()) if hidden else nn.Sequential()
        self.head = MultiLabelHead(hidden or features, labels, **head)

    @property
    def width(self) -> int:
        """The number of hidden units; 0: no hidden layer."""
        return sum(layer.out_features for layer in self.hidden if isinstance(layer, nn.Linear))

    def forward(self, x: Tensor) -> Output:
        """Map features to marginals and labels."""
        return self.head.decode(self.scores(x))

    def scores(self, x: Tensor) -> Scores:
        """Map features to scores, all that the loss needs."""
        return self.head.scores(self.hidden(x))


class Labeller(ABC):
    """Predicts labels by name from the :class:`Output` of items. Subclasses implement the abstract methods."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The labels, in the order of the columns."""

    @property
    @abstractmethod
    def reads(self) -> Literal["text", "image", "features"]:
        """What items are: texts, images, or the features of a row."""

    @property
    @abstractmethod
    def columns(self) -> dict[str, str]:
        """The columns of the training table by role."""

    @property
    @abstractmethod
    def evaluation(self) -> dict[str, Any]:
        """The evaluation on held-out rows, as :meth:`Evaluation.as_dict` returns it; empty if there is none."""

    @abstractmethod
    def outputs(self, items: Sequence[Any], *, progress: bool = False) -> Output:
        """Run the model on items and decode."""

    @abstractmethod
    def example(self) -> dict[str, Tensor]:
        """The tensors of two items, by name, as :meth:`answer` takes them."""

    @abstractmethod
    def answer(self, **tensors: Tensor) -> Output:
        """Run the model on tensors and decode."""

    def about(self) -> dict[str, Any]:
        """What a program that has only the exported model needs to know about its tensors."""
        return {}

    def truncated(self, items: Sequence[Any]) -> list[int]:
        """The indices of items that are truncated."""
        return []

    def predict(
        self, items: Sequence[Any], *, every_label: bool = False, progress: bool = False
    ) -> list[dict[str, float]]:
        """Predict the labels of each item with their marginals, the most probable first.

        Args:
            items: texts, images or rows, as the model was trained on.
            every_label: return the marginals of all labels, not only of the predicted ones.
            progress: show a progress bar.
        """
        output = self._check(self.outputs(items, progress=progress))
        chosen = torch.ones_like(output.p).bool() if every_label else output.p > 0
        return [self._by_name(row, kept) for row, kept in zip(output.marginals, chosen, strict=True)]

    def predict_labels(self, items: Sequence[Any], *, progress: bool = False) -> list[list[str]]:
        """Predict the names of the labels of each item, the most probable first."""
        return [list(found) for found in self.predict(items, progress=progress)]

    def evaluate(
        self, items: Sequence[Any], labels: Labels, *, strict: bool = True, progress: bool = False
    ) -> Evaluation:
        """Score the predictions against the labels of the items.

        Args:
            items: texts, images or rows, as the model was trained on.
            labels: the names for each item, or a matrix of 0 and 1.
            strict: raise ValueError for names that the model does not know. False: they are further labels of the
                evaluation, missed in every row that has them.
            progress: show a progress bar.
        """
        names = [*self.names, *([] if strict else unknown_labels(labels, self.names))]
        y, more = indicator(labels, names), (0, len(names) - len(self.names))
        check_lengths(items, y)
        output = self._check(self.outputs(items, progress=progress))
        return evaluate(nn.functional.pad(output.marginals, more), nn.functional.pad(output.p, more) > 0, y, names)

    def _by_name(self, marginals: Tensor, kept: Tensor) -> dict[str, float]:
        order = marginals.argsort(descending=True, stable=True).tolist()
        return {self.names[place]: float(marginals[place]) for place in order if kept[place]}

    def _check(self, output: Output) -> Output:
        if output.p.isnan().any() or output.marginals.isnan().any():
            raise ValueError(
                f"{type(self).__name__}: the output is NaN for {int(output.p.isnan().any(-1).sum())} of"
                f" {len(output.p)} items, which is not 'no label'; check the weights for NaN"
            )
        return output


def indicator(labels: Labels, names: Sequence[str]) -> Tensor:
    """Convert labels to a matrix [items, K] of 0 and 1.

    Args:
        labels: names, or the matrix itself.
        names: the names of the labels, in the order of the columns.

    Example:
        >>> indicator([["joy"], ["anger", "joy"], []], ["anger", "joy"])
        tensor([[0., 1.],
                [1., 1.],
                [0., 0.]])
    """
    if isinstance(labels, Sequence) or str(getattr(labels, "dtype", "")) == "object":  # pandas columns of lists
        return _indicator_of_names(labels, names)
    matrix = torch.as_tensor(labels, dtype=torch.float32)
    if matrix.ndim != 2 or matrix.shape[1] != len(names):
        raise ValueError(f"labels must be names or a matrix [items, {len(names)}], got shape {[*matrix.shape]}")
    if (wrong := matrix[(matrix != 0) & (matrix != 1) & ~matrix.isnan()]).numel():
        raise ValueError(f"labels must be 0 or 1, or NaN where unknown, got {wrong[0].item()}")
    return matrix


def _indicator_of_names(labels: Any, names: Sequence[str]) -> Tensor:
    columns = {name: column for column, name in enumerate(names)}
    matrix = torch.zeros(len(labels), len(names))
    for row, found in enumerate(labels):
        if isinstance(found, str) or not isinstance(found, Collection):
            remedy = f"[{found!r}]" if isinstance(found, str) else "[] for none"
            raise ValueError(f"row {row + 1}: labels must be a list of names, got {found!r}; use {remedy}")
        for name in found:
            if name not in columns:
                raise ValueError(f"row {row + 1}: unknown label {name!r}; the labels are {', '.join(names)}")
            matrix[row, columns[name]] = 1
    return matrix


def unknown_labels(labels: Labels, names: Sequence[str]) -> list[str]:
    """The names in ``labels`` that are not in ``names``, sorted.

    Example:
        >>> unknown_labels([["joy", "envy"], []], ["anger", "joy"])
        ['envy']
    """
    if isinstance(labels, Tensor) or (hasattr(labels, "dtype") and str(labels.dtype) != "object"):
        return []
    return sorted({name for row in labels if not isinstance(row, str) for name in row or []} - set(names))


def check_lengths(items: Sequence[Any], y: Tensor) -> None:
    """Raise ValueError unless there are as many items as rows of labels, and at least one."""
    if len(items) != len(y) or not len(y):
        raise ValueError(f"there must be as many items as labels, and at least one; got {len(items)} and {len(y)}")


def check_names(labels: Sequence[str]) -> list[str]:
    """Return the names of labels as a list; raise ValueError unless they are distinct, non-empty texts."""
    names = list(labels)
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if isinstance(labels, str) or wrong or not names or len(set(names)) < len(names):
        raise ValueError(f"labels must be distinct names such as ['anger', 'joy'], got {labels!r}")
    return names
