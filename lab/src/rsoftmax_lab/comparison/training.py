"""One run of the comparison: a network trained by one method on any multi-label data, scored with each rule."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from rsoftmax.labels import AVERAGES, PLAIN, SparseLabelClassifier
from rsoftmax_lab.comparison.data import Data, Matrix, Rows
from rsoftmax_lab.comparison.methods import METHODS, USERS, check_method
from rsoftmax_lab.comparison.rules import Decision, Outputs, Rule, outputs
from rsoftmax_lab.comparison.scores import micro_f1, scores
from rsoftmax_lab.running import schema
from rsoftmax_lab.running.runs import BaseRun
from rsoftmax_lab.running.schema import Schema

Point = Any  # a dataset's name, or the settings of a synthetic one

SCORES = schema.fields(dict.fromkeys(AVERAGES, schema.number))
RULE = schema.fields(
    {"epoch": schema.number, "validation": SCORES, "test": SCORES, "test_last": SCORES},
    {"curve": schema.each(schema.number)},
)


@dataclass(frozen=True)
class Training(BaseRun):
    """The paper's training settings. Width and batch size are ours, because the paper does not state them.

    ``hidden=0`` means no hidden layer.
    """

    VARIED: ClassVar[tuple[str, ...]] = ("method", "seed")
    REQUIRED: ClassVar[Mapping[str, Schema]] = {"epoch_seconds": schema.number, "rules": schema.each(RULE)}

    method: str = "softmax"
    seed: int = 0
    epochs: int = 150
    lr: float = 1e-3
    hidden: int = 128
    batch_size: int = 128

    def __post_init__(self) -> None:
        check_method(self.method)

    @property
    def point(self) -> Point:
        """The data of the comparison."""
        return tuple(getattr(self, name) for name in self.PLACE)


def classifier(run: Training) -> SparseLabelClassifier:
    """The untrained classifier of a run."""
    hidden = (run.hidden,) if run.hidden else ()
    settings = {"hidden_layer_sizes": hidden, "lr": run.lr, "batch_size": run.batch_size, "random_state": run.seed}
    return SparseLabelClassifier(**PLAIN | METHODS[run.method].head | settings)


def train_and_score(run: Training, data: Data, *, curves: bool = False) -> dict[str, Any]:
    """Train one method and score it with each of its rules.

    For each rule: the epoch with the highest validation micro-F1 (the paper's number), the validation and test scores
    at that epoch, and the test scores after the last epoch, without selection; with ``curves``, the validation
    micro-F1 after each epoch.
    """
    model = classifier(run)
    followed = {name: _Followed(rule) for name, rule in METHODS[run.method].rules.items()}
    seconds = 0.0
    for _ in range(run.epochs):
        start = time.perf_counter()
        model.partial_fit(data.train.X, data.train.Y)
        seconds += time.perf_counter() - start
        validation, weights = _forward(model, data.validation), _weights(model)
        for one in followed.values():
            one.update(validation, weights)
    last = _Outputs.by(model, data)
    best = {one.epoch: _Outputs.by(model, data, one.weights) for one in followed.values()}
    return {
        "epoch_seconds": round(seconds / run.epochs, 6),
        "rules": {
            name: {
                "epoch": one.epoch,
                "validation": _score(best[one.epoch].validation, one.decide),
                "test": _score(best[one.epoch].test, one.decide),
                "test_last": _score(last.test, one.rule(last.validation)),
                **({"curve": [round(100 * f1, 1) for f1 in one.curve]} if curves else {}),
            }
            for name, one in followed.items()
        },
    }


def fit_and_score(run: Training, data: Data) -> dict[str, Any]:
    """Fit one classifier with default settings, and score it with each of its rules.

    The validation rows are used for early stopping and for calibration or threshold tuning; the run's training settings
    are not used. The row has the fields of :func:`train_and_score`; no epoch is selected.
    """
    model = SparseLabelClassifier(**USERS[run.method].head, random_state=run.seed)
    start = time.perf_counter()
    model.fit(data.train.X, data.train.Y, validation=(data.validation.X, data.validation.Y))
    seconds, epochs = time.perf_counter() - start, len(model.history_)
    validation, test = (
        outputs(model.decision_function(rows.X), model.predict_distribution(rows.X), rows.Y, rows.ignored)
        for rows in (data.validation, data.test)
    )
    decisions = {name: rule(validation) for name, rule in USERS[run.method].rules.items()}
    return {
        "epoch_seconds": round(seconds / epochs, 6),
        "rules": {
            name: {
                "epoch": epochs,
                "validation": _score(validation, decide),
                "test": _score(test, decide),
                "test_last": _score(test, decide),
            }
            for name, decide in decisions.items()
        },
    }


class _Followed:
    """The validation micro-F1 of a rule after each epoch, with the weights and decision of the best epoch."""

    weights: dict[str, Tensor]
    decide: Decision

    def __init__(self, rule: Rule) -> None:
        self.rule, self.epoch, self.curve = rule, 0, list[float]()

    def update(self, validation: Outputs, weights: dict[str, Tensor]) -> None:
        decide = self.rule(validation)
        f1 = micro_f1(validation.Y, decide(validation))
        if f1 > max(self.curve, default=-1):
            self.epoch, self.weights, self.decide = len(self.curve) + 1, weights, decide
        self.curve.append(f1)


class _Outputs(NamedTuple):
    """The outputs for the validation and test rows."""

    validation: Outputs
    test: Outputs

    @classmethod
    def by(cls, model: SparseLabelClassifier, data: Data, weights: dict[str, Tensor] | None = None) -> "_Outputs":
        """The outputs of the current network, or with the weights of an epoch."""
        if weights is not None:
            model.estimators_[0].load_state_dict(weights)
        return cls(_forward(model, data.validation), _forward(model, data.test))


def _score(outputs: Outputs, decide: Decision) -> dict[str, float]:
    return scores(outputs.Y, decide(outputs))


def _forward(model: SparseLabelClassifier, rows: Rows) -> Outputs:
    """``decision_function`` and ``predict_proba`` in one forward pass."""
    module = model.estimators_[0].eval()
    with torch.no_grad():
        batches = [module(_dense(rows.X[i : i + 1024])) for i in range(0, len(rows.Y), 1024)]
    z = [output.scores.margins for output in batches]
    return outputs(torch.cat(z).numpy(), torch.cat([output.probs for output in batches]).numpy(), rows.Y, rows.ignored)


def _dense(X: Matrix) -> Tensor:
    return torch.from_numpy(np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float32))


def _weights(model: SparseLabelClassifier) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.estimators_[0].state_dict().items()}
