"""The models of the users' contest, as a user would make them: nothing is set but the seed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain

from rsoftmax.sklearn import SparseLabelClassifier

HALF, TUNED, EXPECTED_F1 = "half", "tuned", "expected_f1"
RULES = {HALF: "at .5", TUNED: "cut tuned", EXPECTED_F1: "expected F1"}


@dataclass(frozen=True)
class Method:
    """A model and the ways to its labels.

    Attributes:
        title: its name in tables and figures.
        make: from a seed to an estimator, or to a list of them.
        rules: the ways to its labels, names of ``RULES``.
    """

    title: str
    make: Callable[[int], Any]
    rules: tuple[str, ...] = tuple(RULES)


def _network(seed: int, **settings: Any) -> SparseLabelClassifier:
    return SparseLabelClassifier(random_state=seed, **settings)


def _bce(seed: int, **settings: Any) -> SparseLabelClassifier:
    """The same network without what this library adds: binary cross-entropy, no calibration."""
    return _network(seed, rate="zero", calibration=None, **settings)


def _logistic() -> LogisticRegression:
    return LogisticRegression(max_iter=1000)  # the default, 100, does not converge


def _forest(seed: int) -> RandomForestClassifier:
    return RandomForestClassifier(random_state=seed)


METHODS: dict[str, Method] = {
    "net": Method("SparseLabelClassifier", _network, (EXPECTED_F1,)),
    "bce": Method("BCE, one network", lambda seed: _bce(seed, nets=1), (HALF, TUNED)),
    "bce_nets": Method("BCE, five networks", _bce, (HALF, TUNED)),
    "logistic": Method("logistic regression", lambda seed: _logistic()),
    "chain": Method("classifier chain", lambda seed: ClassifierChain(_logistic())),
    "extra_trees": Method("extra trees", lambda seed: ExtraTreesClassifier(random_state=seed)),
    "forest": Method("random forest", _forest),
    "net_forest": Method("network + forest", lambda seed: [_network(seed), _forest(seed)], (EXPECTED_F1,)),
}


def check_method(name: str) -> None:
    """Refuse what is not in the table."""
    if name not in METHODS:
        raise ValueError(f"no method is called {name!r}; there are {', '.join(METHODS)}")
