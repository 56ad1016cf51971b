"""The contest of section 4.1: one network, nine ways to end it, on any multi-label data.

A method is a head and its loss; a rule reads labels off what the trained network answers. Most methods have one rule,
the non-zero probabilities; softmax has none, so it is read at every threshold of a grid, from the same training. Two
rules are outsiders: ``tuned`` chooses its threshold on the validation rows, and ``true_count`` is told how many labels
each row has, which shows what a method's ranking is worth when the counting is perfect.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor

from rsoftmax.estimator import PLAIN, SparseLabelClassifier

Matrix = Any  # features: an array or a sparse matrix
Labels = NDArray[np.bool_]
Point = Any  # what a contest is held on: a draw, or a set's name
AVERAGES = ("micro", "macro", "samples")
P0 = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


class Rows(NamedTuple):
    """Features and labels; if given, ``ignored`` says which labels count neither as right nor as wrong."""

    X: Matrix
    Y: Labels
    ignored: Labels | None = None


class Data(NamedTuple):
    """Rows to learn from, rows to select on, and rows that nothing is selected on."""

    train: Rows
    validation: Rows
    test: Rows


class Answers(NamedTuple):
    """What a network says about some rows: scores and probabilities [rows, K]; and the truth."""

    z: NDArray[np.float32]
    p: NDArray[np.float32]
    Y: Labels


def answers(z: NDArray[np.float32], p: NDArray[np.float32], Y: Labels, ignored: Labels | None) -> Answers:
    """:class:`Answers` in which no rule finds a label that is ignored, so that it counts nowhere."""
    if ignored is None:
        return Answers(z, p, Y)
    return Answers(np.where(ignored, -np.inf, z), np.where(ignored, 0, p), Y & ~ignored)


Decision = Callable[[Answers], Labels]
Rule = Callable[[Answers], Decision]  # from the validation rows to a decision; only "tuned" looks at them


def nonzero(validation: Answers) -> Decision:
    """The labels are the non-zero probabilities."""
    return lambda answers: answers.p > 0


def at_least(p0: float) -> Rule:
    """The labels are the probabilities that are not below p0."""
    return lambda validation: lambda answers: answers.p >= p0


def tuned(what: str) -> Rule:
    """The labels are the scores ("z") or probabilities ("p") above the threshold that is best on validation."""

    def rule(validation: Answers) -> Decision:
        threshold = best_threshold(getattr(validation, what), validation.Y)
        return lambda answers: getattr(answers, what) >= threshold

    return rule


def true_count(validation: Answers) -> Decision:
    """The k highest scores, k being the true number of labels."""

    def top(answers: Answers) -> Labels:
        k = torch.from_numpy(answers.Y.sum(1, keepdims=True))
        z = torch.from_numpy(answers.z)
        least = z.topk(max(int(k.max()), 1), -1).values.gather(-1, (k - 1).clamp(min=0))
        return ((z >= least) & (k > 0)).numpy()

    return top


@dataclass(frozen=True)
class Method:
    """A way to end a network.

    Attributes:
        title: its name in tables and figures.
        head: what the estimator is told.
        rules: how labels are read off, by name.
        ours: not in the paper's contest.
    """

    title: str
    head: dict[str, Any]
    rules: dict[str, Rule]
    ours: bool = False


def _head(mapping: str, loss: str, rate: str | None = None) -> dict[str, Any]:
    return {"mapping": mapping, "loss": loss, "rate": rate}


LABELS: dict[str, Rule] = {"labels": nonzero, "true_count": true_count}
TUNED: dict[str, Rule] = {"tuned": tuned("z")}
THRESHOLDS: dict[str, Rule] = {f"p0={p0}": at_least(p0) for p0 in P0} | {"tuned": tuned("p"), "true_count": true_count}

METHODS: dict[str, Method] = {
    "softmax": Method("softmax", _head("softmax", "cross_entropy"), THRESHOLDS),
    "sparsemax_huber": Method("sparsemax + huber", _head("sparsemax", "sparsemax_huber_loss"), LABELS),
    "sparsemax_hinge": Method("sparsemax + hinge", _head("sparsemax", "sparsemax_hinge_loss"), LABELS),
    "sparsehourglass": Method("sparsehourglass", _head("sparsehourglass", "sparsehourglass_loss"), LABELS),
    "r_softmax_count": Method("r-softmax, count", _head("r_softmax", "r_softmax_loss", "count"), LABELS),
    "t_softmax_threshold": Method(
        "t-softmax, threshold", _head("t_softmax", "t_softmax_loss", "threshold"), LABELS, ours=True
    ),
    "r_softmax_expected_f1": Method(
        "r-softmax, expected F1", _head("r_softmax", "binary_cross_entropy", "expected_f1"), LABELS | TUNED, ours=True
    ),
    "bce": Method("BCE", _head("t_softmax", "binary_cross_entropy", "zero"), LABELS | TUNED),
    "zlpr": Method("ZLPR", _head("t_softmax", "zlpr_loss", "zero"), LABELS),
}


@dataclass(frozen=True)
class Training:
    """The paper's training; a run says what it does differently. The width and the batch are ours: it gives none.

    ``hidden=0`` is a network without a hidden layer.
    """

    PLACE: ClassVar[tuple[str, ...]] = ()  # the fields that say on what it is held

    method: str = "softmax"
    seed: int = 0
    epochs: int = 150
    lr: float = 1e-3
    hidden: int = 128
    batch_size: int = 128

    @property
    def point(self) -> Point:
        """On what the contest is held."""
        return tuple(getattr(self, name) for name in self.PLACE)


def contestant(run: Training) -> SparseLabelClassifier:
    """The network of a run, to be trained an epoch at a time."""
    hidden = (run.hidden,) if run.hidden else ()
    head = METHODS[run.method].head
    settings = {"hidden": hidden, "lr": run.lr, "batch_size": run.batch_size, "random_state": run.seed}
    return SparseLabelClassifier(**PLAIN | head | settings)


def play(run: Training, data: Data, *, curves: bool = False) -> dict[str, Any]:
    """Train one method and score it under each of its rules.

    For each rule: the epoch with the highest micro-F1 on the validation rows (the paper reports that number), the
    scores at that epoch on validation and on test, and those on test after the last epoch, where nothing is selected;
    with ``curves``, the micro-F1 on validation after each epoch.
    """
    method = METHODS[run.method]
    model = contestant(run)
    best: dict[str, _Kept] = {}
    curve: dict[str, list[float]] = {name: [] for name in method.rules}
    seconds = 0.0
    for epoch in range(1, run.epochs + 1):
        start = time.perf_counter()
        model.partial_fit(data.train.X, data.train.Y)
        seconds += time.perf_counter() - start
        validation, weights = _ask(model, data.validation), _weights(model)
        for name, rule in method.rules.items():
            kept = _Kept(epoch, weights, rule(validation))
            found = kept.decide(validation)
            kept.f1 = micro_f1(validation.Y, found)
            curve[name].append(round(100 * kept.f1, 1))
            if name not in best or kept.f1 > best[name].f1:
                best[name] = kept
    last = _Answered(model, data)
    answered = {kept.epoch: _Answered(model, data, kept.weights) for kept in best.values()}
    return {
        "epoch_seconds": round(seconds / run.epochs, 6),
        "rules": {
            name: {
                "epoch": best[name].epoch,
                "validation": answered[best[name].epoch].scores("validation", best[name].decide),
                "test": answered[best[name].epoch].scores("test", best[name].decide),
                "test_last": last.scores("test", rule(last.validation)),
                **({"curve": curve[name]} if curves else {}),
            }
            for name, rule in method.rules.items()
        },
    }


@dataclass
class _Kept:
    """The best epoch of a rule so far."""

    epoch: int
    weights: dict[str, Tensor]
    decide: Decision
    f1: float = 0.0


class _Answered:
    """What the network, with the weights of some epoch, says about the rows that it did not learn from."""

    def __init__(self, model: SparseLabelClassifier, data: Data, weights: dict[str, Tensor] | None = None) -> None:
        if weights is not None:
            model.net_.module_.load_state_dict(weights)
        self.validation, self.test = _ask(model, data.validation), _ask(model, data.test)

    def scores(self, split: str, decide: Decision) -> dict[str, float]:
        answers: Answers = getattr(self, split)
        return scores(answers.Y, decide(answers))


def _ask(model: SparseLabelClassifier, rows: Rows) -> Answers:
    """``decision_function`` and ``predict_proba`` from one pass."""
    module = model.net_.module_.eval()
    with torch.no_grad():
        outputs = [module(_dense(rows.X[i : i + 1024])) for i in range(0, len(rows.Y), 1024)]
    z = [output.z if output.theta is None else output.z - output.theta for output in outputs]
    return answers(torch.cat(z).numpy(), torch.cat([output.p for output in outputs]).numpy(), rows.Y, rows.ignored)


def _dense(X: Matrix) -> Tensor:
    return torch.from_numpy(np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float32))


def _weights(model: SparseLabelClassifier) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.net_.module_.state_dict().items()}


def scores(truth: Labels, found: Labels) -> dict[str, float]:
    """Micro, macro and samples F1, in per cent. Nothing to find and nothing found counts as right."""
    return {
        average: round(100 * float(f1_score(truth, found, average=average, zero_division=1.0)), 4)
        for average in AVERAGES
    }


def micro_f1(truth: Labels, found: Labels) -> float:
    """What :func:`scores` calls micro, for each epoch: a share, and quick."""
    size = int(np.count_nonzero(truth)) + int(np.count_nonzero(found))
    return 2 * int(np.count_nonzero(truth & found)) / size if size else 1.0


def best_threshold(values: NDArray[Any], truth: Labels) -> float:
    """The value v for which ``values >= v`` has the highest micro-F1.

    Example:
        >>> best_threshold(np.array([[0.9, 0.25], [0.5, 0.3]]), np.array([[True, False], [True, False]]))
        0.5
    """
    order = np.argsort(values, axis=None)[::-1]
    falling, right = values.ravel()[order], np.cumsum(truth.ravel()[order])
    f1 = 2 * right / (np.arange(1, len(order) + 1) + max(right[-1], 1))
    f1[:-1][falling[:-1] == falling[1:]] = -1  # equal values fall together
    return float(falling[f1.argmax()])
