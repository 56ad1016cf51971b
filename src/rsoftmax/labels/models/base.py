"""The base class of models that predict labels by name, from texts, images or rows of a table."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from rsoftmax.labels.evaluation import Evaluation, evaluate
from rsoftmax.labels.head import MultiLabelHead
from rsoftmax.labels.risk_control import describe_guarantee, guaranteed_threshold
from rsoftmax.labels.rules import Output, Scores

__all__ = ["BaseLabelModel", "LabelNetwork", "indicator"]

Labels = Sequence[Collection[str]] | Tensor
"""The names of the labels of each item, or a matrix [items, K] of 0 and 1, NaN where a label is unknown."""
Part = tuple[Sequence[Any], Tensor]
"""Items and their labels [items, K]."""
HELD_OUT = 0.2  # the fraction of items that set a guaranteed threshold


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

    An ensemble of such networks with averaged scores equals a single one that has the hidden units of all of them.
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


class BaseLabelModel(ABC):
    """Predicts labels by name from the :class:`Output` of items. Subclasses implement the abstract methods."""

    network: LabelNetwork

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

    @abstractmethod
    def record(self, head: dict[str, Any], evaluation: dict[str, Any]) -> None:
        """Change the saved settings: arguments of the head, and the evaluation."""

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
        chosen = torch.ones_like(output.probs).bool() if every_label else output.probs > 0
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
            strict: raise ValueError for names that the model does not know. False: they are evaluated as further
                labels, missed in every row that has them.
            progress: show a progress bar.
        """
        names = [*self.names, *([] if strict else unknown_labels(labels, self.names))]
        y, more = indicator(labels, names), (0, len(names) - len(self.names))
        check_lengths(items, y)
        output = self._check(self.outputs(items, progress=progress))
        return evaluate(nn.functional.pad(output.marginals, more), nn.functional.pad(output.probs, more) > 0, y, names)

    def guarantee(self, items: Sequence[Any], labels: Labels, *, progress: bool = False, **level: Any) -> Self:
        """Predict label sets with a guaranteed recall or precision, instead of those with the best expected F1.

        Args:
            items: held-out texts, images or rows: not used in training, and from the same distribution as those to
                predict.
            labels: the names for each item, or a matrix of 0 and 1.
            progress: show a progress bar.
            level: ``recall`` or ``precision``, ``by`` and ``confidence``, as in
                :class:`rsoftmax.labels.RiskControlledClassifier`.

        Raises:
            ValueError: these items cannot guarantee the level; the message says how many are needed.
        """
        y = indicator(labels, self.names)
        check_lengths(items, y)
        odds = self._check(self.outputs(items, progress=progress)).log_odds
        assert odds is not None  # the head fills it
        threshold, controlled = guaranteed_threshold(odds.cpu(), y.double(), **level)
        head = self.network.head.set_threshold(threshold)
        found = self.evaluate(items, labels).as_dict() | {"guarantee": describe_guarantee(**level)}
        if not controlled.all():
            lacking = [name for name, has in zip(self.names, controlled.tolist(), strict=True) if not has]
            found["not_guaranteed"] = lacking
            warnings.warn(
                f"{len(lacking)} of {len(self.names)} labels have too few held-out rows for a guarantee and take the"
                f" threshold of all labels: {', '.join(lacking[:5])}{', ...' if len(lacking) > 5 else ''}",
                stacklevel=2,
            )
        self.record({"average": head.decoder.average, "beta": 1.0, "min_labels": 0, "max_labels": None}, found)
        return self

    def _by_name(self, marginals: Tensor, kept: Tensor) -> dict[str, float]:
        order = marginals.argsort(descending=True, stable=True).tolist()
        return {self.names[place]: float(marginals[place]) for place in order if kept[place]}

    def _check(self, output: Output) -> Output:
        if output.probs.isnan().any() or output.marginals.isnan().any():
            raise ValueError(
                f"{type(self).__name__}: the output is NaN for {int(output.probs.isnan().any(-1).sum())} of"
                f" {len(output.probs)} items, which is not 'no label'; check the weights for NaN"
            )
        return output


def hold_out(items: Sequence[Any], truth: Tensor, level: dict[str, Any], seed: int) -> tuple[Part, Part | None]:
    """Items to train on, and a fifth for :meth:`BaseLabelModel.guarantee` if a level is given.

    Raises ValueError at once if the fifth could not guarantee the level even with perfect scores.
    """
    if not level:
        return (items, truth), None
    train, aside = split(items, truth, seed, HELD_OUT)
    guaranteed_threshold(aside[1].nan_to_num().double(), aside[1].double(), **level)
    return train, aside


def split(items: Sequence[Any], truth: Tensor, seed: int, fraction: float) -> tuple[Part, Part]:
    """Items to train on, and a fraction to hold out, drawn with the seed."""
    aside = max(round(fraction * len(items)), 1)
    if aside >= len(items):
        raise ValueError(f"holding out some items needs at least 2, got {len(items)}")
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed)).tolist()
    held_out, train = order[:aside], order[aside:]
    return ([items[i] for i in train], truth[train]), ([items[i] for i in held_out], truth[held_out])


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


def check_names(given: Sequence[str], what: str = "labels") -> list[str]:
    """Return the names of labels or features as a list; raise ValueError unless they are distinct, non-empty texts."""
    names = list(given)
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if isinstance(given, str) or wrong or not names or len(set(names)) < len(names):
        raise ValueError(f"{what} must be distinct names such as ['anger', 'joy'], got {given!r}")
    return names
