"""The report's section on pretrained models."""

from pathlib import Path
from typing import Any

from rsoftmax_lab.experiments.pretrained import figure
from rsoftmax_lab.experiments.pretrained.grid import Run
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.table import Table
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trial, Trials


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """A table for each model, kind of text and length, and a figure of error against time."""
    places: dict[str, list[Trial[Run]]] = {}
    for trial in sorted(found["pretrained"], key=lambda trial: (trial.run.model, trial.run.length, trial.run.texts)):
        places.setdefault(title(trial.run), []).append(trial)
    path = out / "pretrained.png"
    figure.draw({name: (trials[0].row["metric"], _settings(trials)) for name, trials in places.items()}, path)
    tables = [(name, trials[0].row["metric"], _table(trials)) for name, trials in places.items()]
    text = render(__package__, tables=tables)
    return Section(text, tables[0][-1].rich(tables[0][0]), [path])


def _settings(trials: list[Trial[Run]]) -> dict[str, Any]:
    """The measurements by setting; later runs add to earlier ones."""
    return {
        name: {**row, "texts": trial.row["texts"]} for trial in trials for name, row in trial.row["settings"].items()
    }


def title(run: Run) -> str:
    """What was measured."""
    return f"{run.model.split('@')[0]}, {run.texts.split('@')[0]}, {run.length} tokens"


def _table(trials: list[Trial[Run]]) -> Table:
    rows = [
        [
            name,
            f"{100 * row['zeros']:.1f}",
            f"{row['error']:.5f}" + (f" ± {row['standard_error']:.5f}" if row.get("standard_error") else ""),
            "" if row.get("perplexity") is None else f"{row['perplexity']:+.2f} %",
            f"{row['time']:.2f}",
            str(row["texts"]),
        ]
        for name, row in _settings(trials).items()
    ]
    return Table(["setting", "zeros, %", "error", "perplexity", "time", "texts"], rows)
