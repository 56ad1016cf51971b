"""The report's section on pretrained models."""

from pathlib import Path

from rsoftmax_lab.experiments.pretrained import figure
from rsoftmax_lab.experiments.pretrained.grid import Run
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.table import Table
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trial, Trials


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """A table for each model, kind of text and length, and a figure of error against time."""
    trials = sorted(found["pretrained"], key=lambda trial: (trial.run.model, trial.run.length, trial.run.texts))
    tables = [(title(trial.run), trial.row["texts"], trial.row["metric"], _table(trial)) for trial in trials]
    path = out / "pretrained.png"
    figure.draw({title(trial.run): (trial.row["metric"], trial.row["settings"]) for trial in trials}, path)
    text = render(__package__, tables=tables)
    return Section(text, tables[0][-1].rich(tables[0][0]), [path])


def title(run: Run) -> str:
    """What was measured."""
    return f"{run.model.split('@')[0]}, {run.texts.split('@')[0]}, {run.length} tokens"


def _table(trial: Trial[Run]) -> Table:
    rows = [
        [
            name,
            f"{100 * row['zeros']:.1f}",
            f"{row['error']:.5f} ± {row['standard_error']:.5f}",
            "" if row.get("perplexity") is None else f"{row['perplexity']:+.2f} %",
            f"{row['time']:.2f}",
        ]
        for name, row in trial.row["settings"].items()
    ]
    return Table(["setting", "zeros, %", "error", "perplexity", "time"], rows)
