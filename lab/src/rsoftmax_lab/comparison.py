"""The multi-label comparison of the paper's section 4.1, which three experiments run on different data.

From top to bottom: the data, the decision rules, the methods, the predictors (a method with one of its rules), the
training of a run, and the results of many runs.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor

from rsoftmax.labels import (
    AVERAGES,
    PLAIN,
    RULES,
    Decoder,
    HeadOptions,
    Output,
    RankingRule,
    Scores,
    SparseLabelClassifier,
    TrainingOptions,
    keep_count,
    losses,
    rate_of_count,
)  # fmt: skip
from rsoftmax.labels.models.card import count_of
from rsoftmax_lab.records import BaseRun, Record, Trials, number
from rsoftmax_lab.report import Markdown, Mean, Table, best_in_bold, escape, settings_text

# ------------------------------------------------------------------------------------------------ data and scores

Matrix = Any  # features: an array or a sparse matrix
Labels = NDArray[np.bool_]
Marginals = NDArray[np.float64]


class Samples(NamedTuple):
    """Features and labels; entries marked in ``ignored`` are excluded from the scores."""

    X: Matrix
    Y: Labels
    ignored: Labels | None = None


class Data(NamedTuple):
    """Training samples, validation samples for selection, and test samples."""

    train: Samples
    validation: Samples
    test: Samples


def scores(truth: Labels, predicted: Labels) -> dict[str, float]:
    """Micro, macro and samples F1, in per cent; 100 where no label is true or predicted."""
    return {
        average: round(100 * float(f1_score(truth, predicted, average=average, zero_division=1.0)), 4)
        for average in AVERAGES
    }


def micro_f1(truth: Labels, predicted: Labels) -> float:
    """Micro-F1 as a fraction, fast enough for each epoch."""
    size = int(np.count_nonzero(truth)) + int(np.count_nonzero(predicted))
    return 2 * int(np.count_nonzero(truth & predicted)) / size if size else 1.0


def best_threshold(values: NDArray[Any], truth: Labels) -> float:
    """The value v for which ``values >= v`` has the highest micro-F1.

    Example:
        >>> best_threshold(np.array([[0.9, 0.25], [0.5, 0.3]]), np.array([[True, False], [True, False]]))
        0.5
    """
    order = np.argsort(values, axis=None)[::-1]
    descending, hits = values.ravel()[order], np.cumsum(truth.ravel()[order])
    f1 = 2 * hits / (np.arange(1, len(order) + 1) + max(hits[-1], 1))
    f1[:-1][descending[:-1] == descending[1:]] = -1  # ties are on the same side of a threshold
    return float(descending[f1.argmax()])


def _best_for_samples(marginals: Marginals, Y: Labels) -> Marginals:
    """The threshold with the best samples-F1 among 99 candidates."""
    candidates = np.linspace(0.01, 0.99, 99)
    f1 = [f1_score(Y, marginals >= p, average="samples", zero_division=1.0) for p in candidates]
    return candidates[[np.argmax(f1)]]


# Thresholds tuned on validation samples for each F1, the alternative without this library; macro: one for each label.
TUNE: dict[str, Callable[[Marginals, Labels], Marginals]] = {
    "micro": lambda marginals, Y: np.array([best_threshold(marginals, Y)]),
    "macro": lambda marginals, Y: np.array([best_threshold(p, y) for p, y in zip(marginals.T, Y.T, strict=True)]),
    "samples": _best_for_samples,
}

# ------------------------------------------------------------------------------------------------- decision rules
# From the outputs of a trained network to labels. Most methods have one rule, the non-zero probabilities. Softmax has
# no zeros, so one training is evaluated at every threshold of a grid. Two rules are not in the paper: `tuned` chooses
# its threshold on the validation samples, and `true_count` is told the number of labels of each sample, which measures
# the quality of the ranking alone.


class Outputs(NamedTuple):
    """The outputs of a network for some samples: logits and probabilities [samples, K], and the true labels."""

    logits: NDArray[np.float32]
    probs: NDArray[np.float32]
    Y: Labels

    @classmethod
    def of(cls, logits: NDArray[Any], probs: NDArray[Any], Y: Labels, ignored: Labels | None) -> "Outputs":
        """Outputs in which ignored labels are never predicted and never true."""
        if ignored is None:
            return cls(logits, probs, Y)
        return cls(np.where(ignored, -np.inf, logits), np.where(ignored, 0, probs), Y & ~ignored)


Decision = Callable[[Outputs], Labels]
DecisionRule = Callable[[Outputs], Decision]  # from the validation samples to a decision; only `tuned` uses them


def nonzero(validation: Outputs) -> Decision:
    """The labels are the non-zero probabilities."""
    return lambda outputs: outputs.probs > 0


def at_least(p0: float) -> DecisionRule:
    """The labels are the probabilities of at least p0."""
    return lambda validation: lambda outputs: outputs.probs >= p0


def tuned(field: str) -> DecisionRule:
    """The labels are the "logits" or "probs" above the threshold that is best on validation."""

    def rule(validation: Outputs) -> Decision:
        threshold = best_threshold(getattr(validation, field), validation.Y)
        return lambda outputs: getattr(outputs, field) >= threshold

    return rule


def true_count(validation: Outputs) -> Decision:
    """The labels are the k largest logits, where k is the true number of labels."""

    def top(outputs: Outputs) -> Labels:
        k = torch.from_numpy(outputs.Y.sum(1, keepdims=True))
        logits = torch.from_numpy(outputs.logits)
        smallest = logits.topk(max(int(k.max()), 1), -1).values.gather(-1, (k - 1).clamp(min=0))
        return ((logits >= smallest) & (k > 0)).numpy()

    return top


# -------------------------------------------------------------------------------------------------------- methods


class Count(RankingRule):
    """A rule of heads, which RULES lists then, too: the k best labels, where a layer on the features predicts k.

    In training, eq. 5 takes the true number of labels, so that the scores do not depend on predicted counts. The counts
    are trained by cross-entropy. This reads the paper's section 4.1 differently from the rule "rate".
    """

    name = "count"

    def layers(self, num_labels: int) -> dict[str, int]:
        """Labels; counts 0..K."""
        return {"logits": num_labels, "count": num_labels + 1}

    def scores(self, outputs: Mapping[str, Tensor]) -> Scores:
        """Logits of labels and of counts."""
        return Scores(outputs["logits"], aux_logits=outputs["count"])

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        """Select the most probable number of labels by r-softmax."""
        k = scores.require("aux_logits").argmax(-1, keepdim=True)
        return Output(*scores, rate_of_count(k, scores.logits), keep_count(scores.logits, k))

    def loss(self, scores: Scores, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of the labels plus that of their count, which weights of labels leave out: it needs all labels."""
        loss, count_logits = super().loss(scores, y, weight), scores.require("aux_logits")
        return loss + losses.label_count_loss(count_logits, y, reduction="none") if weight is None else loss

    def training_rate(self, scores: Scores, y: Tensor) -> Tensor:
        """The true rate of zeros."""
        return rate_of_count(y.sum(-1, keepdim=True), scores.logits)


RULES[Count.name] = Count


@dataclass(frozen=True)
class Method:
    """The head of a network and its decision rules.

    Attributes:
        title: its name in tables and figures.
        head: the arguments of the head; of classifiers with default settings, those of the estimator.
        rules: the decision rules, by name.
        ours: whether it is not part of the paper's comparison.
    """

    title: str
    head: dict[str, Any]
    rules: dict[str, DecisionRule]
    ours: bool = False


def _head(mapping: str, loss: str, rule: str | None = None) -> dict[str, Any]:
    return {"mapping": mapping, "loss": loss, "rule": rule}


P0 = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
LABELS: dict[str, DecisionRule] = {"labels": nonzero, "true_count": true_count}
TUNED: dict[str, DecisionRule] = {"tuned": tuned("logits")}
THRESHOLDS = {f"p0={p0}": at_least(p0) for p0 in P0} | {"tuned": tuned("probs"), "true_count": true_count}

METHODS: dict[str, Method] = {
    "softmax": Method("softmax", _head("softmax", "softmax_cross_entropy"), THRESHOLDS),
    "sparsemax_huber": Method("sparsemax + huber", _head("sparsemax", "sparsemax_huber_loss"), LABELS),
    "sparsemax_hinge": Method("sparsemax + hinge", _head("sparsemax", "sparsemax_hinge_loss"), LABELS),
    "sparsehourglass": Method("sparsehourglass", _head("sparsehourglass", "sparsehourglass_hinge_loss"), LABELS),
    "r_softmax_rate": Method("r-softmax, rate", _head("r_softmax", "multilabel_r_softmax_loss", "rate"), LABELS),
    "r_softmax_count": Method("r-softmax, count", _head("r_softmax", "multilabel_r_softmax_loss", Count.name), LABELS),
    "t_softmax_threshold": Method(
        "t-softmax, threshold", _head("t_softmax", "multilabel_t_softmax_loss", "threshold"), LABELS, ours=True
    ),
    "r_softmax_expected_f1": Method(
        "r-softmax, expected F1",
        _head("r_softmax", "sigmoid_binary_cross_entropy", "expected_f1"),
        LABELS | TUNED,
        ours=True,
    ),
    "bce": Method("BCE", _head("t_softmax", "sigmoid_binary_cross_entropy", "zero"), LABELS | TUNED),
    "zlpr": Method("ZLPR", _head("t_softmax", "zlpr_loss", "zero"), LABELS),
}

# Classifiers with default settings, five networks each; only what differs from the defaults.
USERS: dict[str, Method] = {
    "users_micro": Method(
        'SparseLabelClassifier(average="micro")', {"average": "micro"}, {"labels": nonzero}, ours=True
    ),
    "users_bce": Method(
        "BCE, five networks", {"head": HeadOptions(rule="zero", calibration=None)}, {"labels": nonzero} | TUNED
    ),
}
ALL_METHODS = METHODS | USERS


def check_method(name: str, methods: Iterable[str] = ALL_METHODS) -> None:
    """Reject an unknown method."""
    if name not in methods:
        raise ValueError(f"unknown method {name!r}; expected one of {', '.join(methods)}")


# ----------------------------------------------------------------------------------------------------- predictors


class Predictor(NamedTuple):
    """A method and its decision rule."""

    method: str
    rule: str = "labels"

    @property
    def title(self) -> str:
        """Its name in tables and figures."""
        method = ALL_METHODS[self.method]
        match self.rule:
            case "labels":
                return method.title
            case "tuned" if method.ours:
                return f"network of {method.title}, threshold tuned"
            case "tuned":
                return f"{method.title}, threshold tuned"
            case "true_count":
                return f"{method.title}, true count"
        return f"{method.title}, {self.rule.replace('=', ' = ')}"

    @property
    def name(self) -> str:
        """Its title, marked "(ours)" if it is ours."""
        return f"{self.title} (ours)" if ALL_METHODS[self.method].ours and self.rule != "tuned" else self.title

    @property
    def legend(self) -> str:
        """Its title in the legends of figures, with its origin."""
        if self in OURS:
            return f"{self.title} (ours)"
        return f"{self.title} (the paper's)" if self in (LITERAL, PAPERS) else self.title


ALL_PREDICTORS = tuple(Predictor(name, rule) for name, method in METHODS.items() for rule in method.rules)
ORACLES = tuple(predictor for predictor in ALL_PREDICTORS if predictor.rule == "true_count")
PREDICTORS = tuple(predictor for predictor in ALL_PREDICTORS if predictor not in ORACLES)
OURS = tuple(predictor for predictor in PREDICTORS if METHODS[predictor.method].ours and predictor.rule == "labels")
OTHERS = tuple(predictor for predictor in PREDICTORS if not METHODS[predictor.method].ours)
BEST_OF_OURS = Predictor("r_softmax_expected_f1")
ITS_NETWORK_TUNED = Predictor("r_softmax_expected_f1", "tuned")  # the same logits without the rule
USERS_MICRO = Predictor("users_micro")
BY_USERS = tuple(Predictor(name, rule) for name, method in USERS.items() for rule in method.rules)
LITERAL = Predictor("r_softmax_rate")  # the paper's head, read literally
PAPERS = Predictor("r_softmax_count")  # another reading, which was run on all data
SPARSE = tuple(map(Predictor, ("sparsemax_huber", "sparsemax_hinge", "sparsehourglass")))
IN_THE_PAPER = (*SPARSE, *(Predictor("softmax", f"p0={p0}") for p0 in P0 if p0 >= 0.05))


class LineStyle(NamedTuple):
    """A line style; related predictors share a colour."""

    color: str
    style: str
    marker: str
    width: float = 1.3


LINE_STYLES = {
    Predictor("r_softmax_expected_f1"): LineStyle("#c1121f", "-", "o", 2.4),
    Predictor("t_softmax_threshold"): LineStyle("#f08a24", "-", "s", 1.8),
    Predictor("r_softmax_rate"): LineStyle("#7b2d8e", "-", "h", 2.0),
    Predictor("r_softmax_count"): LineStyle("#1d4e89", "-", "D", 2.0),
    Predictor("sparsemax_huber"): LineStyle("#6fa8dc", "--", "v"),
    Predictor("sparsemax_hinge"): LineStyle("#6fa8dc", ":", "^"),
    Predictor("sparsehourglass"): LineStyle("#6fa8dc", "-.", "x"),
    Predictor("bce"): LineStyle("#2d8659", "--", "P"),
    Predictor("zlpr"): LineStyle("#2d8659", ":", "*"),
    Predictor("softmax", "tuned"): LineStyle("#555555", "-", ".", 1.6),
    Predictor("softmax", "p0=0.02"): LineStyle("#8a8a8a", "--", "1"),
    Predictor("softmax", "p0=0.05"): LineStyle("#8a8a8a", "-.", "2"),
    Predictor("softmax", "p0=0.1"): LineStyle("#8a8a8a", ":", "3"),
}

# ------------------------------------------------------------------------------------------------------- training

Point = Any  # a dataset's name, or the settings of a synthetic one

SCORES = dict.fromkeys(AVERAGES, number)
RULE = {"epoch": number, "validation": SCORES, "test": SCORES, "test_last": SCORES, "curve?": [number]}


@dataclass(frozen=True)
class Training(BaseRun):
    """The paper's training settings. Width and batch size are ours, because the paper does not state them.

    ``hidden=0`` means no hidden layer.
    """

    VARIED: ClassVar[tuple[str, ...]] = ("method", "seed")
    SCHEMA: ClassVar[dict[str, Any]] = {"epoch_seconds": number, "rules": [RULE]}

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
        return tuple(getattr(self, name) for name in self.DATA)


def classifier(run: Training) -> SparseLabelClassifier:
    """The untrained classifier of a run."""
    hidden = (run.hidden,) if run.hidden else ()
    head = HeadOptions(calibration=None, **METHODS[run.method].head)
    training = TrainingOptions.plain(lr=run.lr, batch_size=run.batch_size)
    settings = {"hidden_layer_sizes": hidden, "head": head, "training": training, "random_state": run.seed}
    return SparseLabelClassifier(**PLAIN | settings)


class _Selection:
    """The validation micro-F1 of a rule after each epoch, with the weights and decision of the best epoch."""

    weights: dict[str, Tensor]
    decide: Decision

    def __init__(self, rule: DecisionRule) -> None:
        self.rule, self.epoch, self.curve = rule, 0, list[float]()

    def update(self, validation: Outputs, weights: dict[str, Tensor]) -> None:
        decide = self.rule(validation)
        f1 = micro_f1(validation.Y, decide(validation))
        if f1 > max(self.curve, default=-1):
            self.epoch, self.weights, self.decide = len(self.curve) + 1, weights, decide
        self.curve.append(f1)


def train_and_score(run: Training, data: Data, *, curves: bool = False) -> Record:
    """Train one method and score it with each of its rules.

    For each rule: the epoch with the highest validation micro-F1 (the paper's number), the validation and test scores
    at that epoch, and the test scores after the last epoch, without selection; with ``curves``, the validation
    micro-F1 after each epoch.
    """
    model = classifier(run)
    selections = {name: _Selection(rule) for name, rule in METHODS[run.method].rules.items()}
    seconds = 0.0
    for _ in range(run.epochs):
        start = time.perf_counter()
        model.partial_fit(data.train.X, data.train.Y)
        seconds += time.perf_counter() - start
        network: Any = model.estimators_[0]
        validation, weights = _forward(network, data.validation), deepcopy(network.state_dict())
        for selection in selections.values():
            selection.update(validation, weights)
    last, best = _both(network, data), {}
    for selection in selections.values():
        network.load_state_dict(selection.weights)
        best[selection.epoch] = _both(network, data)
    return {
        "epoch_seconds": round(seconds / run.epochs, 6),
        "rules": {
            name: {
                "epoch": selection.epoch,
                "validation": _scores(best[selection.epoch][0], selection.decide),
                "test": _scores(best[selection.epoch][1], selection.decide),
                "test_last": _scores(last[1], selection.rule(last[0])),
                **({"curve": [round(100 * f1, 1) for f1 in selection.curve]} if curves else {}),
            }
            for name, selection in selections.items()
        },
    }


def fit_and_score(run: Training, data: Data) -> Record:
    """Fit one classifier with default settings, and score it with each of its rules.

    The validation samples are used for early stopping and for calibration or threshold tuning; the run's training
    settings are not used. The record has the fields of :func:`train_and_score`; no epoch is selected.
    """
    model = SparseLabelClassifier(**USERS[run.method].head, random_state=run.seed)
    start = time.perf_counter()
    model.fit(data.train.X, data.train.Y, validation=(data.validation.X, data.validation.Y))
    seconds, epochs = time.perf_counter() - start, len(model.history_)
    validation, test = (
        Outputs.of(model.decision_function(X), model.predict_distribution(X), Y, ignored)
        for X, Y, ignored in (data.validation, data.test)
    )
    rules: dict[str, Record] = {}
    for name, rule in USERS[run.method].rules.items():
        decide = rule(validation)
        rules[name] = {"epoch": epochs, "validation": _scores(validation, decide), "test": _scores(test, decide)}
        rules[name]["test_last"] = rules[name]["test"]
    return {"epoch_seconds": round(seconds / epochs, 6), "rules": rules}


def _scores(outputs: Outputs, decide: Decision) -> dict[str, float]:
    return scores(outputs.Y, decide(outputs))


def _both(network: Any, data: Data) -> tuple[Outputs, Outputs]:
    """The outputs for the validation and the test samples."""
    return _forward(network, data.validation), _forward(network, data.test)


@torch.no_grad()
def _forward(network: Any, samples: Samples) -> Outputs:
    """``decision_function`` and ``predict_proba`` in one forward pass."""
    network.eval()
    batches = [network(_dense(samples.X[i : i + 1024])) for i in range(0, len(samples.Y), 1024)]
    logits = torch.cat([output.scores.margins for output in batches]).numpy()
    return Outputs.of(logits, torch.cat([output.probs for output in batches]).numpy(), samples.Y, samples.ignored)


def _dense(X: Matrix) -> Tensor:
    return torch.from_numpy(np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float32))


# -------------------------------------------------------------------------------------------------------- results

Points = Sequence[Point]
Predictors = Iterable[Predictor]


@dataclass(frozen=True)
class Comparison:
    """The records of one experiment that were run under the same settings: scores at any points, averaged over seeds.

    Attributes:
        settings: their common differences from the paper's defaults; empty in a full run.
        records: by point, then by seed, then by method.
    """

    settings: dict[str, Any]
    records: dict[Point, dict[int, dict[str, Record]]]

    @classmethod
    def of(cls, trials: Trials[Any]) -> "Comparison":
        """The comparison of runs under the same settings."""
        comparison = cls(trials.settings, {})
        for run, record in trials:
            comparison.methods(run)[run.method] = record
        return comparison

    def methods(self, run: Training) -> dict[str, Record]:
        """The mutable records at the point and seed of a run, by method."""
        return self.records.setdefault(run.point, {}).setdefault(run.seed, {})

    def points(self) -> list[Point]:
        """The points of the comparison."""
        return list(self.records)

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return sorted({seed for seeds in self.records.values() for seed in seeds})

    def score(self, predictor: Predictor, point: Point, seed: int, split: str, average: str = "micro") -> float | None:
        """The F1 of a predictor; None if the run is missing."""
        record = self.records.get(point, {}).get(seed, {}).get(predictor.method)
        if record is None or predictor.rule not in record["rules"]:
            return None
        return float(record["rules"][predictor.rule][split][average])

    def mean(self, predictor: Predictor, points: Points, split: str, average: str = "micro") -> Mean | None:
        """The mean over points, then over the seeds that have all of them."""
        return self.over_seeds(points, lambda point, seed: self.score(predictor, point, seed, split, average))

    def margin(
        self, predictor: Predictor, rivals: Predictors, points: Points, split: str, average: str = "micro"
    ) -> Mean | None:
        """The lead of a predictor over its best rival at each point; averaged as in :meth:`mean`."""
        rivals = list(rivals)

        def lead(point: Point, seed: int) -> float | None:
            mine = self.score(predictor, point, seed, split, average)
            theirs = [self.score(rival, point, seed, split, average) for rival in rivals]
            if mine is None or None in theirs:
                return None
            return mine - max(score for score in theirs if score is not None)

        return self.over_seeds(points, lead)

    def lead(
        self, predictor: Predictor, rivals: Predictors, points: Points, split: str, average: str = "micro"
    ) -> Mean | None:
        """The lead of a predictor over the rival with the best mean over points and seeds.

        Choosing the best rival at each point instead would select on the reported scores.
        """
        means = {rival: mean.value for rival in rivals if (mean := self.mean(rival, points, split, average))}
        best = max(means, key=lambda rival: means[rival], default=None)
        return None if best is None else self.margin(predictor, [best], points, split, average)

    def over_seeds(self, points: Points, value: Callable[[Point, int], float | None]) -> Mean | None:
        """The mean of ``value(point, seed)`` over points, then over the seeds that have all of them."""
        by_seed = [[value(point, seed) for point in points] for seed in self.seeds]
        complete = [[v for v in values if v is not None] for values in by_seed if None not in values]
        means = [statistics.fmean(values) for values in complete if values]
        return Mean.of(means) if means else None

    def epoch_seconds(self, method: str, points: Points) -> float | None:
        """The median training time of an epoch."""
        records = [self.records[point][seed].get(method) for point in points for seed in self.records[point]]
        times = [record["epoch_seconds"] for record in records if record]
        return statistics.median(times) if times else None

    def table(self, predictors: Predictors, groups: Mapping[str, Points], split: str, average: str = "micro") -> Table:
        """A line for each predictor and a column for each group of points; the best of each column in bold."""
        means = {
            predictor.name: [self.mean(predictor, points, split, average) for points in groups.values()]
            for predictor in predictors
        }
        return Table([f"{average}-F1", *groups], best_in_bold(means))

    def describe(self) -> Markdown:
        """The number of seeds, and the differences from the full experiment."""
        seeds = f"{count_of(len(self.seeds), 'seed')}."
        part = f" **Not the full experiment**: {escape(settings_text(self.settings))}." if self.settings else ""
        return Markdown(seeds + part)
