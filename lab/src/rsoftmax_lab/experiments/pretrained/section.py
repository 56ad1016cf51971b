"""The report's section on pretrained models."""

from pathlib import Path
from typing import Any

from rsoftmax_lab.experiments.pretrained.grid import Run
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.table import Table
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trial, Trials


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """A table for each model, kind of text and length."""
    tables = [(title, metric, _table(settings)) for title, (metric, settings) in by_place(found["pretrained"]).items()]
    return Section(render(__package__, tables=tables), tables[0][-1].rich(tables[0][0]), [])


def by_place(trials: Trials[Run]) -> dict[str, tuple[str, dict[str, Any]]]:
    """By model, kind of text and length: what the error is, and the measurements by setting; later runs add to them."""
    places: dict[str, tuple[str, dict[str, Any]]] = {}
    for trial in sorted(trials, key=_place):
        row = trial.row
        _, settings = places.setdefault(_title(trial), (row["metric"], {}))
        settings |= {name: {**measured, "texts": row["texts"]} for name, measured in row["settings"].items()}
    return places


def _place(trial: Trial[Run]) -> tuple[str, int, str, str]:
    """Model, length and texts by name, whatever their content; then the time."""
    run, row = trial
    return run.model.split("@")[0], run.length, run.texts.split("@")[0], row["finished"]


def _title(trial: Trial[Run]) -> str:
    model, length, texts, _ = _place(trial)
    return f"{model}, {texts}, {length} tokens"


def _table(settings: dict[str, Any]) -> Table:
    rows = [
        [
            name,
            f"{100 * row['zeros']:.1f}",
            f"{row['error']:.5f}" + (f" ± {row['standard_error']:.5f}" if row.get("standard_error") else ""),
            "" if row.get("perplexity") is None else f"{row['perplexity']:+.2f} %",
            f"{row['time']:.2f}",
            str(row["texts"]),
        ]
        for name, row in settings.items()
    ]
    return Table(["setting", "zeros, %", "error", "perplexity", "time", "texts"], rows)
