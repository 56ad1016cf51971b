"""The paper's Table 1 and Figure 3: multi-label image classification with a pretrained network, frozen or trained.

Each run has two protocols. ``selection_share=0`` is the paper's: train on all training images, and select epoch and
learning rate on val, which is also reported. Otherwise a random fraction of the training images is held out for
selection, and val is used only for the report. Here heads are trained on frozen features, in seconds;
``images_finetune`` trains the network, completely or in its last stages.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
import typer
from matplotlib.axes import Axes
from numpy.typing import NDArray
from rich.console import Console

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels import AVERAGES, EncoderModel
from rsoftmax.labels.models.card import count_of
from rsoftmax.labels.models.folders import LABELS, check_writable
from rsoftmax.labels.models.images import BadImageError
from rsoftmax_lab.comparison import (
    BEST_OF_OURS,
    LINE_STYLES,
    METHODS,
    ORACLES,
    OURS,
    PAPERS,
    PREDICTORS,
    SPARSE,
    Comparison,
    Data,
    LineStyle,
    Predictor,
    Samples,
    Training,
    check_method,
    classifier,
    train_and_score,
)
from rsoftmax_lab.data import features, images
from rsoftmax_lab.data.features import Backbone
from rsoftmax_lab.data.images import ImageSet, Splits
from rsoftmax_lab.records import Notice, Record, Trial, Trials, differences, key, read_trials
from rsoftmax_lab.report import (
    Claim,
    Mean,
    Section,
    Table,
    claims_table,
    escape,
    legend,
    panels,
    paragraphs,
    save_figure,
    settings_text,
    signed,
    tidy,
)
from rsoftmax_lab.sweep import Address, Engine, Jobs, Out, Quick, Seeds, Sweep

TITLES = {"voc": "VOC", "coco": "COCO"}
WAYS = {"frozen": "Frozen features", "last": "Trained last stages", "whole": "Fully trained network"}
LEARNING_RATES = (1e-3, 1e-4, 1e-5)
SHARES = (0.2, 0.0)  # held-out, and the paper's protocol
SOFTMAX = tuple(Predictor("softmax", f"p0={p0}") for p0 in (0.05, 0.1, 0.15, 0.2, 0.3))
PUBLISHED = dict(
    zip(
        (*SOFTMAX, *SPARSE, PAPERS),
        [(75.05, 71.38), (78.87, 72.29), (79.43, 69.22), (79.07, 64.88), (75.88, 54.76), (66.84, 52.30), (71.91, 65.67),
         (71.35, 64.85), (77.90, 72.56)],
        strict=True,
    )
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run(Training):
    """One method on one dataset.

    ``model`` and ``data`` identify the network and the images, so that runs on others are not mixed; ``pictures`` is
    the number of images of each split, 0 for all. ``finetune`` trains the network: its last ``train_last`` stages, or
    all of it if that is 0.
    """

    DATA = ("dataset",)
    VARIED = (*Training.VARIED, "lr", "selection_share")

    epochs: int = 100
    hidden: int = 0
    dataset: str = "voc"
    selection_share: float = SHARES[0]
    finetune: bool = False
    train_last: int = 0
    augment: bool = False
    pictures: int = 0  # the name of the field in saved records
    model: str = ""
    data: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset not in TITLES:
            raise ValueError(f"dataset must be one of {', '.join(TITLES)}, got {self.dataset!r}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"a learning rate must be above 0, got {self.lr}")

    @property
    def point(self) -> str:
        """The data of the comparison."""
        return self.dataset

    @property
    def way(self) -> str:
        """One of ``WAYS``: frozen network, trained last stages, or fully trained network."""
        return "frozen" if not self.finetune else "last" if self.train_last else "whole"


def main(
    context: typer.Context,
    data: Annotated[str, typer.Option(help="The folder of the dataset, or a hub id.")],
    model: Annotated[str, typer.Option(help="A pretrained network: a folder or hub id.")],
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune/--frozen",
            help="Train the whole network, as in the paper, or only heads on frozen features.",
        ),
    ] = False,
    train_last: Annotated[
        int,
        typer.Option(
            min=0,
            help="Fine-tune the head and the last N stages of the network. The outputs of the stages before are cached"
            " in float16: before the last stage of a ResNet-50, 0.4 MB per image of 224 x 224, and as much for each"
            " flipped training image with --augment. 0: no stage, or all with --finetune.",
        ),
    ] = 0,
    only: Annotated[list[str] | None, typer.Option(help="A method to run; repeatable. Default: all.")] = None,
    lr: Annotated[
        list[float] | None,
        typer.Option(help="A learning rate; repeatable. Default, as in the paper: 1e-3, 1e-4, 1e-5."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="The number of epochs.")] = 100,
    share: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=0.9,
            help="The fraction of training images held out to select epoch and learning rate; 0 selects on val, as in"
            " the paper; repeatable. Default: 0.2 and 0.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="The batch size. Default: 128, or 32 in fine-tuning.")
    ] = None,
    images: Annotated[
        int, typer.Option(min=0, help="The number of images of each split, always the same ones; 0 for all.")
    ] = 0,
    augment: Annotated[
        bool,
        typer.Option("--augment", help="Random crops and flips in fine-tuning; with --train-last, only flips."),
    ] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be opened.")] = False,
    cache: Annotated[Path | None, typer.Option(help="The folder of cached features. Default: OUT/features.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Save a model in this folder, for `rsoftmax predict`: of its best epoch, or after fine-tuning."
        ),
    ] = None,
    save_method: Annotated[str, typer.Option(help="The method of the saved model.")] = "r_softmax_expected_f1",
    seeds: Seeds = 3, quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local",
    address: Address = None,
) -> Path:  # fmt: skip
    """Do the runs on the dataset that the command is named after."""
    dataset = str(context.info_name)
    sweep = Sweep(quick, out, jobs, engine, address)
    tunes = finetune or train_last > 0
    if augment and not tunes:
        hint = "--frozen processes each image once; use --finetune or --train-last"
        raise typer.BadParameter(hint, param_hint="--augment")
    methods = list(dict.fromkeys([*only, *([save_method] if save else [])])) if only else list(METHODS)
    try:  # everything is validated before the first run
        for method in (*methods, save_method):
            check_method(method, METHODS)
        if save is not None:
            check_writable(save, LABELS)
        splits, backbone = _read(dataset, data).subset(images), Backbone.load(model)
        way = prepare(
            backbone, splits, sweep.folder, finetune=tunes, train_last=train_last, augment=augment, cache=cache,
            skip_bad=skip_bad, jobs=jobs,
        )  # fmt: skip
        runs = (quick_grid if quick else grid)(
            methods, seeds=seeds, learning_rates=lr, shares=share, epochs=epochs,
            batch_size=batch_size or (32 if tunes else 128), dataset=dataset, finetune=tunes, train_last=train_last,
            augment=augment, pictures=images, model=backbone.name, data=fingerprint(backbone, way.splits),
        )  # fmt: skip
        check(way.splits, runs)
    except BadImageError as error:
        raise typer.BadParameter(f"{error}; pass --skip-bad to skip it", param_hint="--data") from None
    except (OSError, ValueError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    (sweep.on_device() if tunes else sweep).do(dataset, runs, way.run)
    if save is not None:
        with usage_errors("--save"):
            run, epoch = best_run(sweep.folder / f"{dataset}.jsonl", [run for run in runs if run.method == save_method])
            way.save(run, epoch, save)
        typer.echo(f"wrote {save}: {METHODS[save_method].title}, lr {run.lr:g}")
    return sweep.folder


_read = images.read  # `images` is an option of the command


def grid(
    methods: Sequence[str] = tuple(METHODS),
    seeds: int = 3,
    learning_rates: Sequence[float] | None = None,
    shares: Sequence[float] | None = None,
    **settings: Any,
) -> list[Run]:
    """Table 1: every method with both protocols."""
    return [
        Run(method=method, seed=seed, lr=lr, selection_share=share, **settings)
        for seed in range(seeds)
        for share in shares or SHARES
        for lr in learning_rates or LEARNING_RATES
        for method in methods
    ]


def quick_grid(
    methods: Sequence[str] = tuple(METHODS),
    learning_rates: Sequence[float] | None = None,
    shares: Sequence[float] | None = None,
    **settings: Any,
) -> list[Run]:
    """A grid with one seed, and one learning rate and one protocol by default."""
    few = {"seeds": 1, "learning_rates": learning_rates or LEARNING_RATES[:1], "shares": shares or SHARES[:1]}
    return grid(methods, **settings | few)


def fingerprint(backbone: Backbone, splits: Splits) -> str:
    """A hash of the network, the images and their labels."""
    digest = hashlib.sha256(backbone.fingerprint().encode())
    for split in (splits.train, splits.val):
        digest.update(split.fingerprint().encode() + split.labels.tobytes() + split.ignored.tobytes())
    return digest.hexdigest()[:12]


def hold_out(n: int, run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of the training images and of the held-out images."""
    order = np.random.default_rng(run.seed).permutation(n)
    held_out = round(run.selection_share * n)
    return order[held_out:], order[:held_out]


def check(splits: Splits, runs: Iterable[Run]) -> None:
    """Reject data that no run can use."""
    if len(splits.classes) < 2:
        raise ValueError(f"a dataset needs at least two classes, got {', '.join(splits.classes)}")
    if not len(splits.val):
        raise ValueError("no image of val can be used")
    for run in {run.selection_share: run for run in runs}.values():
        train, held_out = hold_out(len(splits.train), run)
        if not len(train) or (run.selection_share and not len(held_out)):
            few = f"{len(splits.train)} training images are too few with a fraction of {run.selection_share} held out"
            raise ValueError(f"{few}; take more, or --share 0")


class Way(Protocol):
    """A way of training, with a loaded network and data."""

    @property
    def splits(self) -> Splits:
        """The images that can be opened."""

    def run(self, run: Run) -> Record:
        """Train and score."""

    def save(self, run: Run, epoch: int, folder: Path) -> None:
        """Save the model of a run with its best epoch."""


def prepare(
    backbone: Backbone,
    splits: Splits,
    out: Path,
    *,
    finetune: bool = False,
    train_last: int = 0,
    augment: bool = False,
    cache: Path | None = None,
    skip_bad: bool = False,
    jobs: int | None = None,
) -> Way:
    """Check that all images can be opened, and compute the outputs of the frozen part once.

    Args:
        backbone: the network.
        splits: the images.
        out: the folder of results, with checkpoints and cached features.
        finetune: whether the network is trained; otherwise its features are computed.
        train_last: the number of trained last stages, whose inputs are computed once; 0 for the whole network.
        augment: whether to compute flipped images as well.
        cache: another folder for the cache.
        skip_bad: skip images that cannot be opened; otherwise the first one raises BadImageError.
        jobs: the number of processes that compute features.
    """
    from rsoftmax_lab.experiments.images_finetune import Finetuning

    console = Console(soft_wrap=True)
    cache = (cache or out / "features").resolve()
    if not finetune:
        return Frozen.of(backbone, splits, cache, skip_bad, jobs, console)
    if train_last:
        features.check_stages(backbone.network, train_last)
    whole = Finetuning.of(backbone.source, out / "finetune", splits, skip_bad, console)
    return whole.of_last(backbone, train_last, cache, augment, jobs, console) if train_last else whole


def report_bad(bad: list[str], total: int, console: Console) -> None:
    """Print the number of skipped images and the first few errors."""
    if bad:
        console.print(f"skipped {len(bad)} of {total} images", *bad[:5], sep="\n  ", markup=False, highlight=False)


class FrozenSplit(NamedTuple):
    """A split with its file of features, without images that cannot be opened."""

    file: Path
    images: ImageSet


@dataclass(frozen=True)
class Frozen:
    """A frozen network and its features.

    Attributes:
        model: the network's folder or hub id.
        classes: the labels' names.
        train: the training split.
        val: the evaluation split.
    """

    model: str
    classes: list[str]
    train: FrozenSplit
    val: FrozenSplit

    @classmethod
    def of(
        cls, backbone: Backbone, splits: Splits, cache: Path, skip_bad: bool, jobs: int | None, console: Console
    ) -> "Frozen":
        """Compute the features unless they are cached."""

        def split(images: ImageSet) -> FrozenSplit:
            file = features.extract(backbone, images, cache, skip_bad=skip_bad, jobs=jobs, console=console)
            _, index, bad = features.load(file)
            report_bad(bad, len(images), console)
            return FrozenSplit(file, images.take(index))

        return cls(backbone.source, splits.classes, split(splits.train), split(splits.val))

    @property
    def splits(self) -> Splits:
        """The images with features."""
        return Splits(self.classes, self.train.images, self.val.images)

    def run(self, run: Run) -> Record:
        """Train a head and score it."""
        return train_and_score(run, self.data(run), curves=not run.selection_share)

    def data(self, run: Run) -> Data:
        """The samples of a run, with unscaled features, as a head sees them on top of the network."""
        images, val = self.train.images, self.val.images
        train, held_out = hold_out(len(images), run)
        X = _features(self.train.file)
        test = Samples(_features(self.val.file), val.labels, val.ignored)
        validation = Samples(X[held_out], images.labels[held_out], images.ignored[held_out])
        return Data(Samples(X[train], images.labels[train]), validation if run.selection_share else test, test)

    def save(self, run: Run, epoch: int, folder: Path) -> None:
        """Retrain a head on all training images, and save it with its network as one model."""
        run = replace(run, selection_share=0.0)
        model, train = classifier(run), self.data(run).train
        for _ in range(epoch):
            model.partial_fit(train.X, train.Y)
        whole = EncoderModel.from_encoder(self.model, self.classes, "samples", **METHODS[run.method].head)
        whole.network.head.load_state_dict(model.estimators_[0].head.state_dict())
        whole.save_pretrained(folder)


@lru_cache(maxsize=2)  # consecutive runs use the same data
def _features(file: Path) -> NDArray[np.float32]:
    return features.load(file).X


# ---------------------------------------------------------------------------------------------- results


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

    @property
    def points(self) -> list[str]:
        """The datasets."""
        return [point for point in TITLES if point in self.paper.records or point in self.held_out.records]


def table1(results: Path, notice: Notice, ways: Iterable[str] = WAYS) -> dict[str, Table1]:
    """The results in a folder by way of training; ways without runs are omitted."""
    trials = {name: read_trials(results / f"{name}.jsonl", Run, notice) for name in TITLES}
    tables = {}
    for way in ways:
        table = Table1({}, {}, Comparison({}, {}), Comparison({}, {}))
        for name, some in trials.items():
            alike = some.where(lambda run: run.way == way).alike(notice)  # noqa: B023
            if alike:
                _add(table, name, alike, notice)
        if table.settings:
            tables[way] = table
    return tables


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


def _better(record: Record | None, trial: Trial[Run]) -> Record:
    """Merge two records of a method with different learning rates: for each rule, the better one on validation."""
    rules = {name: rule | {"lr": trial.run.lr} for name, rule in trial.record["rules"].items()}
    for name, rule in (record["rules"] if record else {}).items():
        if name not in rules or rule["validation"]["micro"] >= rules[name]["validation"]["micro"]:
            rules[name] = rule
    return trial.record | {"rules": rules}


def best_run(path: Path, runs: Iterable[Run]) -> tuple[Run, int]:
    """The best run of a method with the first seed, with held-out selection if available, and its best epoch."""
    first = [run for run in runs if run.seed == 0]
    named = {key(differences(run)): run for run in [run for run in first if run.selection_share] or first}
    done = {key(differences(trial.run)): trial.record["rules"] for trial in read_trials(path, Run, print)}
    rule = "labels" if "labels" in METHODS[first[0].method].rules else "tuned"
    scored = {name: done[name][rule] for name in named if rule in done.get(name, {})}  # ties: the first in the grid
    if not scored:
        raise ValueError(f"{path} has no scores of {first[0].method} with the rule {rule!r} to select a model")
    best = max(scored, key=lambda name: float(scored[name]["validation"]["micro"]))
    return named[best], int(scored[best]["epoch"])


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """Table 1 next to the paper's numbers, claims, learning curves, and the other ways of training."""
    tables = table1(results, notice)
    if not tables:
        return None
    way, shown = next(iter(tables.items()))
    curves = {other: _figure(found, out / f"figure3{'' if other == way else f'-{other}'}.png")
              for other, found in tables.items()}  # fmt: skip
    table = published(_columns(shown))
    text = paragraphs(
        "## Table 1 and Figure 3: images",
        f"{WAYS[way]}. {_datasets(shown)}.",
        """
            *The paper's protocol*: train on all training images; select epoch and learning rate on val, which is
            also reported. *Held out*: both are selected on a random held-out fraction of the training images, and
            val is used only for the report. VOC's "difficult" labels are excluded from the scores. The paper trains
            whole networks (ResNet-18 on VOC, ResNet-101 on COCO, complete datasets) and does not state its kind of
            F1: compare the order of the rows, not the absolute numbers.
        """,
        table,
        "### Claims",
        claims_table(claims(shown), [TITLES[point] for point in shown.points]),
        *_curves_text(curves[way]),
        "### After the last epoch, with only the learning rate selected",
        _scores(shown.held_out, PREDICTORS, "test_last"),
        *(
            part
            for average in AVERAGES[1:]
            for part in (f"### Held out, {average} average", _scores(shown.held_out, PREDICTORS, "test", average))
        ),
        "### With the true number of labels given",
        _scores(shown.held_out, ORACLES, "test"),
        "### Settings selected on held-out images",
        _learning_rates(shown.held_out),
        *(part for other in tables if other != way for part in _other_way(other, tables[other], curves[other])),
    )
    return Section(text, table.rich("Table 1: micro-F1"), [path for paths in curves.values() for path in paths])


def _curves_text(curves: list[Path]) -> list[str]:
    if not curves:
        return []
    text = "On val, with the paper's protocol; mean over seeds, each at its best learning rate."
    return ["### Figure 3: learning curves", text, f"![Figure 3]({curves[0].name})"]


def _other_way(way: str, found: Table1, curves: list[Path]) -> list[object]:
    """The subsection on another way of training."""
    trained = "The head and all weights of the network are trained."
    if way == "last":
        trained = """
            The head and the last `train_last` stages of the network are trained. The outputs of the frozen stages are
            computed once and cached in float16; with `augment`, images are flipped with probability one half.
        """
    last = '"After the last epoch" means that no epoch is selected.' if curves else ""
    columns = [*_columns(found), Column("after the last epoch", found.paper, "test_last")]
    leads = published_leads(columns)
    figure = (
        ["Micro-F1 on val after each epoch, mean over seeds:", f"![{WAYS[way]}]({curves[0].name})"] if curves else []
    )
    return [
        f"### {WAYS[way]}",
        f"{_datasets(found)}.",
        f"{' '.join(trained.split())} Batch normalization keeps its pretrained statistics; its scales and shifts are"
        f" trained in the trained stages. {last}",
        published(columns),
        leads if leads.lines else "",
        *figure,
        _learning_rates(found.paper if found.paper.records else found.held_out),
    ]


def _datasets(table: Table1) -> str:
    """The settings of the runs on each dataset."""
    lines = []
    for point, settings in table.settings.items():
        seeds = {seed for comparison in (table.paper, table.held_out) for seed in comparison.records.get(point, {})}
        share = f"{100 * table.shares[point]:g} % held out" if table.shares[point] else "nothing held out"
        parts = [f"{TITLES[point]}: {count_of(len(seeds), 'seed')}", share, escape(settings_text(settings))]
        lines.append(", ".join(part for part in parts if part))
    return "; ".join(lines)


def claims(found: Table1) -> list[Claim]:
    """The paper's claims about Table 1 and our goals, with a number for each dataset."""

    def claim(text: str, comparison: Comparison, one: Predictor, rivals: Sequence[Predictor], split: str,
              voc_least: float = 0.0) -> Claim:  # fmt: skip
        leads = {point: comparison.lead(one, rivals, [point], split) for point in found.points}
        least = {"voc": voc_least, "coco": 0.0}
        holds = [lead.value >= least[point] for point, lead in leads.items() if lead is not None]
        return Claim(text, list(map(signed, leads.values())), all(holds) if 0 < len(holds) == len(leads) else None)

    others = [predictor for predictor in PREDICTORS if predictor not in OURS]
    return [
        claim("Paper: r-softmax is above the other sparse mappings. Here, the paper's protocol: its lead over the best",
              found.paper, PAPERS, SPARSE, "validation"),
        claim("The same, selected on held-out training images", found.held_out, PAPERS, SPARSE, "test"),
        claim("Paper: it is within 1.5 of the best softmax threshold on VOC, and above it on COCO. Here, the paper's"
              " protocol: its lead over the best", found.paper, PAPERS, SOFTMAX, "validation", -1.5),
        claim("The same, selected on held-out training images", found.held_out, PAPERS, SOFTMAX, "test", -1.5),
        *(claim(f"Ours: {one.title} is at or above the best softmax threshold. Here, held out: its lead",
                found.held_out, one, SOFTMAX, "test") for one in OURS),
        claim(f"Ours: {BEST_OF_OURS.title} is at or above all others, including tuned thresholds. Here, held out:"
              " its lead", found.held_out, BEST_OF_OURS, others, "test"),
    ]  # fmt: skip


class Column(NamedTuple):
    """A column of our numbers: the runs, and the split that they are scored on."""

    title: str
    comparison: Comparison
    split: str


def _columns(found: Table1) -> list[Column]:
    return [Column("here, its protocol", found.paper, "validation"), Column("here, held out", found.held_out, "test")]


class Line(NamedTuple):
    """A line of a table: the paper's number for each dataset, if any, and a function for ours."""

    name: str
    published: Sequence[float] | None
    ours: Callable[[Comparison, str, str], Mean | None]


def published(columns: Sequence[Column]) -> Table:
    """Micro-F1 scores, starting with the paper's methods, next to the paper's numbers."""

    def line(predictor: Predictor) -> Line:
        ours = lambda comparison, point, split: comparison.mean(predictor, [point], split)  # noqa: E731
        return Line(predictor.name, PUBLISHED.get(predictor), ours)

    others = [predictor for predictor in PREDICTORS if predictor not in PUBLISHED]
    return _beside_paper("micro-F1", columns, [line(predictor) for predictor in (*PUBLISHED, *others)])


def published_leads(columns: Sequence[Column]) -> Table:
    """The leads of the paper's method over its rivals, and of our best method over softmax."""

    def line(one: Predictor, rivals: Sequence[Predictor], what: str) -> Line:
        ours = lambda comparison, point, split: comparison.lead(one, rivals, [point], split)  # noqa: E731
        paper = None
        if one in PUBLISHED:
            paper = [mine - max(theirs) for mine, *theirs in zip(*(PUBLISHED[p] for p in (one, *rivals)), strict=True)]
        return Line(f"{one.name}, lead over {what}", paper, ours)

    lines = [
        line(PAPERS, SPARSE, "the best other sparse mapping"),
        line(PAPERS, SOFTMAX, "the best softmax threshold"),
        line(BEST_OF_OURS, SOFTMAX, "the best softmax threshold"),
    ]
    return _beside_paper("lead in micro-F1", columns, lines)


def _beside_paper(heading: str, columns: Sequence[Column], lines: Sequence[Line]) -> Table:
    """The columns that have runs, and the lines that have numbers."""
    header, cells, some = [heading], [[line.name] for line in lines], set()
    for i, (point, title) in enumerate(TITLES.items()):
        ours = [column for column in columns if point in column.comparison.records]
        if ours:
            header += [f"{title}: paper", *(column.title for column in ours)]
            for number, line in enumerate(lines):
                means = [line.ours(column.comparison, point, column.split) for column in ours]
                cells[number] += [f"{line.published[i]:.2f}" if line.published else "", *(str(m or "") for m in means)]
                some |= {number} if any(means) else set()
    return Table(header, [cells[number] for number in sorted(some)])


def _scores(comparison: Comparison, predictors: Iterable[Predictor], split: str, average: str = "micro") -> Table:
    groups = {title: [point] for point, title in TITLES.items() if point in comparison.records}
    return comparison.table(predictors, groups, split, average)


def _learning_rates(comparison: Comparison) -> Table:
    """The selected learning rate and epoch of each seed."""
    points = [point for point in TITLES if point in comparison.records]

    def cell(point: str, one: Predictor) -> str:
        records = [methods[one.method] for methods in comparison.records[point].values() if one.method in methods]
        rules = [record["rules"][one.rule] for record in records if one.rule in record["rules"]]
        return ", ".join(f"{rule['lr']:g} ({rule['epoch']})" for rule in rules)

    predictors = [SOFTMAX[1], *SPARSE, PAPERS, *OURS, Predictor("bce"), Predictor("zlpr")]
    lines = [[one.name, *(cell(point, one) for point in points)] for one in predictors]
    return Table(
        ["learning rate (epoch)", *(TITLES[point] for point in points)], [line for line in lines if any(line[1:])]
    )


CURVES = {one: line for one, line in LINE_STYLES.items() if one.method != "softmax"} | {
    Predictor("softmax", f"p0={p0}"): LineStyle(grey, style, "4")  # darker for higher thresholds
    for p0, grey, style in (
        (0.05, "0.75", "-"), (0.1, "0.65", "--"), (0.15, "0.5", "-"), (0.2, "0.35", "--"), (0.3, "0.15", ":")
    )
}  # fmt: skip


def _figure(found: Table1, path: Path) -> list[Path]:
    """F1 on val after each epoch, a panel for each dataset: means over seeds, each at its best learning rate.

    Returns the file; none if all runs select on held-out images.
    """
    titles = {point: title for point, title in TITLES.items() if point in found.paper.records}
    if not titles:
        return []
    figure, (axes,) = panels(1, len(titles), width=6.2, height=5.4)
    for axis, (point, title) in zip(axes, titles.items(), strict=True):
        _panel(axis, list(found.paper.records[point].values()))
        axis.set_title(title, fontsize=11)
    axes[0].set_ylabel("micro-F1 on val", fontsize=9)
    legend(figure, axes, columns=2 * len(titles))
    save_figure(figure, path)
    return [path]


def _panel(axis: Axes, seeds: list[dict[str, Any]]) -> None:
    highest = 0.0
    for one, line in CURVES.items():
        rules = [methods[one.method]["rules"].get(one.rule, {}) for methods in seeds if one.method in methods]
        curves = [rule["curve"] for rule in rules if rule.get("curve")]
        longest = [curve for curve in curves if len(curve) == max(map(len, curves))]
        if longest:
            mean = np.mean(longest, axis=0)
            highest = max(highest, mean.max())
            style: dict[str, Any] = {"color": line.color, "linewidth": line.width, "label": one.legend}
            axis.plot(range(1, len(mean) + 1), mean, line.style, **style)
    axis.set_xlabel("epoch", fontsize=9)
    axis.set_ylim(0.45 * highest, 1.03 * highest)
    tidy(axis)
