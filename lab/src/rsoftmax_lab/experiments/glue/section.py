"""The report's section on Table 2."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from rsoftmax_lab.experiments.glue import figure, results
from rsoftmax_lab.experiments.glue.data import TASKS
from rsoftmax_lab.experiments.glue.grid import COMPARED, Run
from rsoftmax_lab.experiments.glue.results import chosen
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.mean import Mean, signed
from rsoftmax_lab.report.table import Table, best_in_bold
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trial, Trials

PAPER = {
    "softmax": {"MRPC": 84.56, "RTE": 68.95, "SST-2": 92.32, "QNLI": 91.76, "QQP": 91.12},
    "sparsemax": {"MRPC": 68.38, "RTE": 52.71, "SST-2": 79.82, "QNLI": 55.57, "QQP": 77.18},
    "sparsehourglass": {"MRPC": 68.38, "RTE": 52.71, "SST-2": 79.24, "QNLI": 70.99, "QQP": 76.04},
    "r_softmax": {"MRPC": 85.54, "RTE": 71.84, "SST-2": 92.89, "QNLI": 91.73, "QQP": 91.13},
}
PAPERS_R = {"MRPC": 0.15, "RTE": 0.2, "SST-2": 0.2, "QNLI": 0.15, "QQP": 0.1}
SELECTED = {"dev": "selected on dev, as in the paper", "validation": "selected on validation"}

Tasks = dict[str, list[Trial[Run]]]  # the trials of each task


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """The paper's accuracies next to ours, the selected settings, the effect of r, and differences paired by seed."""
    every = results.by_task(found["glue"], notice)
    tasks = _papers(every) or every
    curves = {task: results.curve(some) for task, some in tasks.items()}
    path = out / "glue-rates.png"
    figure.draw(curves, {task: results.standard_error(some) for task, some in tasks.items()}, PAPERS_R, path)
    with_f1 = {task: some for task, some in tasks.items() if TASKS[task].f1}
    ways = _ways(tasks)
    accuracy = _with_published(tasks, ways)
    text = render(
        __package__,
        models=sorted({trial.run.model for some in tasks.values() for trial in some}),
        setup=_setup(tasks),
        unnamed=_unnamed(tasks),
        accuracy=accuracy,
        lead=_lead(tasks, ways),
        selected=[(title, _table(tasks, by, _selected)) for by, title in ways.items()],
        f1=[(title, _table(with_f1, by, lambda some: results.mean(some, "f1"))) for by, title in ways.items()],
        by=list(ways)[-1],
        zeros=_table(tasks, list(ways)[-1], _zeros),
        rates=_by_rate(curves),
        paired=_paired(every),
    )
    return Section(text, accuracy.rich("Accuracy on dev"), [path])


def _ways(tasks: Tasks) -> dict[str, str]:
    """The ways to select settings that the rows allow; without held-out rows, only the paper's."""
    held_out = any(trial.row["validation"] for some in tasks.values() for trial in some)
    return {by: title for by, title in SELECTED.items() if by == "dev" or held_out}


def _papers(tasks: Tasks) -> Tasks:
    """The trials with the paper's mappings and no edge; tasks without any are omitted."""
    found = {
        task: [one for one in some if one.run.edge is None and one.run.mapping in COMPARED]
        for task, some in tasks.items()
    }
    return {task: some for task, some in found.items() if some}


def _paired(tasks: Tasks) -> Table:
    """Every method of each task, and its mean difference over all tasks that have one."""
    found = {task: results.paired(some) for task, some in tasks.items()}
    methods = sorted({method for by_method in found.values() for method in by_method}, key=lambda method: method.order)
    rows = [
        [task, str(method), *_cells(by_method[method])]
        for task, by_method in found.items()
        for method in methods
        if method in by_method
    ]
    for method in methods:
        known = [one.difference for by in found.values() if (one := by.get(method)) and one.difference]
        if len(known) > 1:
            mean = results.Difference.over_tasks(known)
            rows.append([f"mean of {len(known)} tasks", str(method), "", "", str(mean), "", ""])
    columns = ["seeds", "accuracy", "difference to softmax", "zeros, %", "time of a step"]
    return Table(["task", "attention", *columns], rows)


def _cells(one: results.Paired) -> list[str]:
    difference = "" if one.difference is None else str(one.difference)
    return [
        str(one.seeds),
        str(one.accuracy),
        difference,
        f"{one.zeros.value:.1f}",
        f"{one.time.value:.2f}" if one.time else "",
    ]


def _with_published(tasks: Tasks, ways: dict[str, str]) -> Table:
    """Accuracies, the paper's first; the best of each block in bold."""
    rows = best_in_bold(
        {_title(name, "paper, BERT"): [Mean(PAPER[name][task], None) for task in tasks] for name in PAPER}
    )
    for by, title in ways.items():
        rows += best_in_bold(
            {
                _title(name, title): [results.mean(chosen(some, name, by)) for some in tasks.values()]
                for name in _mappings(tasks)
            }
        )
    return Table(["accuracy on dev", *tasks], rows)


def _lead(tasks: Tasks, ways: dict[str, str]) -> Table:
    """The lead of r-softmax over softmax."""
    rows = [["paper, BERT", *(f"{PAPER['r_softmax'][t] - PAPER['softmax'][t]:+.2f}" for t in tasks)]]
    rows += [[title, *(signed(results.lead(some, by)) for some in tasks.values())] for by, title in ways.items()]
    return Table(["lead of r-softmax over softmax", *tasks], rows)


def _table(tasks: Tasks, by: str, cell: Callable[[list[Trial[Run]]], object]) -> Table:
    """A table with mappings as rows and tasks as columns; ``cell`` maps the chosen trials to text."""
    rows = []
    for mapping in _mappings(tasks):
        picked = [chosen(some, mapping, by) for some in tasks.values()]
        rows.append([_title(mapping), *(str(cell(some)) if some else "" for some in picked)])
    return Table(["", *tasks], [row for row in rows if any(row[1:])])


def _selected(trials: Sequence[Trial[Run]]) -> str:
    """The selected settings of each seed."""
    return "; ".join(("" if run.r is None else f"r {run.r:g}, ") + f"lr {run.lr:g}" for run, _ in trials)


def _zeros(trials: Sequence[Trial[Run]]) -> Mean:
    return Mean.of([100 * trial.row["sparsity"] for trial in trials])


def _unnamed(tasks: Tasks) -> str:
    """The number of rows without a version; empty if all have one."""
    trials = [trial for some in tasks.values() for trial in some]
    count = sum("version" not in trial.row for trial in trials)
    return f"{count} of {len(trials)}" if count else ""


def _setup(tasks: Tasks) -> Table:
    rows = []
    for task, some in tasks.items():
        run, sizes = some[0].run, some[0].row["rows"]
        seeds = {trial.run.seed for trial in some}
        minutes = statistics.median(trial.row["seconds"] for trial in some) / 60
        numbers = [sizes["train"], sizes["validation"], sizes["dev"], f"{run.num_epochs:g}", len(seeds), len(some)]
        rows.append([task, run.model, *map(str, numbers), f"{minutes:.1f}", f"{results.standard_error(some):.1f}"])
    columns = ["task", "model", "training rows", "validation", "dev", "epochs", "seeds", "runs"]
    return Table([*columns, "minutes per run", "standard error of an accuracy"], rows)


def _by_rate(curves: dict[str, dict[float, Mean]]) -> Table:
    rates = sorted({r for points in curves.values() for r in points})
    names = {0.0: "softmax"}
    rows = [[names.get(r, f"r = {r:g}"), *(str(points.get(r, "")) for points in curves.values())] for r in rates]
    return Table(["accuracy on dev", *curves], rows)


def _mappings(tasks: Tasks) -> list[str]:
    run = {trial.run.mapping for some in tasks.values() for trial in some}
    return [*(name for name in COMPARED if name in run), *sorted(run.difference(COMPARED))]


def _title(*parts: str) -> str:
    mapping, *rest = parts
    return ", ".join([mapping.replace("_", "-"), *rest])
