"""The methods of the comparison in one table: a head with its loss, and its decision rules."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rsoftmax_lab.comparison.count_rule import Count
from rsoftmax_lab.comparison.rules import Rule, at_least, nonzero, true_count, tuned

P0 = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


@dataclass(frozen=True)
class Method:
    """The head of a network and its decision rules.

    Attributes:
        title: its name in tables and figures.
        head: the arguments of the estimator.
        rules: the decision rules, by name.
        ours: whether it is not part of the paper's comparison.
    """

    title: str
    head: dict[str, Any]
    rules: dict[str, Rule]
    ours: bool = False


def _head(mapping: str, loss: str, rule: str | None = None) -> dict[str, Any]:
    return {"mapping": mapping, "loss": loss, "rule": rule}


LABELS: dict[str, Rule] = {"labels": nonzero, "true_count": true_count}
TUNED: dict[str, Rule] = {"tuned": tuned("z")}
THRESHOLDS: dict[str, Rule] = {f"p0={p0}": at_least(p0) for p0 in P0} | {"tuned": tuned("p"), "true_count": true_count}

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
    "users_bce": Method("BCE, five networks", {"rule": "zero", "calibration": None}, {"labels": nonzero} | TUNED),
}
KNOWN = METHODS | USERS


def check_method(name: str, known: Iterable[str] = KNOWN) -> None:
    """Reject an unknown method."""
    if name not in known:
        raise ValueError(f"unknown method {name!r}; expected one of {', '.join(known)}")
