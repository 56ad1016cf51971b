"""The paper's Table 2: a pretrained encoder, fine-tuned on GLUE with another mapping in its self-attention.

As in the paper: every mapping is tried with five learning rates, r-softmax also with five rates r, which grow linearly
from 0 during training; 5 epochs on MRPC and 3 on the others; the score after the last step on GLUE's dev set, which
thereby selects the learning rate and r. Not stated in the paper, and chosen here: batches of 32, at most 128 tokens,
AdamW with linear decay of the learning rate to 0, no warm-up, no weight decay. Added here: a held-out part of the
training examples, which selects the learning rate and r for the second number, independently of dev.
"""

import copy
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
import typer
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    set_seed,
)

import rsoftmax
from rsoftmax._transformers import quiet
from rsoftmax.attention import SparsitySchedule, set_attention, sparsity
from rsoftmax.attention.transformers.api import SHAPES
from rsoftmax.cli.arguments import usage_errors
from rsoftmax.registry import MAPPINGS
from rsoftmax_lab.data import absolute, source_name
from rsoftmax_lab.data import glue as glue_data
from rsoftmax_lab.data.glue import HUB, TASKS, Example, Examples
from rsoftmax_lab.experiments import trainer
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
    signed,
)
from rsoftmax_lab.sweep import Address, Engine, Jobs, Out, Quick, Sweep

COMPARED = ("softmax", "sparsemax", "sparsehourglass", "r_softmax")
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 5e-4)
RATES = (0.05, 0.1, 0.15, 0.2, 0.5)
EDGE = "edge"  # the schedule in which the edge grows instead of r

PAPER = {
    "softmax": {"MRPC": 84.56, "RTE": 68.95, "SST-2": 92.32, "QNLI": 91.76, "QQP": 91.12},
    "sparsemax": {"MRPC": 68.38, "RTE": 52.71, "SST-2": 79.82, "QNLI": 55.57, "QQP": 77.18},
    "sparsehourglass": {"MRPC": 68.38, "RTE": 52.71, "SST-2": 79.24, "QNLI": 70.99, "QQP": 76.04},
    "r_softmax": {"MRPC": 85.54, "RTE": 71.84, "SST-2": 92.89, "QNLI": 91.73, "QQP": 91.13},
}
PAPERS_R = {"MRPC": 0.15, "RTE": 0.2, "SST-2": 0.2, "QNLI": 0.15, "QQP": 0.1}

SCORES = {"accuracy": share, "f1?": share}


# ---------------------------------------------------------------------------------------------- the grid


@dataclass(frozen=True)
class Run(BaseRun):
    """One fine-tuning.

    Attributes:
        epochs: the number of epochs; None: the paper's, 5 on MRPC and 3 on the other tasks.
        r: the rate at the end of training, for mappings that take one.
        schedule: how r grows, or "edge": r is constant, and the edge grows to the paper's weights.
        t, k: the parameter of t_softmax or k_softmax, the same from the first step on; None: its example.
        edge: the width of the edge, for mappings that have one; None: the paper's weights.
        max_train_samples: the number of training examples, drawn at random; None for all.
        max_eval_samples: the number of dev examples to score, the same for every seed; None for all.
        validation_samples: the number of held-out training examples for selection, drawn at random; at most a tenth.
        bf16: whether matrices are multiplied in bfloat16.
        model: the encoder's name.
        data: the name of the folder or hub dataset.
    """

    DATA = ("task",)
    VARIED = ("mapping", "r", "t", "k", "edge", "lr", "seed")
    SCHEMA: ClassVar = {
        "seconds": number,
        "rows": {"train": number, "validation": number, "dev": positive},
        "validation": (SCORES, None),
        "dev": SCORES,
        "sparsity": share,
        "version?": str,
        "kernels?": str,
        "step?": {"seconds": positive, "sdpa_seconds": positive, "ratio": positive},
    }

    task: str
    mapping: str = "softmax"
    r: float | None = None
    lr: float = 2e-5
    epochs: float | None = None
    seed: int = 0
    batch_size: int = 32
    max_length: int = 128
    schedule: str = "linear"
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    validation_samples: int = 500
    bf16: bool = False
    model: str = "google-bert/bert-base-uncased"
    data: str = HUB
    t: float | None = None
    k: float | None = None
    edge: float | None = None

    def __post_init__(self) -> None:
        allowed: dict[str, Any] = {"task": TASKS, "mapping": MAPPINGS, "schedule": (*SHAPES, EDGE)}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be one of {', '.join(values)}, got {getattr(self, name)!r}")
        if takes(self.mapping, "r") == (self.r is None) or (self.r is not None and not 0 <= self.r <= 1):
            wanted = "must be in [0, 1]" if takes(self.mapping, "r") else "must not be given"
            raise ValueError(f"r {wanted} with {self.mapping}, got {self.r}")
        for name in ("t", "k"):
            value = getattr(self, name)
            if value is not None and not (takes(self.mapping, name) and value > 0):
                raise ValueError(f"{name} must be above 0 and needs {name}_softmax, got {value} with {self.mapping}")
        if self.edge is not None and not (takes(self.mapping, "edge") and 0 <= self.edge < math.inf):
            raise ValueError(
                "edge must be finite, at least 0 and needs a mapping with one; without it weights are the paper's,"
                f" got {self.edge} with {self.mapping}"
            )
        if self.r is not None and self.edge is not None and self.schedule == EDGE:
            raise ValueError(f"with the schedule {EDGE!r} the edge grows; edge must not be given, got {self.edge}")
        if not isinstance(self.model, str):
            raise ValueError(f"model must be a name, got {self.model!r}")
        for name, value in (("epochs", self.num_epochs), ("lr", self.lr)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, got {value}")

    @property
    def num_epochs(self) -> float:
        """The number of epochs."""
        return paper_epochs(self.task) if self.epochs is None else self.epochs


def paper_epochs(task: str) -> float:
    """The number of epochs in the paper."""
    return 5 if task == "MRPC" else 3


def takes(mapping: str, name: str) -> bool:
    """Whether a mapping has a parameter or option of this name.

    Example:
        >>> takes("r_softmax", "r"), takes("r_softmax", "edge"), takes("sparsemax", "edge")
        (True, True, False)
    """
    if mapping not in MAPPINGS:
        return False
    spec = MAPPINGS[mapping]
    return name in (spec.parameter and spec.parameter.name, *(option.name for option in spec.options))


def grid(
    tasks: Sequence[str] = tuple(TASKS),
    mappings: Sequence[str] = COMPARED,
    learning_rates: Sequence[float] = LEARNING_RATES,
    rates: Sequence[float] = RATES,
    seeds: int = 1,
    epochs: float | None = None,
    t: float | None = None,
    k: float | None = None,
    edge: float | None = None,
    **settings: Any,
) -> list[Run]:
    """The grid of Table 2, or a part of it; ``t``, ``k`` and ``edge`` go to the mappings that have them."""

    def run(task: str, mapping: str, r: float | None, lr: float, seed: int) -> Run:
        options: dict[str, Any] = {
            name: value for name, value in (("t", t), ("k", k), ("edge", edge)) if takes(mapping, name)
        }
        other_epochs = None if epochs == paper_epochs(task) else epochs
        return Run(task, mapping, r, lr, other_epochs, seed, **settings, **options)

    return [
        run(task, mapping, r, lr, seed)
        for seed in range(seeds)
        for task in tasks
        for mapping in mappings
        for r in (rates if takes(mapping, "r") else (None,))
        for lr in learning_rates
    ]


def quick_grid(tasks: Sequence[str] = ("MRPC",), **settings: Any) -> list[Run]:
    """Softmax and one point of the paper's grid on one task."""
    few = {"mappings": ("softmax", "r_softmax"), "learning_rates": (5e-5,), "rates": (0.15,)}
    return grid(tasks, **few | settings)


# ---------------------------------------------------------------------------------------------- the command

Option = typer.Option
Model = Annotated[str, Option(help="The encoder: a folder or hub id with safetensors weights.")]
Data = Annotated[str, Option(help="A folder in GLUE's layout, TASK/train.tsv and dev.tsv, or a hub id.")]
Task = Annotated[list[str] | None, Option(help="MRPC, RTE, SST-2, QNLI or QQP; repeatable.")]
Lr = Annotated[list[float] | None, Option(help="A learning rate; repeatable.")]
R = Annotated[list[float] | None, Option(help="A final rate of r-softmax; repeatable.")]
T = Annotated[float | None, Option(help="The distance t of t_softmax, from the first step on.")]
K = Annotated[float | None, Option(help="The number k of k_softmax, from the first step on.")]
Edge = Annotated[
    float | None,
    Option(help="The edge of mappings that have one. Default: the paper's weights; in rates 1 for t and k."),
]
Epochs = Annotated[
    float | None, Option(help="The number of epochs. Default, as in the paper: 5 for MRPC, 3 for the others.")
]
Schedule = Annotated[
    str | None, Option(help="How r grows: linear, cosine or constant; edge: r is constant, the edge grows.")
]
MaxTrain = Annotated[int | None, Option(min=1, help="The number of training examples, drawn at random.")]
MaxEval = Annotated[int | None, Option(min=1, help="The number of dev examples to score.")]
Validation = Annotated[
    int | None,
    Option(min=0, help="The number of training examples to hold out for selection, at most a tenth; 0 for none."),
]
SkipBad = Annotated[bool, Option("--skip-bad", help="Skip malformed lines.")]
Bf16 = Annotated[
    bool, Option("--bf16", help="Multiply matrices in bfloat16: less precise, faster on supporting hardware.")
]
GlueSeeds = Annotated[int | None, Option(min=1, help="The number of seeds. Default: 1; 3 for rates, without --quick.")]


def main(
    model: Model, data: Data, task: Task = None,
    mapping: Annotated[list[str] | None, Option(help="One of `rsoftmax list`; repeatable.")] = None,
    lr: Lr = None, r: R = None, t: T = None, k: K = None, edge: Edge = None, epochs: Epochs = None,
    schedule: Schedule = None, max_train_samples: MaxTrain = None, max_eval_samples: MaxEval = None,
    validation_samples: Validation = None, skip_bad: SkipBad = False, bf16: Bf16 = False, seeds: GlueSeeds = None,
    quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local", address: Address = None,
) -> Path:  # fmt: skip
    """Do the paper's grid, or the requested part of it."""
    for name, value in (("r", r), ("t", t), ("k", k), ("edge", edge)):
        mappings = mapping or COMPARED
        if value not in (None, []) and not any(takes(one, name) for one in mappings):
            raise typer.BadParameter(f"no mapping takes {name}, got {', '.join(mappings)}", param_hint=f"--{name}")
    options = {
        "tasks": task, "mappings": mapping, "learning_rates": lr, "rates": r, "t": t, "k": k, "edge": edge,
        "epochs": epochs, "schedule": schedule, "max_train_samples": max_train_samples, "seeds": seeds,
        "max_eval_samples": max_eval_samples, "validation_samples": validation_samples, "bf16": bf16 or None,
    }  # fmt: skip
    sweep = Sweep(quick, out, jobs, engine, address)
    return reproduce(quick_grid if quick else grid, options, model, data, skip_bad, sweep)


def reproduce(
    grid: Callable[..., list[Run]], options: dict[str, Any], model: str, data: str, skip_bad: bool, sweep: Sweep
) -> Path:
    """Do the runs of a grid with the options that are not None; their records are written to ``glue.jsonl``."""
    options = {name: value for name, value in options.items() if value is not None and value != []}
    if "tasks" in options:
        options["tasks"] = [task.upper() for task in options["tasks"]]
    with usage_errors():  # everything is validated before the first run
        runs = grid(model=source_name(model, "*.safetensors", "*.json", "*.txt"), **options)
        runs = [replace(run, data=source_name(data, f"{run.task}/*.tsv")) for run in runs]
        for task, skipped in check(model, data, runs, skip_bad).items():
            if skipped:
                typer.echo(f"{task}: {skipped} malformed lines are skipped")
    return sweep.on_device().do("glue", runs, partial(run, absolute(model), absolute(data), skip_bad))


@quiet()
def check(model: str, data: str, runs: Sequence[Run], skip_bad: bool = False) -> dict[str, int]:
    """Load data and model; returns the number of skipped lines of each task."""
    try:
        AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        load(model, runs[0])
    except (OSError, ValueError) as error:
        raise ValueError(f"the model {model!r}: {error}") from None
    return {task: glue_data.read(data, task, skip_bad).skipped for task in dict.fromkeys(run.task for run in runs)}


# ---------------------------------------------------------------------------------------------- one run


@quiet()
def run(model: str, data: str, skip_bad: bool, run: Run) -> Record:
    """Fine-tune and score.

    Args:
        model: a folder or hub id with safetensors weights.
        data: a folder or hub id.
        skip_bad: whether to skip malformed lines.
        run: the settings.
    """
    set_seed(run.seed)
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    splits = split(glue_data.read(data, run.task, skip_bad), run)
    network = load(model, run)
    length = min(run.max_length, getattr(network.config, "max_position_embeddings", run.max_length))
    encoded = {name: encode(examples, tokenizer, length) for name, examples in splits.items()}
    collate = DataCollatorWithPadding(tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = trainer.arguments(
            scratch,
            num_train_epochs=run.num_epochs,
            learning_rate=run.lr,
            seed=run.seed,
            lr_scheduler_type="linear",
            per_device_train_batch_size=run.batch_size,
            per_device_eval_batch_size=64,
            train_sampling_strategy="group_by_length",
            bf16=run.bf16,
            logging_steps=0.1,
            logging_nan_inf_filter=False,
            use_cpu=not torch.accelerator.is_available(),  # which allows bfloat16 there
            save_strategy="no",
        )
        tuner = Trainer(
            network, arguments, train_dataset=encoded["train"], data_collator=collate, processing_class=tokenizer
        )
        trainer.show_progress(tuner, partial(_line, run))
        if run.r is not None:
            edge = run.schedule == EDGE
            tuner.add_callback(EdgeSchedule(run.r) if edge else SparsitySchedule(run.r, shape=run.schedule))
        trained = tuner.train()
        scores = {name: score(tuner, encoded[name], TASKS[run.task].f1) for name in ("validation", "dev")}
    losses = [entry["loss"] for entry in tuner.state.log_history if "loss" in entry]
    batch = {name: values.to(network.device) for name, values in collate(encoded["dev"][:64]).items()}
    step = {}
    if run.seed == 0:  # other seeds differ in noise only
        step = {"step": step_time(network, list(tuner.get_train_dataloader()), bf16=run.bf16)}
    return {
        "rows": {name: len(examples) for name, examples in splits.items()},
        **scores,
        "sparsity": sparsity(network, batch).mean(),
        "train_loss": losses[-1] if math.isfinite(losses[-1]) else None,
        "train_seconds": round(trained.metrics["train_runtime"], 1),
        **step,
        "version": rsoftmax.__version__,
        "kernels": rsoftmax.kernels.cpu_kernels(),
    }


def split(examples: Examples, run: Run) -> dict[str, list[Example]]:
    """The training, validation and dev examples, the same for every run of a seed."""
    train, dev = examples.train, examples.dev
    order = np.random.default_rng(run.seed).permutation(len(train))
    held_out = min(run.validation_samples, len(train) // 10)
    reported = np.random.default_rng(0).permutation(len(dev))[: run.max_eval_samples]
    return {
        "train": [train[i] for i in order[held_out:][: run.max_train_samples]],
        "validation": [train[i] for i in order[:held_out]],
        "dev": [dev[i] for i in reported],
    }


def encode(examples: list[Example], tokenizer: Any, max_length: int) -> Any:
    """Tokens, as a list that the Trainer accepts as a dataset."""
    if not examples:
        return []
    texts = map(list, zip(*(example.texts for example in examples), strict=True))
    encoded = tokenizer(*texts, truncation=True, max_length=max_length)
    return [
        {**{name: values[i] for name, values in encoded.items()}, "labels": example.label}
        for i, example in enumerate(examples)
    ]


def load(model: str, run: Run) -> PreTrainedModel:
    """The pretrained network with the run's mapping in its attention."""
    network: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
        model, num_labels=len(TASKS[run.task].labels), use_safetensors=True, trust_remote_code=False
    )
    options: dict[str, Any] = {}
    if parameter := MAPPINGS[run.mapping].parameter:
        value = getattr(run, parameter.name, None)
        options = {parameter.name: parameter.example if value is None else value}
    set_attention(network, run.mapping, edge=run.edge, **options)
    return network


def score(tuner: Trainer, examples: Any, f1: bool) -> dict[str, float] | None:
    """Accuracy, and F1 if requested; None without examples."""
    if not examples:
        return None
    output = tuner.predict(examples)
    labels, predicted = output.label_ids, np.argmax(output.predictions, -1)
    return {"accuracy": accuracy_score(labels, predicted)} | ({"f1": f1_score(labels, predicted)} if f1 else {})


def _line(run: Run, state: Any, logs: dict[str, Any]) -> str | None:
    """The progress of a run, ten times."""
    if "loss" not in logs:
        return None
    options = "".join(
        f" {name}={value}" for name in ("r", "t", "k", "edge") if (value := getattr(run, name)) is not None
    )
    done = f"step {state.global_step} of {state.max_steps}, loss {logs['loss']:.3f}"
    return f"{run.task} {run.mapping}{options} lr={run.lr} seed={run.seed}: {done}"


class EdgeSchedule(TrainerCallback):
    """Grow the edge of ``r_softmax`` from 0 to infinity during training, at the final rate from the first step on.

    .. math:: e_s = 4 d / (1 - d), \\qquad d = (s + 1) / S, \\qquad s = 0, ..., S - 1

    At edge 0 the remaining weights are softmax's; at infinity, in the last step, they are the paper's.
    """

    def __init__(self, r: float) -> None:
        self.r = r

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Set the edge of this step."""
        done = (state.global_step + 1) / state.max_steps
        set_attention(rest["model"], "r_softmax", r=self.r, edge=4.0 * done / (1 - done) if done < 1 else None)


def step_time(network: PreTrainedModel, batches: Sequence[Any], *, bf16: bool = False) -> dict[str, float]:
    """Time steps of a trained network and of a copy with torch's attention, interleaved batch by batch.

    Ratios are computed for each batch, so that other load affects both equally. Time is processor time, which other
    programs affect least; on an accelerator it is the time until the device has finished.

    Args:
        network: the network; copies of it are trained.
        batches: the batches of one epoch, which is sorted by length in chunks; nine of them are timed.
        bf16: whether matrices are multiplied in bfloat16, as in training.

    Returns:
        Medians over batches: ``seconds`` of a step, ``sdpa_seconds`` with torch's attention, and their ``ratio``.
    """
    sparse, dense = copy.deepcopy(network).train(), copy.deepcopy(network).train()
    dense.set_attn_implementation("sdpa")
    optimizers = {model: torch.optim.AdamW(model.parameters(), lr=1e-5) for model in (sparse, dense)}

    def step(model: Any, batch: Any) -> float:
        start = _now()
        optimizers[model].zero_grad()
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            loss = model(**batch).loss
        loss.backward()
        optimizers[model].step()
        return _now() - start

    for model in optimizers:
        step(model, batches[0])  # allocates AdamW's state
    pairs = []
    for turn, batch in enumerate(batches[:: -(-len(batches) // 9)]):
        order = (sparse, dense) if turn % 2 else (dense, sparse)
        times = {model: step(model, batch) for model in order}
        pairs.append((times[sparse], times[dense]))
    return {
        "seconds": statistics.median(a for a, _ in pairs),
        "sdpa_seconds": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def _now() -> float:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
        return time.perf_counter()
    return time.process_time()


# ---------------------------------------------------------------------------------------------- results

Tasks = dict[str, list[Trial[Run]]]  # the trials of each task


def by_task(trials: Trials[Run], notice: Notice) -> Tasks:
    """The trials of each task under the same settings; tasks without trials are omitted."""
    tasks = [task for task in TASKS if any(run.task == task for run, _ in trials)]
    return {task: list(trials.where(partial(_is_of, task)).alike(notice, task)) for task in tasks}


def _is_of(task: str, run: Run) -> bool:
    return run.task == task


def dev_or_validation(trial: Trial[Run], split: str, metric: str = "accuracy") -> float | None:
    """A score in per cent; None without held-out examples, or if the task does not have the metric."""
    value = (trial.record[split] or {}).get(metric)
    return None if value is None else 100 * value


def select(trials: Sequence[Trial[Run]], mapping: str, by: str) -> list[Trial[Run]]:
    """A mapping's best trial of each seed on the split "dev" or "validation".

    Ties are broken by the smaller r, then by the smaller learning rate.
    """
    scored = {i: s for i, trial in enumerate(trials) if (s := dev_or_validation(trial, by)) is not None}
    some = sorted((i for i in scored if trials[i].run.mapping == mapping), key=lambda i: _size(trials[i].run))
    seeds = sorted({trials[i].run.seed for i in some})
    return [trials[max((i for i in some if trials[i].run.seed == seed), key=lambda i: scored[i])] for seed in seeds]


def _size(run: Run) -> tuple[float, float]:
    return run.r or 0, run.lr


def mean(trials: Sequence[Trial[Run]], metric: str = "accuracy") -> Mean | None:
    """The mean dev score of the trials."""
    values = [value for trial in trials if (value := dev_or_validation(trial, "dev", metric)) is not None]
    return Mean.of(values) if values else None


def curve(trials: Sequence[Trial[Run]]) -> dict[float, Mean]:
    """Dev accuracy at each r (0 is softmax), with the learning rate selected on validation, or on dev without it."""
    by = "validation" if all(trial.record["validation"] for trial in trials) else "dev"
    rates = sorted({trial.run.r for trial in trials if trial.run.r is not None})
    groups = {0.0: select(trials, "softmax", by)}
    groups |= {r: select([trial for trial in trials if trial.run.r == r], "r_softmax", by) for r in rates}
    return {r: found for r, some in groups.items() if (found := mean(some)) is not None}


def lead(trials: Sequence[Trial[Run]], by: str) -> Mean | None:
    """The lead of r-softmax over softmax, over common seeds."""
    sparse, dense = ({t.run.seed: t for t in select(trials, mapping, by)} for mapping in ("r_softmax", "softmax"))
    seeds = sorted(sparse.keys() & dense.keys())
    pairs = [(dev_or_validation(sparse[seed], "dev"), dev_or_validation(dense[seed], "dev")) for seed in seeds]
    return Mean.of([(a or 0) - (b or 0) for a, b in pairs]) if pairs else None


def standard_error(trials: Sequence[Trial[Run]]) -> float:
    """The standard error of one accuracy, from the number of dev examples."""
    accuracy = statistics.fmean(trial.record["dev"]["accuracy"] for trial in trials)
    return 100 * math.sqrt(accuracy * (1 - accuracy) / trials[0].record["rows"]["dev"])


class Method(NamedTuple):
    """A mapping with its parameter and edge."""

    mapping: str
    r: float | None = None
    t: float | None = None
    k: float | None = None
    edge: float | None = None

    @classmethod
    def of(cls, run: Run) -> "Method":
        """The method of a run."""
        return cls(*(getattr(run, name) for name in cls._fields))

    def __str__(self) -> str:
        options = [f"{name} = {value:g}" for name, value in self._asdict().items() if isinstance(value, float | int)]
        return ", ".join([self.mapping.replace("_", "-"), *options])

    @property
    def order(self) -> tuple[object, ...]:
        """The order in tables: the paper's mappings first."""
        first = COMPARED.index(self.mapping) if self.mapping in COMPARED else len(COMPARED)
        return first, self.mapping, *(value or 0.0 for value in self[1:])


SOFTMAX = Method("softmax")


class Difference(NamedTuple):
    """A mean difference to softmax over seeds, in points of accuracy, with half the width of its 95 % interval.

    Attributes:
        value: the mean.
        error: its standard error; None for a single seed.
        freedom: the degrees of freedom of the standard error.
    """

    value: float
    error: float | None
    freedom: float

    def __str__(self) -> str:
        return f"{self.value:+.2f}" if self.half is None else f"{self.value:+.2f} ± {self.half:.2f}"

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval, by Student's t."""
        return None if self.error is None else float(stats.t.ppf(0.975, self.freedom)) * self.error

    @classmethod
    def of(cls, values: Sequence[float]) -> "Difference":
        """The difference over the seeds of one task."""
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error, len(values) - 1)

    @classmethod
    def over_tasks(cls, tasks: Sequence["Difference"]) -> "Difference":
        """The mean over tasks, whose errors are independent; degrees of freedom by Welch and Satterthwaite."""
        value = statistics.fmean(task.value for task in tasks)
        variances = [task.error**2 for task in tasks if task.error is not None]
        total = sum(variances)
        if len(variances) < len(tasks) or not total:
            return cls(value, None, 0)
        freedom = total**2 / sum(v**2 / task.freedom for v, task in zip(variances, tasks, strict=True))
        return cls(value, math.sqrt(total) / len(tasks), freedom)


class Paired(NamedTuple):
    """A method on one task: accuracy, its difference to softmax over common seeds, zeros and time of a step."""

    seeds: int
    accuracy: Mean
    difference: Difference | None
    zeros: Mean
    time: Mean | None


def paired(trials: Sequence[Trial[Run]]) -> dict[Method, Paired]:
    """Every method at the most frequent learning rate, beside softmax with the same seeds: data, order and head."""
    lr = statistics.mode(trial.run.lr for trial in trials)
    methods: dict[Method, dict[int, Record]] = {}
    for run, record in trials:
        if run.lr == lr:
            methods.setdefault(Method.of(run), {})[run.seed] = record
    results = {}
    for method, records in methods.items():
        accuracy, dense = ({s: 100 * r["dev"]["accuracy"] for s, r in some.items()}
                           for some in (records, {} if method == SOFTMAX else methods.get(SOFTMAX, {})))  # fmt: skip
        differences = [accuracy[seed] - dense[seed] for seed in sorted(accuracy.keys() & dense.keys())]
        times = [record["step"]["ratio"] for record in records.values() if "step" in record]
        zeros = Mean.of([100 * record["sparsity"] for record in records.values()])
        difference = Difference.of(differences) if differences else None
        time = Mean.of(times) if times else None
        results[method] = Paired(len(records), Mean.of(list(accuracy.values())), difference, zeros, time)
    return results


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """The paper's accuracies next to ours, the selected settings, the effect of r, and differences paired by seed."""
    trials = read_trials(results / "glue.jsonl", Run, notice)
    if not trials:
        return None
    every = by_task(trials, notice)
    of_paper = {
        task: [one for one in some if one.run.edge is None and one.run.mapping in COMPARED]
        for task, some in every.items()
    }
    tasks = {task: some for task, some in of_paper.items() if some} or every
    ways = {"dev": "selected on dev, as in the paper"}
    held_out = any(trial.record["validation"] for some in tasks.values() for trial in some)
    ways |= {"validation": "selected on validation"} if held_out else {}
    by = list(ways)[-1]
    curves = {task: curve(some) for task, some in tasks.items()}
    figure(curves, {task: standard_error(some) for task, some in tasks.items()}, out / "glue-rates.png")
    models = ", ".join(sorted({escape(trial.run.model) for some in tasks.values() for trial in some}))
    accuracy = _accuracy(tasks, ways)
    f1_tasks = {task: some for task, some in tasks.items() if TASKS[task].f1}
    f1 = {title: _table(f1_tasks, split, lambda some: mean(some, "f1")) for split, title in ways.items()}
    text = paragraphs(
        "## Table 2: GLUE, with another mapping in self-attention",
        f"""
            Fine-tuned model: {models} (the paper: BERT). Scores are measured on GLUE's dev set after the last step.
            *Selected on dev* is what the paper reports: the best learning rate and r on the reported examples;
            r-softmax has more candidates than the other mappings.{VALIDATION if held_out else ""} Settings are selected
            separately for each seed.
        """,
        accuracy,
        _leads(tasks, ways),
        "### Paired by seed",
        """
            Nothing is selected: every method has the same learning rate, and runs with the same seed have the same
            training examples in the same order, the same initial head and the same dev examples. The interval of the
            difference is the 95 % interval of its mean over seeds; it does not include the sampling of the dev
            examples. *Time of a step* is relative to torch's attention.
        """,
        _paired(every),
        "### Settings",
        """
            The standard error of an accuracy follows from the number of dev examples; smaller differences are not
            significant.
        """,
        _setup(tasks),
        _unnamed(tasks),
        "### The effect of r",
        "![Accuracy against r](glue-rates.png)",
        f"The learning rate is selected on {by} for each r: with r fixed, r-softmax has as many candidates as softmax.",
        _by_rate(curves),
        *(
            part
            for split, title in ways.items()
            for part in (f"### Learning rate and r, {title}", _table(tasks, split, _selected))
        ),
        "### Zeros in attention",
        f"""
            Exact zeros among the attention weights of dev examples at the end of training, in per cent; mean over
            layers and heads, without padding, of the runs selected on {by}.
        """,
        _table(tasks, by, lambda some: Mean.of([100 * trial.record["sparsity"] for trial in some])),
        *(part for title, table in f1.items() if table.lines for part in (f"### F1, {title}", table)),
    )
    return Section(text, accuracy.rich("Accuracy on dev"), [out / "glue-rates.png"])


VALIDATION = (
    " *Selected on validation* is the dev score of the settings that were best on held-out training examples,"
    " independently of dev."
)


def _mappings(tasks: Tasks) -> list[str]:
    run = {trial.run.mapping for some in tasks.values() for trial in some}
    return [*(name for name in COMPARED if name in run), *sorted(run.difference(COMPARED))]


def _title(mapping: str, *rest: str) -> str:
    return ", ".join([mapping.replace("_", "-"), *rest])


def _accuracy(tasks: Tasks, ways: dict[str, str]) -> Table:
    """Accuracies, the paper's first; the best of each block in bold."""
    paper = {_title(name, "paper, BERT"): [Mean(PAPER[name][task], None) for task in tasks] for name in PAPER}
    lines = best_in_bold(paper)
    for by, title in ways.items():
        names = _mappings(tasks)
        lines += best_in_bold(
            {_title(name, title): [mean(select(some, name, by)) for some in tasks.values()] for name in names}
        )
    return Table(["accuracy on dev", *tasks], lines)


def _leads(tasks: Tasks, ways: dict[str, str]) -> Table:
    """The lead of r-softmax over softmax."""
    lines = [["paper, BERT", *(f"{PAPER['r_softmax'][t] - PAPER['softmax'][t]:+.2f}" for t in tasks)]]
    lines += [[title, *(signed(lead(some, by)) for some in tasks.values())] for by, title in ways.items()]
    return Table(["lead of r-softmax over softmax", *tasks], lines)


def _paired(tasks: Tasks) -> Table:
    """Every method of each task, and its mean difference over all tasks that have one."""
    methods_of = {task: paired(some) for task, some in tasks.items()}
    methods = sorted({m for of_task in methods_of.values() for m in of_task}, key=lambda method: method.order)
    lines = []
    for task, of_task in methods_of.items():
        for method in (method for method in methods if method in of_task):
            seeds, accuracy, difference, zeros, time = of_task[method]
            numbers = [f"{zeros.value:.1f}", f"{time.value:.2f}" if time else ""]
            lines.append([task, str(method), str(seeds), str(accuracy), str(difference or ""), *numbers])
    for method in methods:
        differences = [of[method].difference for of in methods_of.values() if method in of]
        existing = [difference for difference in differences if difference]
        if len(existing) > 1:
            text = str(Difference.over_tasks(existing))
            lines.append([f"mean of {len(existing)} tasks", str(method), "", "", text, "", ""])
    columns = ["seeds", "accuracy", "difference to softmax", "zeros, %", "time of a step"]
    return Table(["task", "attention", *columns], lines)


def _table(tasks: Tasks, by: str, cell: Callable[[list[Trial[Run]]], object]) -> Table:
    """A line for each mapping, a column for each task; ``cell`` maps the selected trials to text."""
    lines = []
    for mapping in _mappings(tasks):
        selected = [select(some, mapping, by) for some in tasks.values()]
        lines.append([_title(mapping), *(str(cell(some)) if some else "" for some in selected)])
    return Table(["", *tasks], [line for line in lines if any(line[1:])])


def _selected(trials: Sequence[Trial[Run]]) -> str:
    """The selected settings of each seed."""
    return "; ".join(("" if run.r is None else f"r {run.r:g}, ") + f"lr {run.lr:g}" for run, _ in trials)


def _setup(tasks: Tasks) -> Table:
    lines = []
    for task, some in tasks.items():
        run, sizes = some[0].run, some[0].record["rows"]
        seeds = {trial.run.seed for trial in some}
        minutes = statistics.median(trial.record["seconds"] for trial in some) / 60
        numbers = [sizes["train"], sizes["validation"], sizes["dev"], f"{run.num_epochs:g}", len(seeds), len(some)]
        lines.append([task, run.model, *map(str, numbers), f"{minutes:.1f}", f"{standard_error(some):.1f}"])
    columns = ["task", "model", "training examples", "validation", "dev", "epochs", "seeds", "runs"]
    return Table([*columns, "minutes per run", "standard error of an accuracy"], lines)


def _unnamed(tasks: Tasks) -> str:
    """A note on records without a version; empty if all have one."""
    trials = [trial for some in tasks.values() for trial in some]
    count = sum("version" not in trial.record for trial in trials)
    if not count:
        return ""
    return f"""
        {count} of {len(trials)} records were written before version 0.2.0, in which dropout in attention used a
        different random number generator: the same commands now give other scores. Later records contain their version.
    """


def _by_rate(curves: dict[str, dict[float, Mean]]) -> Table:
    rates = sorted({r for points in curves.values() for r in points})
    names = {r: f"r = {r:g}" if r else "softmax" for r in rates}
    lines = [[name, *(str(points.get(r, "")) for points in curves.values())] for r, name in names.items()]
    return Table(["accuracy on dev", *curves], lines)


def figure(curves: dict[str, dict[float, Mean]], errors: dict[str, float], path: Path) -> None:
    """Accuracy on dev against the final rate, a panel for each task: means over seeds, bars one standard deviation.

    Args:
        curves: by task, accuracy by r; 0 is softmax.
        errors: by task, the standard error of an accuracy: the width of the band around softmax.
        path: the file to write.
    """
    figure, (axes,) = panels(1, len(curves), width=3.4, height=3.4)
    for axis, (task, points) in zip(axes, curves.items(), strict=True):
        means = {r: mean for r, mean in points.items() if r > 0}
        y, spread = [mean.value for mean in means.values()], [mean.spread or 0.0 for mean in means.values()]
        axis.errorbar(list(means), y, spread, color="#1d4e89", marker="D", capsize=3, label="r-softmax")
        if 0.0 in points:
            softmax, error = points[0.0].value, errors[task]
            axis.axhline(softmax, color="#555555", linestyle="--", label="softmax")
            band = axis.axhspan(softmax - error, softmax + error, color="#555555", alpha=0.12, linewidth=0)
            band.set_label("softmax's standard error")
        axis.axvline(PAPERS_R[task], color="#c1121f", linestyle=":", label="best r in the paper")
        axis.set_title(task, fontsize=11)
        axis.set_xlabel("final rate r", fontsize=9)
    axes[0].set_ylabel("accuracy on dev, %", fontsize=9)
    legend(figure, axes[:1], columns=4)
    save_figure(figure, path)
