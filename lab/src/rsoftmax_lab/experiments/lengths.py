"""Attention trained on short contexts, tested on contexts up to 256 times as long; only mapping and scale differ.

Not part of the paper. Softmax disperses as the context grows; the question is whether exact zeros prevent that, and how
much of it a scale that grows with log n (SSMax; Nakanishi 2025) does by itself. The last method, ASEntmax (Vasylenko et
al. 2025), learns delta + beta log(n)^gamma. One attention layer with one head and
no positions, so that nothing but attention sees the length. Tasks: the class of the item with the highest priority
(Veličković et al., 2024), associative recall among distractors that match by half, and the mean of marked items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Generator, Tensor, nn

import rsoftmax
from rsoftmax.attention import MultiheadAttention
from rsoftmax.cli.arguments import usage_errors
from rsoftmax_lab.records import BaseRun, Notice, Record, Trial, Trials, number, positive, read_trials, share
from rsoftmax_lab.report import (
    Mean,
    Section,
    Table,
    best_in_bold,
    escape,
    legend,
    panels,
    paragraphs,
    save_figure,
    tidy,
)
from rsoftmax_lab.sweep import Address, Engine, Jobs, Out, Quick, Seeds, Sweep

MAPPINGS = {  # with their colours
    "softmax": "#555555",
    "r_softmax": "#1d4e89",
    "t_softmax": "#c1121f",
    "entmax15": "#2d8659",
    "sparsemax": "#6fa8dc",
    "k_softmax": "#f08a24",
    "lapsum": "#7b4ea3",
}
SCALES = (None, "log n", "adaptive")
METHODS = [*product(MAPPINGS, SCALES[:2]), ("entmax15", "adaptive")]  # the last one is ASEntmax
TIMES = (1, 4, 16, 64, 256)  # the length in tests, as a multiple of the longest in training
QUICK = ("recall",)
KEYS = 256  # values of the first and of the second part of a key
MARKED = 8  # items that a question may mark, at most
TOLERANCE = 0.1  # within which a mean is correct


class Task(NamedTuple):
    """A task, and how it is trained.

    Attributes:
        title: its name in tables and figures.
        classes: the number of classes of an item; 0: items have a real value.
        shortest, longest: the number of items in training.
        sets: the number of sets in a batch.
        questions: about each set.
        steps: of training.
        k: the parameter of k-softmax.
    """

    title: str
    classes: int
    shortest: int
    longest: int
    sets: int
    questions: int
    steps: int
    k: int


TASKS = {
    "max": Task("max retrieval", 10, 5, 16, 128, 1, 2000, 3),
    "recall": Task("associative recall", 32, 8, 32, 32, 16, 1000, 3),
    "mean": Task("mean of marked items", 0, 32, 64, 64, 4, 700, MARKED),
}


@dataclass(frozen=True)
class Run(BaseRun):
    """One training.

    Attributes:
        mapping: r_softmax has r = 0.5, t_softmax a learned t that starts at 4, k_softmax and lapsum the task's k.
        scale: "log n" for a learned factor of log n; "adaptive" for a learned delta + beta log(n)^gamma.
        steps: of training; None: the task's.
        times: the longest length in tests, as a multiple of the longest in training.
    """

    DATA = ("task",)
    VARIED = ("mapping", "scale", "seed")
    SCHEMA: ClassVar = {
        "accuracy": [share], "nonzeros": [positive], "learned": [number], "version": str, "kernels": str
    }  # fmt: skip

    task: str
    mapping: str = "softmax"
    scale: str | None = None
    seed: int = 0
    steps: int | None = None
    times: int = 256
    width: int = 64
    lr: float = 2e-3
    parameter_lr: float = 1e-2
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        for name, values in (("task", TASKS), ("mapping", MAPPINGS), ("scale", SCALES)):
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be one of {', '.join(map(str, values))}, got {getattr(self, name)!r}")


def main(
    task: Annotated[list[str] | None, typer.Option(help="max, recall or mean; repeatable.")] = None,
    seeds: Seeds = 5, quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local",
    address: Address = None,
) -> Path:  # fmt: skip
    """Train and test with every mapping, with and without the scale."""
    with usage_errors("--task"):
        runs = grid(task or QUICK, 1) if quick else grid(task or [*TASKS], seeds)
    return Sweep(quick, out, jobs, engine, address).do("lengths", runs, run)


def grid(tasks: Sequence[str] = tuple(TASKS), seeds: int = 5, **settings: Any) -> list[Run]:
    """Every mapping with and without the scale, and ASEntmax."""
    return [Run(task, *method, seed, **settings) for seed in range(seeds) for task in tasks for method in METHODS]


def run(run: Run) -> Record:
    """Train on short sets, test on long ones."""
    torch.manual_seed(run.seed)
    model = Model(run)
    train(model, run)
    lengths = [TASKS[run.task].longest * times for times in TIMES if times <= run.times]
    tests = {str(n): measure(model, run.task, n) for n in lengths}
    names = {"log n": ("s",), "adaptive": ("delta", "beta", "gamma")}.get(run.scale or "", ())
    learned = {"t": getattr(model.attention.mapping, "t", None)}
    if model.attention.log_scale is not None:
        learned |= dict(zip(names, model.attention.log_scale, strict=True))
    return {
        "accuracy": {n: round(accuracy, 5) for n, (accuracy, _) in tests.items()},
        "nonzeros": {n: round(nonzeros, 3) for n, (_, nonzeros) in tests.items()},
        "learned": {name: round(value.item(), 4) for name, value in learned.items() if value is not None},
        "version": rsoftmax.__version__,
        "kernels": rsoftmax.kernels.cpu_kernels(),
    }


class Model(nn.Module):
    """Embeddings, one attention layer from questions to items, and a head."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        task, width = TASKS[run.task], run.width
        parameters: dict[str, dict[str, Any]] = {
            "r_softmax": {"r": 0.5},
            "t_softmax": {"t": torch.tensor([4.0]), "learnable": True},
            "k_softmax": {"k": task.k},
            "lapsum": {"k": float(task.k)},
        }
        log_n_scale = {None: False, "log n": True}.get(run.scale, run.scale)
        options: dict[str, Any] = {"mapping": run.mapping, "log_n_scale": log_n_scale}
        self.key: nn.Module = nn.Linear(1, width) if run.task == "max" else nn.Embedding(2 * KEYS, width)
        self.value: nn.Module = nn.Embedding(task.classes, width) if task.classes else nn.Linear(1, width)
        self.item, self.question, self.head = (
            nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, size))
            for size in (width, width, task.classes or 1)
        )
        self.attention = MultiheadAttention(
            width, 1, bias=False, batch_first=True, **options, **parameters.get(run.mapping, {})
        )
        self.total = task.k if run.mapping == "lapsum" else 1

    def forward(self, batch: "Batch", need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """The predictions, and the weights [sets, questions, items] if needed."""
        question, key = self._embed(batch.questions), self._embed(batch.keys) + self.value(batch.values)
        question, key = question + self.question(question), key + self.item(key)
        output, weights = self.attention(question, key, key, need_weights=need_weights)
        return self.head(output / self.total), weights  # linear in the weights, which then sum to one

    def _embed(self, keys: Tensor) -> Tensor:
        embedded: Tensor = self.key(keys)
        return embedded if keys.is_floating_point() else embedded.sum(-2)


def train(model: Model, run: Run) -> None:
    """AdamW with one cycle of the learning rate; t and the scale have a learning rate of their own."""
    task, generator = TASKS[run.task], Generator().manual_seed(run.seed + 1000)
    special = [p for name, p in model.attention.named_parameters() if name in ("mapping.raw_value", "log_scale")]
    rest = [p for p in model.parameters() if all(p is not one for one in special)]
    groups = [{"params": rest, "weight_decay": run.weight_decay}]
    groups += [{"params": special, "lr": run.parameter_lr, "weight_decay": 0.0}] if special else []
    optimizer, steps = torch.optim.AdamW(groups, run.lr, fused=True), run.steps or task.steps
    rates = [run.lr, run.parameter_lr][: len(groups)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=0.1)
    for _ in range(steps):
        n = int(torch.randint(task.shortest, task.longest + 1, (), generator=generator))
        batch = DRAW[run.task](task.sets, n, task.questions, generator)
        output, _ = model(batch)
        if task.classes:
            loss = F.cross_entropy(output.flatten(0, 1), batch.targets.flatten())
        else:
            loss = F.mse_loss(output, batch.targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def measure(model: Model, name: str, n: int, batches: int = 4, items: int = 16384) -> tuple[float, float]:
    """The share of correct outputs on sets of n items, and the mean number of non-zero weights."""
    task, generator = TASKS[name], Generator().manual_seed(7)  # all runs share the test sets
    sets, questions = min(64, max(4, items // n)), 4 * task.questions
    if name == "max":
        sets, questions = min(128, 16 * items // n), 1
    elif name == "mean":
        questions = min(questions, task.longest // MARKED)  # each may mark eight items
    correct, nonzeros = 0.0, 0.0
    for _ in range(batches):
        batch = DRAW[name](sets, n, questions, generator)
        output, weights = model(batch, need_weights=True)
        assert weights is not None
        near = (output - batch.targets).abs() < TOLERANCE if not task.classes else output.argmax(-1) == batch.targets
        correct += near.float().mean().item()
        nonzeros += (weights > 0).float().sum(-1).mean().item()
    return correct / batches, nonzeros / batches


# ---------------------------------------------------------------------------------------------- the tasks


class Batch(NamedTuple):
    """Sets of n items with questions.

    Attributes:
        keys: by which items are retrieved, [sets, n, parts].
        values: what is asked for: classes [sets, n], or numbers [sets, n, 1].
        questions: what to look for, [sets, questions, parts].
        targets: classes [sets, questions], or numbers [sets, questions, 1].
    """

    keys: Tensor
    values: Tensor
    questions: Tensor
    targets: Tensor


def max_retrieval(sets: int, n: int, questions: int, generator: Generator) -> Batch:
    """The class of the item with the highest priority; the question contains no information."""
    priorities = torch.rand(sets, n, 1, generator=generator)
    classes = torch.randint(TASKS["max"].classes, (sets, n), generator=generator)
    question = torch.rand(sets, questions, 1, generator=generator)
    return Batch(priorities, classes, question, classes.gather(1, priorities.argmax(1).expand(-1, questions)))


def recall(sets: int, n: int, questions: int, generator: Generator) -> Batch:
    """The class of the item with a key of two parts; many items share one of the parts."""
    starts = torch.randint(KEYS**2, (sets, 1), generator=generator)
    pairs = torch.randperm(KEYS**2, generator=generator)[(starts + torch.arange(n)) % KEYS**2]
    keys = torch.stack([pairs // KEYS, KEYS + pairs % KEYS], -1)
    classes = torch.randint(TASKS["recall"].classes, (sets, n), generator=generator)
    asked = torch.randint(n, (sets, questions), generator=generator)
    return Batch(keys, classes, keys.gather(1, asked[..., None].expand(-1, -1, 2)), classes.gather(1, asked))


def marked_mean(sets: int, n: int, questions: int, generator: Generator) -> Batch:
    """The mean value of the items with the key in question, one to eight of them."""
    first = torch.randint(2 * KEYS, (sets, 1), generator=generator)
    count = torch.randint(1, MARKED + 1, (sets, questions, 1), generator=generator)
    question = (first + torch.arange(questions)) % (2 * KEYS)
    keys = (first + torch.randint(questions, 2 * KEYS, (sets, n), generator=generator)) % (2 * KEYS)
    marked = torch.arange(MARKED) < count
    end = MARKED * questions  # the first items: attention without positions does not see their order
    keys[:, :end] = torch.where(marked.flatten(1), question.repeat_interleave(MARKED, -1), keys[:, :end])
    values = 2 * torch.rand(sets, n, 1, generator=generator) - 1
    mean = (values[:, :end].view(sets, questions, MARKED) * marked).sum(-1, keepdim=True) / count
    return Batch(keys[..., None], values, question[..., None], mean)


DRAW = {"max": max_retrieval, "recall": recall, "mean": marked_mean}


# ---------------------------------------------------------------------------------------------- the report

Curves = dict[tuple[str, str | None], dict[int, Mean]]
"""By mapping and scale, a mean over seeds for each length."""


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """Accuracy and non-zero weights by length, and a figure."""
    trials = read_trials(results / "lengths.jsonl", Run, notice).alike(notice)
    if not trials:
        return None
    by_task = {task: [trial for trial in trials if trial.run.task == task] for task in TASKS}
    by_task = {task: some for task, some in by_task.items() if some}
    accuracy = {task: _curves(some, "accuracy", 100) for task, some in by_task.items()}
    figure(accuracy, out / "lengths.png")
    tables = {TASKS[task].title: _accuracies(lines) for task, lines in accuracy.items()}
    kernels = ", ".join(sorted({escape(trial.record["kernels"]) for trial in trials}))
    text = paragraphs(
        "## Lengths: contexts longer than in training",
        f"""
            Attention is trained on short sets of items and tested on sets up to 256 times as long. One attention layer,
            one head, no position encoding; only the mapping and the scale of the scores differ. r-softmax has r = 0.5,
            t-softmax a learned t that starts at 4, k-softmax keeps 3 items (8 in the last task). The weights of LapSum
            sum to that number k, and are divided by it: none is above 1/k. *log n*: the scores are multiplied by
            s log(n) with a learned s (SSMax). ASEntmax: entmax15 of scores times delta + beta log(n)^gamma, all three
            learned. Softmax and LapSum have zeros where a weight underflows. Accuracy in per cent,
            {len(trials)} of {len(grid())} runs; seeds: {_seeds(by_task)}; kernels: {kernels}.
        """,
        "![Accuracy against length](lengths.png)",
        *(part for title, table in tables.items() for part in (f"### Lengths, {title}", table)),
        "### Non-zero weights at the greatest length",
        _nonzeros({task: _curves(some, "nonzeros") for task, some in by_task.items()}),
        "### Learned numbers",
        _learned(trials),
    )
    title, table = next(iter(tables.items()))
    return Section(text, table.rich(f"Right answers in per cent, {title}"), [out / "lengths.png"])


def _title(mapping: str, scale: str | None) -> str:
    return "ASEntmax" if scale == "adaptive" else mapping.replace("_", "-") + (f", {scale}" if scale else "")


def _curves(trials: list[Trial[Run]], field: str, factor: float = 1.0) -> Curves:
    curves = {}
    for method in METHODS:
        some = [record[field] for run, record in trials if (run.mapping, run.scale) == method]
        if some:
            curves[method] = {int(n): Mean.of([factor * values[n] for values in some if n in values]) for n in some[0]}
    return curves


def _accuracies(curves: Curves) -> Table:
    lengths = sorted({n for points in curves.values() for n in points})
    means = {_title(*method): [points.get(n) for n in lengths] for method, points in curves.items()}
    return Table(["items", *map(str, lengths)], best_in_bold(means))


def _nonzeros(by_task: dict[str, Curves]) -> Table:
    """The number of non-zero weights at the greatest length of each task."""
    longest = {task: max(n for points in curves.values() for n in points) for task, curves in by_task.items()}
    methods = dict.fromkeys(method for curves in by_task.values() for method in curves)
    lines = [
        [_title(*m), *(f"{by_task[task][m][n].value:.1f}" if m in by_task[task] else "" for task, n in longest.items())]
        for m in methods
    ]
    return Table(["non-zero weights", *(f"{TASKS[task].title}, {n} items" for task, n in longest.items())], lines)


def _learned(trials: Trials[Run]) -> Table:
    """The range of what was learned: t, and the numbers of the scale."""
    values: dict[tuple[str, ...], list[float]] = {}
    for run, record in trials:
        for name, value in record["learned"].items():
            values.setdefault((TASKS[run.task].title, _title(run.mapping, run.scale), name), []).append(value)
    lines = [[*titles, f"{min(some):.2f} to {max(some):.2f}"] for titles, some in sorted(values.items())]
    return Table(["task", "mapping", "learned", "range over seeds"], lines)


def _seeds(by_task: dict[str, list[Trial[Run]]]) -> str:
    """The number of seeds of each task, lowest and highest over the methods."""
    texts = []
    for task, trials in by_task.items():
        methods = [(run.mapping, run.scale) for run, _ in trials]
        counts = sorted({methods.count(method) for method in methods})
        texts.append(f"{TASKS[task].title} {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}")
    return ", ".join(texts)


STYLES = {
    None: {"linestyle": "--", "marker": "x"},
    "log n": {"linestyle": "-", "marker": "o"},
    "adaptive": {"linestyle": ":", "marker": "s"},
}


def figure(by_task: dict[str, Curves], path: Path) -> None:
    """Accuracy by length: means over seeds, bars one standard deviation; solid lines have log n, dotted is ASEntmax."""
    figure, (axes,) = panels(1, len(by_task), width=4.4, height=4.6)
    for axis, (task, curves) in zip(axes, by_task.items(), strict=True):
        for (mapping, scale), points in curves.items():
            y, spread = [mean.value for mean in points.values()], [mean.spread or 0.0 for mean in points.values()]
            style: dict[str, Any] = STYLES[scale]
            label = _title(mapping, scale)
            axis.errorbar(
                list(points), y, spread, color=MAPPINGS[mapping], markersize=4, capsize=2, label=label, **style
            )
        axis.axvspan(TASKS[task].shortest, TASKS[task].longest, color="#555555", alpha=0.12, linewidth=0)
        axis.set_xscale("log", base=2)
        axis.set_title(TASKS[task].title, fontsize=11)
        axis.set_xlabel("items (grey: in training)", fontsize=9)
        tidy(axis)
    axes[0].set_ylabel("accuracy, %", fontsize=9)
    legend(figure, axes, columns=2 * len(by_task))
    save_figure(figure, path)
