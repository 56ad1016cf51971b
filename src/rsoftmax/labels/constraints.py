"""Rules that every predicted label set obeys: a label implies others, labels exclude each other."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import count
from typing import Any

from torch import Tensor

from rsoftmax.labels.models.card import list_names

__all__ = ["Constraints"]

SHOWN = 20  # labels in a message

Implications = Mapping[Any, Any] | Collection[Collection[Any]]


class Constraints:
    """Rules about labels, which are named by their index.

    Args:
        num_labels: the number of labels, K.
        implies: pairs (child, parent): a sample with the child has the parent, too.
        exclusive: groups of labels of which a sample has at most one.
        min_labels: the minimum number of labels of a sample.
        max_labels: the maximum number of labels of a sample; None: K.

    Raises:
        ValueError: labels imply each other in a circle, a label can never be predicted, or no set obeys the rules.

    Example:
        >>> rules = Constraints(3, implies=[(0, 1)], exclusive=[(1, 2)])
        >>> sorted(rules.best([0.4, 0.3, 0.2]))
        [0, 1]
        >>> sorted(rules.best([0.4, -0.3, 0.2]))
        [2]
    """

    def __init__(
        self,
        num_labels: int,
        implies: Iterable[tuple[int, int]] = (),
        exclusive: Iterable[Sequence[int]] = (),
        min_labels: int = 0,
        max_labels: int | None = None,
    ) -> None:
        self.min_labels, self.max_labels = min_labels, num_labels if max_labels is None else max_labels
        parents: dict[int, set[int]] = {}
        for child, parent in implies:
            parents.setdefault(child, set()).add(parent)
        try:
            upwards = [label for label in TopologicalSorter(parents).static_order() if label in parents][::-1]
        except CycleError as error:
            circle = " -> ".join(map(str, error.args[1][::-1]))
            raise ValueError(f"labels imply each other in a circle: {circle}; remove one of these rules") from None
        self.implies = [(child, parent) for child in upwards for parent in sorted(parents[child])]
        self.exclusive = [list(dict.fromkeys(group)) for group in exclusive]
        for label in parents.keys() | {label for group in self.exclusive for label in group}:
            implied = self.closure({label})
            for group in self.exclusive:
                if len(both := sorted(implied.intersection(group))) > 1:
                    raise ValueError(
                        f"label {label} can never be predicted: it needs labels {both[0]} and {both[1]}, which exclude"
                        " each other; remove one of these rules"
                    )
        if self and min_labels:
            self.best([1.0] * num_labels)

    def __bool__(self) -> bool:
        """Whether there is any rule besides the numbers of labels."""
        return bool(self.implies or self.exclusive)

    def closure(self, labels: set[int]) -> set[int]:
        """The labels and all that they imply."""
        closed = set(labels)
        for child, parent in self.implies:
            if child in closed:
                closed.add(parent)
        return closed

    def coherent(self, scores: Tensor) -> Tensor:
        """Scores [..., K] in which that of a parent is at least that of each of its children."""
        scores = scores.clone()
        for child, parent in self.implies:
            scores[..., parent] = scores[..., parent].fmax(scores[..., child])  # of a number and NaN, the number
        return scores

    def broken(self, labels: Tensor) -> Tensor:
        """Whether each set of labels, bool [..., K], breaks a rule; [...]."""
        broken = labels.new_zeros(labels.shape[:-1])
        for child, parent in self.implies:
            broken |= labels[..., child] & ~labels[..., parent]
        for group in self.exclusive:
            broken |= labels[..., group].sum(-1) > 1
        return broken

    def best(self, gains: Sequence[float], min_labels: int | None = None) -> set[int]:
        """The labels with the largest sum of gains, positive or negative, among the sets that obey the rules.

        Branch and bound: the best set that ignores the rules is an upper bound; where it breaks a rule, that rule is
        decided both ways.
        """
        least = self.min_labels if min_labels is None else min_labels
        order = sorted(range(len(gains)), key=lambda label: -gains[label])
        bounds: list[tuple[float, int, set[int], set[int], set[int]]] = []
        number = count()  # compares branches of equal gain

        def branch(needed: set[int], refused: set[int]) -> None:
            chosen = set(needed)
            for label in order:
                if len(chosen) >= self.max_labels or (gains[label] <= 0 and len(chosen) >= least):
                    break
                if label not in refused:
                    chosen.add(label)
            if not needed & refused and least <= len(chosen) <= self.max_labels:
                heappush(bounds, (-sum(gains[label] for label in chosen), next(number), chosen, needed, refused))

        branch(set(), set())
        while bounds:
            _, _, chosen, needed, refused = heappop(bounds)
            rule = next((rule for rule in self.implies if rule[0] in chosen and rule[1] not in chosen), None)
            group = next((group for group in self.exclusive if len(chosen.intersection(group)) > 1), None)
            if rule:
                branch(needed | set(rule), refused)
                branch(needed, refused | {rule[0]})
            elif group:
                best = max(chosen.intersection(group), key=gains.__getitem__)
                branch(needed | {best}, refused.union(group) - {best})
                branch(needed, refused | {best})
            else:
                return chosen
        raise ValueError(
            f"no set of {least} to {self.max_labels} labels obeys the rules; change min_labels or max_labels"
        )

    def best_f_measure(self, marginals: Sequence[float], beta: float, f_of_0: float) -> set[int]:
        """The labels with the highest expected F-measure of a sample, by Dinkelbach's method.

        Args:
            marginals: of each label.
            beta: recall is weighted beta times as much as precision.
            f_of_0: the expected F-measure of no label.
        """
        expected, share, labels = beta**2 * sum(marginals), 0.0, set[int]()
        while True:
            best = self.best([pi - share for pi in marginals], max(self.min_labels, 1))
            ratio = sum(marginals[label] for label in best) / (len(best) + expected)
            if labels and ratio <= share:
                break
            share, labels = ratio, best
        return set() if self.min_labels == 0 and f_of_0 >= (1 + beta**2) * share else labels


def options_by_index(names: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a decoder, with rules about names as those about indices."""
    return dict(options) | by_index(names, options.get("implies", ()), options.get("exclusive", ()))


def by_index(names: Sequence[Any], implies: Implications, exclusive: Collection[Collection[Any]]) -> dict[str, Any]:
    """The rules about names as those about indices, the arguments of :class:`Constraints`.

    Args:
        names: all labels.
        implies: from a label to the label, or list of labels, that it implies; or pairs (child, parent).
        exclusive: groups of labels.

    Raises:
        ValueError: a rule is about an unknown label.

    Example:
        >>> by_index(["buy", "corn", "grain", "sell"], {"corn": "grain"}, [("buy", "sell")])
        {'implies': ((1, 2),), 'exclusive': ((0, 3),)}
    """
    index = {name: i for i, name in enumerate(names)}
    pairs: Iterable[Any] = implies
    if isinstance(implies, Mapping):
        lists = {name: some if isinstance(some, list | tuple | set) else [some] for name, some in implies.items()}
        pairs = [(child, parent) for child, parents in lists.items() for parent in parents]
    rules = {"implies": pairs, "exclusive": exclusive}
    for kind, groups in rules.items():
        for group in groups:
            if isinstance(group, str) or not isinstance(group, Collection) or len(group) < 2:
                raise ValueError(f"{kind}={group!r} must be groups of labels, such as ('buy', 'sell')")
            if unknown := [name for name in group if name not in index]:
                labels = list_names(map(repr, names), SHOWN)
                raise ValueError(f"{kind} names {unknown[0]!r}, which is not a label; the labels are {labels}")
    return {kind: tuple(tuple(index[name] for name in group) for group in groups) for kind, groups in rules.items()}
