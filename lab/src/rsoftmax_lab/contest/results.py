"""What the rows of the contest say: scores of every contestant, at any set of points, averaged over seeds."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from rsoftmax_lab.contest.play import METHODS, P0, Point, Training
from rsoftmax_lab.running import journal
from rsoftmax_lab.running.sweep import finished, key

SPLITS = ("validation", "test", "test_last")


class Contestant(NamedTuple):
    """A method, and the rule by which its labels are read off."""

    method: str
    rule: str = "labels"

    @property
    def title(self) -> str:
        """Its name in tables and figures."""
        title = METHODS[self.method].title
        match self.rule:
            case "labels":
                return title
            case "tuned" if METHODS[self.method].ours:
                return f"network of {title}, threshold tuned"
            case "tuned":
                return f"{title}, threshold tuned"
            case "true_count":
                return f"{title}, true count"
        return f"{title}, {self.rule.replace('=', ' = ')}"


EVERYBODY = tuple(Contestant(name, rule) for name, method in METHODS.items() for rule in method.rules)
ORACLES = tuple(one for one in EVERYBODY if one.rule == "true_count")
CONTESTANTS = tuple(one for one in EVERYBODY if one not in ORACLES)
OURS = tuple(one for one in CONTESTANTS if METHODS[one.method].ours and one.rule == "labels")
OTHERS = tuple(one for one in CONTESTANTS if not METHODS[one.method].ours)
BEST_OF_OURS = Contestant("r_softmax_expected_f1")
ITS_NETWORK_TUNED = Contestant("r_softmax_expected_f1", "tuned")  # what its rate is worth: same scores, another rule
PAPERS = Contestant("r_softmax_count")
SPARSE = tuple(map(Contestant, ("sparsemax_huber", "sparsemax_hinge", "sparsehourglass")))
IN_THE_PAPER = (*SPARSE, *(Contestant("softmax", f"p0={p0}") for p0 in P0 if p0 >= 0.05))


class Mean(NamedTuple):
    """A mean over seeds with its standard deviation; no deviation if there is one seed only."""

    value: float
    spread: float | None

    def __str__(self) -> str:
        return f"{self.value:.2f}" if self.spread is None else f"{self.value:.2f} ± {self.spread:.2f}"

    @classmethod
    def of(cls, values: list[float]) -> "Mean":
        """The mean of the seeds' values."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Contest:
    """The rows of one experiment that were run under the same settings.

    Attributes:
        settings: what they have in common beside the paper's defaults: nothing in a full run.
        rows: by point, then by seed, then by method.
    """

    settings: dict[str, Any]
    rows: dict[Point, dict[int, dict[str, dict[str, Any]]]]

    def points(self) -> list[Point]:
        """What the contest was held on."""
        return list(self.rows)

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return sorted({seed for seeds in self.rows.values() for seed in seeds})

    def score(self, one: Contestant, point: Point, seed: int, split: str, average: str = "micro") -> float | None:
        """A contestant's F1, if that run is there."""
        row = self.rows[point].get(seed, {}).get(one.method)
        return float(row["rules"][one.rule][split][average]) if row and one.rule in row["rules"] else None

    def mean(self, one: Contestant, points: Iterable[Point], split: str, average: str = "micro") -> Mean | None:
        """The mean over the points, and then over the seeds that have all of them."""
        return self.over_seeds(points, lambda point, seed: self.score(one, point, seed, split, average))

    def margin(self, one: Contestant, rivals: Iterable[Contestant], points: Iterable[Point], split: str) -> Mean | None:
        """How far one contestant is ahead of its best rival, chosen anew at each point; means as above."""
        rivals = list(rivals)

        def ahead(point: Point, seed: int) -> float | None:
            mine = self.score(one, point, seed, split)
            theirs = [self.score(rival, point, seed, split) for rival in rivals]
            known = [score for score in theirs if score is not None]
            return mine - max(known) if mine is not None and len(known) == len(theirs) else None

        return self.over_seeds(points, ahead)

    def over_seeds(self, points: Iterable[Point], value: Callable[[Point, int], float | None]) -> Mean | None:
        """The mean of ``value(point, seed)`` over points, then over the seeds that have all of them."""
        points = list(points)
        by_seed = [[value(point, seed) for point in points] for seed in self.seeds]
        whole = [[v for v in values if v is not None] for values in by_seed]
        means = [statistics.fmean(values) for values in whole if values and len(values) == len(points)]
        return Mean.of(means) if means else None

    def epoch_seconds(self, method: str, points: Iterable[Point]) -> float | None:
        """The median time of an epoch's training."""
        rows = [self.rows[point][seed].get(method) for point in points for seed in self.rows[point]]
        times = [row["epoch_seconds"] for row in rows if row]
        return statistics.median(times) if times else None


def read(path: Path, kind: type[Training], notice: Callable[[str], None]) -> Contest | None:
    """The rows of a file, which are runs of that kind; None if there are none.

    Runs under different settings do not mix: the full ones come first, then whichever are at most points. Rows of a
    later version, with fields or methods that this one does not know, are left out.
    """
    groups: dict[str, Contest] = {}
    rows = finished(journal.read(path, notice)).values()
    known = [row for row in rows if _is_known(row, kind)]
    if len(known) < len(rows):
        notice(f"{path}: {len(rows) - len(known)} rows are no runs that this version knows; they are left out")
    for row in known:
        run = kind(**row["run"])
        settings = {name: value for name, value in row["run"].items() if name not in ("method", "seed", *kind.PLACE)}
        contest = groups.setdefault(key(settings), Contest(settings, {}))
        contest.rows.setdefault(run.point, {}).setdefault(run.seed, {})[run.method] = row
    if not groups:
        return None
    chosen = groups.get(key({})) or max(groups.values(), key=lambda contest: len(contest.rows))
    if len(groups) > 1:
        notice(f"{path} mixes runs of different settings; shown are those with {chosen.settings or 'the full ones'}")
    return chosen


def _is_known(row: journal.Row, kind: type[Training]) -> bool:
    run, names = row["run"], {field.name for field in fields(kind)}
    return isinstance(run, dict) and run.keys() <= names and kind(**run).method in METHODS and "rules" in row
