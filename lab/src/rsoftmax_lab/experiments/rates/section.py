"""The report's section on speed and quality."""

from pathlib import Path
from typing import Any

from rsoftmax_lab.experiments.glue import results
from rsoftmax_lab.experiments.glue.results import SOFTMAX, Method, Paired
from rsoftmax_lab.experiments.pretrained.section import by_place
from rsoftmax_lab.experiments.rates import figure
from rsoftmax_lab.experiments.rates.figure import Panel, Point
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.table import Table
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trial, Trials

SEVERAL = 3  # settings in the panel of a pretrained model
Tasks = dict[str, dict[Method, Paired]]  # the timed methods of each task


def section(found: dict[str, Trials[Any]], out: Path, notice: Notice) -> Section | None:
    """A figure of fine-tuned and pretrained models, and a table of the fine-tuned ones; None without rows for them."""
    trials = results.by_task(found["glue"], notice) if "glue" in found else {}
    trials = {task: some for task, some in trials.items() if _several_rates(some)}
    tasks = {task: _timed(some) for task, some in trials.items()}
    places = by_place(found["pretrained"]) if "pretrained" in found else {}
    panels = [_finetuned(task, tasks[task], results.standard_error(trials[task])) for task in tasks]
    panels += [_pretrained(title, *place) for title, place in places.items() if len(place[1]) >= SEVERAL]
    if not panels:
        return None
    path = out / "rates.png"
    figure.draw(panels, path)
    models = sorted({run.model for some in trials.values() for run, _ in some})
    table = _table(tasks)
    return Section(render(__package__, models=models, table=table), table.rich("Speed and quality"), [path])


def _several_rates(trials: list[Trial[Any]]) -> bool:
    """Whether the paper's r-softmax was timed at several rates."""
    return len({method.r for method in _timed(trials) if method.r is not None and method.edge is None}) > 1


def _timed(trials: list[Trial[Any]]) -> dict[Method, Paired]:
    return {method: one for method, one in results.paired(trials).items() if one.time is not None}


def _finetuned(task: str, methods: dict[Method, Paired], error: float) -> Panel:
    """Differences to softmax, paired by seed, with their standard errors: methods may have different seeds."""
    points = {}
    for method, one in methods.items():
        difference = results.Difference.of([0.0]) if method == SOFTMAX else one.difference
        if difference is not None and one.time is not None:
            points[_words(method)] = Point(one.time.value, difference.value, one.zeros.value / 100, difference.error)
    time = "time of a training step relative to sdpa"
    return Panel(f"{task}, fine-tuned", "accuracy minus that of softmax, points", time, points, band=(-error, error))


def _pretrained(title: str, metric: str, settings: dict[str, Any]) -> Panel:
    points = {name: Point(row["time"], row["error"], row["zeros"]) for name, row in settings.items()}
    return Panel(title, metric, "time of the whole model relative to sdpa", points, logarithmic=True)


def _words(method: Method) -> str:
    """A method in the words of ``reproduce pretrained``."""
    given = [f"{name}={value:g}" for name, value in method._asdict().items() if isinstance(value, float | int)]
    return " ".join([method.mapping, *given])


def _table(tasks: Tasks) -> Table:
    """Accuracy, difference to softmax, time and zeros of each method and task."""
    methods = sorted({one for methods in tasks.values() for one in methods}, key=lambda method: method.order)
    names = ["accuracy", "difference", "time", "zeros, %"]
    rows = [[str(one), *(cell for by in tasks.values() for cell in _cells(by.get(one)))] for one in methods]
    return Table(["attention", *(f"{task}: {name}" for task in tasks for name in names)], rows)


def _cells(one: Paired | None) -> list[str]:
    if one is None or one.time is None:
        return [""] * 4
    difference = "" if one.difference is None else str(one.difference)
    return [str(one.accuracy), difference, f"{one.time.value:.2f}", f"{one.zeros.value:.1f}"]
