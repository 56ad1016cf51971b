"""The report's section on guarantees."""

import math
import statistics
from pathlib import Path

from rsoftmax_lab.experiments.guarantees import figure
from rsoftmax_lab.experiments.guarantees.grid import GUARANTEES, METHODS, OURS, Guarantee, Run
from rsoftmax_lab.report.markdown import render
from rsoftmax_lab.report.table import Claim, Table, weighed
from rsoftmax_lab.report.write import Section
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trials
from rsoftmax_lab.running.runs import Row


def section(found: dict[str, Trials[Run]], out: Path, notice: Notice) -> Section:
    """The goals, a table per guarantee, and the figure."""
    trials = found["guarantees"].alike(notice)
    rows = {trial.run.dataset: trial.row for trial in trials}
    image = out / "guarantees.png"
    figure.draw({name: _levels(rows, name) for name in GUARANTEES}, image)
    tables = [(one.title, _table(rows, name, one)) for name, one in GUARANTEES.items()]
    text = render(
        __package__,
        resplits=next(iter(trials)).run.resplits,
        sizes=[f"{dataset}: {row['rows']} rows, {row['labels']} labels" for dataset, row in rows.items()],
        goals=weighed(_goals(rows), list(rows)),
        tables=tables,
    )
    return Section(text, tables[0][1].rich(f"{tables[0][0]}: mean over resplits"), [image])


def _known(row: Row, name: str, method: str, what: str = "level") -> list[float]:
    return [value for value in row["guarantees"][name].get(method, {}).get(what, []) if value is not None]


def _levels(rows: dict[str, Row], name: str) -> figure.Levels:
    """The levels of the resplits with a guarantee, by dataset and method."""
    found = {
        dataset: {
            method: [
                level
                for level, share in zip(splits["level"], splits["controlled"], strict=True)
                if level is not None and share
            ]
            for method, splits in row["guarantees"][name].items()
        }
        for dataset, row in rows.items()
    }
    return {
        dataset: {method: methods[method] for method in METHODS if methods.get(method)}
        for dataset, methods in found.items()
    }


def _table(rows: dict[str, Row], name: str, one: Guarantee) -> Table:
    """The mean level, the resplits below it, labels per row, and the share of resplits, or labels, with a guarantee."""
    lines = [
        [f"{method}: {what}", *(cell(row, name, method, one) for row in rows.values())]
        for method in METHODS
        for what, cell in CELLS.items()
        if any(_known(row, name, method) for row in rows.values())
    ]
    return Table(["", *rows], lines)


def _mean(row: Row, name: str, method: str, one: Guarantee) -> str:
    known = _known(row, name, method)
    return f"{statistics.fmean(known):.3f}" if known else ""


def _below(row: Row, name: str, method: str, one: Guarantee) -> str:
    known = _known(row, name, method)
    return f"{100 * statistics.fmean(level < one.level for level in known):.0f} %" if known else ""


def _size(row: Row, name: str, method: str, one: Guarantee) -> str:
    known = _known(row, name, method, "size")
    return f"{statistics.fmean(known):.2f}" if known else ""


def _controlled(row: Row, name: str, method: str, one: Guarantee) -> str:
    known = _known(row, name, method, "controlled")
    return f"{100 * statistics.fmean(known):.0f} %" if known else ""


CELLS = {"mean level": _mean, "resplits below": _below, "labels per row": _size, "can be guaranteed": _controlled}


def _goals(rows: dict[str, Row]) -> list[Claim]:
    kept = [_kept(rows, name, one) for name, one in GUARANTEES.items()]
    recall = {name: one for name, one in GUARANTEES.items() if one.what == "recall"}
    return [*kept, *(_smaller(rows, name, one, peer) for name, one in recall.items() for peer in one.peers)]


def _kept(rows: dict[str, Row], name: str, one: Guarantee) -> Claim:
    """In expectation: the mean is not below the level by more than two standard errors; else the share of resplits."""
    levels = [_known(row, name, OURS) for row in rows.values()]
    if one.confidence is None:
        text = f"{one.title}: the mean is kept"
        numbers = [f"{statistics.fmean(known):.3f}" if known else "" for known in levels]
        holds = [statistics.fmean(known) >= one.level - 2 * _standard_error(known) for known in levels if known]
    else:
        text = f"{one.title}: below in at most {100 * (1 - one.confidence):.0f} % of resplits"
        numbers = [_below(row, name, OURS, one) for row in rows.values()]
        most = 1 - one.confidence + 1e-9
        holds = [statistics.fmean(level < one.level for level in known) <= most for known in levels if known]
    return Claim(text, numbers, all(holds) if holds else None)


def _standard_error(known: list[float]) -> float:
    return statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else 0.0


def _smaller(rows: dict[str, Row], name: str, one: Guarantee, peer: str) -> Claim:
    sizes = [(_known(row, name, OURS, "size"), _known(row, name, peer, "size")) for row in rows.values()]
    ratios = [statistics.fmean(ours) / statistics.fmean(theirs) if ours and theirs else None for ours, theirs in sizes]
    known = [ratio for ratio in ratios if ratio is not None]
    text = f"{one.title}: sets are at most as large as those of {peer} (ratio)"
    numbers = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    return Claim(text, numbers, max(known) <= 1 if known else None)
