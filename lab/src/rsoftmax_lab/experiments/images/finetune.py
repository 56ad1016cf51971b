"""Fine-tuning with the Trainer of Transformers: the whole network, as in the paper, or its last stages.

The inputs of the last stages are computed once. Batch normalization keeps its pretrained statistics; its scales and
shifts are trained in the trained stages.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.console import Console
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, set_seed

from rsoftmax._transformers import quiet
from rsoftmax.labels import LabelModel
from rsoftmax.labels.models.finetuning import Checkpoints, last_checkpoint, remove_checkpoints
from rsoftmax.labels.models.folders import LABELS, check_writable
from rsoftmax.labels.models.images import File, open_image
from rsoftmax.labels.models.inputs import Inputs
from rsoftmax_lab.comparison import METHODS, Outputs, scores
from rsoftmax_lab.experiments import trainer
from rsoftmax_lab.experiments.images.backbone import Backbone
from rsoftmax_lab.experiments.images.grid import Run, hold_out
from rsoftmax_lab.experiments.images.image_set import ImageSet, Splits, openable, report_bad
from rsoftmax_lab.experiments.images.stages import begins_with_last
from rsoftmax_lab.experiments.images.states import States
from rsoftmax_lab.running.runs import Row, differences

SCORES = "scores"  # the key of the scores in the Trainer's history


class Cached(NamedTuple):
    """The inputs of the last stages, for both splits."""

    train: States
    val: States


@dataclass(frozen=True)
class Finetuning:
    """A network to train, and the images.

    Attributes:
        model: the network's folder or hub id.
        work: the folder of the runs' checkpoints and final models.
        splits: the images.
        cached: the inputs of the last stages, if only these are trained.
    """

    model: str
    work: Path
    splits: Splits
    cached: Cached | None = None

    @classmethod
    def of(cls, model: str, work: Path, splits: Splits, skip_bad: bool, console: Console) -> "Finetuning":
        """Check that all images can be opened before training starts."""

        def part(images: ImageSet) -> ImageSet:
            kept, bad = openable(images, skip_bad)
            report_bad(bad, len(images), console)
            return kept

        checked = Splits(splits.classes, part(splits.train), part(splits.val))
        return cls(str(Path(model).resolve()) if Path(model).is_dir() else model, work.resolve(), checked)

    def of_last(
        self, backbone: Backbone, last: int, cache: Path, *, mirror: bool, jobs: int | None, console: Console
    ) -> "Finetuning":
        """Prepare training of the last stages: compute their inputs unless they are cached."""

        def states(images: ImageSet, mirror: bool) -> States:
            return States.of(backbone, last, images, cache, mirror=mirror, jobs=jobs, console=console)

        cached = Cached(states(self.splits.train, mirror), states(self.splits.val, mirror=False))
        return replace(self, cached=cached)

    def folder(self, run: Run) -> Path:
        """The folder of a run, named after its differences from the defaults."""
        named = {name: value for name, value in differences(run).items() if name not in ("model", "finetune")}
        return self.work / "-".join(f"{name}={value}" for name, value in sorted(named.items()))

    def run(self, run: Run) -> Row:
        """Train the network with a method's head and score it; returns the row of a run.

        A checkpoint is saved after each epoch, from which a killed run resumes; at the end, the model is saved.
        """
        folder = self.folder(run)
        check_writable(folder / "model", LABELS)
        learn, select = hold_out(len(self.splits.train), run)
        set_seed(run.seed)
        model = LabelModel.from_encoder(self.model, self.splits.classes, "samples", **METHODS[run.method].head)
        of_train, of_val = self.cached or (Pixels(model.inputs),) * 2
        train = _Shown(self.splits.train.take(learn), of_train, run.augment)
        test = _Shown(self.splits.val, of_val)
        validation = _Shown(self.splits.train.take(select), of_train) if run.selection_share else test
        start = time.perf_counter()
        with begins_with_last(model.encoder, run.train_last), quiet():
            comparison = _Comparison(run, model, folder, train, validation, test)
            comparison.train(resume_from_checkpoint=last_checkpoint(folder))
        seconds = time.perf_counter() - start
        model.save_pretrained(folder / "model")
        remove_checkpoints(folder)
        read = {"states": self.cached.val.about()} if self.cached else {}
        rules = _rules(run, comparison.state.log_history)
        return {"epoch_seconds": round(seconds / max(comparison.epochs_here, 1), 3), **read, "rules": rules}

    def save(self, run: Run, epoch: int, folder: Path) -> None:
        """Copy the model of a run after its last epoch."""
        LabelModel.from_pretrained(self.folder(run) / "model").save_pretrained(folder)


class _Comparison(Trainer):
    """The Trainer; its evaluation adds the scores of each decision rule to its history."""

    def __init__(
        self,
        run: Run,
        model: LabelModel,
        folder: Path,
        train: "_Shown",
        validation: "_Shown",
        test: "_Shown",
    ) -> None:
        self.run, self.rules = run, METHODS[run.method].rules
        self.epochs_here = 0  # in this process; others were done before a kill
        self.judged = {"validation": validation, "test": test}
        settings = trainer.arguments(
            folder,
            num_train_epochs=run.epochs,
            learning_rate=run.lr,
            seed=run.seed,
            lr_scheduler_type="constant",
            per_device_train_batch_size=run.batch_size,
            per_device_eval_batch_size=run.batch_size,
            max_grad_norm=0,
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="no",
            remove_unused_columns=False,
        )
        super().__init__(model, settings, train_dataset=train, eval_dataset=[])
        self.add_callback(Checkpoints())
        trainer.show_progress(self, self._line)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The scores of both splits with each rule, as the epoch's entry of the history."""
        validation = self._outputs("validation")
        test = validation if self.judged["test"] is self.judged["validation"] else self._outputs("test")
        entry: dict[str, Any] = {"validation": {}, "test": {}}
        for name, rule in self.rules.items():
            decide = rule(validation)
            entry["validation"][name] = scores(validation.Y, decide(validation))
            entry["test"][name] = scores(test.Y, decide(test))
        self.log({SCORES: entry})  # type: ignore[dict-item]
        self.epochs_here += 1
        return {}

    def _outputs(self, split: str) -> Outputs:
        shown = self.judged[split]
        u, _, p = np.asarray(self.predict(shown).predictions)
        return Outputs.of(u, p, shown.images.labels, shown.images.ignored)

    def _line(self, state: Any, logs: dict[str, Any]) -> str | None:
        """A progress line for an epoch."""
        if SCORES not in logs:
            return None
        run, rules = self.run, logs[SCORES]["validation"]
        best = max(rule["micro"] for name, rule in rules.items() if name != "true_count")
        done = f"epoch {round(state.epoch)} of {run.epochs}, F1 {best:.2f}"
        return f"{run.dataset}, {run.method}, lr={run.lr}, seed {run.seed}: {done}"


class Reader(Protocol):
    """Provides the network's input."""

    def read(self, file: File, name: str, augment: bool) -> Tensor:
        """The input for one image, augmented if requested."""


class Pixels(NamedTuple):
    """Opens and preprocesses images each time."""

    inputs: Inputs

    def read(self, file: File, name: str, augment: bool) -> Tensor:
        """The pixel values of an image, randomly cropped and flipped if requested."""
        image = open_image(file, name)
        return self.inputs.batch([augmented(image) if augment else image])["pixel_values"][0]


class _Shown(Dataset[dict[str, Tensor]]):
    """Images as the Trainer takes them."""

    def __init__(self, images: ImageSet, reader: Reader, augment: bool = False) -> None:
        self.images, self.reader, self.augment = images, reader, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        pixels = self.reader.read(self.images.files[index], self.images.names[index], self.augment)
        return {"pixel_values": pixels, "labels": torch.from_numpy(self.images.labels[index].astype(np.float32))}


def augmented(image: Image.Image, least: float = 0.8) -> Image.Image:
    """A random crop of at least the fraction ``least`` of each side, flipped with probability one half."""
    share, left, top, mirror = torch.rand(4).tolist()
    kept = least + (1 - least) * share
    width, height = round(kept * image.width), round(kept * image.height)
    x, y = round(left * (image.width - width)), round(top * (image.height - height))
    cropped = image.crop((x, y, x + width, y + height))
    return ImageOps.mirror(cropped) if mirror < 0.5 else cropped


def _rules(run: Run, history: list[dict[str, Any]]) -> dict[str, Any]:
    epochs = [entry[SCORES] for entry in history if SCORES in entry]
    rules = {}
    for name in METHODS[run.method].rules:
        curve = [entry["validation"][name]["micro"] for entry in epochs]
        best = int(np.argmax(curve))
        rules[name] = {
            "epoch": best + 1,
            "validation": epochs[best]["validation"][name],
            "test": epochs[best]["test"][name],
            "test_last": epochs[-1]["test"][name],
            "curve": [round(f1, 1) for f1 in curve],
        }
    return rules
