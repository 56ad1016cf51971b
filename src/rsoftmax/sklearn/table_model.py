"""A trained :class:`rsoftmax.sklearn.SparseLabelClassifier` as a folder: safetensors and JSON, no pickle."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rsoftmax.files.card import count_of, model_card, printable
from rsoftmax.files.folders import CARD, SETTINGS, TABLE, WEIGHTS, read, read_settings, write
from rsoftmax.multilabel import Average, Labeller, LabelNetwork, Output
from rsoftmax.multilabel.labeller import Labels, check_lengths, check_names, indicator
from rsoftmax.sklearn.classifier import SparseLabelClassifier
from rsoftmax.sklearn.ensemble import as_targets, check_mergeable, merge
from rsoftmax.sklearn.features import Preprocessing

ROWS_AT_ONCE = 64
USAGE = """from rsoftmax.sklearn import TableModel

model = TableModel.load("path/to/this/folder")
model.predict([[{row}]])"""
SAVED = ("labels", "features", "quantiles", "hidden", "head", "columns", "evaluation")


class TableModel(Labeller, nn.Module):
    """A trained multi-label classifier for the rows of a table: preprocessing, one network, the names of the labels.

    Args:
        labels: their names.
        features: the names of the columns.
        quantiles: the number of quantiles per feature in the preprocessing.
        hidden: the number of hidden units.
        head: the arguments of :class:`rsoftmax.multilabel.MultiLabelHead`.
        columns: the columns of the training table by role, as the command line uses them.
        evaluation: :meth:`rsoftmax.multilabel.Evaluation.as_dict` on held-out rows.

    Example:
        >>> rows, labels = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 9, [["b"], ["a"], ["a", "b"]] * 9
        >>> model = TableModel.fit(rows, labels, ["u", "v"], n_estimators=2, lr=1e-2, random_state=0)
        >>> model.predict_labels([[1.0, 0.0]])
        [['a']]

    Its predictions are those of the classifier that it was converted from.
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
    ) -> None:
        super().__init__()
        check_names(labels)
        self.settings: dict[str, Any] = {
            "labels": list(labels),
            "features": list(features),
            "quantiles": quantiles,
            "hidden": hidden,
            "head": head,
            "columns": dict(columns or {}),
            "evaluation": evaluation,
        }
        self.preprocessing = Preprocessing(len(features), quantiles)
        self.network = LabelNetwork(len(features), len(labels), hidden, **head)

    @classmethod
    def fit(
        cls,
        rows: Sequence[Sequence[float]],
        labels: Labels,
        features: Sequence[str],
        average: Average = "micro",
        *,
        names: Sequence[str] | None = None,
        **settings: Any,
    ) -> Self:
        """Train a :class:`SparseLabelClassifier` and convert it.

        Args:
            rows: a number for each feature.
            labels: the names for each row.
            features: the names of the columns.
            average: the F1 to maximise.
            names: all labels; None: those that occur.
            settings: further arguments of :class:`SparseLabelClassifier`.
        """
        found = names if names is not None else sorted({name for row in labels for name in row})
        truth = indicator(labels, found)
        check_lengths(rows, truth)
        if not found:
            raise ValueError("TableModel: no row has a label; at least one must")
        x = _numbers(rows, features)
        model = SparseLabelClassifier(average=average, **settings)
        check_mergeable(model)
        return cls.of(model.fit(x.numpy(), as_targets(truth)), features, found)

    @classmethod
    def of(cls, model: SparseLabelClassifier, features: Sequence[str], labels: Sequence[str]) -> Self:
        """Convert a classifier that was fitted on dense features."""
        preprocessing, d = Preprocessing.of(model._preprocessing), len(features)
        network = merge(model, torch.zeros(d), torch.ones(d))
        evaluation = model.evaluation_.rename(labels).as_dict()
        made = cls(
            labels, features, preprocessing.quantiles.shape[1], network.width, model._head(), evaluation=evaluation
        )
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
    def reads(self) -> Literal["features"]:
        """Rows of features."""
        return "features"

    @property
    def evaluation(self) -> dict[str, Any]:
        """The evaluation on held-out rows: :meth:`rsoftmax.multilabel.Evaluation.as_dict`."""
        return self.settings["evaluation"] or {}

    @property
    def features(self) -> list[str]:
        """The names of the columns."""
        features: list[str] = self.settings["features"]
        return features

    def example(self) -> dict[str, Tensor]:
        """Two rows near the medians of the training data."""
        middle = self.preprocessing.quantiles[:, self.preprocessing.quantiles.shape[1] // 2].float()
        return {"features": torch.stack([middle, middle + 1])}

    def answer(self, **tensors: Tensor) -> Output:
        """Predict from a tensor [rows, features]."""
        output: Output = self.network(self.preprocessing(tensors["features"]))
        return output

    def about(self) -> dict[str, Any]:
        """The names of the features."""
        return {"features": self.features}

    @torch.inference_mode()
    def outputs(self, items: Sequence[Sequence[float]], *, progress: bool = False) -> Output:
        """Predict from rows."""
        x = _numbers(items, self.features)
        prepared = torch.cat([self.preprocessing(part) for part in x.split(ROWS_AT_ONCE)])
        output: Output = self.network(prepared)
        return output

    def save(self, folder: str | Path) -> None:
        """Save weights, settings and a model card as one folder, in a single step: see ``rsoftmax.files``.

        Other files in the folder stay, and so does a model card that was edited.

        Raises:
            FileExistsError: if a file would be replaced that is not part of a saved model of this kind.
        """
        with write(Path(folder)) as place:
            save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, place / WEIGHTS)
            (place / CARD).write_text(self._card(), encoding="utf-8")
            (place / SETTINGS).write_text(json.dumps({"model_type": TABLE, **self.settings}), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a saved model.

        While another process saves to the folder, the whole old version or the whole new one is loaded.

        Raises:
            FileNotFoundError: if there is no model in the folder.
            ValueError: if it is damaged, of another kind, or of a newer version.
        """
        with read(Path(folder)) as place:
            settings = read_settings(Path(folder), TABLE)
            try:
                weights = load_file(place / WEIGHTS)
                with torch.device("meta"):
                    model = cls(**{name: settings[name] for name in SAVED})
                model.load_state_dict(weights, assign=True)
            except Exception as error:  # for files edited by hand torch raises many kinds
                raise ValueError(f"{folder} is damaged: {error}") from None
        return model.eval()

    def _card(self) -> str:
        what = f"A multi-label classifier for tabular rows: {count_of(len(self.names), 'label')} from"
        what = f"{what} {count_of(len(self.features), 'feature')} ({', '.join(map(printable, self.features))})."
        usage = USAGE.format(row=", ".join("0.0" for _ in self.features))
        return model_card("rsoftmax", "Multi-label classifier for tabular rows", what, usage, self.evaluation)


def _numbers(rows: Sequence[Sequence[float]], features: Sequence[str]) -> Tensor:
    """Rows as a tensor [rows, features]; raises unless all are finite and of this length."""
    if not len(rows):
        return torch.zeros(0, len(features))
    try:
        x = torch.as_tensor(rows, dtype=torch.float32).reshape(len(rows), -1)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"TableModel: rows must be lists of {len(features)} numbers: {error}") from None
    if x.shape[1] != len(features):
        raise ValueError(f"TableModel: expected {len(features)} features per row, {list(features)}, got {x.shape[1]}")
    for row, column in (~x.isfinite()).nonzero().tolist():
        raise ValueError(f"row {row + 1}: {features[column]!r} is {x[row, column]}; expected a finite float32")
    return x
