"""The base class of models that predict labels by name, from texts, images or rows of a table."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from rsoftmax._transformers import check_unicode
from rsoftmax.labels.decoding import Decoder, expected_f1_of_samples
from rsoftmax.labels.evaluation import Evaluation, evaluate
from rsoftmax.labels.head import MultiLabelHead
from rsoftmax.labels.models.card import list_names
from rsoftmax.labels.models.explanation import Explanation
from rsoftmax.labels.models.streams import join, select
from rsoftmax.labels.review import ReviewedItem, ReviewThresholds, review_thresholds, saved_thresholds
from rsoftmax.labels.risk_control import describe_guarantee, guaranteed_threshold
from rsoftmax.labels.rules import Output, Scores
from rsoftmax.labels.windows import Windows, pool_scores, window_weights

__all__ = ["BaseLabelModel", "LabelNetwork", "NetworkModel", "indicator"]

Labels = Sequence[Collection[str]] | Tensor
"""The names of the labels of each item, or a matrix [items, K] of 0 and 1, NaN where a label is unknown."""
Part = tuple[Sequence[Any], Tensor]
"""Items and their labels [items, K]."""
SHOWN = 20  # labels in a message
HELD_OUT = 0.2  # the fraction of items that set a guaranteed threshold
REVIEW: dict[str, Any] = {"accept": 0.95, "reject": 0.95, "by": "samples", "confidence": 0.95}
ROUNDING = 1e-4  # of log-odds, which depend on the other items of a batch
FARTHEST = 1e30  # in place of infinite thresholds, which JSON does not know


class LabelNetwork(nn.Module):
    r"""A small classifier on precomputed features: one optional hidden layer and a :class:`MultiLabelHead`.

    .. math:: h = [V x + a]_+ \text{, or } x, \qquad z = W h + b

    Args:
        in_features: the number of features, d.
        num_labels: the number of labels.
        hidden: the number of hidden units; 0: no hidden layer.
        head: arguments of :class:`MultiLabelHead`: mapping, loss, rule, average, and so on.

    Returns:
        From features [items, d]: an :class:`Output`.

    Example:
        >>> LabelNetwork(8, num_labels=3, hidden=16)(torch.ones(2, 8)).marginals.shape
        torch.Size([2, 3])

    An ensemble of such networks with averaged scores equals a single one that has the hidden units of all of them.
    """

    def __init__(self, in_features: int, num_labels: int, hidden: int = 0, **head: Any) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(in_features, hidden), nn.ReLU()) if hidden else nn.Sequential()
        self.head = MultiLabelHead(hidden or in_features, num_labels, **head)

    @property
    def width(self) -> int:
        """The number of hidden units; 0: no hidden layer."""
        return sum(layer.out_features for layer in self.hidden if isinstance(layer, nn.Linear))

    def forward(self, x: Tensor | Windows) -> Output:
        """Map features to marginals and labels."""
        return self.head.decode(self.scores(x))

    def scores(self, x: Tensor | Windows) -> Scores:
        """Map features to scores, all that the loss needs; those of windows are pooled."""
        return pool_scores(self._scores, x)

    def window_weights(self, x: Windows) -> list[Tensor]:
        """The weights of the windows of each item in the score of each label, [K, windows]."""
        return window_weights(self._scores, x)

    def _scores(self, x: Tensor) -> Scores:
        return self.head.scores(self.hidden(x))


class BaseLabelModel(ABC):
    """Predicts labels by name from the :class:`Output` of items. Subclasses implement the abstract methods."""

    config: Any
    """The settings of the saved model: names, head, columns, evaluation and more."""

    @property
    @abstractmethod
    def modality(self) -> Literal["text", "image", "features"]:
        """What items are: texts, images, or the features of a row."""

    @property
    @abstractmethod
    def decoder(self) -> Decoder:
        """Calibration, thresholds and constraints of the labels."""

    @property
    def rule(self) -> str | None:
        """The rule that decides which labels are predicted, see :mod:`rsoftmax.labels`."""
        return "expected_f1"

    @property
    def names(self) -> list[str]:
        """The labels, in the order of the columns."""
        names: list[str] = self.config.names
        return names

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the training table by role: text, image or features, labels, separator."""
        columns: dict[str, str] = self.config.columns
        return columns

    @property
    def evaluation(self) -> dict[str, Any]:
        """The evaluation on held-out items, as :meth:`Evaluation.as_dict` returns it; empty before training."""
        return self.config.evaluation or {}

    @abstractmethod
    def embed(self, items: Sequence[Any], *, verbose: bool = False) -> Any:
        """The features of items, [items, d], on the CPU."""

    def encode(self, items: Sequence[Any], *, verbose: bool = False) -> Any:
        """The features of items, as :meth:`outputs` decodes them, on the CPU."""
        return self.embed(items, verbose=verbose)

    @abstractmethod
    def check(self, items: Sequence[Any]) -> Sequence[Any]:
        """The items, as a sequence with integer indices; raises unless the model can read them."""

    @abstractmethod
    def train_on(
        self, items: Sequence[Any], y: Any, validation: Any, *, random_state: int, verbose: bool, **settings: Any
    ) -> Evaluation:
        """Train on checked items, see :meth:`fit`, and evaluate on held-out ones."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Save the model as a folder, which the class method ``load`` reads."""

    def fit(
        self,
        items: Sequence[Any],
        y: Labels,
        *,
        validation: tuple[Sequence[Any], Labels] | None = None,
        guarantee: dict[str, Any] | None = None,
        review: dict[str, Any] | None = None,
        added: tuple[Sequence[Any], Labels] | None = None,
        random_state: int = 0,
        verbose: bool = False,
        **settings: Any,
    ) -> Self:
        """Train; :attr:`evaluation` is then the one on held-out items.

        Args:
            items: texts; images as paths or Pillow images; or table rows with a value for each feature.
            y: the names for each item, or a matrix of 0 and 1.
            validation: held-out items and labels. None: cross-validation.
            guarantee: hold out a fifth of the items and call :meth:`guarantee` with them: ``{"recall": 0.9}``.
            review: the same with :meth:`set_review`: ``{"accept": 0.95, "reject": 0.95}``.
            added: more items and labels, such as reviewed ones: trained on, but never held out for a guarantee, because
                they were not drawn at random.
            random_state: the random seed.
            verbose: show progress bars.
            settings: further arguments of :class:`rsoftmax.labels.SparseLabelClassifier`, which trains the network.
        """
        (items, y), held_out = self._checked(items, y), None
        if guarantee or review:
            (items, y), held_out = split(items, y, random_state, HELD_OUT)
            best = dense(held_out[1]).double()
            at_best = best.nan_to_num(), best
            if guarantee:
                guaranteed_threshold(*at_best, **guarantee)
            if review:
                review_thresholds(*at_best, **review)
        if added is not None:
            more, more_y = self._checked(*added)
            items, y = join(items, more), stack(y, more_y)
        checked = None if validation is None else self._checked(*validation)
        scores = self.train_on(items, y, checked, random_state=random_state, verbose=verbose, **settings)
        self.config.evaluation, self.config.review = scores.as_dict(), None
        if held_out is not None and guarantee:
            self.guarantee(*held_out, verbose=verbose, **guarantee)
        if held_out is not None and review:
            self.set_review(*held_out, verbose=verbose, **review)
        return self

    def metadata(self) -> dict[str, Any]:
        """What a program that has only the exported model needs to know about its tensors."""
        return {}

    def truncated(self, items: Sequence[Any]) -> list[int]:
        """The indices of items that are truncated."""
        return []

    def outputs(self, items: Sequence[Any], *, verbose: bool = False) -> Output:
        """Run the model on items and decode; the tensors are on the CPU.

        Raises:
            ValueError: if the output is NaN.
        """
        return self._decode(self.encode(items, verbose=verbose))

    def name_labels(self, output: Output, *, every_label: bool = False) -> list[dict[str, float]]:
        """The predicted labels, or all of them, of each item of an output with their marginals, as in :meth:`predict`.

        Example:
            output = model.outputs(items)
            predicted, every = model.name_labels(output), model.name_labels(output, every_label=True)
        """
        shown = torch.ones_like(output.labels) if every_label else output.labels
        return self._shown(output.marginals, shown)

    def predict(
        self, items: Sequence[Any], *, every_label: bool = False, verbose: bool = False
    ) -> list[dict[str, float]]:
        """Predict the labels of each item with their marginals, the most probable first.

        Args:
            items: texts, images or table rows, as the model was trained on.
            every_label: return the marginals of all labels, not only of the predicted ones.
            verbose: show a progress bar.

        :meth:`explain` also tells which passages of a text are behind each label.
        """
        return self.name_labels(self.outputs(items, verbose=verbose), every_label=every_label)

    def explain(
        self, items: Sequence[Any], *, every_label: bool = False, verbose: bool = False
    ) -> list[dict[str, Explanation]]:
        """Predict as :meth:`predict`, with the passages of each text behind each label.

        Raises:
            ValueError: the model does not read texts.
        """
        what = "images" if self.modality == "image" else "rows of features"
        raise ValueError(f"{type(self).__name__}: only labels of texts can be explained, not of {what}")

    def predict_labels(self, items: Sequence[Any], *, verbose: bool = False) -> list[list[str]]:
        """Predict the names of the labels of each item, the most probable first."""
        return [list(labels) for labels in self.predict(items, verbose=verbose)]

    def evaluate(self, items: Sequence[Any], y: Labels, *, strict: bool = True, verbose: bool = False) -> Evaluation:
        """Score the predictions against the labels of the items.

        Args:
            items: texts, images or table rows, as the model was trained on.
            y: the names for each item, or a matrix of 0 and 1.
            strict: raise ValueError for names that the model does not know. False: they are evaluated as further
                labels, missed in every item that has them.
            verbose: show a progress bar.
        """
        names = [*self.names, *([] if strict else unknown_labels(y, self.names))]
        items, matrix = self._checked(items, y, names)
        return self._score(self.encode(items, verbose=verbose), matrix, names)

    def guarantee(self, items: Sequence[Any], y: Labels, *, verbose: bool = False, **level: Any) -> Self:
        """Predict label sets with a guaranteed recall or precision, instead of those with the best expected F1.

        Args:
            items: held-out texts, images or table rows: not used in training, from the same distribution as those to
                predict.
            y: the names for each item, or a matrix of 0 and 1.
            verbose: show a progress bar.
            level: ``recall`` or ``precision``, ``by`` and ``confidence``, as in
                :class:`rsoftmax.labels.RiskControlledClassifier`.

        Raises:
            ValueError: these items cannot guarantee the level; the message says how many are needed.
        """
        items, matrix = self._checked(items, y)
        x = self.encode(items, verbose=verbose)
        log_odds = self._decode(x).log_odds
        assert log_odds is not None  # the head computes them
        threshold, controlled = guaranteed_threshold(log_odds, dense(matrix).double(), **level)
        self._set_threshold(threshold)
        scores = self._score(x, matrix, self.names).as_dict()
        scores["guarantee"] = describe_guarantee(**level)
        if uncontrolled := [name for name, passed in zip(self.names, controlled, strict=True) if not passed]:
            scores["not_guaranteed"] = uncontrolled
            warnings.warn(
                f"{len(uncontrolled)} of {len(self.names)} labels have too few held-out items for a guarantee and"
                f" take the threshold of all labels: {list_names(uncontrolled)}",
                stacklevel=2,
            )
        head = {"average": self.decoder.average, "beta": 1.0, "min_labels": 0, "max_labels": None}
        self.config.head, self.config.evaluation = self.config.head | head, scores
        return self

    def set_review(self, items: Sequence[Any], y: Labels, *, verbose: bool = False, **level: Any) -> Self:
        """Set the thresholds of :meth:`review` from held-out items, as in :meth:`guarantee`.

        Args:
            items: held-out texts, images or table rows.
            y: the names for each item, or a matrix of 0 and 1.
            verbose: show a progress bar.
            level: ``accept``, ``reject``, ``by`` and ``confidence``, as in :func:`rsoftmax.labels.review_thresholds`.
        """
        level = REVIEW | level
        items, matrix = self._checked(items, y)
        rules = self.decoder.constraints
        if rules.exclusive:
            raise ValueError("review: exclusive labels cannot keep a guarantee; leave out exclusive")
        log_odds = self._decode(self.encode(items, verbose=verbose)).log_odds
        assert log_odds is not None  # the head computes them
        accept, reject = review_thresholds(log_odds.double(), dense(matrix), **level)
        if len(reject) > 1:
            reject = -rules.coherent(-reject)  # a parent is not rejected where its child is not
        bounded = ((threshold - ROUNDING).clamp(-FARTHEST, FARTHEST).tolist() for threshold in (accept, reject))
        self.config.review = {"levels": level, "num_samples": len(items), "thresholds": list(bounded)}
        return self

    @property
    def review_thresholds(self) -> ReviewThresholds | None:
        """The thresholds of :meth:`review`; None before :meth:`set_review`."""
        saved = self.config.review
        return None if saved is None else saved_thresholds(saved, len(self.names))

    def review(self, items: Sequence[Any], *, verbose: bool = False) -> list[ReviewedItem]:
        """Decide on the labels of each item, or leave them to a person; needs :meth:`set_review`.

        Args:
            items: texts, images or table rows, as the model was trained on.
            verbose: show a progress bar.

        Example:
            model.fit(texts, y, review={"accept": 0.95, "reject": 0.95})
            queue = sorted(model.review(new_texts), key=lambda item: -item.corrections)
        """
        return self.review_outputs(self.outputs(items, verbose=verbose))

    def review_outputs(self, output: Output) -> list[ReviewedItem]:
        """As :meth:`review`, from an output of :meth:`outputs`."""
        thresholds = self.review_thresholds
        if thresholds is None:
            raise ValueError("review: no thresholds; pass review={'accept': 0.95} to fit, or call set_review")
        assert output.log_odds is not None  # the head computes them
        scores, pi = output.log_odds.double(), output.marginals
        accepted, asked = thresholds.accepted(scores), thresholds.asked(scores)
        corrections = (asked * torch.where(output.labels, 1 - pi, pi)).sum(-1)
        parts = (self._shown(pi, accepted | (asked & output.labels)), self._shown(pi, asked))
        numbers = self.expected_f1(output).tolist(), corrections.tolist()
        return [ReviewedItem(*item) for item in zip(*parts, *numbers, strict=True)]

    def expected_f1(self, output: Output) -> Tensor:
        """The expected F1 of the predicted labels of each item of an output, [items]."""
        assert output.log_odds is not None  # the head computes them
        decoder, no_label = self.decoder, output.scores.no_label_margin
        device = decoder.threshold.device
        no_label = None if no_label is None else no_label.to(device)
        p_empty = decoder.no_label_log_odds(output.log_odds.to(device), no_label).sigmoid()[:, 0].cpu()
        return expected_f1_of_samples(output.marginals, output.labels, p_empty)

    def _shown(self, marginals: Tensor, shown: Tensor) -> list[dict[str, float]]:
        """Some of the labels of each item, with their marginals, the most probable first."""
        order = marginals.argsort(descending=True, stable=True).tolist()
        rows = zip(marginals.tolist(), shown.tolist(), order, strict=True)
        return [{self.names[i]: pi[i] for i in first if is_shown[i]} for pi, is_shown, first in rows]

    def _checked(self, items: Sequence[Any], y: Labels, names: Sequence[str] | None = None) -> tuple[Any, Any]:
        """Items and their labels as a matrix; raises unless there are as many."""
        items, matrix = self.check(items), self._indicator(y, names or self.names)
        if len(items) != matrix.shape[0] or not len(items):
            counts = f"{len(items)} and {matrix.shape[0]}"
            raise ValueError(f"there must be as many items as labels, and at least one; got {counts}")
        return items, matrix

    def _indicator(self, y: Labels, names: Sequence[str]) -> Any:
        """Labels as a matrix."""
        return indicator(y, names)

    @abstractmethod
    def _decode(self, x: Any) -> Output:
        """Labels from features, on the CPU."""

    @abstractmethod
    def _set_threshold(self, threshold: Tensor) -> None:
        """Predict labels whose log-odds reach a threshold."""

    def _score(self, x: Any, y: Any, names: Sequence[str]) -> Evaluation:
        """The evaluation of features; ``names`` may have more labels than the model, which are missed."""
        output, more = self._decode(x), (0, len(names) - len(self.names))
        return evaluate(nn.functional.pad(output.marginals, more), nn.functional.pad(output.labels, more), y, names)


class NetworkModel(BaseLabelModel):
    """A label model that is one network on the features of an item."""

    network: LabelNetwork

    @property
    def decoder(self) -> Decoder:
        """The decoder of the head."""
        return self.network.head.decoder

    @property
    def rule(self) -> str | None:
        """The rule of the head."""
        return self.network.head.rule.name

    @abstractmethod
    def example(self) -> dict[str, Tensor]:
        """The tensors of two items, by name, as :meth:`predict_tensors` takes them."""

    @abstractmethod
    def predict_tensors(self, **tensors: Tensor) -> Output:
        """Run the model on tensors and decode."""

    @torch.inference_mode()
    def _decode(self, x: Tensor | Windows) -> Output:
        """Labels from features, on the CPU."""
        output = self.network(x.to(next(self.network.parameters()).device))
        output = Output(*(None if part is None else part.cpu() for part in output))  # type: ignore[arg-type]
        if wrong := int((output.probs.isnan() | output.marginals.isnan()).any(-1).sum()):
            raise ValueError(
                f"{type(self).__name__}: the output is NaN for {wrong} of {len(x)} items, which is not 'no label';"
                " check the weights for NaN"
            )
        return output

    def _set_threshold(self, threshold: Tensor) -> None:
        self.network.head.set_threshold(threshold)


def dense(y: Any) -> Tensor:
    """A matrix of labels, or a sparse one, as a dense tensor."""
    return y if isinstance(y, Tensor) else torch.from_numpy(y.toarray())


def stack(first: Any, second: Any) -> Any:
    """The rows of two matrices, both dense or both sparse, one below the other."""
    if isinstance(first, Tensor):
        return torch.cat([first, second])
    import scipy.sparse as sp

    return sp.vstack([first, second], "csr")


def split(items: Sequence[Any], y: Any, random_state: int, fraction: float) -> tuple[Any, Any]:
    """Items to train on, and a random fraction to hold out."""
    size = max(round(fraction * len(items)), 1)
    if size >= len(items):
        raise ValueError(f"holding out some items needs at least 2, got {len(items)}")
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(random_state)).tolist()
    held_out, train = sorted(order[:size]), sorted(order[size:])
    return (select(items, train), y[train]), (select(items, held_out), y[held_out])


def indicator(y: Labels, names: Sequence[str]) -> Tensor:
    """Convert labels to a matrix [items, K] of 0 and 1.

    Args:
        y: names, or the matrix itself.
        names: the names of the labels, in the order of the columns.

    Example:
        >>> indicator([["joy"], ["anger", "joy"], []], ["anger", "joy"])
        tensor([[0., 1.],
                [1., 1.],
                [0., 0.]])
    """
    if holds_names(y):
        rows = label_columns(y, names)
        matrix = torch.zeros(len(rows), len(names))
        for row, columns in zip(matrix, rows, strict=True):
            row[columns] = 1
        return matrix
    matrix = torch.as_tensor(y, dtype=torch.float32)
    if matrix.ndim != 2 or matrix.shape[1] != len(names):
        raise ValueError(f"labels must be names or a matrix [items, {len(names)}], got shape {[*matrix.shape]}")
    if (wrong := matrix[(matrix != 0) & (matrix != 1) & ~matrix.isnan()]).numel():
        raise ValueError(f"labels must be 0 or 1, or NaN where unknown, got {wrong[0].item()}")
    return matrix


def unknown_labels(y: Labels, names: Sequence[str]) -> list[str]:
    """The names in ``y`` that are not in ``names``, sorted.

    Example:
        >>> unknown_labels([["joy", "envy"], []], ["anger", "joy"])
        ['envy']
    """
    if not holds_names(y):
        return []
    listed = (labels for labels in y if isinstance(labels, Collection) and not isinstance(labels, str))
    return sorted({name for labels in listed for name in labels} - set(names), key=str)


def check_names(names: Sequence[str], what: str = "labels") -> list[str]:
    """Return the names of labels or features as a list; raise ValueError unless they are distinct, non-empty texts."""
    listed = list(names)
    wrong = [name for name in listed if not isinstance(name, str) or not name]
    if isinstance(names, str) or wrong or not listed or len(set(listed)) < len(listed):
        raise ValueError(f"{what} must be distinct names such as ['anger', 'joy'], got {names!r}")
    for name in listed:
        check_unicode(name, f"{what}: ")
    return listed


def holds_names(y: Any) -> bool:
    """Whether labels are names, not a matrix of 0 and 1."""
    return isinstance(y, Sequence) or str(getattr(y, "dtype", "")) == "object"  # pandas columns of lists


def label_columns(y: Any, names: Sequence[str]) -> list[list[int]]:
    """The columns of the labels of each item, distinct and sorted; raises unless ``names`` has all of them."""
    columns = {name: column for column, name in enumerate(names)}
    listed = []
    for index, labels in enumerate(y, 1):
        if isinstance(labels, str) or not isinstance(labels, Collection):
            remedy = f"[{labels!r}]" if isinstance(labels, str) else "[] for none"
            raise ValueError(f"item {index}: labels must be a list of names, got {labels!r}; use {remedy}")
        if unknown := [name for name in labels if name not in columns]:
            raise ValueError(f"item {index}: unknown label {unknown[0]!r}; the labels are {list_names(names, SHOWN)}")
        listed.append(sorted({columns[name] for name in labels}))
    return listed
