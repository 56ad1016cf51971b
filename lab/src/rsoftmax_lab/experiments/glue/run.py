"""One run of Table 2: load, fine-tune, score."""

import math
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

import rsoftmax
from rsoftmax._transformers import quiet
from rsoftmax.attention.transformers import SparsitySchedule, set_attention, sparsity
from rsoftmax.registry import MAPPINGS
from rsoftmax_lab.experiments import trainer
from rsoftmax_lab.experiments.glue import data as glue_data
from rsoftmax_lab.experiments.glue.data import TASKS, Example, Examples
from rsoftmax_lab.experiments.glue.edge_schedule import EdgeSchedule
from rsoftmax_lab.experiments.glue.grid import EDGE, Run
from rsoftmax_lab.experiments.glue.step_time import step_time
from rsoftmax_lab.running import ranks
from rsoftmax_lab.running.runs import Row

EVAL_BATCH = 64
SPARSITY_ROWS = 64  # dev rows for counting zeros


@quiet()
def check(model: str, data: str, runs: Sequence[Run], skip_bad: bool = False) -> dict[str, int]:
    """Check data and model before the first run.

    Returns:
        The number of skipped rows of each task.
    """
    try:
        AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        _network(model, runs[0])
    except (OSError, ValueError) as error:
        raise ValueError(f"the model {model!r}: {error}") from None
    return {task: glue_data.read(data, task, skip_bad).skipped for task in dict.fromkeys(run.task for run in runs)}


@quiet()
def run(model: str, data: str, skip_bad: bool, run: Run) -> Row:
    """Fine-tune and score; returns the row of a run.

    Args:
        model: a folder or hub id with safetensors weights.
        data: a folder or hub id.
        skip_bad: whether to skip malformed rows.
        run: the settings.
    """
    set_seed(run.seed)
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    parts = _parts(glue_data.read(data, run.task, skip_bad), run)
    network = _network(model, run)
    length = min(run.max_length, getattr(network.config, "max_position_embeddings", run.max_length))
    encoded = {part: _encode(rows, tokenizer, length) for part, rows in parts.items()}
    collate = DataCollatorWithPadding(tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        tuner = Trainer(
            network,
            _arguments(run, scratch),
            train_dataset=encoded["train"],
            data_collator=collate,
            processing_class=tokenizer,
        )
        trainer.show_progress(tuner, partial(_line, run))
        if run.r is not None:
            path = EdgeSchedule(run.r) if run.schedule == EDGE else SparsitySchedule(run.r, shape=run.schedule)
            tuner.add_callback(path)
        trained = tuner.train()
        scores = {part: _score(tuner, encoded[part], TASKS[run.task].f1) for part in ("validation", "dev")}
    losses = [entry["loss"] for entry in tuner.state.log_history if "loss" in entry]
    timed = {}
    if run.seed == 0:  # other seeds differ in noise only
        timed = {"step": step_time(network, list(tuner.get_train_dataloader()), bf16=run.bf16)}
    return {
        "rows": {part: len(rows) for part, rows in parts.items()},
        **scores,
        "sparsity": _sparsity(network, collate(encoded["dev"][:SPARSITY_ROWS])),
        "train_loss": losses[-1] if math.isfinite(losses[-1]) else None,
        "train_seconds": round(trained.metrics["train_runtime"], 1),
        **timed,
        "version": rsoftmax.__version__,
        "kernels": rsoftmax.kernels.cpu_kernels(),
    }


def _parts(examples: Examples, run: Run) -> dict[str, list[Example]]:
    """The training, validation and dev rows, the same for every run of a seed."""
    train, dev = examples.train, examples.dev
    order = np.random.default_rng(run.seed).permutation(len(train))
    aside = min(run.validation_samples, len(train) // 10)
    reported = np.random.default_rng(0).permutation(len(dev))[: run.max_eval_samples]
    return {
        "train": [train[row] for row in order[aside:][: run.max_train_samples]],
        "validation": [train[row] for row in order[:aside]],
        "dev": [dev[row] for row in reported],
    }


def _encode(rows: list[Example], tokenizer: Any, max_length: int) -> Any:
    """Tokenized rows, as a list that the Trainer accepts as a dataset."""
    if not rows:
        return []
    texts = map(list, zip(*(row.texts for row in rows), strict=True))
    encoded = tokenizer(*texts, truncation=True, max_length=max_length)
    return [
        {**{name: values[place] for name, values in encoded.items()}, "labels": row.label}
        for place, row in enumerate(rows)
    ]


def _network(model: str, run: Run) -> PreTrainedModel:
    network: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
        model, num_labels=len(TASKS[run.task].labels), use_safetensors=True, trust_remote_code=False
    )
    parameter = MAPPINGS[run.mapping].parameter
    value = getattr(run, parameter.name, None) if parameter else None
    given: dict[str, Any] = {} if parameter is None else {parameter.name: parameter.example if value is None else value}
    set_attention(network, run.mapping, edge=run.edge, **given)
    return network


def _arguments(run: Run, scratch: str) -> TrainingArguments:
    return trainer.arguments(
        scratch,
        num_train_epochs=run.num_epochs,
        learning_rate=run.lr,
        seed=run.seed,
        lr_scheduler_type="linear",
        per_device_train_batch_size=_share(run.batch_size),
        per_device_eval_batch_size=EVAL_BATCH,
        train_sampling_strategy="group_by_length",
        bf16=run.bf16,
        logging_steps=0.1,
        logging_nan_inf_filter=False,
        average_tokens_across_devices=False,  # the loss is already a mean
        use_cpu=not torch.accelerator.is_available(),  # the backend for processes on CPUs
        save_strategy="no",
    )


def _score(tuner: Trainer, rows: Any, f1: bool) -> dict[str, float] | None:
    if not rows:
        return None
    answer = tuner.predict(rows)
    labels, predicted = answer.label_ids, np.argmax(answer.predictions, -1)
    scores = {"accuracy": accuracy_score(labels, predicted)}
    if f1:
        scores["f1"] = f1_score(labels, predicted)
    return scores


def _sparsity(network: PreTrainedModel, batch: dict[str, Any]) -> float:
    """The fraction of exact zeros in attention, averaged over layers and heads."""
    return sparsity(network, {name: values.to(network.device) for name, values in batch.items()}).mean()


def _share(batch_size: int) -> int:
    """The batch size of each process under torchrun, so that the total batch size is unchanged."""
    if batch_size % ranks.count():
        raise ValueError(f"batches of {batch_size} cannot be divided among {ranks.count()} processes")
    return batch_size // ranks.count()


def _line(run: Run, state: Any, logs: dict[str, Any]) -> str | None:
    """The progress of a run, ten times."""
    if "loss" not in logs:
        return None
    own = "".join(f" {name}={value}" for name in ("r", "t", "k", "edge") if (value := getattr(run, name)) is not None)
    done = f"step {state.global_step} of {state.max_steps}, loss {logs['loss']:.3f}"
    return f"{run.task} {run.mapping}{own} lr={run.lr} seed={run.seed}: {done}"
