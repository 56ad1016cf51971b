"""The report's section on texts."""

from pathlib import Path

from rsoftmax.labels import AVERAGES
from rsoftmax_lab.experiments.text.grid import WAYS, Run
from rsoftmax_lab.experiments.text.rules import RULES
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.mean import Mean
from rsoftmax_lab.report.table import Table, best_in_bold
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trials

TITLES = {"tfidf": "TF-IDF, logistic regression", "frozen": "encoder frozen", "finetuned": "encoder fine-tuned"}
PUBLISHED = 46.0  # macro-F1 of BERT-base at the threshold .3, Demszky et al. (2020), table 4


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """A table of F1 scores for each way of training."""
    trials = found["text"].alike(notice)
    titles = dict.fromkeys(_title(trial.run) for trial in sorted(trials, key=lambda trial: WAYS.index(trial.run.way)))
    tables = [(title, _table(trials.where(lambda run, title=title: _title(run) == title))) for title in titles]  # type: ignore[misc]
    text = render(
        __package__,
        models=sorted({trial.run.model for trial in trials if trial.run.model}),
        data=sorted({trial.run.data for trial in trials}),
        published=f"{PUBLISHED:.0f}",
        tables=tables,
        setup=_setup(trials),
    )
    return Section(text, tables[-1][1].rich(f"F1 on test, {tables[-1][0]}"), [])


def _title(run: Run) -> str:
    """What was trained on what; runs with the same title differ in their seeds."""
    return ", ".join(filter(None, (TITLES[run.way], run.model, run.data)))


def _table(trials: Trials[Run]) -> Table:
    means = {
        rule: [Mean.of([trial.row["rules"][rule]["test"][average] for trial in trials]) for average in AVERAGES]
        for rule in RULES
    }
    return Table(["F1 on test", *AVERAGES], best_in_bold(means))


def _setup(trials: Trials[Run]) -> Table:
    rows = [
        [TITLES[trial.run.way], str(trial.run.seed), f"{trial.row['seconds'] / 60:.1f}"]
        for trial in sorted(trials, key=lambda trial: (WAYS.index(trial.run.way), trial.run.seed))
    ]
    return Table(["training", "seed", "minutes"], rows)
