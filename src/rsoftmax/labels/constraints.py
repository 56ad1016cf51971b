"""Rules that every predicted label set obeys: a label implies others, labels exclude each other."""

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import count

from torch import Tensor

__all__ = ["Constraints"]


class Constraints:
    """Rules about labels, which are named by their index.

    Args:
        implies: pairs (child, parent): a sample with the child has the parent, too.
        exclusive: groups of labels of which a sample has at most one.

    Raises:
        ValueError: labels imply each other in a circle, or a label can never be predicted, because it implies, or is,
            several labels of an exclusive group.

    Example:
        >>> rules = Constraints([(0, 1)], [(1, 2)])
        >>> sorted(rules.best([0.4, 0.3, 0.2]))
        [0, 1]
        >>> sorted(rules.best([0.4, -0.3, 0.2]))
        [2]
    """

    def __init__(self, implies: Iterable[tuple[int, int]] = (), exclusive: Iterable[Sequence[int]] = ()) -> None:
        parents: dict[int, set[int]] = {}
        for child, parent in implies:
            parents.setdefault(child, set()).add(parent)
        try:
            upwards = [label for label in TopologicalSorter(parents).static_order() if label in parents][::-1]
        except CycleError as error:
            circle = " -> ".join(map(str, error.args[1][::-1]))
            raise ValueError(f"labels imply each other in a circle: {circle}; remove one of these rules") from None
        self.implies = [(child, parent) for child in upwards for parent in sorted(parents[child])]
        self.exclusive = [tuple(dict.fromkeys(group)) for group in exclusive]
        for label in parents.keys() | {label for group in self.exclusive for label in group}:
            implied = self.closure({label})
            for group in self.exclusive:
                if len(both := sorted(implied.intersection(group))) > 1:
                    raise ValueError(
                        f"label {label} can never be predicted: it needs labels {both[0]} and {both[1]}, which exclude"
                        " each other; remove one of these rules"
                    )

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
            scores[..., parent] = scores[..., parent].maximum(scores[..., child])
        return scores

    def best(self, gains: Sequence[float], min_labels: int = 0, max_labels: int | None = None) -> set[int]:
        """The labels with the largest sum of gains among the sets that obey the rules.

        Branch and bound: the best set that ignores the rules is an upper bound; where it breaks a rule, that rule is
        decided both ways.

        Args:
            gains: of each label, positive or negative.
            min_labels: the minimum number of labels.
            max_labels: the maximum number of labels; None: no limit.

        Raises:
            ValueError: no set obeys the rules.
        """
        order = sorted(range(len(gains)), key=lambda label: -gains[label])
        most = len(gains) if max_labels is None else max_labels
        bounds: list[tuple[float, int, set[int], set[int], set[int]]] = []
        number = count()  # compares branches of equal gain

        def branch(needed: set[int], refused: set[int]) -> None:
            if needed & refused or len(needed) > most:
                return
            chosen = set(needed)
            for label in order:
                if len(chosen) >= most or (gains[label] <= 0 and len(chosen) >= min_labels):
                    break
                if label not in refused:
                    chosen.add(label)
            if len(chosen) >= min_labels:
                heappush(bounds, (-sum(gains[label] for label in chosen), next(number), chosen, needed, refused))

        branch(set(), set())
        while bounds:
            _, _, chosen, needed, refused = heappop(bounds)
            broken = next((rule for rule in self.implies if rule[0] in chosen and rule[1] not in chosen), None)
            group = next((group for group in self.exclusive if len(chosen.intersection(group)) > 1), None)
            if broken is not None:
                branch(needed | set(broken), refused)
                branch(needed, refused | {broken[0]})
            elif group is not None:
                best = max(chosen.intersection(group), key=gains.__getitem__)
                branch(needed | {best}, refused.union(group) - {best})
                branch(needed, refused | {best})
            else:
                return chosen
        raise ValueError(f"no set of {min_labels} to {most} labels obeys the rules; lower min_labels")
