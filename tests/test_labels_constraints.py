"""Label sets that obey rules, against all sets that there are."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

from rsoftmax.labels import (
    AVERAGES,
    Average,
    Decoder,
    ExpectedF1Classifier,
    MultiLabelHead,
    SparseLabelClassifier,
    TrainingOptions,
)
from rsoftmax.labels.constraints import Constraints

LABELS = 6
PAIRS = list(combinations(range(LABELS), 2))  # (child, parent): no circles


def sets(least: int, most: int) -> list[set[int]]:
    return [set(labels) for size in range(least, most + 1) for labels in combinations(range(LABELS), size)]


RULES = st.lists(st.sampled_from(PAIRS), max_size=6, unique=True)
GROUPS = st.lists(st.lists(st.integers(0, LABELS - 1), min_size=2, max_size=4, unique=True), max_size=3)
NUMBERS = st.tuples(st.integers(0, LABELS), st.integers(0, LABELS)).map(sorted)
GAINS = st.lists(st.integers(-20, 20), min_size=LABELS, max_size=LABELS)


def obeys(labels: set[int], implies: list[tuple[int, int]], exclusive: list[list[int]]) -> bool:
    implied = all(parent in labels for child, parent in implies if child in labels)
    return implied and all(len(labels.intersection(group)) <= 1 for group in exclusive)


@given(RULES, GROUPS, NUMBERS, GAINS)
def test_no_set_that_obeys_has_a_larger_gain(
    implies: list[tuple[int, int]], exclusive: list[list[int]], numbers: list[int], gains: list[int]
) -> None:
    free = [labels for labels in sets(0, LABELS) if obeys(labels, implies, exclusive)]
    never = set(range(LABELS)).difference(*free)
    allowed = [labels for labels in free if numbers[0] <= len(labels) <= numbers[1]]
    if never:
        with pytest.raises(ValueError, match="can never be predicted"):
            Constraints(LABELS, implies, exclusive, *numbers)
    elif not allowed:
        with pytest.raises(ValueError, match=r"no set of \d to \d labels obeys the rules"):
            Constraints(LABELS, implies, exclusive, *numbers)
    else:
        best = Constraints(LABELS, implies, exclusive, *numbers).best(gains)
        assert best in allowed
        assert sum(gains[i] for i in best) == max(sum(gains[i] for i in labels) for labels in allowed)


@given(RULES, GROUPS, NUMBERS, GAINS, st.sampled_from(AVERAGES), st.sampled_from([0.5, 1.0, 2.0]))
def test_decoded_sets_obey_and_have_the_highest_expected_f_measure(
    implies: list[tuple[int, int]],
    exclusive: list[list[int]],
    numbers: list[int],
    gains: list[int],
    average: Average,
    beta: float,
) -> None:
    try:
        decoder = Decoder(LABELS, average, beta, numbers[0], numbers[1], implies=implies, exclusive=exclusive)
    except ValueError:
        assume(False)
    decoder.threshold.fill_(-0.3)
    scores = torch.tensor(gains, dtype=torch.float64) / 5
    decoded = decoder(scores)
    pi, labels = decoded.log_odds.sigmoid(), set(decoded.labels.nonzero()[:, 0].tolist())
    assert all(pi[parent] >= pi[child] for child, parent in implies)

    def value(labels: set[int]) -> float:
        correct, total = float(pi[sorted(labels)].sum()), beta**2 * float(pi.sum())
        if average != "samples":
            return correct - len(labels) * float(decoder.threshold[0].sigmoid())
        return (1 + beta**2) * correct / (len(labels) + total) if labels else float((1 - pi).prod())

    allowed = [labels for labels in sets(*numbers) if obeys(labels, implies, exclusive)]
    assert labels in allowed
    assert value(labels) == pytest.approx(max(map(value, allowed)), rel=1e-6)


def test_parents_are_at_least_as_probable_as_their_children() -> None:
    rules = Constraints(4, [(3, 1), (0, 3), (2, 1)])
    marginals = torch.tensor([[0.9, 0.1, 0.4, 0.2], [0.1, 0.6, 0.7, 0.3]])
    assert rules.coherent(marginals).equal(torch.tensor([[0.9, 0.9, 0.4, 0.9], [0.1, 0.7, 0.7, 0.3]]))


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="labels imply each other in a circle: 0 -> 1 -> 2 -> 0"):
        Constraints(3, [(0, 1), (1, 2), (2, 0)])


def test_hundreds_of_exclusive_labels_are_decided_at_once() -> None:
    rules = Constraints(501, [(label, 500) for label in range(500)], [range(500)])
    assert rules.best([label / 1000 for label in range(500)] + [-0.1]) == {499, 500}


NAMES = ["buy", "corn", "grain", "sell"]


def trades(n: int, seed: int) -> tuple[Any, Any]:
    """Corn is a grain, and nobody buys and sells; the features are noisy labels."""
    random = np.random.RandomState(seed)
    Y = random.rand(n, 4) < [0.4, 0.3, 0.2, 0.6]
    Y[:, 2] |= Y[:, 1]
    Y[:, 3] &= ~Y[:, 0]
    return Y + random.randn(n, 4), [[name for name, has in zip(NAMES, labels, strict=True) if has] for labels in Y]


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("kind", ["forest", pytest.param("networks", marks=pytest.mark.train)])
def test_estimators_predict_what_the_rules_allow(average: Average, kind: str) -> None:
    (X, y), (more, _) = trades(300, 0), trades(300, 1)
    rules: dict[str, Any] = {"implies": {"corn": "grain"}, "exclusive": [("buy", "sell")], "average": average}
    forest = RandomForestClassifier(20, random_state=0)
    free, model = (
        ExpectedF1Classifier(forest, random_state=0, **options)
        if kind == "forest"
        else SparseLabelClassifier(n_estimators=2, training=TrainingOptions(max_epochs=20), random_state=0, **options)
        for options in ({"average": average}, rules)
    )
    sets = [set(labels) for labels in model.fit(X, y).predict(more)]
    assert not any("corn" in labels and "grain" not in labels for labels in sets)
    assert not any({"buy", "sell"} <= labels for labels in sets)
    marginals = model.predict_proba(more)
    assert (marginals[:, 2] >= marginals[:, 1]).all()
    assert any({"buy", "sell"} <= set(labels) for labels in free.fit(X, y).predict(more))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"implies": {"corn": "grian"}}, "implies names 'grian', which is not a label; the labels are 'buy', 'corn'"),
        ({"exclusive": ["buy"]}, r"exclusive='buy' must be groups of labels"),
        ({"exclusive": [["buy"]]}, r"exclusive=\['buy'\] must be groups of labels"),
        ({"implies": {"corn": ["buy", "sell"]}, "exclusive": [("buy", "sell")]}, "label 1 can never be predicted"),
    ],
)
def test_impossible_rules_are_refused(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpectedF1Classifier(RandomForestClassifier(2), **rules).fit(*trades(50, 0))


def test_a_guaranteed_recall_adds_parents() -> None:
    torch.manual_seed(0)
    head = MultiLabelHead(4, 3, implies=[(0, 1)]).set_threshold(torch.tensor([-0.5, 0.5, 0.0]))
    margins = torch.randn(500, 3)
    output = head.decode(margins)
    assert (output.labels[:, 0] == (margins[:, 0] > -0.5)).all()
    assert (output.labels[:, 1] >= (margins[:, 1] > 0.5)).all()
    assert (output.labels[:, 1] >= output.labels[:, 0]).all()
    with pytest.raises(ValueError, match="exclusive labels cannot keep a guarantee"):
        MultiLabelHead(4, 3, exclusive=[(0, 1)]).set_threshold(torch.zeros(1))
