"""A network trained by the Trainer of transformers: the whole of it, as in the paper, or its last stages.

The last stages read states that were computed once. Batch normalisation keeps the statistics of its pre-training
everywhere; in what is trained, its scales and shifts are trained.
"""

import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.console import Console
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, set_seed

from rsoftmax.folders import check_place
from rsoftmax.huggingface import LabelModel
from rsoftmax.huggingface.adapter import quiet
from rsoftmax.huggingface.backbone import Backbone
from rsoftmax.huggingface.inputs import Inputs
from rsoftmax.pictures import File, open_picture
from rsoftmax_lab.contest.methods import METHODS
from rsoftmax_lab.contest.rules import Answers, answers
from rsoftmax_lab.contest.scores import scores
from rsoftmax_lab.experiments import trainer
from rsoftmax_lab.experiments.images.grid import Run, hold_out
from rsoftmax_lab.experiments.images.pictures import Pictures, Splits, openable, report_bad
from rsoftmax_lab.experiments.images.stages import begins_with_last
from rsoftmax_lab.experiments.images.states import States
from rsoftmax_lab.running import own_files
from rsoftmax_lab.running.runs import Row, differences

SCORES = "scores"  # the key of the contest's scores in the Trainer's history
CHECKPOINT = (
    "model.safetensors", "config.json", "preprocessor_config.json", "README.md", "optimizer.pt", "scheduler.pt",
    "scaler.pt", "rng_state*.pth", "trainer_state.json", "training_args.bin",
)  # fmt: skip  # the files that the Trainer writes
_NAME = re.compile(r"checkpoint-\d+")


class Cached(NamedTuple):
    """What the last stages read, of both splits."""

    train: States
    val: States


@dataclass(frozen=True)
class Finetuning:
    """A network to be trained, and the pictures.

    Attributes:
        model: the network's folder or hub id.
        work: where runs keep their checkpoints and, at the end, their models.
        splits: the pictures.
        cached: what the last stages read, if only these are trained.
    """

    model: str
    work: Path
    splits: Splits
    cached: Cached | None = None

    @classmethod
    def of(cls, model: str, work: Path, splits: Splits, skip_bad: bool, console: Console) -> "Finetuning":
        """Look whether all pictures can be opened, before hours are spent."""

        def part(pictures: Pictures) -> Pictures:
            kept, bad = openable(pictures, skip_bad)
            report_bad(bad, len(pictures), console)
            return kept

        checked = Splits(splits.classes, part(splits.train), part(splits.val))
        return cls(str(Path(model).resolve()) if Path(model).is_dir() else model, work.resolve(), checked)

    def of_last(
        self, backbone: Backbone, last: int, cache: Path, *, mirror: bool, jobs: int | None, console: Console
    ) -> "Finetuning":
        """The same for the last stages alone: compute what they read, unless it is in the cache."""

        def states(pictures: Pictures, mirror: bool) -> States:
            return States.of(backbone, last, pictures, cache, mirror=mirror, jobs=jobs, console=console)

        cached = Cached(states(self.splits.train, mirror), states(self.splits.val, mirror=False))
        return replace(self, cached=cached)

    def folder(self, run: Run) -> Path:
        """The folder of one run, named by what it differs in."""
        named = {name: value for name, value in differences(run).items() if name not in ("model", "finetune")}
        return self.work / "-".join(f"{name}={value}" for name, value in sorted(named.items()))

    def run(self, run: Run) -> Row:
        """Train the network with a method's head and score it: the row of a run.

        A checkpoint is kept after each epoch, from which a run that was killed goes on; when it is done, the model.
        """
        folder = self.folder(run)
        check_place(folder / "model")
        learn, select = hold_out(len(self.splits.train), run)
        set_seed(run.seed)
        model = LabelModel.from_encoder(self.model, self.splits.classes, "samples", **METHODS[run.method].head)
        of_train, of_val = self.cached or (Pixels(model.inputs),) * 2
        train = _Shown(self.splits.train.take(learn), of_train, run.augment)
        test = _Shown(self.splits.val, of_val)
        validation = _Shown(self.splits.train.take(select), of_train) if run.selection_share else test
        start = time.perf_counter()
        with begins_with_last(model.encoder, run.train_last), quiet():
            contest = _Contest(run, model, folder, train, validation, test)
            contest.train(resume_from_checkpoint=_last_whole_checkpoint(folder))
        seconds = time.perf_counter() - start
        model.save_pretrained(folder / "model")
        for checkpoint in _checkpoints(folder):
            own_files.remove(checkpoint, *CHECKPOINT)
        read = {"states": self.cached.val.about()} if self.cached else {}
        rules = _rules(run, contest.state.log_history)
        return {"epoch_seconds": round(seconds / max(contest.epochs_here, 1), 3), **read, "rules": rules}

    def save(self, run: Run, epoch: int, folder: Path) -> None:
        """Copy the model of a run, as it was after its last epoch."""
        LabelModel.from_pretrained(self.folder(run) / "model").save_pretrained(folder)


class _Contest(Trainer):
    """The Trainer, whose evaluation is the contest's: the scores under each rule, in its history."""

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
        self.epochs_here = 0  # since this process began: others were done before a kill
        self.judged = {"validation": validation, "test": test}
        settings = trainer.arguments(
            run,
            folder,
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
        self.add_callback(_LastTwo())
        trainer.show_progress(self, self._line)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The scores of both splits, under each rule, as this epoch's entry of the history."""
        validation = self._answers("validation")
        test = validation if self.judged["test"] is self.judged["validation"] else self._answers("test")
        entry: dict[str, Any] = {"validation": {}, "test": {}}
        for name, rule in self.rules.items():
            decide = rule(validation)
            entry["validation"][name] = scores(validation.Y, decide(validation))
            entry["test"][name] = scores(test.Y, decide(test))
        self.log({SCORES: entry})  # type: ignore[dict-item]
        self.epochs_here += 1
        return {}

    def _answers(self, split: str) -> Answers:
        shown = self.judged[split]
        u, _, p = np.asarray(self.predict(shown).predictions)
        return answers(u, p, shown.pictures.labels, shown.pictures.ignored)

    def _line(self, state: Any, logs: dict[str, Any]) -> str | None:
        """How an epoch went."""
        if SCORES not in logs:
            return None
        run, rules = self.run, logs[SCORES]["validation"]
        best = max(rule["micro"] for name, rule in rules.items() if name != "true_count")
        done = f"epoch {round(state.epoch)} of {run.epochs}, F1 {best:.2f}"
        return f"{run.dataset}, {run.method}, lr={run.lr}, seed {run.seed}: {done}"


class _LastTwo(TrainerCallback):
    """Keeps two checkpoints, should the last one be torn by a kill. The Trainer's own limit deletes whole folders."""

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        for checkpoint in _checkpoints(Path(args.output_dir))[2:]:
            own_files.remove(checkpoint, *CHECKPOINT)


class Reader(Protocol):
    """What gives the network its input."""

    def read(self, file: File, name: str, augment: bool) -> Tensor:
        """The input for one picture, changed at random if so asked."""


class Pixels(NamedTuple):
    """The pictures themselves, opened and prepared each time."""

    inputs: Inputs

    def read(self, file: File, name: str, augment: bool) -> Tensor:
        """The pixels of a picture, cropped and mirrored at random if so asked."""
        picture = open_picture(file, name)
        return self.inputs.batch([augmented(picture) if augment else picture])["pixel_values"][0]


class _Shown(Dataset[dict[str, Tensor]]):
    """Pictures as the Trainer wants them."""

    def __init__(self, pictures: Pictures, reader: Reader, augment: bool = False) -> None:
        self.pictures, self.reader, self.augment = pictures, reader, augment

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        pixels = self.reader.read(self.pictures.files[index], self.pictures.names[index], self.augment)
        return {"pixel_values": pixels, "labels": torch.from_numpy(self.pictures.labels[index].astype(np.float32))}


def augmented(picture: Image.Image, least: float = 0.8) -> Image.Image:
    """The picture cut to between ``least`` and all of each side, somewhere, and mirrored every other time."""
    share, left, top, mirror = torch.rand(4).tolist()
    kept = least + (1 - least) * share
    width, height = round(kept * picture.width), round(kept * picture.height)
    x, y = round(left * (picture.width - width)), round(top * (picture.height - height))
    cropped = picture.crop((x, y, x + width, y + height))
    return ImageOps.mirror(cropped) if mirror < 0.5 else cropped


def _checkpoints(folder: Path) -> list[Path]:
    """The folders that the Trainer wrote, the last one first."""
    found = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: -int(path.name.split("-")[1]))


def _last_whole_checkpoint(folder: Path) -> str | None:
    """The last checkpoint that was written to its end: the Trainer writes its state last, and its weights are whole."""
    for checkpoint in _checkpoints(folder):
        try:
            json.loads((checkpoint / "trainer_state.json").read_bytes())
            with safe_open(checkpoint / "model.safetensors", "pt"):
                return str(checkpoint)
        except (OSError, ValueError, SafetensorError):
            own_files.remove(checkpoint, *CHECKPOINT)
    return None


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
