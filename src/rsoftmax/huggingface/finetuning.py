"""A whole :class:`rsoftmax.huggingface.LabelModel` trained by the Trainer of transformers; it can be stopped."""

import json
import math
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, Trainer, TrainingArguments, set_seed

from rsoftmax.folders import WEIGHTS
from rsoftmax.huggingface.adapter import quiet
from rsoftmax.huggingface.encoder import TEXTS
from rsoftmax.multilabel import Evaluation, evaluated

if TYPE_CHECKING:
    from rsoftmax.huggingface.label_model import LabelModel

NAME = re.compile(r"checkpoint-\d+")
VALIDATION_SHARE = 0.1
Part = tuple[Sequence[Any], Tensor]


def finetune(
    model: "LabelModel",
    items: Sequence[Any],
    truth: Tensor,
    held: Part | None,
    *,
    progress: bool,
    seed: int,
    epochs: float = 4,
    lr: float = 1e-4,
    batch_size: int = 32,
    looks: int = 1,
    patience: int = 1,
    warmup: float = 0.1,
    checkpoints: str | Path | None = None,
) -> Evaluation:
    """Train encoder and head, keep the weights with the lowest loss on rows held out, and calibrate on these.

    Args:
        model: what to train, in place.
        items: texts or pictures.
        truth: their labels [items, K], 0 or 1.
        held: items and labels to hold out; None: a tenth of the items, drawn by the seed.
        progress: show bars.
        seed: of the order of items, of dropout, and of the items held out.
        epochs: passes over the items, at most.
        lr: the learning rate, reached after the share ``warmup`` of all steps, and falling to 0 from there on.
        batch_size: items in a step.
        looks: how often in an epoch the loss on rows held out is looked at, and a checkpoint written.
        patience: looks without a lower loss after which training stops.
        checkpoints: a folder; training that was stopped goes on from the last checkpoint there. None: no further use.

    Returns:
        What the rows held out say about the model.
    """
    if not (0 < epochs < math.inf and batch_size >= 1):
        raise ValueError(
            f"fine-tuning: epochs must be above 0 and batch_size from 1 on, got {epochs!r} and {batch_size!r}"
        )
    train, held = ((items, truth), held) if held is not None else split(items, truth, seed)
    set_seed(seed)
    with ExitStack() as stack:
        folder = Path(checkpoints or stack.enter_context(tempfile.TemporaryDirectory()))
        trainer = Trainer(
            model,
            _arguments(
                folder,
                num_train_epochs=epochs,
                learning_rate=lr,
                warmup_steps=warmup,  # below 1: a share of all steps
                per_device_train_batch_size=batch_size,
                per_device_eval_batch_size=batch_size,
                eval_steps=(steps := math.ceil(len(train[0]) / batch_size / looks)),
                save_steps=steps,
                logging_steps=steps,
                train_sampling_strategy="group_by_length" if model.main_input_name == TEXTS else "random",
                seed=seed,
                disable_tqdm=not progress,
            ),
            train_dataset=_Items(train, model.main_input_name),
            eval_dataset=_Items(held, model.main_input_name),
            data_collator=_Collator(model),
            callbacks=[EarlyStoppingCallback(patience)],
        )
        trainer.remove_callback(PrinterCallback)
        if not progress:
            trainer.remove_callback(ProgressCallback)
        stack.enter_context(quiet())
        trainer.train(resume_from_checkpoint=last_whole(folder))
    return calibrate(model, held)


def split(items: Sequence[Any], truth: Tensor, seed: int) -> tuple[Part, Part]:
    """Items to train on, and a tenth to hold out."""
    aside = max(round(VALIDATION_SHARE * len(items)), 1)
    if aside >= len(items):
        raise ValueError(f"fine-tuning holds some items out, and needs two at least; got {len(items)}")
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed)).tolist()
    held, learn = order[:aside], order[aside:]
    return ([items[i] for i in learn], truth[learn]), ([items[i] for i in held], truth[held])


@torch.inference_mode()
def calibrate(model: "LabelModel", held: Part) -> Evaluation:
    """Learn calibration and cuts from rows held out; what they say about the model."""
    scores = model.network.scores(model.embed(held[0]).to(model.device))
    head = model.network.head.calibrate(scores, held[1].to(model.device))
    output = head.decode(scores)
    return evaluated(output.marginals.cpu(), (output.p > 0).cpu(), held[1], model.names)


def last_whole(folder: Path) -> str | None:
    """The last checkpoint that was written to its end: the Trainer writes its state last. Torn ones are removed."""
    found = [path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name)]
    for checkpoint in sorted(found, key=lambda path: -int(path.name.split("-")[1])):
        try:
            json.loads((checkpoint / "trainer_state.json").read_bytes())
            with safe_open(checkpoint / WEIGHTS, "pt"):
                return str(checkpoint)
        except (OSError, ValueError, SafetensorError):
            shutil.rmtree(checkpoint)
    return None


def _arguments(folder: Path, **settings: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        eval_strategy="steps",
        save_strategy="steps",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=False,
        label_names=["labels"],
        prediction_loss_only=True,
        remove_unused_columns=False,
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
        **settings,
    )


class _Items(Dataset[dict[str, Any]]):
    """Items with their labels, read when they are needed.

    They have the name of the encoder's input: by the length of what has it the Trainer puts texts together.
    """

    def __init__(self, part: Part, name: str) -> None:
        (self.items, self.truth), self.name = part, name

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {self.name: self.items[place], "labels": self.truth[place]}


class _Collator:
    """A batch of items as tensors."""

    def __init__(self, model: "LabelModel") -> None:
        self.inputs = model.inputs

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        return {
            **self.inputs.batch([row[self.inputs.takes] for row in rows]),
            "labels": torch.stack([row["labels"] for row in rows]),
        }
