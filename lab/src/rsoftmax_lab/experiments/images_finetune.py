"""Fine-tuning with the Trainer of Transformers for Table 1: the whole network, as in the paper, or its last stages.

The inputs of the last stages are computed once. Batch normalization keeps its pretrained statistics; its scales and
shifts are trained in the trained stages.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.console import Console
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, set_seed

from rsoftmax._transformers import quiet
from rsoftmax.labels import EncoderModel
from rsoftmax.labels.models.finetuning import Checkpoints, last_checkpoint, remove_checkpoints
from rsoftmax.labels.models.folders import LABELS, check_writable
from rsoftmax.labels.models.images import File, open_image
from rsoftmax.labels.models.inputs import Inputs
from rsoftmax_lab.comparison import METHODS, Outputs, scores
from rsoftmax_lab.data import features
from rsoftmax_lab.data.features import Backbone, View, begins_with_last
from rsoftmax_lab.data.images import ImageSet, Splits
from rsoftmax_lab.experiments import trainer
from rsoftmax_lab.experiments.images import Run, hold_out, report_bad
from rsoftmax_lab.records import Record, differences

SCORES = "scores"  # the key of the scores in the Trainer's history
Reader = Callable[
    [File, str, bool], Tensor
]  # from an image's file and name to the network's input, or an augmented one


@dataclass(frozen=True)
class States:
    """The inputs of the last stages for the images of a split, read from memory-mapped files.

    Attributes:
        index: the positions of the images in the files, by name.
        files: the parts of the original images.
        mirrored: the parts of the flipped images; empty if not requested.
    """

    index: dict[str, int]
    files: list[Path]
    mirrored: list[Path]

    def read(self, file: File, name: str, augment: bool) -> Tensor:
        """The states of an image in float32; of the flipped image with probability one half, if requested."""
        files = self.mirrored if augment and torch.rand(()) < 0.5 else self.files
        part, i = divmod(self.index[name], features.PART)
        states: Tensor = _slice(files[part])[i]
        return states.float()

    def about(self) -> dict[str, Any]:
        """The storage format, for the record of a run."""
        states = _slice(self.files[0])
        return {"type": states.get_dtype(), "shape": states.get_shape()[1:]}


@cache
def _slice(part: Path) -> Any:
    """The states of a part, read from the file on access."""
    with features.opened(part) as file:
        return file.get_slice("features")


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

        def openable(images: ImageSet) -> ImageSet:
            good, bad = images.openable(skip_bad)
            report_bad(bad, len(images), console)
            return good

        checked = Splits(splits.classes, openable(splits.train), openable(splits.val))
        return cls(str(Path(model).resolve()) if Path(model).is_dir() else model, work.resolve(), checked)

    def of_last(
        self, backbone: Backbone, last: int, cache: Path, mirror: bool, jobs: int | None, console: Console
    ) -> "Finetuning":
        """Prepare training of the last stages: compute their inputs unless they are cached."""

        def states(images: ImageSet, mirror: bool) -> States:
            files: list[list[Path]] = [[], []]
            for flip in (False, True) if mirror else (False,):
                view = View(backbone.source, last, flip)
                folder = view.path(backbone, images, cache).with_suffix(f".parts-{features.PART}")
                parts = features.extract_parts(view, images, folder, skip_bad=False, jobs=jobs, console=console)
                files[flip] = parts
            return States({name: i for i, name in enumerate(images.names)}, *files)

        with features.only_user(cache, console):
            cached = Cached(states(self.splits.train, mirror), states(self.splits.val, mirror=False))
        return replace(self, cached=cached)

    def folder(self, run: Run) -> Path:
        """The folder of a run, named after its differences from the defaults."""
        named = {name: value for name, value in differences(run).items() if name not in ("model", "finetune")}
        return self.work / "-".join(f"{name}={value}" for name, value in sorted(named.items()))

    def run(self, run: Run) -> Record:
        """Train the network with a method's head and score it.

        A checkpoint is saved after each epoch, from which a killed run resumes; at the end, the model is saved.
        """
        folder = self.folder(run)
        check_writable(folder / "model", LABELS)
        set_seed(run.seed)
        model = EncoderModel.from_encoder(self.model, self.splits.classes, "samples", **METHODS[run.method].head)
        read_train = read_val = _pixels(model.inputs)
        if self.cached:
            read_train, read_val = self.cached.train.read, self.cached.val.read
        index, held_out = hold_out(len(self.splits.train), run)
        train = Images(self.splits.train.take(index), read_train, run.augment)
        test = Images(self.splits.val, read_val)
        validation = Images(self.splits.train.take(held_out), read_train) if run.selection_share else test
        start = time.perf_counter()
        with begins_with_last(model.encoder, run.train_last), quiet():
            tuner = _Tuner(run, model, folder, train, validation, test)
            tuner.train(resume_from_checkpoint=last_checkpoint(folder))
        seconds = time.perf_counter() - start
        model.save_pretrained(folder / "model")
        remove_checkpoints(folder)
        states = {"states": self.cached.val.about()} if self.cached else {}
        return {"epoch_seconds": round(seconds / max(tuner.epochs_here, 1), 3), **states, "rules": tuner.results()}

    def save(self, run: Run, epoch: int, folder: Path) -> None:
        """Copy the model of a run after its last epoch."""
        EncoderModel.from_pretrained(self.folder(run) / "model").save_pretrained(folder)


class Images(Dataset[dict[str, Tensor]]):
    """Images as the Trainer takes them."""

    def __init__(self, images: ImageSet, read: Reader, augment: bool = False) -> None:
        self.images, self.read, self.augment = images, read, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        pixels = self.read(self.images.files[i], self.images.names[i], self.augment)
        return {"pixel_values": pixels, "labels": torch.from_numpy(self.images.labels[i].astype(np.float32))}


def _pixels(inputs: Inputs) -> Reader:
    """Opens and preprocesses images each time; randomly cropped and flipped if requested."""

    def read(file: File, name: str, augment: bool) -> Tensor:
        image = open_image(file, name)
        pixels: Tensor = inputs.batch([augmented(image) if augment else image])["pixel_values"][0]
        return pixels

    return read


def augmented(image: Image.Image, least: float = 0.8) -> Image.Image:
    """A random crop of at least the fraction ``least`` of each side, flipped with probability one half."""
    share, left, top, mirror = torch.rand(4).tolist()
    fraction = least + (1 - least) * share
    width, height = round(fraction * image.width), round(fraction * image.height)
    x, y = round(left * (image.width - width)), round(top * (image.height - height))
    cropped = image.crop((x, y, x + width, y + height))
    return ImageOps.mirror(cropped) if mirror < 0.5 else cropped


class _Tuner(Trainer):
    """The Trainer; its evaluation adds the scores of each decision rule to its history."""

    def __init__(
        self, run: Run, model: EncoderModel, folder: Path, train: Images, validation: Images, test: Images
    ) -> None:
        self.run, self.rules = run, METHODS[run.method].rules
        self.epochs_here = 0  # in this process; others were done before a kill
        self.validation, self.test = validation, test
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
        validation = self._outputs(self.validation)
        test = validation if self.test is self.validation else self._outputs(self.test)
        entry: dict[str, Any] = {"validation": {}, "test": {}}
        for name, rule in self.rules.items():
            decide = rule(validation)
            entry["validation"][name] = scores(validation.Y, decide(validation))
            entry["test"][name] = scores(test.Y, decide(test))
        self.log({SCORES: entry})  # type: ignore[dict-item]
        self.epochs_here += 1
        return {}

    def _outputs(self, split: Images) -> Outputs:
        logits, _, probs = np.asarray(self.predict(split).predictions)
        return Outputs.of(logits, probs, split.images.labels, split.images.ignored)

    def _line(self, state: Any, logs: dict[str, Any]) -> str | None:
        """A progress line for an epoch."""
        if SCORES not in logs:
            return None
        run, rules = self.run, logs[SCORES]["validation"]
        best = max(rule["micro"] for name, rule in rules.items() if name != "true_count")
        done = f"epoch {round(state.epoch)} of {run.epochs}, F1 {best:.2f}"
        return f"{run.dataset}, {run.method}, lr={run.lr}, seed {run.seed}: {done}"

    def results(self) -> dict[str, Any]:
        """For each rule, the scores at the best epoch on validation and after the last one."""
        epochs: list[Any] = [entry[SCORES] for entry in self.state.log_history if SCORES in entry]
        rules = {}
        for name in self.rules:
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
