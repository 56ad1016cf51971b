"""Accuracies and non-zero weights by task, mapping, scale and length."""

from rsoftmax_lab.experiments.lengths.data import TASKS
from rsoftmax_lab.experiments.lengths.grid import MAPPINGS, SCALES, Run
from rsoftmax_lab.report.mean import Mean
from rsoftmax_lab.running.rows import Trial, Trials

Curves = dict[tuple[str, str | None], dict[int, Mean]]
"""By mapping and scale, a mean over seeds for each length."""


def curves(trials: Trials[Run], field: str, factor: float = 1.0) -> dict[str, Curves]:
    """A field of the rows by task; what was not run is omitted."""
    found = {task: _of_task([trial for trial in trials if trial.run.task == task], field, factor) for task in TASKS}
    return {task: lines for task, lines in found.items() if lines}


def _of_task(trials: list[Trial[Run]], field: str, factor: float) -> Curves:
    lines = {}
    for method in [(mapping, scale) for mapping in MAPPINGS for scale in SCALES]:
        rows = [row[field] for run, row in trials if (run.mapping, run.scale) == method]
        if rows:
            lines[method] = {int(n): Mean.of([factor * row[n] for row in rows if n in row]) for n in rows[0]}
    return lines
