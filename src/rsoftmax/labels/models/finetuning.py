"""Fine-tuning of a :class:`rsoftmax.labels.EncoderModel`, encoder and head, with the Trainer of transformers."""

import json
import math
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import (
    EarlyStoppingCallback,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from rsoftmax._transformers import quiet
from rsoftmax.labels.evaluation import Evaluation, evaluate
from rsoftmax.labels.models.base import Part, split
from rsoftmax.labels.models.folders import LABELS, SETTINGS, WEIGHTS, is_vacant, kind_of, remove, remove_model
from rsoftmax.labels.models.inputs import TEXT

if TYPE_CHECKING:
    from rsoftmax.labels.models.encoder_model import EncoderModel

STATE = "trainer_state.json"
TRAINER_FILES = (
    "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth", STATE, "training_args.bin"
)  # fmt: skip
VALIDATION_FRACTION = 0.1
ARGUMENTS: dict[str, Any] = {
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "greater_is_better": False,
    "label_names": ["labels"],
    "prediction_loss_only": True,
    "remove_unused_columns": False,
    "report_to": "none",
}


def finetune(
    model: "EncoderModel",
    items: Sequence[Any],
    y: Tensor,
    held_out: Part | None,
    *,
    verbose: bool,
    random_state: int,
    epochs: float = 4,
    lr: float = 1e-4,
    batch_size: int = 32,
    evaluations_per_epoch: int = 1,
    patience: int = 1,
    warmup: float = 0.1,
    checkpoints: str | Path | None = None,
) -> Evaluation:
    """Train encoder and head, restore the weights with the lowest held-out loss, and calibrate on the held-out items.

    Args:
        model: the model, trained in place.
        items: texts or images.
        y: their labels [items, K], 0 or 1.
        held_out: items and labels to hold out; None: a random tenth of the items.
        verbose: show progress bars.
        random_state: for the order of items, dropout and the choice of held-out items.
        epochs: the maximum number of passes over the items.
        lr: the peak learning rate, reached after the fraction ``warmup`` of all steps; it decays linearly to 0.
        batch_size: items per step.
        evaluations_per_epoch: how often per epoch the held-out loss is computed and a checkpoint is written.
        patience: the number of evaluations without a lower loss after which training stops.
        checkpoints: a folder; interrupted training resumes from the last checkpoint there. None: none are kept.

    Returns:
        The evaluation on the held-out items.
    """
    if not (0 < epochs < math.inf and 0 < lr < math.inf and batch_size >= 1):
        raise ValueError(
            "fine-tuning: epochs and lr must be positive and batch_size at least 1,"
            f" got epochs={epochs!r}, lr={lr!r}, batch_size={batch_size!r}"
        )
    inputs, parts = model.inputs, [items, held_out[0] if held_out else []]
    if long := [text for part in parts for text in part if model.config.windows and len(inputs.spans(text)) > 1]:
        tokens = model.config.windows["tokens"]
        raise ValueError(
            f"fine-tuning reads {tokens} tokens at once, and {len(long)} texts are longer; truncate them by"
            f" max_tokens={tokens}, or train without fine-tuning"
        )
    train = (items, y)
    if held_out is None:
        train, held_out = split(items, y, random_state, VALIDATION_FRACTION)
    steps = math.ceil(len(train[0]) / batch_size / evaluations_per_epoch)
    set_seed(random_state)
    with ExitStack() as stack:
        folder = Path(checkpoints or stack.enter_context(tempfile.TemporaryDirectory()))
        arguments = TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=epochs,
            learning_rate=lr,
            warmup_steps=warmup,  # below 1: a fraction of all steps
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=batch_size,
            eval_steps=steps,
            save_steps=steps,
            logging_steps=steps,
            train_sampling_strategy="group_by_length" if model.main_input_name == TEXT else "random",
            seed=random_state,
            disable_tqdm=not verbose,
            dataloader_pin_memory=torch.cuda.is_available(),
            **ARGUMENTS,
        )
        trainer = _trainer(model, arguments, train, held_out)
        trainer.add_callback(EarlyStoppingCallback(patience))
        stack.enter_context(quiet())
        trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    return calibrate(model, held_out)


@torch.inference_mode()
def calibrate(model: "EncoderModel", held_out: Part) -> Evaluation:
    """Fit calibration and thresholds on held-out items, and evaluate on these."""
    scores = model.network.scores(model.embed(held_out[0]).to(model.device))
    head = model.network.head.calibrate(scores, held_out[1].to(model.device))
    output = head.decode(scores)
    return evaluate(output.marginals.cpu(), output.labels.cpu(), held_out[1], model.names)


def last_checkpoint(folder: Path) -> str | None:
    """The last complete checkpoint: the Trainer writes its state last. Incomplete ones are removed."""
    for checkpoint in find_checkpoints(folder):
        with suppress(OSError, ValueError, SafetensorError), safe_open(checkpoint / WEIGHTS, "pt"):
            state = json.loads((checkpoint / STATE).read_bytes())
            if isinstance(state, dict) and state.get("global_step") == _step(checkpoint):
                return str(checkpoint)
        remove_model(checkpoint, *TRAINER_FILES)
    return None


def remove_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of label models in a folder, and the folder if it is then empty."""
    for checkpoint in find_checkpoints(folder):
        remove_model(checkpoint, *TRAINER_FILES)
    remove(folder)


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of label models in a folder, the last one first. Folders of other programs are left out."""
    return sorted(filter(_is_ours, _numbered(folder)), key=_step, reverse=True)


class Checkpoints(TrainerCallback):
    """Keeps the last two checkpoints, in case the last one is incomplete, and the best one.

    The Trainer's own ``save_total_limit`` deletes whole folders, with whatever a user has put there.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Refuse to train where checkpoints would replace those of another program."""
        for path in _numbered(Path(args.output_dir)):
            has_some = any(any(path.glob(name)) for name in (SETTINGS, WEIGHTS, *TRAINER_FILES))
            if has_some and not _is_ours(path) and _step(path) <= state.max_steps:
                raise FileExistsError(f"{path} was not written by rsoftmax; choose another folder for checkpoints")

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Remove older checkpoints."""
        best = state.best_model_checkpoint
        for checkpoint in find_checkpoints(Path(args.output_dir))[2:]:
            if best is None or checkpoint.resolve() != Path(best).resolve():
                remove_model(checkpoint, *TRAINER_FILES)


class ProgressBar(ProgressCallback):
    """The Trainer's progress bar, at 100 % at the end of training, also if it stopped early."""

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Close the bar."""
        if self.training_bar is not None:
            self.training_bar.total = self.training_bar.n
        super().on_train_end(args, state, control, **rest)  # type: ignore[no-untyped-call]


def _trainer(model: "EncoderModel", arguments: TrainingArguments, train: Part, held_out: Part) -> Trainer:
    """A Trainer on items under the name of the encoder's main input, by whose length it groups texts."""
    name, inputs = model.main_input_name, model.inputs

    def dataset(part: Part) -> Any:
        return [{name: item, "labels": labels} for item, labels in zip(*part, strict=True)]

    def collate(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        tensors = inputs.batch([sample[name] for sample in batch])
        return {**tensors, "labels": torch.stack([sample["labels"] for sample in batch])}

    trainer = Trainer(model, arguments, collate, dataset(train), dataset(held_out), callbacks=[Checkpoints()])
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    if not arguments.disable_tqdm:
        trainer.add_callback(ProgressBar)
    return trainer


def _numbered(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _is_ours(checkpoint: Path) -> bool:
    return kind_of(checkpoint) == LABELS or is_vacant(checkpoint)
