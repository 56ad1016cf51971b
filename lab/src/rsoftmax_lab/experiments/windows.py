"""Long texts: windows pooled for each label in several ways, truncation, and words, on documents with known evidence.

Not part of the paper. A document joins comments of GoEmotions: a few with emotions among neutral ones. Its labels are
the emotions of all comments, and which comment carries which label is known, so that the windows with the largest
weight can be checked. Every way of pooling has the same encoder and the same training; nothing is tuned.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rsoftmax import SparsePooling
from rsoftmax._transformers import quiet
from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels import AVERAGES, Decoder, EncoderModel, LabelModel, evaluate
from rsoftmax.labels.estimators.ensemble import fit_features
from rsoftmax.labels.models.folders import replacing
from rsoftmax.labels.windows import Windows
from rsoftmax_lab.data import absolute, goemotions, source_name
from rsoftmax_lab.records import BaseRun, Notice, Record, Trial, number, positive, read_trials, share
from rsoftmax_lab.report import Mean, Section, Table, best_in_bold, escape, paragraphs
from rsoftmax_lab.sweep import Address, Engine, Jobs, Out, Quick, Seeds, Sweep

NEUTRAL = "neutral"
SPLITS = ("train", "dev", "test")
AT_ONCE = 300  # documents whose features are in one file
Span = tuple[int, int]


# ---------------------------------------------------------------------------------------------- ways of pooling


class Even(nn.Module):
    """The same weight for all windows."""

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Weights [..., K, windows]."""
        return (mask / mask.sum(-1, keepdim=True)).expand_as(scores)


class Highest(nn.Module):
    """All the weight for the window with the highest score."""

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Weights [..., K, windows]."""
        best = scores.masked_fill(~mask, -torch.inf).argmax(-1, keepdim=True)
        return torch.zeros_like(scores).scatter(-1, best, 1.0)


class Way(NamedTuple):
    """What becomes of the windows.

    Attributes:
        title: its name in tables.
        mapping: from the scores of a label to weights: a name with its parameter, or a module. None: there is only one
            vector for each document.
    """

    title: str
    mapping: nn.Module | dict[str, Any] | None


WAYS = {
    "sparsemax": Way("sparsemax (the default)", {"mapping": "sparsemax"}),
    "max": Way("maximum of the scores", Highest()),
    "truncated": Way("truncated: the first window alone", None),
    "features": Way("mean of the windows' features", None),
    "mean": Way("mean of the scores", Even()),
    "words": Way("no encoder: words and pairs of words", None),
    "softmax": Way("softmax", {"mapping": "softmax"}),
    "k_softmax": Way("k-softmax, k = 2", {"mapping": "k_softmax", "k": 2.0}),
    "t_softmax": Way("t-softmax, t = 2", {"mapping": "t_softmax", "t": 2.0}),
    "r_softmax": Way("r-softmax, r = 0.5", {"mapping": "r_softmax", "r": 0.5}),
    "entmax15": Way("entmax15", {"mapping": "entmax15"}),
}
QUICK = ("sparsemax", "max", "truncated")


def pooling(way: str) -> SparsePooling:
    """The module that pools the scores of windows."""
    mapping = WAYS[way].mapping
    module = SparsePooling(nn.Identity(), **(mapping if isinstance(mapping, dict) else {}))
    if isinstance(mapping, nn.Module):
        module.mapping = mapping
    return module


# ---------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run(BaseRun):
    """One training.

    Attributes:
        way: a key of ``WAYS``.
        seed: of training; the documents are the same.
        model: the encoder's name.
        data: the name of the dataset's folder.
        window: the number of tokens that the encoder reads at once.
        comments, emotional: the numbers of comments in a document, and of those that are not neutral.
        train, dev, test: the numbers of documents.
    """

    DATA = ("data",)
    VARIED = ("way", "seed", "model")
    SCHEMA: ClassVar = {
        "f1": dict.fromkeys(AVERAGES, number),
        "evidence": (
            None,
            dict.fromkeys(("all", "predicted", "chance"), share) | dict.fromkeys(("windows", "used"), positive),
        ),
    }

    way: str
    seed: int = 0
    model: str = ""
    data: str = "goemotions"
    window: int = 64
    comments: int = 16
    emotional: int = 2
    train: int = 6000
    dev: int = 600
    test: int = 1000

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(WAYS)}, got {self.way!r}")


def main(
    data: Annotated[Path, typer.Option(help="The folder of GoEmotions: train.tsv, dev.tsv, test.tsv, labels.txt.")],
    model: Annotated[str, typer.Option(help="A text encoder: a folder or hub id.")],
    way: Annotated[list[str] | None, typer.Option(help=f"{', '.join(WAYS)}; repeatable. Default: all.")] = None,
    seeds: Seeds = 3, quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local",
    address: Address = None,
) -> Path:  # fmt: skip
    """Train with every way of pooling."""
    with usage_errors():
        goemotions.read(data.resolve())
        names = {
            "model": source_name(model, "*.safetensors", "*.json", "*.txt"),
            "data": source_name(str(data), "*.tsv", "*.txt"),
        }
        runs = grid(way or (QUICK if quick else [*WAYS]), 1 if quick else seeds, **names)
    sweep = Sweep(quick, out, jobs, engine, address).on_device()
    return sweep.do("windows", runs, partial(run, absolute(model), data.resolve(), sweep.folder.resolve()))


def grid(ways: Sequence[str] = tuple(WAYS), seeds: int = 3, **settings: Any) -> list[Run]:
    """Every way with every seed; words are learned without chance, once."""
    return [Run(way, seed, **settings) for seed in range(seeds) for way in ways if way != "words" or seed == 0]


def run(model: str, data: Path, out: Path, run: Run) -> Record:
    """Train, decode for each F1, and look where the weights are.

    Args:
        model: the encoder's folder or hub id.
        data: the folder of the dataset.
        out: the folder of results, with cached features.
        run: the settings.
    """
    texts = goemotions.read(data)
    labels = [name for name in texts.labels if name != NEUTRAL]
    train, dev, test = (draw(texts, split, run) for split in SPLITS)
    read = partial(features, model, out, run, labels)
    spans, weights = read(test.texts).spans, None
    if run.way == "words":
        words = LabelModel(labels).fit(train.texts, train.y, validation=(dev.texts, dev.y))
        scores = [words.classifier.scores(words.embed(split.texts)) for split in (dev, test)]
        weights = words_by_window(words, test.texts, spans)
    else:
        x = [pooled(run.way, read(split.texts)) for split in (train, dev, test)]
        settings: dict[str, Any] = {"n_estimators": 1, "random_state": run.seed, "verbose": 0}
        network, _ = fit_features(x[0], train.y, (x[1], dev.y), labels, {}, **settings)
        with torch.no_grad():
            scores = [network.scores(part).margins for part in x[1:]]
            if isinstance(x[2], Windows) and run.way != "mean":
                weights = network.window_weights(x[2])
    decoded = {average: Decoder(len(labels), average).fit(scores[0], dev.y)(scores[1]).labels for average in AVERAGES}
    f1 = {average: getattr(evaluate(y.float(), y, test.y, labels), average) for average, y in decoded.items()}
    return {
        "f1": {average: round(100 * value, 4) for average, value in f1.items()},
        "evidence": None if weights is None else evidence(weights, spans, test, decoded["micro"]),
    }


# ---------------------------------------------------------------------------------------------- documents


class Documents(NamedTuple):
    """Texts made of comments.

    Attributes:
        texts: the documents.
        y: their labels [documents, K], 0 or 1.
        emotional: for each document, the comments with labels: where they are, and their labels [K].
    """

    texts: list[str]
    y: Tensor
    emotional: list[list[tuple[Span, Tensor]]]


def draw(data: goemotions.GoEmotions, name: str, run: Run) -> Documents:
    """Documents of a split: emotional comments are used once, neutral ones again in other documents."""
    split, neutral = getattr(data, name), data.labels.index(NEUTRAL)
    generator = torch.Generator().manual_seed(SPLITS.index(name))
    is_neutral = split.y[:, neutral] == 1
    emotional, fillers = (~is_neutral).nonzero()[:, 0], (is_neutral & (split.y.sum(1) == 1)).nonzero()[:, 0]
    count = min(getattr(run, name), len(emotional) // run.emotional)
    carriers = emotional[torch.randperm(len(emotional), generator=generator)]
    y = torch.cat([split.y[:, :neutral], split.y[:, neutral + 1 :]], 1)
    texts, parts = [], []
    for some in carriers.split(run.emotional)[:count]:
        filling = fillers[torch.randperm(len(fillers), generator=generator)[: run.comments - run.emotional]]
        chosen = torch.cat([some, filling])
        order = chosen[torch.randperm(len(chosen), generator=generator)].tolist()
        ends = torch.tensor([len(split.texts[index]) + 1 for index in order]).cumsum(0).tolist()
        texts.append(" ".join(split.texts[index] for index in order))
        spans = {index: (end - 1 - len(split.texts[index]), end - 1) for index, end in zip(order, ends, strict=True)}
        parts.append([(spans[index], y[index]) for index in some.tolist()])
    labels = torch.stack([torch.stack([own for _, own in document]).amax(0) for document in parts])
    return Documents(texts, labels, parts)


class Features(NamedTuple):
    """The features of all windows [windows, d], their number in each document, and where they are."""

    x: Tensor
    counts: Tensor
    spans: list[list[Span]]


def features(model: str, out: Path, run: Run, labels: list[str], texts: list[str]) -> Features:
    """The encoder's features of documents, cached in files of a few documents, so that a kill loses little."""
    parts = []
    for some in (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE)):
        digest = hashlib.sha256(repr((run.model, run.window, some)).encode()).hexdigest()[:16]
        path = out / "windows-features" / f"{digest}.safetensors"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                save_file(encode(model, run, labels, some), unfinished)
        parts.append(load_file(path))
    x, counts, spans = (torch.cat([part[name] for part in parts]) for name in ("x", "counts", "spans"))
    listed = [[(start, end) for start, end in part.tolist()] for part in spans.split(counts.tolist())]
    return Features(x, counts, listed)


def encode(model: str, run: Run, labels: list[str], texts: list[str]) -> dict[str, Tensor]:
    """The tensors of :class:`Features`."""
    with quiet():
        encoder = EncoderModel.from_encoder(model, labels, window=run.window)
    x, spans = encoder.encode(texts), [encoder.inputs.spans(text) for text in texts]
    assert isinstance(x, Windows)  # the documents are longer than a window
    where = torch.tensor([span for document in spans for span in document])
    return {"x": x.x.clone(), "counts": x.counts, "spans": where}


def pooled(way: str, features: Features) -> Tensor | Windows:
    """What the head is trained on."""
    if way == "truncated":
        return features.x[features.counts.cumsum(0) - features.counts]
    windows = Windows(features.x, features.counts, pooling(way))
    return windows.mean() if way == "features" else windows


# ---------------------------------------------------------------------------------------------- evidence


def words_by_window(model: LabelModel, texts: list[str], spans: list[list[Span]]) -> list[Tensor]:
    """What the words in each window contribute to each label, [K, windows]."""
    weights = []
    for explained, windows in zip(model.explain(texts, every_label=True), spans, strict=True):
        rows = [explained[name].passages if name in explained else [] for name in model.names]
        inside = [[sum(w for a, b, w in row if start <= a and b <= end) for start, end in windows] for row in rows]
        weights.append(torch.tensor(inside))
    return weights


def evidence(weights: list[Tensor], spans: list[list[Span]], test: Documents, predicted: Tensor) -> Record:
    """How often the window with the largest weight for a label carries it.

    Args:
        weights: of the windows of each document, [K, windows].
        spans: where the windows are.
        test: the documents.
        predicted: labels, bool [documents, K].

    Returns:
        The share among all labels of the documents, among those that are predicted, and for a window at random; and how
        many windows a label has, with and without weight.
    """
    hits, chances, is_predicted = [], [], []
    for document, (shares, windows, parts) in enumerate(zip(weights, spans, test.emotional, strict=True)):
        for label in test.y[document].nonzero()[:, 0].tolist():
            carrying = [any(carries(window, part) for part, own in parts if own[label]) for window in windows]
            hits.append(carrying[int(shares[label].argmax())])
            chances.append(sum(carrying) / len(carrying))
            is_predicted.append(bool(predicted[document, label]))
    of_predicted = [hit for hit, known in zip(hits, is_predicted, strict=True) if known]
    used = torch.cat([(shares != 0).sum(-1) for shares in weights])
    return {
        "all": round(sum(hits) / len(hits), 5),
        "predicted": round(sum(of_predicted) / max(len(of_predicted), 1), 5),
        "chance": round(sum(chances) / len(chances), 5),
        "windows": round(sum(map(len, spans)) / len(spans), 3),
        "used": round(float(used.float().mean()), 3),
    }


def carries(window: Span, comment: Span) -> bool:
    """Whether at least half of a comment is in a window, or half of the window in the comment."""
    common = min(window[1], comment[1]) - max(window[0], comment[0])
    return 2 * common >= min(window[1] - window[0], comment[1] - comment[0])


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """F1 and evidence of every way."""
    trials = read_trials(results / "windows.jsonl", Run, notice).alike(notice)
    if not trials:
        return None
    groups: dict[str, list[Trial[Run]]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.run.model, list(WAYS).index(trial.run.way))):
        model = f", {trial.run.model}" if len({run.model for run, _ in trials if run.model}) > 1 else ""
        groups.setdefault(f"{WAYS[trial.run.way].title}{model}", []).append(trial)
    scores, where = _scores(groups), _evidence(groups)
    data, models = (sorted({escape(getattr(run, name)) for run, _ in trials} - {""}) for name in ("data", "model"))
    run = next(iter(trials)).run
    text = paragraphs(
        "## Long texts: windows",
        f"""
            Documents of {run.comments} comments of {", ".join(data)}: {run.emotional} with emotions among neutral ones;
            the labels of a document are the emotions of all. {run.train} documents to train on, {run.dev} to stop,
            calibrate and set thresholds, {run.test} to test. The encoder ({", ".join(models) or "none"}) is frozen and
            reads windows of {run.window} tokens, which share a quarter. Every way of pooling has one network with the
            same training, and nothing is tuned. Each F1 is decoded for itself from the same scores.
        """,
        scores,
        "### Evidence",
        """
            The share of labels for which the window with the largest weight contains a comment with that label: of all
            labels of the test documents, of those among them that are predicted, and for a window at random. *Used*:
            the mean number of windows with weight, for any label. For words the weight of a window is the sum of their
            contributions.
        """,
        where,
    )
    return Section(text, scores.rich("F1 on test, long texts"))


def _scores(groups: dict[str, list[Trial[Run]]]) -> Table:
    def means(trials: list[Trial[Run]]) -> list[Mean | None]:
        return [Mean.of([record["f1"][average] for _, record in trials]) for average in AVERAGES]

    lines = best_in_bold({title: means(trials) for title, trials in groups.items()})
    return Table(["F1 on test", *AVERAGES], lines)


def _evidence(groups: dict[str, list[Trial[Run]]]) -> Table:
    lines = []
    for title, trials in groups.items():
        found = [record["evidence"] for _, record in trials if record["evidence"]]
        if found:
            shares = [str(Mean.of([100 * one[name] for one in found])) for name in ("all", "predicted", "chance")]
            counts = [f"{Mean.of([one[name] for one in found]).value:.1f}" for name in ("used", "windows")]
            lines.append([title, *shares, *counts])
    return Table(["right window, %", "all labels", "predicted labels", "at random", "used", "windows"], lines)
