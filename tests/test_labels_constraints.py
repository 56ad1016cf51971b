"""Label sets that obey rules, against all sets that there are."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rsoftmax.labels.constraints import Constraints

LABELS = 6
PAIRS = list(combinations(range(LABELS), 2))  # (child, parent): no circles


def obeys(labels: set[int], rules: Constraints) -> bool:
    implied = all(parent in labels for child, parent in rules.implies if child in labels)
    return implied and all(len(labels.intersection(group)) <= 1 for group in rules.exclusive)


@given(
    st.lists(st.sampled_from(PAIRS), max_size=6, unique=True),
    st.lists(st.lists(st.integers(0, LABELS - 1), min_size=2, max_size=4, unique=True), max_size=3),
    st.lists(st.integers(-20, 20), min_size=LABELS, max_size=LABELS),
    st.integers(0, 4),
    st.integers(0, LABELS),
)
def test_no_set_that_obeys_has_a_larger_gain(
    implies: list[tuple[int, int]], exclusive: list[list[int]], gains: list[int], least: int, more: int
) -> None:
    try:
        rules = Constraints(implies, exclusive)
    except ValueError:
        singles = [set(label) for k in range(1, LABELS + 1) for label in combinations(range(LABELS), k)]
        loose = Constraints(implies)
        groups = [set(group) for group in exclusive]
        assert any(
            not any(label in labels and all(len(labels & group) <= 1 for group in groups) and obeys(labels, loose) for labels in singles)
            for label in range(LABELS)
        )
        return
    most = min(least + more, LABELS)
    sets = [set(labels) for k in range(least, most + 1) for labels in combinations(range(LABELS), k)]
    allowed = [labels for labels in sets if obeys(labels, rules)]
    if not allowed:
        with pytest.raises(ValueError, match=f"no set of {least} to {most} labels obeys the rules"):
            rules.best(gains, least, most)
    else:
        best = rules.best(gains, least, most)
        assert best in allowed
        assert sum(gains[i] for i in best) == max(sum(gains[i] for i in labels) for labels in allowed)


def test_parents_are_at_least_as_probable_as_their_children() -> None:
    rules = Constraints([(3, 1), (0, 3), (2, 1)])
    marginals = torch.tensor([[0.9, 0.1, 0.4, 0.2], [0.1, 0.6, 0.7, 0.3]])
    assert rules.coherent(marginals).equal(torch.tensor([[0.9, 0.9, 0.4, 0.9], [0.1, 0.7, 0.7, 0.3]]))


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="labels imply each other in a circle: 0 -> 1 -> 2 -> 0"):
        Constraints([(0, 1), (1, 2), (2, 0)])


def test_hundreds_of_exclusive_labels_are_decided_at_once() -> None:
    rules = Constraints([(label, 500) for label in range(500)], [range(500)])
    assert rules.best([label / 1000 for label in range(500)] + [-0.1]) == {499, 500}
