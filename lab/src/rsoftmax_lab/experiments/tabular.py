"""The comparison on real datasets, which are not in the paper, with their predefined training and test samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels import AVERAGES
from rsoftmax_lab.comparison import (
    BEST_OF_OURS,
    METHODS,
    ORACLES,
    OTHERS,
    PREDICTORS,
    Comparison,
    Data,
    Samples,
    Training,
    train_and_score,
)
from rsoftmax_lab.data import mulan
from rsoftmax_lab.records import Notice, Record, read_trials
from rsoftmax_lab.report import Section, Table, escape, paragraphs, signed
from rsoftmax_lab.sweep import Address, Engine, Jobs, MulanFolder, Only, Out, Quick, Seeds, Sweep

NEAR = 0.5  # points of F1 below the best


@dataclass(frozen=True)
class Run(Training):
    """One method on one dataset."""

    DATA = ("dataset",)

    dataset: str = "emotions"
    validation_share: float = 0.2

    @property
    def point(self) -> str:
        """The data of the comparison."""
        return self.dataset


def main(
    data: MulanFolder, only: Only = None, seeds: Seeds = 3, quick: Quick = False, out: Out = None, jobs: Jobs = None,
    engine: Engine = "local", address: Address = None,
) -> Path:  # fmt: skip
    """Do the runs on the datasets of a folder."""
    with usage_errors("--data"):
        names = mulan.names(data, only, quick=quick)
    runs = grid(names, 1 if quick else seeds)
    return Sweep(quick, out, jobs, engine, address).do("tabular", runs, partial(run, data.resolve()))


def grid(datasets: Sequence[str], seeds: int = 3, **settings: Any) -> list[Run]:
    """Every method on every dataset."""
    return [
        Run(method=method, seed=seed, dataset=dataset, **settings)
        for dataset in datasets
        for seed in range(seeds)
        for method in METHODS
    ]


def run(folder: Path, run: Run) -> Record:
    """Train and score on a dataset of the folder."""
    return train_and_score(run, load(folder, run.dataset, run.validation_share, run.seed))


def load(folder: Path, dataset: str, validation_share: float, seed: int) -> Data:
    """A dataset with a random fraction of its training samples for validation; samples may have no labels.

    Numeric features are standardized by the training samples; one-hot features stay 0 and 1.
    """
    train, test = mulan.read_cached(folder / dataset)
    order = np.random.default_rng(seed).permutation(len(train.Y))
    held_out = round(validation_share * len(order))
    if not 0 < held_out < len(order):
        raise ValueError(
            f"{dataset}: validation_share={validation_share} of {len(order)} training samples is {held_out} samples;"
            " both parts need at least one"
        )
    parts = [Samples(train.X[part], train.Y[part]) for part in (order[held_out:], order[:held_out])]
    return Data(*mulan.standardized([*parts, Samples(test.X, test.Y)], train.numeric))


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """Tables of scores, and the datasets where ours is the best or close to it."""
    trials = read_trials(results / "tabular.jsonl", Run, notice)
    if not trials:
        return None
    comparison = Comparison.of(trials.alike(notice))
    table = partial(comparison.table, groups={name: [name] for name in comparison.points()})
    leads = {name: comparison.lead(BEST_OF_OURS, OTHERS, [name], "test") for name in comparison.points()}
    near = [escape(name) for name, lead in leads.items() if lead is not None and lead.value >= -NEAR]
    listed = f" ({', '.join(near)})" if near else ""
    test = table(PREDICTORS, split="test")
    text = paragraphs(
        "## Real datasets",
        "Predefined training and test samples; a random fifth of the training samples is used for selection."
        f" {comparison.describe()}",
        f"Best or within {NEAR} of the best, without a tuned threshold: {len(near)} of {len(leads)} datasets{listed}.",
        Table(
            ["set", f"{BEST_OF_OURS.title}, lead over the best other"],
            [[name, signed(lead)] for name, lead in leads.items()],
        ),
        "### Test",
        test,
        *(
            part
            for average in AVERAGES[1:]
            for part in (f"### Test, {average} average", table(PREDICTORS, split="test", average=average))
        ),
        "### Validation",
        table(PREDICTORS, split="validation"),
        "### With the true number of labels given",
        table(ORACLES, split="test"),
    )
    return Section(text, test.rich("Micro-F1 on test"))
