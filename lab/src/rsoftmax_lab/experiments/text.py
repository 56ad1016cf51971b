"""Multi-label text classification: GoEmotions, with a frozen encoder, a fine-tuned one, and TF-IDF.

Each training gives logits for the dev and test samples. Several decision rules, fitted on the dev samples, are then
applied to the same logits: the decoder of :mod:`rsoftmax.labels` for each F1, and thresholds.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from torch import Tensor

from rsoftmax._transformers import quiet
from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels import AVERAGES, Average, Decoder, EncoderModel, evaluate
from rsoftmax.labels.estimators.ensemble import fit_features
from rsoftmax.labels.estimators.meta import logit
from rsoftmax.labels.models.folders import replacing
from rsoftmax_lab.comparison import TUNE
from rsoftmax_lab.data import absolute, goemotions, source_name
from rsoftmax_lab.data.goemotions import GoEmotions, Split
from rsoftmax_lab.records import BaseRun, Notice, Record, Trial, differences, key, number, read_trials
from rsoftmax_lab.report import Mean, Section, Table, best_in_bold, escape, paragraphs
from rsoftmax_lab.sweep import Address, Engine, Jobs, Out, Quick, Sweep

WAYS = {
    "tfidf": "TF-IDF, logistic regression", "frozen": "encoder frozen", "finetuned": "encoder fine-tuned"
}  # fmt: skip
PUBLISHED = 46.0  # macro-F1 of BERT-base at the threshold .3, Demszky et al. (2020), table 4
EVALUATIONS = 8  # per epoch of fine-tuning


# ---------------------------------------------------------------------------------------------- decision rules

Rule = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]
"""Fits a function from logits to labels, given the logits and labels of the dev samples."""


def decoded(average: Average) -> Rule:
    """Ours: calibrated marginals and the threshold that maximizes the expected F1."""

    def rule(logits: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        decoder = Decoder(y.shape[1], average).fit(logits, y)
        return lambda logits: decoder(logits).labels

    return rule


def above(p: float) -> Rule:
    """The same threshold for all labels."""
    return lambda logits, y: lambda logits: logits.sigmoid() > p


def tuned(average: Average) -> Rule:
    """The threshold, or one for each label, with the highest F1 on the dev samples."""

    def rule(logits: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        threshold = torch.from_numpy(TUNE[average](logits.numpy(), y.numpy() == 1))
        return lambda logits: logits >= threshold

    return rule


RULES: dict[str, Rule] = {
    **{f"ours, {average}": decoded(average) for average in AVERAGES},
    "at .5": above(0.5),
    "at .3": above(0.3),
    "tuned": tuned("micro"),
    "tuned for each label": tuned("macro"),
}
SCORES = dict.fromkeys(AVERAGES, number)


def score(dev: Tensor, dev_y: Tensor, test: Tensor, test_y: Tensor) -> dict[str, dict[str, dict[str, float]]]:
    """The F1 of each rule on dev and test samples, in per cent."""

    def f1(labels: Tensor, y: Tensor) -> dict[str, float]:
        scores = evaluate(labels.float(), labels, y, [""] * y.shape[1])
        return {average: round(100 * getattr(scores, average), 4) for average in AVERAGES}

    decisions = {name: rule(dev, dev_y) for name, rule in RULES.items()}
    return {n: {"dev": f1(decide(dev), dev_y), "test": f1(decide(test), test_y)} for n, decide in decisions.items()}


# ---------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run(BaseRun):
    """One training.

    Attributes:
        way: "tfidf": logistic regression on uni- and bigrams; "frozen": a head on the frozen encoder; "finetuned":
            encoder and head.
        epochs, lr, batch_size: the settings of fine-tuning.
        max_tokens: texts are truncated to this many tokens.
        model: the encoder's name.
        data: the name of the dataset's folder.
    """

    DATA = ("data",)
    VARIED = ("way", "seed", "model")
    SCHEMA: ClassVar = {"seconds": number, "rules": {rule: {"dev": SCORES, "test": SCORES} for rule in RULES}}

    way: str
    seed: int = 0
    epochs: int = 3
    lr: float = 1e-4
    batch_size: int = 32
    max_tokens: int = 64
    model: str = ""
    data: str = "goemotions"

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(WAYS)}, got {self.way!r}")


def main(
    data: Annotated[Path, typer.Option(help="The folder of GoEmotions: train.tsv, dev.tsv, test.tsv, labels.txt.")],
    model: Annotated[str, typer.Option(help="A text encoder: a folder or hub id.")],
    way: Annotated[
        list[str] | None,
        typer.Option(help="tfidf, frozen or finetuned; repeatable. Default: all, tfidf with --quick."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="The maximum number of epochs of fine-tuning.")] = 3,
    lr: Annotated[float, typer.Option(help="The learning rate of fine-tuning.")] = 1e-4,
    max_tokens: Annotated[int, typer.Option(min=4, help="Truncate texts to this many tokens.")] = 64,
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds of the encoder's runs.")] = 1,
    quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local", address: Address = None,
) -> Path:  # fmt: skip
    """Do every way of training."""
    with usage_errors():
        goemotions.read(data.resolve())
        name = source_name(model, "*.safetensors", "*.json", "*.txt")
        settings: dict[str, Any] = {"lr": lr, "max_tokens": max_tokens, "epochs": epochs}
        settings |= {"data": source_name(str(data), "*.tsv", "*.txt")}
        runs = grid(name, way or (["tfidf"] if quick else [*WAYS]), seeds, **settings)
    sweep = Sweep(quick, out, jobs, engine, address).on_device()
    return sweep.do("text", runs, partial(run, absolute(model), data.resolve(), sweep.folder.resolve()))


def grid(model: str, ways: Sequence[str], seeds: int = 1, **settings: Any) -> list[Run]:
    """Every way with every seed; TF-IDF is deterministic and run once."""
    return [
        Run(way, seed, model="" if way == "tfidf" else model, **settings)
        for seed in range(seeds)
        for way in ways
        if way != "tfidf" or seed == 0
    ]


def run(model: str, data: Path, out: Path, run: Run) -> Record:
    """Train, and score every decision rule.

    Args:
        model: the encoder's folder or hub id.
        data: the folder of the dataset.
        out: the folder of results, with cached features and checkpoints.
        run: the settings.
    """
    texts = goemotions.read(data)
    if run.way == "tfidf":
        dev, test = _tfidf(texts)
    elif run.way == "frozen":
        dev, test = _frozen(model, out, run, texts)
    else:
        dev, test = _finetuned(model, out, run, texts)
    return {"rules": score(dev, texts.dev.y, test, texts.test.y)}


def _tfidf(data: GoEmotions) -> tuple[Tensor, Tensor]:
    """Logistic regression on TF-IDF of uni- and bigrams."""
    vectors = goemotions.tfidf().fit(data.train.texts)
    classifier = OneVsRestClassifier(LogisticRegression(C=10, max_iter=1000))
    classifier.fit(vectors.transform(data.train.texts), data.train.y.numpy())

    def logits(split: Split) -> Tensor:
        return torch.from_numpy(logit(classifier.predict_proba(vectors.transform(split.texts)))).clamp(-30, 30)

    return logits(data.dev), logits(data.test)


def _frozen(model: str, out: Path, run: Run, data: GoEmotions) -> tuple[Tensor, Tensor]:
    """The recipe of :meth:`EncoderModel.fit`, with the dev samples as held-out samples."""
    train, dev, test = (_features(model, out, run, data.labels, split.texts) for split in data[1:])
    network, _ = fit_features(train, data.train.y, (dev, data.dev.y), data.labels, {}, random_state=run.seed)
    with torch.no_grad():
        return network.scores(dev).margins, network.scores(test).margins


def _features(model: str, out: Path, run: Run, labels: list[str], texts: list[str]) -> Tensor:
    """The encoder's features of texts, cached in a file."""
    digest = hashlib.sha256(repr((run.model, run.max_tokens, texts)).encode()).hexdigest()[:16]
    path = out / "text-features" / f"{digest}.safetensors"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with quiet():
            encoder = EncoderModel.from_encoder(model, labels, max_tokens=run.max_tokens)
        with replacing(path) as unfinished:  # other processes may compute the same features
            save_file({"x": encoder.embed(texts).clone()}, unfinished)
    return load_file(path)["x"]


def _finetuned(model: str, out: Path, run: Run, data: GoEmotions) -> tuple[Tensor, Tensor]:
    """:meth:`EncoderModel.fit` with ``finetune``, from the last checkpoint of a run that was stopped."""
    tuned = EncoderModel.from_encoder(model, data.labels, max_tokens=run.max_tokens)
    name = hashlib.sha256(key(differences(run)).encode()).hexdigest()[:12]
    tuned.fit(
        data.train.texts,
        data.train.y,
        validation=data.dev,
        finetune=True,
        random_state=run.seed,
        epochs=run.epochs,
        lr=run.lr,
        batch_size=run.batch_size,
        evaluations_per_epoch=EVALUATIONS,
        patience=EVALUATIONS,
        checkpoints=out / "text-checkpoints" / name,
    )
    with torch.no_grad():
        dev, test = (tuned.network.scores(tuned.embed(split.texts)).margins for split in (data.dev, data.test))
    return dev, test


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """A table of F1 scores for each way of training."""
    trials = read_trials(results / "text.jsonl", Run, notice).alike(notice)
    if not trials:
        return None
    ordered = sorted(trials, key=lambda trial: (list(WAYS).index(trial.run.way), trial.run.seed))
    groups: dict[str, list[Trial[Run]]] = {}
    for trial in ordered:  # runs with the same title differ in their seeds
        title = ", ".join(filter(None, (WAYS[trial.run.way], trial.run.model, trial.run.data)))
        groups.setdefault(title, []).append(trial)
    tables = {title: _table(some) for title, some in groups.items()}
    data, models = (sorted({escape(getattr(run, name)) for run, _ in trials} - {""}) for name in ("data", "model"))
    lines = [[WAYS[run.way], str(run.seed), f"{record['seconds'] / 60:.1f}"] for run, record in ordered]
    text = paragraphs(
        "## Multi-label text classification",
        f"""
            {", ".join(data)}, official split; encoder: {", ".join(models) or "none"}. Each training gives logits
            for dev and test samples. Decision rules, fitted on dev samples only, turn them into labels: *ours*
            calibrates and maximizes the named F1; *at .5* and *at .3* are thresholds on the probability; *tuned* is
            the threshold with the highest micro-F1 on dev; *tuned for each label* has one threshold per label.
            Published result with BERT-base (twelve layers) and the threshold .3: macro-F1 {PUBLISHED:.0f}.
        """,
        *(part for title, table in tables.items() for part in (f"### {escape(title)}", table)),
        "### Settings",
        Table(["training", "seed", "minutes"], lines),
    )
    title, table = list(tables.items())[-1]
    return Section(text, table.rich(f"F1 on test, {title}"))


def _table(trials: list[Trial[Run]]) -> Table:
    def means(rule: str) -> list[Mean | None]:
        scores = [trial.record["rules"][rule]["test"] for trial in trials]
        return [Mean.of([f1[average] for f1 in scores]) for average in AVERAGES]

    return Table(["F1 on test", *AVERAGES], best_in_bold({rule: means(rule) for rule in RULES}))
