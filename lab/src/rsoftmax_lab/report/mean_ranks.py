"""Mean ranks of several methods over several datasets, and which differences are significant.

Reference: Demšar, Statistical comparisons of classifiers over multiple data sets (2006).
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.05


class Ranks(NamedTuple):
    """Mean ranks.

    Attributes:
        means: by name, the best first.
        sets: the number of datasets.
        p_value: of Friedman's test of the hypothesis that all methods are equal.
        critical: Nemenyi's critical difference at the 5 % level: smaller differences are not significant.
    """

    means: dict[str, float]
    sets: int
    p_value: float
    critical: float

    def groups(self) -> list[tuple[str, str]]:
        """The first and last name of each maximal group without significant differences."""
        names, ranks = list(self.means), list(self.means.values())
        last = [max(j for j in range(len(ranks)) if ranks[j] - rank <= self.critical) for rank in ranks]
        longest = [(0, last[0]), *((i, end) for i, (before, end) in enumerate(pairwise(last), 1) if end > before)]
        return [(names[i], names[end]) for i, end in longest if end > i]


def mean_ranks(scores: Mapping[str, Sequence[float]]) -> Ranks:
    """The mean ranks of names by their scores, one per dataset; the highest score has rank 1, ties share ranks.

    Example:
        >>> ranks = mean_ranks({"a": [3.0, 5.0, 4.0], "b": [2.0, 6.0, 3.0], "c": [1.0, 1.0, 1.0]})
        >>> {name: round(rank, 2) for name, rank in ranks.means.items()}
        {'a': 1.33, 'b': 1.67, 'c': 3.0}
        >>> round(ranks.critical, 3), ranks.groups()
        (1.914, [('a', 'c')])
    """
    table = np.array(list(scores.values()))
    names, (several, sets) = list(scores), table.shape
    means = stats.rankdata(-table, axis=0).mean(1)
    critical = stats.studentized_range.ppf(1 - LEVEL, several, math.inf) / math.sqrt(2)
    return Ranks(
        {names[i]: float(means[i]) for i in np.argsort(means, kind="stable")},
        sets,
        float(stats.friedmanchisquare(*table).pvalue) if several > 2 else math.nan,
        float(critical * math.sqrt(several * (several + 1) / (6 * sets))),
    )
