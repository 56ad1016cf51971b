"""A multi-label classifier of table rows as forests of trees in one folder, without pickle."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier
from torch import Tensor

from rsoftmax.labels.constraints import options_by_index
from rsoftmax.labels.decoding import Decoder
from rsoftmax.labels.estimators.expected_f1 import ExpectedF1Classifier
from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.models.base import Part
from rsoftmax.labels.models.folders import ESTIMATOR, FOREST, SETTINGS, read_settings, write
from rsoftmax.labels.models.table import RowModel, Rows, TableConfig
from rsoftmax.labels.rules import Output

__all__ = ["ForestModel"]

CERTAIN = 30.0  # log-odds of a label that every row has


class ForestModel(RowModel):
    """A multi-label classifier for the rows of a table by extra trees: an :class:`ExpectedF1Classifier` of names.

    Args:
        features: the names of the columns.
        labels: the names of the labels; None: those that occur in training.
        average: the F1 to maximise, "micro", "macro" or "samples".
        options: further options of the decoder: beta, min_labels, max_labels, zero_division; implies and exclusive by
            name, as in :class:`rsoftmax.labels.ExpectedF1Classifier`.

    Example:
        >>> rows, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 9, [["b"], ["a"], ["a", "b"]] * 9
        >>> model = ForestModel(["u", "v"]).fit(rows, y)
        >>> model.predict_labels([[1.0, 0.0]])
        [['a']]

    Columns of texts are categories, as in :class:`rsoftmax.labels.TableModel`.
    """

    classifier: ExpectedF1Classifier

    def train_on(  # type: ignore[override]  # no further settings
        self, items: Rows, y: Tensor, validation: Part | None, *, random_state: int, verbose: bool
    ) -> Evaluation:
        """Fit extra trees on all folds but one, for each fold, calibration and thresholds."""
        cv: Any = 5
        x = self.encode_rows(items)
        if validation is not None:
            cv = [(np.arange(len(x)), len(x) + np.arange(len(validation[1])))]
            x, y = torch.cat([x, self.encode_rows(validation[0])]), torch.cat([y, validation[1]])
        if not (y == 1).any():
            raise ValueError("no row has a label; pass rows with and without each label")
        trees = ExtraTreesClassifier(random_state=random_state)
        classifier = ExpectedF1Classifier(trees, cv=cv, random_state=random_state, verbose=int(verbose), **self.options)
        self.classifier = classifier.fit(x.numpy(), y.numpy(), classes=self.names)
        self.config.head = options_by_index(self.names, self.options)
        if classifier.evaluation_ is None:
            raise ValueError("no row has a known label")
        return classifier.evaluation_

    @property
    def decoder(self) -> Decoder:
        """Calibration, thresholds and constraints."""
        return self.classifier.decoder_

    def embed(self, items: Rows, *, verbose: bool = False) -> NDArray[np.float32]:
        """Encoded rows."""
        self._check_fitted()
        return self.encode_rows(items).numpy()

    def save(self, folder: str | Path) -> None:
        """Save trees, settings and a model card as one folder, in a single step.

        Other files in the folder stay untouched, and so does an edited model card.

        Raises:
            FileExistsError: if a file would be replaced that is not part of a saved model of this kind.
            OSError: if the files cannot be written; an existing model stays intact.
        """
        self._check_fitted()
        with write(Path(folder)) as staged:
            self.classifier.save(staged / ESTIMATOR)
            (staged / SETTINGS).write_text(json.dumps({"model_type": FOREST, **asdict(self.config)}), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a saved model.

        Raises:
            FileNotFoundError: if there is no model in the folder.
            ValueError: if it is damaged, of another kind, or of a newer version.
        """
        settings = read_settings(Path(folder), FOREST)
        try:
            config = TableConfig(**{part.name: settings[part.name] for part in fields(TableConfig)})
            model = cls(config.features, config.labels)
            model.config, model.classifier = config, ExpectedF1Classifier.load(Path(folder, ESTIMATOR))
            shape = model.classifier.n_features_in_, len(model.classifier.classes_)
            if shape != (len(config.encoded), len(config.labels)):
                raise ValueError(f"the trees have {shape} features and labels")
        except Exception as error:  # for files edited by hand there are many kinds
            raise ValueError(f"{folder} is damaged: {error}") from None
        return model

    def _check_fitted(self) -> None:
        if not hasattr(self, "classifier"):
            raise ValueError("ForestModel: not trained yet; call fit")

    def _decode(self, x: NDArray[np.float32]) -> Output:
        log_odds = torch.from_numpy(self.classifier.decision_function(x)).clamp(-CERTAIN, CERTAIN).float()
        labels = self.decoder.decide(log_odds).labels
        probs = torch.softmax(log_odds.where(labels, -torch.inf), -1).nan_to_num(0)
        return Output(log_odds, None, None, None, None, probs, log_odds)

    def _set_threshold(self, threshold: Tensor) -> None:
        self.classifier.decoder_ = self.decoder.at_threshold(threshold)
