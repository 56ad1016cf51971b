"""Thousands of labels: EURLEX57K, laws with EuroVoc concepts, learned by :class:`rsoftmax.labels.LabelModel`.

The model is trained once, on the training texts, and calibrated on the dev texts. Several decision rules, fitted on the
dev texts, are then applied to the same probabilities.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import torch
import typer
from torch import Tensor
from torch.nn.functional import pad

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels import AVERAGES, Average, Decoder, LabelModel, evaluate, expected_f1_threshold, indicator
from rsoftmax.labels.models.base import unknown_labels
from rsoftmax.labels.models.tables import read
from rsoftmax.labels.models.tree import fit_thresholds
from rsoftmax_lab.comparison import TUNE
from rsoftmax_lab.data import source_name
from rsoftmax_lab.records import BaseRun, Notice, Record, number, read_trials
from rsoftmax_lab.report import Mean, Section, Table, best_in_bold, escape, paragraphs
from rsoftmax_lab.sweep import Address, Engine, Jobs, Out, Quick, Sweep

FILES = {split: f"{split}.jsonl.gz" for split in ("train", "dev", "test")}
QUICK = 3000  # training texts
TOP = 5
PUBLISHED = {"BERT-base": (73.2, 68.7)}  # micro-F1 and precision at 5, Chalkidis et al. (2019), table 2


class Texts(NamedTuple):
    """Texts and the names of their labels."""

    texts: list[str]
    y: list[list[str]]


# ---------------------------------------------------------------------------------------------- decision rules

Rule = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]
"""Fits a function from log-odds to labels, given the log-odds and labels of the dev texts."""


def decoded(average: Average) -> Rule:
    """Ours: what ``LabelModel(average=...)`` predicts."""

    def rule(log_odds: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        decoder = fit_thresholds(Decoder(y.shape[1], average), log_odds, y)
        return lambda log_odds: decoder(log_odds).labels

    return rule


def together(log_odds: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Ours, with thresholds from the probabilities of the test texts themselves, as ``LabelModel.adapt`` sets them."""
    return lambda log_odds: log_odds > expected_f1_threshold(log_odds, "macro")


def tuned(log_odds: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """The threshold with the highest micro-F1 on the dev texts."""
    threshold = torch.from_numpy(TUNE["micro"](log_odds.numpy(), y.numpy() == 1))
    return lambda log_odds: log_odds >= threshold


def best(log_odds: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """The most probable labels of a text, always as many."""
    return lambda log_odds: torch.zeros_like(log_odds, dtype=torch.bool).scatter(1, log_odds.topk(TOP).indices, True)


RULES: dict[str, Rule] = {
    **{f"ours, {average}": decoded(average) for average in AVERAGES},
    "ours, macro, test texts together": together,
    "tuned": tuned,
    f"top {TOP}": best,
    "at .5": lambda log_odds, y: lambda log_odds: log_odds > 0,
}
SCORES = dict.fromkeys(AVERAGES, number)
COSTS = {"train_seconds": number, "texts_per_second": number, "megabytes": number}


# ---------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run(BaseRun):
    """One training.

    Attributes:
        seed: of the clusters of labels.
        texts: the number of training texts; 0: all.
        data: the name of the dataset's folder.
    """

    DATA = ("data",)
    VARIED = ("seed",)
    SCHEMA: ClassVar = {"precision": number, "costs": COSTS, "rules": dict.fromkeys(RULES, SCORES)}

    seed: int = 0
    texts: int = 0
    data: str = "eurlex57k"


def main(
    data: Annotated[Path, typer.Option(help=f"The folder of EURLEX57K: {', '.join(FILES.values())}.")],
    seeds: Annotated[int, typer.Option(min=1, help="The number of trainings.")] = 1,
    quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local", address: Address = None,
) -> Path:  # fmt: skip
    """Train, and apply every decision rule."""
    with usage_errors("--data"):
        for file in FILES.values():
            if not (data / file).is_file():
                raise FileNotFoundError(f"{data} has no {file}; expected {', '.join(FILES.values())}")
        name = source_name(str(data), "*.jsonl.gz")
    runs = grid(seeds, QUICK if quick else 0, name)
    return Sweep(quick, out, jobs, engine, address).do("eurlex", runs, partial(run, data.resolve()))


def grid(seeds: int = 1, texts: int = 0, data: str = Run.data) -> list[Run]:
    """A training with every seed."""
    return [Run(seed, texts, data) for seed in range(seeds)]


def run(data: Path, run: Run) -> Record:
    """Train, and score every decision rule on the test texts."""
    train, dev, test = (load(data / file) for file in FILES.values())
    if run.texts:
        step = max(len(train.texts) // run.texts, 1)
        train = Texts(train.texts[::step], train.y[::step])
    names = sorted({name for part in (train, dev) for labels in part.y for name in labels})
    model, start = LabelModel(names), time.perf_counter()
    model.fit(*train, validation=dev, random_state=run.seed)
    trained = time.perf_counter()
    test_odds = model.outputs(test.texts).log_odds
    costs = {"train_seconds": trained - start, "texts_per_second": len(test.texts) / (time.perf_counter() - trained)}
    dev_odds = model.outputs(dev.texts).log_odds
    assert dev_odds is not None  # the model computes them
    assert test_odds is not None
    names = [*names, *unknown_labels(test.y, names)]
    more, dev_y, test_y = (0, len(names) - dev_odds.shape[1]), indicator(dev.y, model.names), indicator(test.y, names)
    rules = {}
    for name, rule in RULES.items():
        predicted = pad(rule(dev_odds, dev_y)(test_odds), more)
        scores = evaluate(pad(test_odds.sigmoid(), more), predicted, test_y, names)
        rules[name] = {average: round(100 * getattr(scores, average), 4) for average in AVERAGES}
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        costs["megabytes"] = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
    costs = {name: round(value, 1) for name, value in costs.items()}
    return {"rules": rules, "precision": round(100 * scores.precision_at[TOP], 4), "costs": costs}


def load(path: Path) -> Texts:
    """The texts and labels of a file."""
    table = read(path)
    return Texts(list(table.texts("text")), table.labels("labels", ";"))


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """A table of F1 scores for each decision rule, and what the training costs."""
    trials = read_trials(results / "eurlex.jsonl", Run, notice).alike(notice)
    if not trials:
        return None
    records = [trial.record for trial in trials]

    def means(rule: str) -> list[Mean | None]:
        return [Mean.of([record["rules"][rule][average] for record in records]) for average in AVERAGES]

    table = Table(["F1 on test", *AVERAGES], best_in_bold({rule: means(rule) for rule in RULES}))
    costs = [[f"{record['costs'][name]:.1f}" for name in COSTS] for record in records]
    published = "; ".join(f"{name}: micro-F1 {f1}, precision at 5 {p}" for name, (f1, p) in PUBLISHED.items())
    precision = sum(record["precision"] for record in records) / len(records)
    text = paragraphs(
        "## Thousands of labels",
        f"""
            {", ".join(sorted({escape(trial.run.data) for trial in trials}))}, official split. The model learns from
            TF-IDF features with label trees and is calibrated on the dev texts. *Ours* maximizes the named F1, with
            thresholds from the dev texts or, *together*, from the probabilities of the test texts; *tuned* is the
            threshold with the highest micro-F1 on dev; *top {TOP}* predicts as many labels for every text. Precision
            at {TOP}: {precision:.1f}. Published, {published}.
        """,
        table,
        Table([name.replace("_", " ") for name in COSTS], costs),
    )
    return Section(text, table.rich("F1 on test, thousands of labels"))
