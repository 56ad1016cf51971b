"""A trained :class:`rsoftmax.sklearn.SparseLabelClassifier` as a folder: safetensors and JSON, no pickle."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rsoftmax import __version__
from rsoftmax.folders import CARD, SETTINGS, WEIGHTS, check_hashes, hashes, settings_of, written
from rsoftmax.model_card import model_card
from rsoftmax.multilabel import Average, Labeller, LabelNetwork, Output
from rsoftmax.multilabel.labeller import Labels, check_lengths, indicator
from rsoftmax.printable import counted
from rsoftmax.sklearn.classifier import SparseLabelClassifier
from rsoftmax.sklearn.encoded import targets_of
from rsoftmax.sklearn.merging import merged
from rsoftmax.sklearn.preparation import Preparation

KIND = "rsoftmax-table"
ROWS_AT_ONCE = 64
USE = 'from rsoftmax.sklearn import TableModel\nmodel = TableModel.load("this folder")\nmodel.predict([[{row}]])'


class TableModel(Labeller, nn.Module):
    """Labels for the rows of a table: preparation of the features, one network, names.

    Args:
        labels: their names.
        features: the names of the columns.
        quantiles: how many the preparation has for each feature.
        hidden: hidden units.
        head: what :class:`rsoftmax.multilabel.MultiLabelHead` is told.
        columns: names of columns by role, as the command line uses them.
        scores: those of the answers to rows held out, as :class:`rsoftmax.multilabel.Evaluation` has them.

    Example:
        >>> rows, labels = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 9, [["b"], ["a"], ["a", "b"]] * 9
        >>> model = TableModel.fit(rows, labels, ["u", "v"], nets=2, lr=1e-2, random_state=0)
        >>> model.predict_labels([[1.0, 0.0]])
        [['a']]

    Its answers are those of the classifier whose networks it holds.
    """

    def __init__(
        self,
        labels: Sequence[str],
        features: Sequence[str],
        quantiles: int,
        hidden: int,
        head: dict[str, Any],
        columns: dict[str, str] | None = None,
        scores: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "labels": list(labels),
            "features": list(features),
            "quantiles": quantiles,
            "hidden": hidden,
            "head": head,
            "columns": dict(columns or {}),
            "scores": scores,
        }
        self.preparation = Preparation(len(features), quantiles)
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
        """Train a classifier and take what it has learned.

        Args:
            rows: numbers, one for each feature.
            labels: names for each row.
            features: the names of the columns.
            average: the F1 that counts.
            names: all labels; None: those that occur.
            settings: of :class:`SparseLabelClassifier`.
        """
        found = names if names is not None else sorted({name for row in labels for name in row})
        truth = indicator(labels, found)
        check_lengths(rows, truth)
        if not found:
            raise ValueError("TableModel: no row has a label; there must be one at least")
        x = _numbers(rows, features)
        model = SparseLabelClassifier(average=average, **settings).fit(x.numpy(), targets_of(truth))
        return cls.of(model, features, found)

    @classmethod
    def of(cls, model: SparseLabelClassifier, features: Sequence[str], labels: Sequence[str]) -> Self:
        """What a classifier of dense features has learned."""
        preparation, d = Preparation.of(model._preparation), len(features)
        network = merged([net.module_ for net in model.nets_], model._head(), torch.zeros(d), torch.ones(d))
        scores = model.evaluation_.named(labels).as_dict()
        made = cls(labels, features, preparation.quantiles.shape[1], network.width, model._head(), scores=scores)
        made.preparation, made.network = preparation, network
        return made.eval()

    @property
    def names(self) -> list[str]:
        """The labels, in the order of the columns."""
        names: list[str] = self.settings["labels"]
        return names

    @property
    def columns(self) -> dict[str, str]:
        """Names of columns by role."""
        columns: dict[str, str] = self.settings["columns"]
        return columns

    @property
    def scores(self) -> dict[str, Any]:
        """What rows held out say about the model, as :class:`rsoftmax.multilabel.Evaluation` has it."""
        return self.settings["scores"] or {}

    @property
    def features(self) -> list[str]:
        """The names of the columns that are read."""
        features: list[str] = self.settings["features"]
        return features

    def example(self) -> dict[str, Tensor]:
        """Two rows in the middle of what was trained on."""
        middle = self.preparation.quantiles[:, self.preparation.quantiles.shape[1] // 2].float()
        return {"features": torch.stack([middle, middle + 1])}

    def answer(self, **tensors: Tensor) -> Output:
        """What the model says of rows [rows, features], decoded."""
        output: Output = self.network(self.preparation(tensors["features"]))
        return output

    def about(self) -> dict[str, Any]:
        """The names of the features."""
        return {"features": self.features}

    @torch.inference_mode()
    def outputs(self, items: Sequence[Sequence[float]], *, progress: bool = False) -> Output:
        """What the model says of rows, decoded."""
        x = _numbers(items, self.features)
        prepared = torch.cat([self.preparation(part) for part in x.split(ROWS_AT_ONCE)])
        output: Output = self.network(prepared)
        return output

    def save(self, folder: str | Path) -> None:
        """Write weights, settings and a model card, at one stroke."""
        with written(Path(folder)) as place:
            save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, place / WEIGHTS)
            (place / CARD).write_text(self._card(), encoding="utf-8")
            settings = {"model_type": KIND, **self.settings, "files": hashes(place), "rsoftmax_version": __version__}
            (place / SETTINGS).write_text(json.dumps(settings, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what :meth:`save` wrote."""
        place = Path(folder)
        settings = settings_of(place)
        if settings["model_type"] != KIND:
            raise ValueError(f"{folder} holds a {settings['model_type']}; LabelModel.from_pretrained reads it")
        try:
            check_hashes(place, settings.pop("files", None) or {})
            weights = load_file(place / WEIGHTS)
            known = ("labels", "features", "quantiles", "hidden", "head", "columns", "scores")
            with torch.device("meta"):
                model = cls(**{name: settings[name] for name in known})
            model.load_state_dict(weights, assign=True)
        except Exception as error:  # whatever a file that was changed by hand makes torch raise
            raise ValueError(f"{folder} is damaged: {error}") from None
        return model.eval()

    def _card(self) -> str:
        what = f"Networks of rsoftmax {__version__} that give rows of {', '.join(self.features)} some of"
        use = USE.format(row=", ".join("0.0" for _ in self.features))
        what = f"{what} {counted(len(self.names), 'label')}, each with its probability."
        return model_card("rsoftmax", "rows of a table", what, use, self.settings["scores"])


def _numbers(rows: Sequence[Sequence[float]], features: Sequence[str]) -> Tensor:
    """Rows as a tensor [rows, features]; what is not finite, or of another length, is refused."""
    if not len(rows):
        return torch.zeros(0, len(features))
    try:
        x = torch.as_tensor(rows, dtype=torch.float32).reshape(len(rows), -1)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"TableModel: rows must be lists of {len(features)} numbers: {error}") from None
    if x.shape[1] != len(features):
        raise ValueError(f"TableModel: a row has {len(features)} features, {list(features)}; got {x.shape[1]}")
    for row, column in (~x.isfinite()).nonzero().tolist():
        raise ValueError(f"row {row + 1}: {features[column]!r} is {x[row, column]}; a finite float32 is wanted")
    return x
