"""A trained :class:`rsoftmax.labels.SparseLabelClassifier` as a folder: safetensors and JSON, no pickle."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from rsoftmax.labels.decoding import Average
from rsoftmax.labels.estimators.classifier import SparseLabelClassifier
from rsoftmax.labels.estimators.ensemble import check_mergeable, merge, training_rows
from rsoftmax.labels.estimators.features import Preprocessing
from rsoftmax.labels.models.base import (
    BaseLabelModel,
    LabelNetwork,
    Labels,
    check_lengths,
    check_names,
    hold_out,
    indicator,
)
from rsoftmax.labels.models.folders import SETTINGS, TABLE, WEIGHTS, read_settings, write
from rsoftmax.labels.rules import Output

__all__ = ["TableModel"]

ROWS_AT_ONCE = 64
MAX_CATEGORIES = 1000
SAVED = ("labels", "features", "quantiles", "hidden", "head", "columns", "evaluation")


class TableModel(BaseLabelModel, nn.Module):
    """A trained multi-label classifier for the rows of a table: preprocessing, one network, the names of the labels.

    Args:
        labels: their names.
        features: the names of the columns.
        quantiles: the number of quantiles per feature in the preprocessing.
        hidden: the number of hidden units.
        head: the arguments of :class:`rsoftmax.labels.MultiLabelHead`.
        columns: the columns of the training table by role, as the command line uses them.
        evaluation: :meth:`rsoftmax.labels.Evaluation.as_dict` on held-out rows.
        categories: the values of each column that holds texts in place of numbers.

    Example:
        >>> rows, labels = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 9, [["b"], ["a"], ["a", "b"]] * 9
        >>> model = TableModel.fit(rows, labels, ["u", "v"], n_estimators=2, lr=1e-2, random_state=0)
        >>> model.predict_labels([[1.0, 0.0]])
        [['a']]

    Its predictions are those of the classifier that it was converted from. A column of texts becomes a column of 0 and
    1 for each of its values; values that did not occur in training become zeros, with a warning.
    """

    def __init__(
        self,
        labels: Sequence[str],
        features: Sequence[str],
        quantiles: int,
        hidden: int,
        head: dict[str, Any],
        columns: dict[str, str] | None = None,
        evaluation: dict[str, Any] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        check_names(labels)
        check_names(features, "features")
        self.settings: dict[str, Any] = {
            "labels": list(labels),
            "features": list(features),
            "quantiles": quantiles,
            "hidden": hidden,
            "head": head,
            "columns": dict(columns or {}),
            "evaluation": evaluation,
            "categories": {name: list(values) for name, values in (categories or {}).items()},
        }
        self.preprocessing = Preprocessing(len(self.encoded), quantiles)
        self.network = LabelNetwork(len(self.encoded), len(labels), hidden, **head)

    @classmethod
    def fit(
        cls,
        rows: Sequence[Sequence[float | str]],
        labels: Labels,
        features: Sequence[str],
        average: Average = "micro",
        *,
        names: Sequence[str] | None = None,
        guarantee: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Self:
        """Train a :class:`SparseLabelClassifier` and convert it.

        Args:
            rows: a value for each feature; a column holds numbers only, or texts only.
            labels: the names for each row.
            features: the names of the columns.
            average: the F1 to maximise.
            names: all labels; None: those that occur.
            guarantee: hold out a fifth of the rows and call :meth:`guarantee` with them: ``{"recall": 0.9}``.
            settings: further arguments of :class:`SparseLabelClassifier`.
        """
        check_names(features, "features")
        if settings.get("preprocessing", "auto") is None:
            raise ValueError("TableModel: preprocessing=None is not supported; use preprocessing='auto'")
        found = names if names is not None else sorted({name for row in labels for name in row})
        truth = indicator(labels, found)
        check_lengths(rows, truth)
        if not found:
            raise ValueError("TableModel: no row has a label; pass at least one label")
        categories = _categories(rows, features)
        x = _encode(rows, features, categories)
        (kept, truth), aside = hold_out(range(len(rows)), truth, guarantee or {}, _seed(settings.get("random_state")))
        if isinstance(weights := settings.get("class_weight"), Mapping):  # columns have numbers, a single label is "it"
            columns = {name: place if len(found) > 1 else "it" for place, name in enumerate(found)}
            settings["class_weight"] = {columns.get(name, name): weight for name, weight in weights.items()}
        model = SparseLabelClassifier(average=average, **settings)
        check_mergeable(model)
        made = cls.of(model.fit(*training_rows(x[list(kept)], truth)), features, found, categories)
        return made if aside is None else made.guarantee([rows[i] for i in aside[0]], aside[1], **(guarantee or {}))

    @classmethod
    def of(
        cls,
        model: SparseLabelClassifier,
        features: Sequence[str],
        labels: Sequence[str],
        categories: Mapping[str, Sequence[str]] | None = None,
    ) -> Self:
        """Convert a classifier that was fitted on dense features."""
        preprocessing, d = Preprocessing.of(model._preprocessing), model.n_features_in_
        network = merge(model, torch.zeros(d), torch.ones(d))
        settings: dict[str, Any] = {"evaluation": model.evaluation_.rename(labels).as_dict(), "categories": categories}
        made = cls(labels, features, preprocessing.quantiles.shape[1], network.width, model._head(), **settings)
        made.preprocessing, made.network = preprocessing, network
        return made.eval()

    @property
    def names(self) -> list[str]:
        """The labels in the order of the columns."""
        names: list[str] = self.settings["labels"]
        return names

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the training table by role."""
        columns: dict[str, str] = self.settings["columns"]
        return columns

    @property
    def modality(self) -> Literal["features"]:
        """Rows of features."""
        return "features"

    @property
    def evaluation(self) -> dict[str, Any]:
        """The evaluation on held-out rows: :meth:`rsoftmax.labels.Evaluation.as_dict`."""
        return self.settings["evaluation"] or {}

    @property
    def features(self) -> list[str]:
        """The names of the columns."""
        features: list[str] = self.settings["features"]
        return features

    @property
    def categories(self) -> dict[str, list[str]]:
        """The values of each column of texts."""
        categories: dict[str, list[str]] = self.settings["categories"]
        return categories

    @property
    def encoded(self) -> list[str]:
        """The names of the network's features: columns of numbers, then ``column=value`` for each category."""
        numbers = [name for name in self.features if name not in self.categories]
        return numbers + [f"{name}={value}" for name, values in self.categories.items() for value in values]

    def update_config(self, head: dict[str, Any], evaluation: dict[str, Any]) -> None:
        """Change the saved settings: arguments of the head, and the evaluation."""
        self.settings |= {"head": self.settings["head"] | head, "evaluation": evaluation}

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
        return {"features": self.encoded}

    @torch.inference_mode()
    def outputs(self, items: Sequence[Sequence[float | str]], *, progress: bool = False) -> Output:
        """Predict from rows."""
        x = _encode(items, self.features, self.categories)
        prepared = torch.cat([self.preprocessing(part) for part in x.split(ROWS_AT_ONCE)])
        output: Output = self.network(prepared)
        return output

    def save(self, folder: str | Path) -> None:
        """Save weights, settings and a model card as one folder, in a single step.

        Other files in the folder stay untouched, and so does an edited model card.

        Raises:
            FileExistsError: if a file would be replaced that is not part of a saved model of this kind.
            OSError: if the files cannot be written; an existing model stays intact.
        """
        with write(Path(folder)) as place:
            weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
            (place / WEIGHTS).write_bytes(save(weights))
            (place / SETTINGS).write_text(json.dumps({"model_type": TABLE, **self.settings}), encoding="utf-8")

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
            with torch.device("meta"):
                model = cls(**{name: settings[name] for name in SAVED}, categories=settings.get("categories"))
            model.load_state_dict(weights, assign=True)
        except Exception as error:  # for files edited by hand torch raises many kinds
            raise ValueError(f"{folder} is damaged: {error}") from None
        return model.eval()


def _seed(random_state: Any) -> int:
    return random_state if isinstance(random_state, int) else 0


def _categories(rows: Sequence[Sequence[float | str]], features: Sequence[str]) -> dict[str, list[str]]:
    """The values of each column that holds a text."""
    columns = zip(features, zip(*rows, strict=False), strict=False)
    found = {name: sorted(set(map(str, cells))) for name, cells in columns if any(isinstance(c, str) for c in cells)}
    for name, values in found.items():
        if len(values) > min(MAX_CATEGORIES, max(len(rows) / 2, 20)):
            raise ValueError(
                f"the column {name!r} has {len(values)} different texts in {len(rows)} rows, such as {values[-1]!r}:"
                " too many for categories; leave it out, or train on it as a text"
            )
    return found


def _encode(
    rows: Sequence[Sequence[float | str]], features: Sequence[str], categories: Mapping[str, Sequence[str]]
) -> Tensor:
    """Rows as a tensor: the columns of numbers, then a column of 0 and 1 for each category."""
    wrong = next((row for row in rows if len(row) != len(features)), None)
    if wrong is not None:
        raise ValueError(f"TableModel: expected {len(features)} features per row, {list(features)}, got {len(wrong)}")
    if not categories:
        return _numbers(rows, features)
    numbers = [place for place, name in enumerate(features) if name not in categories]
    x = _numbers([[row[place] for place in numbers] for row in rows], [features[place] for place in numbers])
    texts = {name: [str(row[place]) for row in rows] for place, name in enumerate(features) if name in categories}
    return torch.cat([x, *(_one_hot(name, texts[name], values) for name, values in categories.items())], 1)


def _one_hot(name: str, cells: Sequence[str], values: Sequence[str]) -> Tensor:
    """0 and 1 for each value, [rows, values]."""
    if unknown := sorted(set(cells) - set(values)):
        listed = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        warnings.warn(f"the column {name!r} holds values that did not occur in training: {listed}", stacklevel=2)
    places = {value: place for place, value in enumerate(values)}
    found = torch.zeros(len(cells), len(values))
    for row, cell in enumerate(cells):
        if cell in places:
            found[row, places[cell]] = 1
    return found


def _numbers(rows: Sequence[Sequence[float | str]], features: Sequence[str]) -> Tensor:
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
