"""Table 2 in the report."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rsoftmax_lab.contest import tables as scores
from rsoftmax_lab.contest.results import Mean
from rsoftmax_lab.experiments.glue import figure_rates
from rsoftmax_lab.experiments.glue.data import TASKS
from rsoftmax_lab.experiments.glue.grid import COMPARED, Run
from rsoftmax_lab.report.section import Section, Table, render
from rsoftmax_lab.running import journal
from rsoftmax_lab.running.journal import Row
from rsoftmax_lab.running.sweep import finished

PAPER = {
    "softmax": {"MRPC": 84.56, "RTE": 68.95, "SST-2": 92.32, "QNLI": 91.76, "QQP": 91.12},
    "sparsemax": {"MRPC": 68.38, "RTE": 52.71, "SST-2": 79.82, "QNLI": 55.57, "QQP": 77.18},
    "sparsehourglass": {"MRPC": 68.38, "RTE": 52.71, "SST-2": 79.24, "QNLI": 70.99, "QQP": 76.04},
    "r_softmax": {"MRPC": 85.54, "RTE": 71.84, "SST-2": 92.89, "QNLI": 91.73, "QQP": 91.13},
}
PAPERS_R = {"MRPC": 0.15, "RTE": 0.2, "SST-2": 0.2, "QNLI": 0.15, "QQP": 0.1}
SELECTED = {"dev": "selected on dev, as in the paper", "validation": "selected on validation"}


class Trial(NamedTuple):
    """A finished run."""

    run: Run
    row: Row

    def score(self, split: str, metric: str = "accuracy") -> float | None:
        """In per cent; None if nothing was set aside for validation, or the task has no such metric."""
        value = (self.row[split] or {}).get(metric)
        return None if value is None else 100 * value


Trials = dict[str, list[Trial]]  # by task


def section(folder: Path, out: Path, notice: Callable[[str], None]) -> Section | None:
    """The paper's accuracies beside ours, what was selected, and what r does."""
    trials = read(folder / "glue.jsonl", notice)
    if not trials:
        return None
    curves = {task: curve(some) for task, some in trials.items()}
    picture = out / "glue-rates.png"
    figure_rates.draw(curves, {task: _error(some) for task, some in trials.items()}, PAPERS_R, picture)
    with_f1 = {task: some for task, some in trials.items() if TASKS[task].f1}
    text = render(
        "glue/section.md.jinja",
        models=sorted({trial.run.model for some in trials.values() for trial in some}),
        picture=picture.name,
        setup=_setup(trials),
        accuracy=_beside_the_paper(trials),
        lead=_lead(trials),
        selected=[(name, _table(trials, by, _settings)) for by, name in SELECTED.items()],
        f1=[(name, _table(with_f1, by, lambda some: _mean(some, "f1"))) for by, name in SELECTED.items()],
        zeros=_table(trials, "validation", _zeros),
        rates=_rates(curves),
    )
    return Section(text, _beside_the_paper(trials).rich("Accuracy on dev"), [picture])


def read(path: Path, notice: Callable[[str], None]) -> Trials:
    """The finished runs of each task; of those under different settings, the ones that are most."""
    rows = finished(journal.read(path, notice)).values()
    everything = [trial for trial in map(_trial, rows) if trial is not None]
    if len(everything) < len(rows):
        notice(f"{path}: {len(rows) - len(everything)} rows are no runs that this version knows; they are left out")
    trials = {}
    for task in TASKS:
        some = [trial for trial in everything if trial.run.task == task]
        settings = Counter(_shared(trial.run) for trial in some).most_common()
        if settings:
            trials[task] = [trial for trial in some if _shared(trial.run) == settings[0][0]]
        if len(settings) > 1:
            notice(f"{path} mixes runs of different settings of {task}; shown are those that are most")
    return trials


def chosen(trials: Sequence[Trial], mapping: str, by: str) -> list[Trial]:
    """A mapping's best trial of each seed, on the split "dev" or "validation"; of equals, the smaller r and rate."""
    mine = [trial for trial in trials if trial.run.mapping == mapping and trial.score(by) is not None]
    mine.sort(key=lambda trial: (trial.run.r or 0, trial.run.lr))
    seeds = sorted({trial.run.seed for trial in mine})
    return [max((t for t in mine if t.run.seed == seed), key=lambda t: t.score(by) or 0) for seed in seeds]


def curve(trials: Sequence[Trial]) -> dict[float, Mean]:
    """Accuracy on dev at each r, 0 being softmax; validation selects the learning rate, or dev if there is none."""
    by = "validation" if all(trial.row["validation"] for trial in trials) else "dev"
    rates = sorted({trial.run.r for trial in trials if trial.run.r is not None})
    groups = {0.0: chosen(trials, "softmax", by)}
    groups |= {r: chosen([trial for trial in trials if trial.run.r == r], "r_softmax", by) for r in rates}
    means = {r: _mean(some) for r, some in groups.items()}
    return {r: mean for r, mean in means.items() if mean is not None}


def _trial(row: Row) -> Trial | None:
    try:
        return Trial(Run(**row["run"]), row)
    except (TypeError, ValueError):  # fields, or values of them, of a later version
        return None


def _shared(run: Run) -> Run:
    """What the runs of a task have in common."""
    return replace(run, mapping="softmax", r=None, lr=Run.lr, seed=0)


def _mean(trials: Sequence[Trial], metric: str = "accuracy") -> Mean | None:
    values = [value for trial in trials if (value := trial.score("dev", metric)) is not None]
    return Mean.of(values) if values else None


def _settings(trials: Sequence[Trial]) -> str:
    """What was selected, seed by seed."""
    return "; ".join(("" if t.run.r is None else f"r {t.run.r:g}, ") + f"lr {t.run.lr:g}" for t in trials)


def _zeros(trials: Sequence[Trial]) -> Mean:
    return Mean.of([100 * trial.row["sparsity"] for trial in trials])


def _mappings(trials: Trials) -> list[str]:
    run = {trial.run.mapping for some in trials.values() for trial in some}
    return [*(name for name in COMPARED if name in run), *sorted(run.difference(COMPARED))]


def _title(mapping: str) -> str:
    return mapping.replace("_", "-")


def _table(trials: Trials, by: str, cell: Callable[[list[Trial]], object]) -> Table:
    """Mappings down, tasks across; what ``cell`` says of the chosen trials."""
    rows = []
    for mapping in _mappings(trials):
        picked = [chosen(some, mapping, by) for some in trials.values()]
        rows.append([_title(mapping), *(str(cell(some)) if some else "" for some in picked)])
    return Table(["", *trials], [row for row in rows if any(row[1:])])


def _beside_the_paper(trials: Trials) -> Table:
    """Accuracies, the paper's first."""
    blocks: dict[str, dict[str, list[Mean | None]]] = {
        "paper, BERT": {name: [Mean(PAPER[name][task], None) for task in trials] for name in PAPER}
    }
    for by, title in SELECTED.items():
        blocks[title] = {
            name: [_mean(chosen(some, name, by)) for some in trials.values()] for name in _mappings(trials)
        }
    return Table(["accuracy on dev", *trials], [row for title, block in blocks.items() for row in _block(title, block)])


def _block(title: str, means: dict[str, list[Mean | None]]) -> list[list[str]]:
    """A line for each mapping; the best of each task, and what equals it as shown, in bold."""
    best = [max((mean.value for mean in column if mean), default=0.0) for column in zip(*means.values(), strict=True)]

    def cell(mean: Mean | None, top: float) -> str:
        if mean is None:
            return ""
        return f"**{mean}**" if f"{mean.value:.2f}" == f"{top:.2f}" else str(mean)

    return [
        [f"{_title(name)}, {title}", *(cell(mean, top) for mean, top in zip(line, best, strict=True))]
        for name, line in means.items()
        if any(line)
    ]


def _lead(trials: Trials) -> Table:
    """How far r-softmax is ahead of softmax, over the seeds that both have."""
    rows = [["paper, BERT", *(f"{PAPER['r_softmax'][t] - PAPER['softmax'][t]:+.2f}" for t in trials)]]
    for by, title in SELECTED.items():
        rows.append([title, *(scores.signed(_ahead(some, by)) for some in trials.values())])
    return Table(["r-softmax ahead of softmax", *trials], rows)


def _ahead(trials: Sequence[Trial], by: str) -> Mean | None:
    mine, other = ({t.run.seed: t.score("dev") or 0 for t in chosen(trials, n, by)} for n in ("r_softmax", "softmax"))
    seeds = sorted(mine.keys() & other.keys())
    return Mean.of([mine[seed] - other[seed] for seed in seeds]) if seeds else None


def _setup(trials: Trials) -> Table:
    rows = []
    for task, some in trials.items():
        run, sizes = some[0].run, some[0].row["rows"]
        seeds = {trial.run.seed for trial in some}
        minutes = statistics.median(trial.row["seconds"] for trial in some) / 60
        numbers = [sizes["train"], sizes["validation"], sizes["dev"], f"{run.epochs:g}", len(seeds), len(some)]
        rows.append([task, run.model, *map(str, numbers), f"{minutes:.1f}", f"{_error(some):.1f}"])
    columns = ["task", "model", "training rows", "validation", "dev", "epochs", "seeds", "runs"]
    return Table([*columns, "minutes per run", "standard error of an accuracy"], rows)


def _error(trials: Sequence[Trial]) -> float:
    """The standard error of an accuracy, from the number of dev rows alone."""
    accuracy = statistics.fmean(trial.row["dev"]["accuracy"] for trial in trials)
    return 100 * math.sqrt(accuracy * (1 - accuracy) / trials[0].row["rows"]["dev"])


def _rates(curves: dict[str, dict[float, Mean]]) -> Table:
    rates = sorted({r for points in curves.values() for r in points})
    names = {0.0: "softmax"}
    rows = [[names.get(r, f"r = {r:g}"), *(str(points.get(r, "")) for points in curves.values())] for r in rates]
    return Table(["accuracy on dev", *curves], rows)
