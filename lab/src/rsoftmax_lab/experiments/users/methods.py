"""The models of the comparison, with default settings apart from the seed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain

from rsoftmax.labels import SparseLabelClassifier

HALF, TUNED, EXPECTED_F1, ONE_FIT, OUT_OF_BAG, TUNED_CV = "half", "tuned", "expected_f1", "one_fit", "oob", "tuned_cv"
RULES = {
    HALF: "at .5",
    TUNED: "threshold tuned",
    EXPECTED_F1: "expected F1",
    ONE_FIT: "expected F1 from one fit",
    OUT_OF_BAG: "expected F1 out of bag",
    TUNED_CV: "TunedThresholdClassifierCV",
}


@dataclass(frozen=True)
class Method:
    """A model and its decision rules.

    Attributes:
        title: its name in tables and figures.
        make: creates an estimator, or a list of them, from a seed.
        rules: its decision rules, names of ``RULES``.
    """

    title: str
    make: Callable[[int], Any]
    rules: tuple[str, ...] = (HALF, TUNED, EXPECTED_F1, ONE_FIT)


def _network(seed: int, **settings: Any) -> SparseLabelClassifier:
    return SparseLabelClassifier(random_state=seed, **settings)


def _bce(seed: int, **settings: Any) -> SparseLabelClassifier:
    """The same network with binary cross-entropy and without calibration."""
    return _network(seed, rule="zero", calibration=None, **settings)


def _logistic() -> LogisticRegression:
    return LogisticRegression(max_iter=1000)  # the default of 100 does not converge


def _forest(seed: int) -> RandomForestClassifier:
    return RandomForestClassifier(random_state=seed)


METHODS: dict[str, Method] = {
    "net": Method("SparseLabelClassifier", _network, (EXPECTED_F1,)),
    "bce": Method("BCE, one network", lambda seed: _bce(seed, n_estimators=1), (HALF, TUNED)),
    "bce_nets": Method("BCE, five networks", _bce, (HALF, TUNED)),
    "logistic": Method("logistic regression", lambda seed: _logistic()),
    "chain": Method("classifier chain", lambda seed: ClassifierChain(_logistic())),
    "extra_trees": Method("extra trees", lambda seed: ExtraTreesClassifier(random_state=seed)),
    "forest": Method("random forest", _forest),
    "logistic_tuned": Method("logistic regression", lambda seed: _logistic(), (TUNED_CV,)),
    "forest_oob": Method("random forest", _forest, (OUT_OF_BAG,)),
    "forest_tuned": Method("random forest", _forest, (TUNED_CV,)),
    "net_forest": Method("network + forest", lambda seed: [_network(seed), _forest(seed)], (EXPECTED_F1,)),
}
