"""A whole classifier of pictures: a pre-trained network and a :class:`rsoftmax.multilabel.MultiLabelHead`."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoImageProcessor, AutoModel

from rsoftmax.huggingface.adapter import quiet
from rsoftmax.huggingface.backbone import Backbone, features
from rsoftmax.multilabel import MultiLabelHead
from rsoftmax.printable import printable

WEIGHTS, SETTINGS = "model.safetensors", "config.json"
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Found(NamedTuple):
    """A label of a picture; its probability is not zero."""

    label: str
    p: float

    def __str__(self) -> str:
        return f"{printable(self.label)} {self.number}"

    @property
    def number(self) -> str:
        """The probability; what is not zero does not look like it."""
        return f"{self.p:.3f}" if self.p >= 0.001 else f"{self.p:.0e}"


class PictureClassifier(nn.Module):
    """From pixels to labels, with its own loss, as the Trainer of transformers wants it.

    Args:
        network: what pools features.
        classes: the labels' names.
        head: what :class:`rsoftmax.multilabel.MultiLabelHead` is told: mapping, loss, rate.
        size: the number of features.

    Batch normalisation keeps the statistics of its pre-training, in training too: batches are small, and what was
    folded into the statistics stays right.
    """

    def __init__(self, network: nn.Module, classes: Sequence[str], head: dict[str, Any], size: int) -> None:
        super().__init__()
        self.backbone = network
        self.classes, self.choices, self.size = list(classes), dict(head), size
        self.head = MultiLabelHead(size, len(self.classes), **head)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """``loss``, given labels; unless in training, ``u``, the scores less their threshold, if any, and ``p``."""
        scores = self.head.scores(features(self.backbone, pixel_values))
        loss = {} if labels is None else {"loss": self.head.loss(scores, labels)}
        if self.training:
            return loss
        u = scores.z if scores.theta is None else scores.z - scores.theta
        return loss | {"u": u, "p": self.head.decode(scores).p}

    def train(self, mode: bool = True) -> Self:
        """As ever, but for batch normalisation."""
        super().train(mode)
        for module in self.backbone.modules():
            if isinstance(module, BATCH_NORMS):
                module.eval()
        return self

    def save(self, folder: Path, processor: Any) -> None:
        """Write ``model.safetensors``, the processor's settings and, last, ``config.json``, each of them at one stroke.

        A new folder appears with all of them. In one that is there, only these files are written: whatever else is in
        it stays. ``config.json`` holds a hash of each of the others, so that files of two models, as a save that was
        killed may leave them, are not taken for one.
        """
        check_place(folder)
        folder = folder.resolve()
        is_new = not folder.exists()
        unfinished = (folder.parent if is_new else folder) / f"{_unfinished(folder)}{uuid4().hex}"
        unfinished.mkdir(parents=True)
        try:
            names = self._write(unfinished, processor)
            if is_new:
                unfinished.rename(folder)
            else:
                for name in names:
                    os.replace(unfinished / name, folder / name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _write(self, folder: Path, processor: Any) -> list[str]:
        """Write the files; their names, that of the settings last."""
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, folder / WEIGHTS)
        processor.save_pretrained(folder)
        names = sorted(path.name for path in folder.iterdir())
        settings = {
            "classes": self.classes,
            "head": self.choices,
            "features": self.size,
            "backbone": self.backbone.config.to_dict(),  # type: ignore[operator, union-attr]
            "files": {name: _hash(folder / name) for name in names},
        }
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1), encoding="utf-8")
        return [*names, SETTINGS]

    @classmethod
    def load(cls, folder: Path) -> tuple["PictureClassifier", Backbone]:
        """What :meth:`save` wrote, ready to predict; and its network with the processor."""
        missing = [name for name in (SETTINGS, WEIGHTS) if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{folder} has no {missing[0]}; `rsoftmax reproduce voc --save {folder}` writes one"
            )
        if (settings := _settings(folder)) is None:
            raise ValueError(f"{folder / SETTINGS} is damaged, or that of a model of another kind")
        try:
            _check_files(folder, settings)
            _check_shapes(cls, settings, folder / WEIGHTS)
            with quiet():
                processor = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
            model = cls.of(settings)
            model.load_state_dict(load_file(folder / WEIGHTS))
        except Exception as error:  # whatever a file that was changed by hand makes torch and transformers raise
            raise ValueError(f"{folder} is damaged: {error}") from None
        return model.eval(), Backbone(str(folder), folder.name, model.backbone, processor, model.size)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "PictureClassifier":
        """A model of these settings, with weights that are still to be read."""
        with quiet():
            network = AutoModel.from_config(AutoConfig.for_model(**settings["backbone"]), trust_remote_code=False)
        return cls(network, settings["classes"], settings["head"], settings["features"])


def check_place(folder: Path) -> None:
    """Refuse to save where something else is, or where nothing can be written."""
    if folder.is_dir():
        others = [path for path in folder.iterdir() if not path.name.startswith(_unfinished(folder))]
        if others and _settings(folder) is None:
            raise FileExistsError(f"{folder} holds something else; name a new folder, or one that a model was saved in")
    elif os.path.lexists(folder):
        raise FileExistsError(f"{folder} is no folder, or a link to one that is not there; name another")
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written: {there} is no folder, or not yours to write in")


def _unfinished(folder: Path) -> str:
    """How the names of folders begin in which a save to this one is under way."""
    return f".{folder.resolve().name}.unfinished-"


def _settings(folder: Path) -> dict[str, Any] | None:
    """Those that :meth:`PictureClassifier.save` wrote, if it did."""
    try:
        settings = json.loads((folder / SETTINGS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    kinds = {"classes": list, "head": dict, "features": int, "backbone": dict}
    ours = isinstance(settings, dict) and all(isinstance(settings.get(name), kind) for name, kind in kinds.items())
    return settings if ours and all(isinstance(name, str) for name in settings["classes"]) else None


def _check_files(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse files that are not those of the settings."""
    for name, digest in settings.get("files", {}).items():
        if _hash(folder / Path(name).name) != digest:
            raise ValueError(
                f"{name} is not the file that {SETTINGS} was saved with: it was changed, or a save was stopped halfway;"
                " save the model again"
            )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_shapes(kind: type[PictureClassifier], settings: dict[str, Any], weights: Path) -> None:
    """Refuse weights of another shape than the settings say, before memory is taken for what the settings say."""
    with safe_open(weights, "pt") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    with torch.device("meta"), _at_most(1000 + 20 * len(found)):
        wanted = {name: list(tensor.shape) for name, tensor in kind.of(settings).state_dict().items()}
    if different := min((name for name in wanted.keys() | found if wanted.get(name) != found.get(name)), default=None):
        raise ValueError(
            f"{different} is {found.get(different)} in {WEIGHTS}, and {wanted.get(different)} by {SETTINGS}"
        )


@contextmanager
def _at_most(modules: int) -> Iterator[None]:
    """Stop the making of a network that has more modules, as a number of layers that is damaged may ask for."""
    numbers = count()

    def hook(*_: Any) -> None:
        if next(numbers) > modules:
            raise ValueError(f"{SETTINGS} asks for more layers than {WEIGHTS} has tensors for")

    handle = nn.modules.module.register_module_module_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@torch.inference_mode()
def predict(model: PictureClassifier, backbone: Backbone, pictures: list[Image.Image]) -> list[list[Found]]:
    """The labels of each picture, the most probable first; exact zeros are left out."""
    p = model(backbone.pixels(pictures))["p"]
    return [
        [Found(model.classes[i], float(row[i])) for i in row.argsort(descending=True).tolist() if row[i] > 0]
        for row in p
    ]
