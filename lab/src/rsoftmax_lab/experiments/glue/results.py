"""Scores, the trials selected on dev or validation, differences paired by seed, and time."""

import math
import statistics
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from scipy import stats

from rsoftmax_lab.experiments.glue.data import TASKS
from rsoftmax_lab.experiments.glue.grid import COMPARED, Run
from rsoftmax_lab.report.mean import Mean
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trial, Trials
from rsoftmax_lab.running.runs import Row


def by_task(trials: Trials[Run], notice: Notice) -> dict[str, list[Trial[Run]]]:
    """The trials of each task under the same settings; tasks without trials are omitted."""
    present = [task for task in TASKS if any(run.task == task for run, _ in trials)]
    return {task: list(trials.where(partial(_is_of, task)).alike(notice, task)) for task in present}


def score(trial: Trial[Run], split: str, metric: str = "accuracy") -> float | None:
    """A score in per cent; None without held-out rows, or if the task does not have the metric."""
    value = (trial.row[split] or {}).get(metric)
    return None if value is None else 100 * value


def chosen(trials: Sequence[Trial[Run]], mapping: str, by: str) -> list[Trial[Run]]:
    """A mapping's best trial of each seed on the split "dev" or "validation".

    Ties are broken by the smaller r, then by the smaller learning rate.
    """
    mine = [trial for trial in trials if trial.run.mapping == mapping and score(trial, by) is not None]
    mine.sort(key=lambda trial: (trial.run.r or 0, trial.run.lr))
    seeds = sorted({trial.run.seed for trial in mine})
    return [max((t for t in mine if t.run.seed == seed), key=lambda t: score(t, by) or 0) for seed in seeds]


def mean(trials: Sequence[Trial[Run]], metric: str = "accuracy") -> Mean | None:
    """The mean dev score of the trials."""
    values = [value for trial in trials if (value := score(trial, "dev", metric)) is not None]
    return Mean.of(values) if values else None


def curve(trials: Sequence[Trial[Run]]) -> dict[float, Mean]:
    """Dev accuracy at each r (0 is softmax), with the learning rate selected on validation, or on dev without it."""
    by = "validation" if all(trial.row["validation"] for trial in trials) else "dev"
    rates = sorted({trial.run.r for trial in trials if trial.run.r is not None})
    groups = {0.0: chosen(trials, "softmax", by)}
    groups |= {r: chosen([trial for trial in trials if trial.run.r == r], "r_softmax", by) for r in rates}
    means = {r: mean(some) for r, some in groups.items()}
    return {r: mean for r, mean in means.items() if mean is not None}


class Method(NamedTuple):
    """A mapping with its parameter and edge."""

    mapping: str
    r: float | None = None
    t: float | None = None
    k: float | None = None
    edge: float | None = None

    @classmethod
    def of(cls, run: Run) -> "Method":
        """The method of a run."""
        return cls(*(getattr(run, name) for name in cls._fields))

    def __str__(self) -> str:
        given = [f"{name} = {value:g}" for name, value in self._asdict().items() if isinstance(value, float | int)]
        return ", ".join([self.mapping.replace("_", "-"), *given])

    @property
    def order(self) -> tuple[object, ...]:
        """The place in tables: the paper's mappings first."""
        place = COMPARED.index(self.mapping) if self.mapping in COMPARED else len(COMPARED)
        return place, self.mapping, *(value or 0.0 for value in self[1:])


SOFTMAX = Method("softmax")


def lead(trials: Sequence[Trial[Run]], by: str) -> Mean | None:
    """The lead of r-softmax over softmax, over common seeds."""
    mine, other = ({t.run.seed: score(t, "dev") or 0 for t in chosen(trials, n, by)} for n in ("r_softmax", "softmax"))
    seeds = sorted(mine.keys() & other.keys())
    return Mean.of([mine[seed] - other[seed] for seed in seeds]) if seeds else None


class Difference(NamedTuple):
    """A mean difference to softmax over seeds, in points of accuracy, with half the width of its 95 % interval.

    Attributes:
        value: the mean.
        error: its standard error; None for a single seed.
        freedom: the degrees of freedom of the standard error.
    """

    value: float
    error: float | None
    freedom: float

    def __str__(self) -> str:
        return f"{self.value:+.2f}" if self.half is None else f"{self.value:+.2f} ± {self.half:.2f}"

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval, by Student's t."""
        return None if self.error is None else float(stats.t.ppf(0.975, self.freedom)) * self.error

    @classmethod
    def of(cls, values: Sequence[float]) -> "Difference":
        """The difference over the seeds of one task."""
        several = len(values) > 1
        error = statistics.stdev(values) / math.sqrt(len(values)) if several else None
        return cls(statistics.fmean(values), error, len(values) - 1)

    @classmethod
    def over_tasks(cls, tasks: Sequence["Difference"]) -> "Difference":
        """The mean over tasks, whose errors are independent; degrees of freedom by Welch and Satterthwaite."""
        value = statistics.fmean(task.value for task in tasks)
        variances = [task.error**2 for task in tasks if task.error is not None]
        total = sum(variances)
        if len(variances) < len(tasks) or not total:
            return cls(value, None, 0)
        freedom = total**2 / sum(v**2 / task.freedom for v, task in zip(variances, tasks, strict=True))
        return cls(value, math.sqrt(total) / len(tasks), freedom)


class Paired(NamedTuple):
    """A method on one task: accuracy, its difference to softmax over common seeds, zeros and time of a step."""

    seeds: int
    accuracy: Mean
    difference: Difference | None
    zeros: Mean
    time: Mean | None


def paired(trials: Sequence[Trial[Run]]) -> dict[Method, Paired]:
    """Every method at the most frequent learning rate, beside softmax with the same seeds: rows, order and head."""
    lr = statistics.mode(trial.run.lr for trial in trials)
    methods: dict[Method, dict[int, Row]] = {}
    for run, row in trials:
        if run.lr == lr:
            methods.setdefault(Method.of(run), {})[run.seed] = row
    softmax = methods.get(SOFTMAX, {})
    return {method: _paired(rows, softmax) for method, rows in methods.items()}


def _paired(rows: dict[int, Row], softmax: dict[int, Row]) -> Paired:
    accuracy = {seed: 100 * row["dev"]["accuracy"] for seed, row in rows.items()}
    common = [] if rows is softmax else sorted(rows.keys() & softmax.keys())
    times = [row["step"]["ratio"] for row in rows.values() if "step" in row]
    return Paired(
        len(rows),
        Mean.of(list(accuracy.values())),
        Difference.of([accuracy[s] - 100 * softmax[s]["dev"]["accuracy"] for s in common]) if common else None,
        Mean.of([100 * row["sparsity"] for row in rows.values()]),
        Mean.of(times) if times else None,
    )


def standard_error(trials: Sequence[Trial[Run]]) -> float:
    """The standard error of one accuracy, given the number of dev rows."""
    accuracy = statistics.fmean(trial.row["dev"]["accuracy"] for trial in trials)
    return 100 * math.sqrt(accuracy * (1 - accuracy) / trials[0].row["rows"]["dev"])


def _is_of(task: str, run: Run) -> bool:
    return run.task == task
