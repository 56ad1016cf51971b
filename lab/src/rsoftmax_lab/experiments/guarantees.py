"""Guarantees over many random resplits: recall, precision and review; the size of the label sets next to MAPIE's.

A classifier is fitted on the training samples. The test samples, which it has not seen, are split at random into a half
that sets the threshold and a half that measures what was promised. The classifier is fitted once; only the split
changes.
"""

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels import ReviewThresholds, precision_threshold, recall_threshold, review_thresholds
from rsoftmax.labels.estimators.meta import FoldModel
from rsoftmax.labels.risk_control import By
from rsoftmax_lab.comparison import Samples
from rsoftmax_lab.data import goemotions, mulan
from rsoftmax_lab.records import BaseRun, Notice, Record, number, read_trials
from rsoftmax_lab.report import Claim, Section, Table, claims_table, escape, panels, paragraphs, save_figure, tidy
from rsoftmax_lab.sweep import Address, Engine, Jobs, MulanFolder, Only, Out, Quick, Sweep

TEXTS = "goemotions"
OURS, MAPIE, HOEFFDING = "rsoftmax", "MAPIE", "MAPIE, Hoeffding"
METHODS = {OURS: "#c1121f", MAPIE: "#444444", HOEFFDING: "#9a9a9a"}  # with their colours
AT_ONCE = 200  # samples: MAPIE makes a copy of their scores for each of its 100 thresholds


class Guarantee(NamedTuple):
    """What is guaranteed: recall or precision, its level, for what, and with which confidence."""

    what: Literal["recall", "precision"]
    level: float
    by: By
    confidence: float | None

    @property
    def title(self) -> str:
        """The guarantee in words."""
        of = {"samples": "of a sample", "micro": "of all entries", "label": "of every label"}[self.by]
        sure = "in expectation" if self.confidence is None else f"with confidence {self.confidence:g}"
        return f"{self.what} {of} {self.level:g}, {sure}"

    @property
    def peers(self) -> tuple[str, ...]:
        """The methods of MAPIE that can express it: means over samples only."""
        if self.by != "samples":
            return ()
        return (MAPIE, HOEFFDING) if self.what == "recall" and self.confidence is not None else (MAPIE,)


GUARANTEES: dict[str, Guarantee] = {
    "recall": Guarantee("recall", 0.9, "samples", None),
    "recall_micro": Guarantee("recall", 0.9, "micro", None),
    "recall_label": Guarantee("recall", 0.9, "label", None),
    "recall_sure": Guarantee("recall", 0.9, "samples", 0.9),
    "precision": Guarantee("precision", 0.6, "samples", 0.9),
    "precision_micro": Guarantee("precision", 0.6, "micro", 0.9),
}
REVIEW: dict[str, float] = {"accept": 0.8, "reject": 0.9, "confidence": 0.9}
REVIEWED: tuple[By, ...] = ("samples", "micro")

NUMBERS = [(number, None)]


@dataclass(frozen=True)
class Run(BaseRun):
    """All guarantees on one dataset."""

    DATA: ClassVar[tuple[str, ...]] = ("dataset",)
    SCHEMA: ClassVar[dict[str, Any]] = {
        "rows": number,
        "labels": number,
        "guarantees": [[{"level": NUMBERS, "size": NUMBERS, "controlled": NUMBERS}]],
        "reviews": [{"precision": NUMBERS, "recall": NUMBERS, "accepted": NUMBERS, "asked": NUMBERS}],
    }

    dataset: str
    resplits: int = 100


def main(
    data: MulanFolder,
    texts: Annotated[Path | None, typer.Option(help="The folder of GoEmotions, as another dataset.")] = None,
    only: Only = None,
    resplits: Annotated[
        int, typer.Option(min=1, help="The number of random resplits.")
    ] = 100,
    quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local", address: Address = None,
) -> Path:  # fmt: skip
    """Do a run for each dataset."""
    with usage_errors("--data"):
        names = [*mulan.names(data, only, quick=quick), *([TEXTS] if texts is not None else [])]
    runs = [Run(name, resplits) for name in names]
    function = partial(run, data.resolve(), None if texts is None else texts.resolve())
    return Sweep(quick, out, jobs, engine, address).do("guarantees", runs, function)


def run(folder: Path, texts: Path | None, run: Run) -> Record:
    """Fit once, resplit many times."""
    scored = load(folder, texts, run.dataset)
    halves = [half(len(scored.y), seed) for seed in range(run.resplits)]
    results: dict[str, dict[str, Any]] = {}
    for name, guarantee in GUARANTEES.items():
        methods: dict[str, Callable[[Tensor], Tensor] | None] = {OURS: partial(our_threshold, scored, guarantee)}
        methods |= {peer: mapie_threshold(scored, guarantee, peer) for peer in guarantee.peers}
        results[name] = {}
        for method, threshold in methods.items():
            if threshold is not None:
                splits = [measure(guarantee, threshold(h), Scored(scored.pi[~h], scored.y[~h])) for h in halves]
                results[name][method] = by_field(splits)
    reviews = {by: by_field([review(scored, by, half) for half in halves]) for by in REVIEWED}
    return {"rows": len(scored.y), "labels": scored.y.shape[1], "guarantees": results, "reviews": reviews}


def by_field(splits: list[dict[str, float | None]]) -> dict[str, list[float | None]]:
    """What was measured on each resplit, as a list for each field."""
    return {field: [one[field] for one in splits] for field in splits[0]}


class Scored(NamedTuple):
    """Marginals and labels [samples, K] of samples that have a label; float64."""

    pi: Tensor
    y: Tensor


def load(folder: Path, texts: Path | None, dataset: str) -> Scored:
    """The test samples, scored by logistic regressions for each label; of GoEmotions, dev and test samples."""
    if dataset == TEXTS and texts is not None:
        found = goemotions.read(texts)
        words = goemotions.tfidf().fit(found.train.texts)
        y = torch.cat([found.dev.y, found.test.y]).numpy() == 1
        train = Samples(words.transform(found.train.texts), found.train.y.numpy() == 1)
        test = Samples(words.transform([*found.dev.texts, *found.test.texts]), y)
    else:
        tables = mulan.read_cached(folder / dataset)
        train, test = mulan.standardized([Samples(table.X, table.Y) for table in tables], tables[0].numeric)
    model = FoldModel(LogisticRegression(max_iter=1000)).fit(train.X, train.Y.astype(np.int64))
    pi: Any = np.nan_to_num(expit(model.log_odds(test.X)))
    labelled = test.Y.any(1)
    return Scored(torch.from_numpy(pi[labelled]), torch.from_numpy(test.Y[labelled].astype(np.float64)))


def half(samples: int, seed: int) -> Tensor:
    """Which samples set the threshold, bool [samples]."""
    order = np.random.RandomState(seed).permutation(samples)
    return torch.from_numpy(order < samples // 2)


def our_threshold(scored: Scored, guarantee: Guarantee, half: Tensor) -> Tensor:
    """The threshold of this library: infinite if nothing can be promised, NaN for a label without a guarantee."""
    function: Any = recall_threshold if guarantee.what == "recall" else precision_threshold
    try:
        threshold: Tensor = function(
            scored.pi[half], scored.y[half], guarantee.level, by=guarantee.by, confidence=guarantee.confidence
        )
        return threshold
    except ValueError:  # the samples do not suffice
        return torch.tensor([-torch.inf if guarantee.what == "recall" else torch.inf])


def mapie_threshold(scored: Scored, guarantee: Guarantee, name: str) -> Callable[[Tensor], Tensor] | None:
    """A function from the half that sets the threshold to MAPIE's threshold; None unless MAPIE is installed.

    MAPIE tests 100 thresholds from 0 to .99. The risk of each sample at each of them does not depend on the split: it
    is computed once.
    """
    try:
        from mapie.risk_control import MultiLabelClassificationController
    except ImportError:
        return None
    method = "ltt" if guarantee.what == "precision" else "crc" if guarantee.confidence is None else "rcps"
    bound = "hoeffding" if name == HOEFFDING else None
    controller = MultiLabelClassificationController(
        lambda scores: scores, guarantee.what, method, guarantee.level, confidence_level=guarantee.confidence,
        rcps_bound=bound,
    )  # fmt: skip
    for pi, y in zip(scored.pi.split(AT_ONCE), scored.y.split(AT_ONCE), strict=True):
        controller.compute_risks(pi.numpy(), y.numpy().astype(int))
    risks = controller._risks

    def threshold(half: Tensor) -> Tensor:
        controller._risks = risks[half.numpy()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no threshold is valid
            controller.compute_best_predict_param()
        best = np.asarray(controller.best_predict_param, dtype=np.float64).ravel()[:1]
        none = torch.inf if guarantee.what == "precision" else -torch.inf
        return torch.nextafter(torch.from_numpy(best), torch.tensor(torch.inf).double()).nan_to_num(nan=none)

    return threshold


def measure(guarantee: Guarantee, threshold: Tensor, scored: Scored) -> dict[str, float | None]:
    """The level on samples, labels per sample, and the share of labels with a guarantee."""
    failed = threshold.isnan() | threshold.isinf()
    predicted, y = scored.pi >= threshold, scored.y == 1
    hits, size = predicted & y, y if guarantee.what == "recall" else predicted
    if guarantee.by == "samples":
        level = torch.where(size.any(1), hits.sum(1) / size.sum(1).clamp(min=1), 1.0).mean()
    elif guarantee.by == "micro":
        level = hits.sum() / size.sum() if size.any() else torch.tensor(1.0)
    else:
        level = (hits.sum(0) / size.sum(0))[~failed & size.any(0)].mean()  # of labels with samples and a guarantee
    sizes = predicted[:, ~failed] if guarantee.by == "label" else predicted
    return {
        "level": None if level.isnan() else round(float(level), 4),
        "size": round(float(sizes.sum(1).double().mean()), 4),
        "controlled": round(1 - float(failed.double().mean()), 4),
    }


def review(scored: Scored, by: By, half: Tensor) -> dict[str, float | None]:
    """Thresholds of a review from one half, measured on the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the samples do not suffice: nothing is accepted, or rejected
        thresholds = review_thresholds(scored.pi[half], scored.y[half], by=by, **REVIEW)
    return measure_review(thresholds, by, Scored(scored.pi[~half], scored.y[~half]))


def measure_review(thresholds: ReviewThresholds, by: By, scored: Scored) -> dict[str, float | None]:
    """The precision of what is accepted, the recall of what is not rejected; accepted and asked labels per sample."""
    accepted, asked, y = thresholds.accepted(scored.pi), thresholds.asked(scored.pi), scored.y == 1
    dims = (1,) if by == "samples" else (0, 1)

    def share(correct: Tensor, of: Tensor) -> float | None:
        mean = float((correct.sum(dims) / of.sum(dims)).nanmean())
        return None if math.isnan(mean) else round(mean, 4)

    return {
        "precision": share(accepted & y, accepted),
        "recall": share((accepted | asked) & y, y),
        "accepted": round(float(accepted.sum(1).double().mean()), 4),
        "asked": round(float(asked.sum(1).double().mean()), 4),
    }


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """The goals, a table per guarantee, and the figure."""
    trials = read_trials(results / "guarantees.jsonl", Run, notice).alike(notice)
    if not trials:
        return None
    records = {trial.run.dataset: trial.record for trial in trials}
    figure({name: levels(records, name) for name in GUARANTEES}, out / "guarantees.png")
    tables = {guarantee.title: _table(records, name, guarantee) for name, guarantee in GUARANTEES.items()}
    sizes = "; ".join(f"{escape(data)}: {r['rows']} samples, {r['labels']} labels" for data, r in records.items())
    text = paragraphs(
        "## Guaranteed recall and precision",
        f"""
            A logistic regression for each label is fitted on the training samples; the texts of GoEmotions are
            represented by TF-IDF. The test samples that have a label (of GoEmotions, dev and test samples) are split in
            half at random, {next(iter(trials)).run.resplits} times: one half sets the threshold, with
            `recall_threshold` or `precision_threshold`, the other half measures what was guaranteed. MAPIE
            (`MultiLabelClassificationController`, default settings, and for a confidence also with its Hoeffding bound)
            gets the same scores and the same halves; it has no guarantees for all entries or for each label. {sizes}.
        """,
        "![What was guaranteed and what was found](guarantees.png)",
        f"""
            A review (`review_thresholds`) sets two thresholds on the same halves: labels are accepted with a precision
            of {REVIEW["accept"]:g} and rejected with a recall of {REVIEW["reject"]:g}, together with confidence
            {REVIEW["confidence"]:g}; a person decides on the others.
        """,
        "### Goals",
        """
            "In expectation" is judged by the mean over resplits, with two standard errors. The resplits of a dataset
            share their samples, so the number of resplits below a level varies more than that of independent ones.
        """,
        claims_table(_goals(records), list(records)),
        *(part for title, table in tables.items() for part in (f"### {title.capitalize()}", table)),
        *(part for by in REVIEWED for part in (f"### {_review_title(by).capitalize()}", _review_table(records, by))),
    )
    title, table = next(iter(tables.items()))
    return Section(text, table.rich(f"{title}: mean over resplits"), [out / "guarantees.png"])


def _values(record: Record, name: str, method: str, field: str = "level") -> list[float]:
    return [value for value in record["guarantees"][name].get(method, {}).get(field, []) if value is not None]


def _mean(values: list[float], text: str) -> str:
    """The mean in a format; empty without values."""
    return text.format(statistics.fmean(values)) if values else ""


def _below(levels: list[float], guarantee: Guarantee) -> str:
    return _percent([level < guarantee.level for level in levels])


def _percent(values: Sequence[float]) -> str:
    return _mean(list(values), "{:.0%}").replace("%", " %")


def _table(records: dict[str, Record], name: str, guarantee: Guarantee) -> Table:
    """The mean level, the resplits below it, labels per sample, and the share of resplits, or labels, guaranteed."""
    cells: dict[str, Callable[[Record, str], str]] = {
        "mean level": lambda record, method: _mean(_values(record, name, method), "{:.3f}"),
        "resplits below": lambda record, method: _below(_values(record, name, method), guarantee),
        "labels per sample": lambda record, method: _mean(_values(record, name, method, "size"), "{:.2f}"),
        "can be guaranteed": lambda record, method: _percent(_values(record, name, method, "controlled")),
    }
    lines = [
        [f"{method}: {what}", *(cell(record, method) for record in records.values())]
        for method in METHODS
        for what, cell in cells.items()
        if any(_values(record, name, method) for record in records.values())
    ]
    return Table(["", *records], lines)


def _review_title(by: By) -> str:
    of = {"samples": "of a sample", "micro": "of all entries"}[by]
    return f"review {of}: precision {REVIEW['accept']:g}, recall {REVIEW['reject']:g}"


def _review_below(record: Record, by: By) -> list[bool]:
    """Whether the precision or the recall of each resplit is below its level."""
    pairs = zip(record["reviews"][by]["precision"], record["reviews"][by]["recall"], strict=True)
    return [(p is not None and p < REVIEW["accept"]) or r < REVIEW["reject"] for p, r in pairs]


def _review_table(records: dict[str, Record], by: By) -> Table:
    """Both levels, the resplits in which one of them is missed, and the labels per sample."""
    rows = {"precision of accepted labels": "precision", "recall after review": "recall"}
    sizes = {"accepted labels per sample": "accepted", "labels per sample to decide on": "asked"}

    def line(name: str, field: str, text: str) -> list[str]:
        found = [[v for v in record["reviews"][by][field] if v is not None] for record in records.values()]
        return [name, *(_mean(values, text) for values in found)]

    below = [_percent(_review_below(record, by)) for record in records.values()]
    return Table(
        ["", *records],
        [
            *(line(name, field, "{:.3f}") for name, field in rows.items()),
            ["resplits below", *below],
            *(line(name, field, "{:.2f}") for name, field in sizes.items()),
        ],
    )


def _goals(records: dict[str, Record]) -> list[Claim]:
    """That the level is reached, and that our sets are no larger than MAPIE's."""
    recall = {name: guarantee for name, guarantee in GUARANTEES.items() if guarantee.what == "recall"}
    return [
        *(_reached(records, name, guarantee) for name, guarantee in GUARANTEES.items()),
        *(_smaller(records, name, guarantee, peer) for name, guarantee in recall.items() for peer in guarantee.peers),
        *(_reviewed(records, by) for by in REVIEWED),
    ]


def _reached(records: dict[str, Record], name: str, guarantee: Guarantee) -> Claim:
    """In expectation: the mean is not below the level by more than two standard errors; else the share of resplits."""
    levels = [_values(record, name, OURS) for record in records.values()]
    if guarantee.confidence is None:
        text = f"{guarantee.title}: the mean is kept"
        numbers = [_mean(values, "{:.3f}") for values in levels]
        holds = [
            statistics.fmean(values) >= guarantee.level - 2 * _standard_error(values) for values in levels if values
        ]
    else:
        most = 1 - guarantee.confidence
        text = f"{guarantee.title}: below in at most {100 * most:.0f} % of resplits"
        numbers = [_below(values, guarantee) for values in levels]
        shares = [statistics.fmean(level < guarantee.level for level in values) for values in levels if values]
        holds = [share <= most + 1e-9 for share in shares]
    return Claim(text, numbers, all(holds) if holds else None)


def _reviewed(records: dict[str, Record], by: By) -> Claim:
    most = 1 - REVIEW["confidence"]
    below = [_review_below(record, by) for record in records.values()]
    text = f"{_review_title(by)}, with confidence {REVIEW['confidence']:g}"
    text += f": below in at most {100 * most:.0f} % of resplits"
    return Claim(text, [_percent(values) for values in below], all(statistics.fmean(v) <= most + 1e-9 for v in below))


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _smaller(records: dict[str, Record], name: str, guarantee: Guarantee, peer: str) -> Claim:
    sizes = [[_values(record, name, method, "size") for method in (OURS, peer)] for record in records.values()]
    ratios = [statistics.fmean(ours) / statistics.fmean(theirs) if ours and theirs else None for ours, theirs in sizes]
    existing = [ratio for ratio in ratios if ratio is not None]
    text = f"{guarantee.title}: sets are at most as large as those of {peer} (ratio)"
    numbers = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    return Claim(text, numbers, max(existing) <= 1 if existing else None)


def levels(records: dict[str, Record], name: str) -> dict[str, dict[str, list[float]]]:
    """The levels of the resplits with a guarantee, by dataset and method."""

    def guaranteed(splits: dict[str, Any]) -> list[float]:
        pairs = zip(splits.get("level", []), splits.get("controlled", []), strict=True)
        return [level for level, share in pairs if level is not None and share]

    return {
        dataset: {m: some for m in METHODS if (some := guaranteed(record["guarantees"][name].get(m, {})))}
        for dataset, record in records.items()
    }


def figure(by_guarantee: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], path: Path) -> None:
    """A panel for each guarantee: a box per dataset and method, whiskers from the 5th to the 95th percentile.

    Where nothing can be guaranteed, there is no box.
    """
    figure, rows = panels(len(by_guarantee), 1, width=10.0, height=2.5 * len(by_guarantee))
    for (axis,), (name, datasets) in zip(rows, by_guarantee.items(), strict=True):
        for i, methods in enumerate(datasets.values()):
            for j, (method, values) in enumerate(methods.items()):
                _box(axis, i + 0.26 * (j - (len(methods) - 1) / 2), values, METHODS[method])
        axis.set_xticks(range(len(datasets)), list(datasets), fontsize=8)
        axis.set_xlim(-0.5, len(datasets) - 0.5)
        axis.axhline(GUARANTEES[name].level, color="black", linewidth=1)
        axis.set_title(f"{GUARANTEES[name].title} (line: guaranteed)", fontsize=10, loc="left")
        tidy(axis)
    lines = [Line2D([], [], color=colour, linewidth=3) for colour in METHODS.values()]
    where: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3}
    rows[0][0].legend(lines, list(METHODS), fontsize=8, frameon=False, **where)
    save_figure(figure, path)


def _box(axis: Axes, x: float, values: Sequence[float], colour: str) -> None:
    mean = {"marker": "o", "markersize": 3, "markeredgecolor": colour, "markerfacecolor": colour}
    box = axis.boxplot([values], positions=[x], widths=0.22, whis=(5, 95), sym="", showmeans=True, meanprops=mean)
    for line in (*box["boxes"], *box["whiskers"], *box["caps"], *box["medians"]):
        line.set_color(colour)
