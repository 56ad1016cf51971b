"""The results of Table 1 at the best learning rate."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rsoftmax_lab.comparison import METHODS, Comparison
from rsoftmax_lab.experiments.images.grid import Run
from rsoftmax_lab.running import rows
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.rows import Trial, Trials
from rsoftmax_lab.running.runs import Row, differences, key


class Table1(NamedTuple):
    """Results with the best learning rate for each rule.

    Attributes:
        settings: by dataset, the runs' common differences from the defaults.
        shares: by dataset, the fraction of held-out training images.
        paper: selected on val, which is also reported; its "validation" is the paper's number.
        held_out: selected on held-out training images; its "test" is on val.
    """

    settings: dict[str, dict[str, Any]]
    shares: dict[str, float]
    paper: Comparison
    held_out: Comparison


def table1(found: dict[str, Trials[Run]], notice: Notice, way: str = "frozen") -> Table1:
    """The results of one way of training; empty if there are none."""
    table = Table1({}, {}, Comparison({}, {}), Comparison({}, {}))
    for name, trials in found.items():
        alike = trials.where(lambda run: run.way == way).alike(notice)
        if len(alike):
            _add(table, name, alike, notice)
    return table


def chosen(path: Path, runs: Iterable[Run]) -> tuple[Run, int]:
    """The best run of a method with the first seed, with held-out selection if available, and its best epoch."""
    first = [run for run in runs if run.seed == 0]
    named = {key(differences(run)): run for run in [run for run in first if run.selection_share] or first}
    done = {key(differences(trial.run)): trial.row for trial in rows.read(path, Run, print)}
    rule = "labels" if "labels" in METHODS[first[0].method].rules else "tuned"
    known = {name: done[name]["rules"] for name in named if name in done}
    scored = {name: rules[rule] for name, rules in known.items() if rule in rules}  # ties: the first in the grid
    if not scored:
        raise ValueError(f"{path} has no scores of {first[0].method} with the rule {rule!r} to select a model")
    best = max(scored, key=lambda name: float(scored[name]["validation"]["micro"]))
    return named[best], int(scored[best]["epoch"])


def _add(table: Table1, name: str, trials: Trials[Run], notice: Notice) -> None:
    """Add the runs on a dataset; of different held-out fractions, use the most frequent one."""
    shares = Counter(run.selection_share for run, _ in trials if run.selection_share).most_common()
    if len(shares) > 1:
        notice(f"{trials.path} mixes runs with different held-out fractions; showing those with {shares[0][0]}")
    table.settings[name] = trials.settings
    table.shares[name] = shares[0][0] if shares else 0.0
    for comparison, share in ((table.paper, 0.0), (table.held_out, table.shares[name] or None)):
        for trial in sorted(trials, key=lambda trial: -trial.run.lr):  # ties: the highest learning rate
            if trial.run.selection_share == share:
                methods = comparison.methods(trial.run)
                methods[trial.run.method] = _better(methods.get(trial.run.method), trial)


def _better(row: Row | None, trial: Trial[Run]) -> Row:
    """Merge two rows of a method with different learning rates: for each rule, the better one on validation."""
    rules = {name: rule | {"lr": trial.run.lr} for name, rule in trial.row["rules"].items()}
    for name, rule in (row["rules"] if row else {}).items():
        if name not in rules or rule["validation"]["micro"] >= rules[name]["validation"]["micro"]:
            rules[name] = rule
    return trial.row | {"rules": rules}
