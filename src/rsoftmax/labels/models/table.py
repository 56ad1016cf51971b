"""A multi-label classifier of table rows as one network and one folder: safetensors and JSON, no pickle."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from rsoftmax.labels.constraints import options_by_index
from rsoftmax.labels.decoding import Average, Decoder
from rsoftmax.labels.estimators.classifier import SparseLabelClassifier
from rsoftmax.labels.estimators.ensemble import fit_mergeable, merge
from rsoftmax.labels.estimators.features import Preprocessing
from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.models.base import BaseLabelModel, LabelNetwork, Labels, NetworkModel, Part, check_names
from rsoftmax.labels.models.card import list_names
from rsoftmax.labels.models.folders import SETTINGS, TABLE, WEIGHTS, read_settings, write
from rsoftmax.labels.rules import Output

__all__ = ["TableModel"]

Rows = Sequence[Sequence[float | str]]
ROWS_AT_ONCE = 64
MAX_CATEGORIES = 1000


@dataclass
class TableConfig:
    """The settings of a :class:`TableModel`, as ``config.json`` holds them.

    Attributes:
        features: the names of the columns.
        labels: the names of the labels.
        categories: the values of each column of texts.
        quantiles: the number of quantiles per feature in the preprocessing.
        hidden: the number of hidden units.
        head: the arguments of :class:`rsoftmax.labels.MultiLabelHead`.
        columns: the columns of the training table by role, as the command line uses them.
        evaluation: :meth:`rsoftmax.labels.Evaluation.as_dict` on held-out rows.
        review: levels and thresholds of :meth:`rsoftmax.labels.BaseLabelModel.review`.
    """

    features: list[str]
    labels: list[str]
    categories: dict[str, list[str]] = field(default_factory=dict)
    quantiles: int = 1
    hidden: int = 0
    head: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None
    review: dict[str, Any] | None = None

    @property
    def names(self) -> list[str]:
        """The labels in the order of the columns."""
        return self.labels

    @property
    def encoded(self) -> list[str]:
        """The names of the network's features: columns of numbers, then ``column=value`` for each category."""
        numbers = [name for name in self.features if name not in self.categories]
        return numbers + [f"{name}={value}" for name, values in self.categories.items() for value in values]


class RowModel(BaseLabelModel):
    """A label model of rows: subclasses learn from the numbers that :meth:`encode_rows` returns."""

    config: TableConfig

    def __init__(
        self, features: Sequence[str], labels: Sequence[str] | None = None, average: Average = "micro", **options: Any
    ) -> None:
        super().__init__()
        self.labels = None if labels is None else check_names(labels)
        self.options = {"average": average, **options}
        self.config = TableConfig(check_names(features, "features"), self.labels or [])
        if self.labels is not None:
            Decoder(len(self.labels), **options_by_index(self.labels, self.options))

    def fit(self, items: Rows, y: Labels, **settings: Any) -> Self:
        """Train on rows, as in :meth:`BaseLabelModel.fit`.

        Args:
            items: a value for each feature; a column contains numbers only, or texts only.
            y: the names for each row, or a matrix of 0 and 1.
            settings: validation, guarantee, review, added, random_state, verbose, and those of the estimator.
        """
        self.config.labels = self.labels or sorted({name for labels in y for name in labels})
        self.config.categories = _categories(items, self.config.features)
        return super().fit(items, y, **settings)

    @property
    def modality(self) -> Literal["features"]:
        """Rows of features."""
        return "features"

    def check(self, items: Rows) -> Rows:
        """The rows; raises unless all have finite numbers and texts where they belong."""
        self.encode_rows(items)
        return items

    def encode_rows(self, rows: Rows) -> Tensor:
        """Rows as a tensor: the columns of numbers, then a column of 0 and 1 for each category."""
        features, categories = self.config.features, self.config.categories
        if wrong := [len(row) for row in rows if len(row) != len(features)]:
            raise ValueError(
                f"{type(self).__name__}: expected {len(features)} features per row, {features}, got {wrong[0]}"
            )
        numbers = [i for i, name in enumerate(features) if name not in categories]
        cells = [[row[i] for i in numbers] for row in rows] if categories else rows
        x = [_numbers(cells, [features[i] for i in numbers])]
        for name, values in categories.items():
            texts = [str(row[features.index(name)]) for row in rows]
            if unknown := sorted(set(texts) - set(values)):
                listed = list_names(map(repr, unknown))
                warnings.warn(
                    f"the column {name!r} holds values that did not occur in training: {listed}", stacklevel=1
                )
            x.append(
                torch.tensor([[float(text == value) for value in values] for text in texts]).reshape(-1, len(values))
            )
        return torch.cat(x, 1)


class TableModel(RowModel, NetworkModel, nn.Module):
    """A multi-label classifier for the rows of a table: preprocessing, one network, the names of the labels.

    Args:
        features: the names of the columns.
        labels: the names of the labels; None: those that occur in training.
        average: the F1 to maximise; see :class:`rsoftmax.labels.MultiLabelHead`.
        options: further options of the decoder: beta, min_labels, max_labels, zero_division; implies and exclusive by
            name, as in :class:`rsoftmax.labels.ExpectedF1Classifier`.

    Example:
        >>> rows, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 9, [["b"], ["a"], ["a", "b"]] * 9
        >>> model = TableModel(["u", "v"]).fit(rows, y, n_estimators=2)
        >>> model.predict_labels([[1.0, 0.0]])
        [['a']]

    It is trained as :class:`SparseLabelClassifier`, and predicts the same. A column of texts becomes a column of 0 and
    1 for each of its values; values that did not occur in training become zeros, with a warning.
    """

    def train_on(
        self, items: Rows, y: Tensor, validation: Part | None, *, random_state: int, verbose: bool, **settings: Any
    ) -> Evaluation:
        """Train a :class:`SparseLabelClassifier` and take over its networks, merged into one, and its evaluation."""
        settings |= {"random_state": random_state, "verbose": int(verbose)}
        classifier = SparseLabelClassifier(**self.options | settings)
        held_out = None if validation is None else (self.encode_rows(validation[0]), validation[1])
        return self._take_over(fit_mergeable(classifier, self.encode_rows(items), y, self.names, held_out))

    @classmethod
    def from_classifier(cls, classifier: SparseLabelClassifier, features: Sequence[str], labels: Sequence[str]) -> Self:
        """Convert a classifier that was fitted on dense features."""
        model = cls(features, labels)
        model.config.evaluation = model._take_over(classifier).as_dict()
        return model

    @classmethod
    def from_config(cls, config: TableConfig) -> Self:
        """An untrained model with the settings of a saved one."""
        model = cls(config.features, config.labels)
        model.config, d = config, len(config.encoded)
        model.preprocessing = Preprocessing(d, config.quantiles)
        model.network = LabelNetwork(d, len(config.labels), config.hidden, **config.head)
        return model.eval()

    def _take_over(self, classifier: SparseLabelClassifier) -> Evaluation:
        if classifier._preprocessing is None:
            raise ValueError("TableModel: preprocessing=None is not supported; use preprocessing='auto'")
        d, config = classifier.n_features_in_, self.config
        self.preprocessing = Preprocessing.of(classifier._preprocessing)
        self.network = merge(classifier, torch.zeros(d), torch.ones(d))
        config.quantiles, config.hidden = self.preprocessing.quantiles.shape[1], self.network.width
        config.head = classifier._head_arguments()
        self.eval()
        return classifier.evaluation_.rename(self.names)

    def example(self) -> dict[str, Tensor]:
        """Two rows near the medians of the training data."""
        middle = self.preprocessing.quantiles[:, self.preprocessing.quantiles.shape[1] // 2].float()
        return {"features": torch.stack([middle, middle + 1])}

    def predict_tensors(self, **tensors: Tensor) -> Output:
        """Predict from a tensor [rows, features]."""
        output: Output = self.network(self.preprocessing(tensors["features"]))
        return output

    def metadata(self) -> dict[str, Any]:
        """The names of the features, categories as columns of 0 and 1."""
        return {"features": self.config.encoded}

    @torch.inference_mode()
    def embed(self, items: Rows, *, verbose: bool = False) -> Tensor:
        """Encoded and preprocessed rows."""
        self._check_fitted()
        return torch.cat([self.preprocessing(part) for part in self.encode_rows(items).split(ROWS_AT_ONCE)])

    def save(self, folder: str | Path) -> None:
        """Save weights, settings and a model card as one folder, in a single step.

        Other files in the folder stay untouched, and so does an edited model card.

        Raises:
            FileExistsError: if a file would be replaced that is not part of a saved model of this kind.
            OSError: if the files cannot be written; an existing model stays intact.
        """
        self._check_fitted()
        with write(Path(folder)) as staged:
            weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
            (staged / WEIGHTS).write_bytes(save(weights))
            (staged / SETTINGS).write_text(json.dumps({"model_type": TABLE, **asdict(self.config)}), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a saved model.

        Raises:
            FileNotFoundError: if there is no model in the folder.
            ValueError: if it is damaged, of another kind, or of a newer version.
        """
        settings = read_settings(Path(folder), TABLE)
        try:
            weights = load_file(Path(folder, WEIGHTS))
            values = {part.name: settings[part.name] for part in fields(TableConfig) if part.name in settings}
            config = TableConfig(**values)
            with torch.device("meta"):
                model = cls.from_config(config)
            model.load_state_dict(weights, assign=True)
        except Exception as error:  # for files edited by hand torch raises many kinds
            raise ValueError(f"{folder} is damaged: {error}") from None
        return model.eval()

    def _check_fitted(self) -> None:
        if not hasattr(self, "network"):
            raise ValueError("TableModel: not trained yet; call fit")


def _categories(rows: Rows, features: Sequence[str]) -> dict[str, list[str]]:
    """The values of each column that holds a text."""
    columns = zip(features, zip(*rows, strict=False), strict=False)
    texts = {name: sorted(set(map(str, cells))) for name, cells in columns if any(isinstance(c, str) for c in cells)}
    for name, values in texts.items():
        if len(values) > min(MAX_CATEGORIES, max(len(rows) / 2, 20)):
            raise ValueError(
                f"the column {name!r} has {len(values)} different texts in {len(rows)} rows, such as {values[-1]!r}:"
                " too many for categories; leave it out, or train on it as a text"
            )
    return texts


def _numbers(rows: Rows, features: Sequence[str]) -> Tensor:
    """Rows as a tensor [rows, features]; raises unless all are finite numbers."""
    try:
        x = torch.as_tensor(rows, dtype=torch.float32).reshape(len(rows), len(features))
    except (OverflowError, RuntimeError, TypeError, ValueError):
        for row, cells in enumerate(rows, 1):
            for name, cell in zip(features, cells, strict=True):
                if not isinstance(cell, int | float):
                    raise ValueError(f"row {row}: {name!r} must be a number, got {cell!r}") from None
        raise
    for row, column in (~x.isfinite()).nonzero().tolist():
        raise ValueError(f"row {row + 1}: {features[column]!r} is {x[row, column]}; expected a finite float32")
    return x
