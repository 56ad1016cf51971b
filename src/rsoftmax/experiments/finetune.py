"""One run of Table 2: load, fine-tune, score. The only experiment that needs transformers."""

import math
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    logging,
    set_seed,
)

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.experiments import glue_data, ranks
from rsoftmax.experiments.glue import Run
from rsoftmax.experiments.glue_data import TASKS, Example
from rsoftmax.experiments.journal import Row
from rsoftmax.huggingface import SparsitySchedule, set_attention, sparsity

EVAL_BATCH = 64
SPARSITY_ROWS = 128  # dev rows on which zeros are counted


def check(model: str, data: str, runs: Sequence[Run]) -> None:
    """Find out before the first run what would stop one: a file that is missing or broken, or no such model."""
    for task in {run.task for run in runs}:
        glue_data.read(data, task)
    AutoConfig.from_pretrained(model, trust_remote_code=False)


def run(model: str, data: str, run: Run) -> Row:
    """Fine-tune and score: the row of a run.

    Args:
        model: a folder, or a name on the hub; the weights must be safetensors.
        data: a folder, or a name on the hub.
        run: what to do.
    """
    logging.set_verbosity_error()  # it would say that the classifier is new, which is the point
    logging.disable_progress_bar()
    set_seed(run.seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    parts = _parts(data, run)
    encoded = {part: _encode(rows, tokenizer, run.max_length) for part, rows in parts.items()}
    network = _network(model, run)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            network,
            _arguments(run, scratch),
            train_dataset=encoded["train"],
            data_collator=DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
            callbacks=[_Progress(run)],
        )
        trainer.remove_callback(PrinterCallback)
        if run.r is not None:
            trainer.add_callback(SparsitySchedule(run.r, shape=run.schedule))
        trained = trainer.train()
        scores = {part: _score(trainer, encoded[part], TASKS[run.task].f1) for part in ("validation", "dev")}
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "rows": {part: len(rows) for part, rows in parts.items()},
        **scores,
        "sparsity": _sparsity(trainer, encoded["dev"]),
        "train_loss": losses[-1] if math.isfinite(losses[-1]) else None,
        "train_seconds": round(trained.metrics["train_runtime"], 1),
    }


def _parts(data: str, run: Run) -> dict[str, list[Example]]:
    """The rows to train on, to select on and to report, each drawn once and the same for every run of a seed."""
    train, dev = glue_data.read(data, run.task)
    order = np.random.default_rng(run.seed).permutation(len(train))
    aside = min(run.validation_samples, len(train) // 10)
    reported = np.random.default_rng(0).permutation(len(dev))[: run.max_eval_samples]
    return {
        "train": [train[row] for row in order[aside:][: run.max_train_samples]],
        "validation": [train[row] for row in order[:aside]],
        "dev": [dev[row] for row in reported],
    }


def _encode(rows: list[Example], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    if not rows:
        return []
    encoded = tokenizer(
        *map(list, zip(*(row.texts for row in rows), strict=True)), truncation=True, max_length=max_length
    )
    return [
        {**{name: values[place] for name, values in encoded.items()}, "labels": row.label}
        for place, row in enumerate(rows)
    ]


def _network(model: str, run: Run) -> PreTrainedModel:
    network = AutoModelForSequenceClassification.from_pretrained(
        model, num_labels=len(TASKS[run.task].labels), use_safetensors=True, trust_remote_code=False
    )
    parameter = ROW_MAPPINGS[run.mapping].parameter
    given = {} if parameter is None else {parameter.name: parameter.example if run.r is None else run.r}
    set_attention(network, run.mapping, **given)
    return network


def _arguments(run: Run, scratch: str) -> TrainingArguments:
    return TrainingArguments(
        scratch,
        num_train_epochs=run.epochs,
        learning_rate=run.lr,
        lr_scheduler_type="linear",
        per_device_train_batch_size=_share(run.batch_size),
        per_device_eval_batch_size=EVAL_BATCH,
        train_sampling_strategy="group_by_length",
        bf16=run.bf16,
        seed=run.seed,
        logging_steps=0.1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def _score(trainer: Trainer, rows: list[dict[str, Any]], f1: bool) -> dict[str, float] | None:
    if not rows:
        return None
    answer = trainer.predict(rows)
    labels, predicted = answer.label_ids, answer.predictions.argmax(-1)
    scores = {"accuracy": accuracy_score(labels, predicted)}
    if f1:
        scores["f1"] = f1_score(labels, predicted)
    return scores


def _sparsity(trainer: Trainer, rows: list[dict[str, Any]]) -> float:
    """The share of exact zeros in the attention of some dev rows, mean over layers and heads."""
    batch = trainer.data_collator(rows[:SPARSITY_ROWS])
    return sparsity(trainer.model, batch.to(trainer.args.device)).mean()


def _share(batch_size: int) -> int:
    """Of each process under torchrun: together they take the steps that one would."""
    if batch_size % ranks.count():
        raise ValueError(f"batches of {batch_size} cannot be shared by {ranks.count()} processes")
    return batch_size // ranks.count()


class _Progress(TrainerCallback):
    """Ten lines for each run, on stderr: it takes minutes, and the sweep's bar moves only when it is over."""

    def __init__(self, run: Run) -> None:
        rate = "" if run.r is None else f" r={run.r}"
        self.what = f"{run.task} {run.mapping}{rate} lr={run.lr} seed={run.seed}"

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if state.is_world_process_zero and "loss" in logs:
            done = f"step {state.global_step} of {state.max_steps}, loss {logs['loss']:.3f}"
            print(f"{self.what}: {done}", file=sys.stderr, flush=True)
