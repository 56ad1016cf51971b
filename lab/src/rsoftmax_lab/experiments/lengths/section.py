"""The report's section on lengths."""

from pathlib import Path

from rsoftmax_lab.experiments.lengths import figure, results
from rsoftmax_lab.experiments.lengths.data import TASKS
from rsoftmax_lab.experiments.lengths.grid import Run, grid
from rsoftmax_lab.experiments.lengths.results import Curves
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.table import Table, best_in_bold
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trials


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """Accuracy and non-zero weights by length, and a figure."""
    trials, path = found["lengths"].alike(notice), out / "lengths.png"
    accuracy, nonzeros = results.curves(trials, "accuracy", 100), results.curves(trials, "nonzeros")
    figure.draw(accuracy, path)
    tables = [(TASKS[task].title, _accuracies(lines)) for task, lines in accuracy.items()]
    text = render(
        __package__,
        tables=tables,
        nonzeros=_longest(nonzeros),
        learned=_learned(trials),
        done=f"{len(trials)} of {len(grid())}",
        seeds=_seeds(trials),
        kernels=sorted({trial.row["kernels"] for trial in trials}),
    )
    return Section(text, tables[0][1].rich(f"Right answers in per cent, {tables[0][0]}"), [path])


def _accuracies(lines: Curves) -> Table:
    lengths = sorted({n for points in lines.values() for n in points})
    means = {_title(*method): [points.get(n) for n in lengths] for method, points in lines.items()}
    return Table(["items", *map(str, lengths)], best_in_bold(means))


def _longest(nonzeros: dict[str, Curves]) -> Table:
    """The number of non-zero weights at the greatest length of each task."""
    methods = dict.fromkeys(method for lines in nonzeros.values() for method in lines)
    longest = {task: max(n for points in lines.values() for n in points) for task, lines in nonzeros.items()}
    rows = [
        [
            _title(*one),
            *(f"{nonzeros[task][one][n].value:.1f}" if one in nonzeros[task] else "" for task, n in longest.items()),
        ]
        for one in methods
    ]
    return Table(["non-zero weights", *(f"{TASKS[task].title}, {n} items" for task, n in longest.items())], rows)


def _learned(trials: Trials[Run]) -> Table:
    """The range of what was learned: t, and the factor s of log n."""
    values: dict[tuple[str, ...], list[float]] = {}
    for run, row in trials:
        for letter, value in row["learned"].items():
            values.setdefault((TASKS[run.task].title, _title(run.mapping, run.scale), letter), []).append(value)
    rows = [[*place, f"{min(some):.2f} to {max(some):.2f}"] for place, some in sorted(values.items())]
    return Table(["task", "mapping", "learned", "range over seeds"], rows)


def _seeds(trials: Trials[Run]) -> str:
    """How many seeds each task has, at least and at most."""
    counts: dict[str, dict[tuple[str, str | None], int]] = {}
    for run, _ in trials:
        of_task = counts.setdefault(TASKS[run.task].title, {})
        of_task[run.mapping, run.scale] = of_task.get((run.mapping, run.scale), 0) + 1
    shown = {task: (min(found.values()), max(found.values())) for task, found in counts.items()}
    return ", ".join(
        f"{task} {low}" if low == high else f"{task} {low} to {high}" for task, (low, high) in shown.items()
    )


def _title(mapping: str, scale: str | None) -> str:
    return mapping.replace("_", "-") + (f", {scale}" if scale else "")
