"""Scores of every predictor at any set of points, averaged over seeds."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rsoftmax_lab.comparison.predictors import Predictor
from rsoftmax_lab.comparison.training import Point, Training
from rsoftmax_lab.report.mean import Mean
from rsoftmax_lab.running.rows import Trials
from rsoftmax_lab.running.runs import Row


@dataclass(frozen=True)
class Comparison:
    """The rows of one experiment that were run under the same settings.

    Attributes:
        settings: their common differences from the paper's defaults; empty in a full run.
        rows: by point, then by seed, then by method.
    """

    settings: dict[str, Any]
    rows: dict[Point, dict[int, dict[str, Row]]]

    @classmethod
    def of(cls, trials: Trials[Any]) -> "Comparison":
        """The comparison of runs under the same settings."""
        comparison = cls(trials.settings, {})
        for run, row in trials:
            comparison.methods(run)[run.method] = row
        return comparison

    def methods(self, run: Training) -> dict[str, Row]:
        """The mutable rows at the point and seed of a run, by method."""
        return self.rows.setdefault(run.point, {}).setdefault(run.seed, {})

    def points(self) -> list[Point]:
        """The points of the comparison."""
        return list(self.rows)

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return sorted({seed for seeds in self.rows.values() for seed in seeds})

    def score(self, one: Predictor, point: Point, seed: int, split: str, average: str = "micro") -> float | None:
        """The F1 of a predictor; None if the run is missing."""
        row = self.rows.get(point, {}).get(seed, {}).get(one.method)
        return float(row["rules"][one.rule][split][average]) if row and one.rule in row["rules"] else None

    def mean(self, one: Predictor, points: Iterable[Point], split: str, average: str = "micro") -> Mean | None:
        """The mean over points, then over the seeds that have all of them."""
        return self.over_seeds(points, lambda point, seed: self.score(one, point, seed, split, average))

    def margin(
        self,
        one: Predictor,
        rivals: Iterable[Predictor],
        points: Iterable[Point],
        split: str,
        average: str = "micro",
    ) -> Mean | None:
        """The lead of a predictor over its best rival at each point; averaged as in :meth:`mean`."""
        rivals = list(rivals)

        def ahead(point: Point, seed: int) -> float | None:
            mine = self.score(one, point, seed, split, average)
            theirs = [self.score(rival, point, seed, split, average) for rival in rivals]
            known = [score for score in theirs if score is not None]
            return mine - max(known) if mine is not None and len(known) == len(theirs) else None

        return self.over_seeds(points, ahead)

    def lead(
        self,
        one: Predictor,
        rivals: Iterable[Predictor],
        points: Iterable[Point],
        split: str,
        average: str = "micro",
    ) -> Mean | None:
        """The lead of a predictor over the rival with the best mean over points and seeds.

        Choosing the best rival at each point instead would select on the reported scores.
        """
        points = list(points)
        means = {rival: self.mean(rival, points, split, average) for rival in rivals}
        known = {rival: mean.value for rival, mean in means.items() if mean is not None}
        best = max(known, key=lambda rival: known[rival], default=None)
        return None if best is None else self.margin(one, [best], points, split, average)

    def over_seeds(self, points: Iterable[Point], value: Callable[[Point, int], float | None]) -> Mean | None:
        """The mean of ``value(point, seed)`` over points, then over the seeds that have all of them."""
        points = list(points)
        by_seed = [[value(point, seed) for point in points] for seed in self.seeds]
        whole = [[v for v in values if v is not None] for values in by_seed]
        means = [statistics.fmean(values) for values in whole if values and len(values) == len(points)]
        return Mean.of(means) if means else None

    def epoch_seconds(self, method: str, points: Iterable[Point]) -> float | None:
        """The median training time of an epoch."""
        rows = [self.rows[point][seed].get(method) for point in points for seed in self.rows[point]]
        times = [row["epoch_seconds"] for row in rows if row]
        return statistics.median(times) if times else None
