"""A whole classifier of pictures: a pre-trained network and a :class:`rsoftmax.multilabel.MultiLabelHead`."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoImageProcessor, AutoModel

from rsoftmax.huggingface.adapter import quiet
from rsoftmax.huggingface.backbone import Backbone, features
from rsoftmax.multilabel import MultiLabelHead

WEIGHTS, SETTINGS = "model.safetensors", "config.json"
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Found(NamedTuple):
    """A label of a picture; its probability is not zero."""

    label: str
    p: float

    def __str__(self) -> str:
        return f"{self.label} {self.number}"

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
        """Write ``model.safetensors``, ``config.json`` and the processor's settings: all of them, or nothing."""
        check_place(folder)
        unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, unfinished / WEIGHTS)
        settings = {
            "classes": self.classes,
            "head": self.choices,
            "features": self.size,
            "backbone": self.backbone.config.to_dict(),  # type: ignore[operator, union-attr]
        }
        (unfinished / SETTINGS).write_text(json.dumps(settings, indent=1), encoding="utf-8")
        processor.save_pretrained(unfinished)
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)

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
            with quiet():
                network = AutoModel.from_config(AutoConfig.for_model(**settings["backbone"]), trust_remote_code=False)
                processor = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
            model = cls(network, settings["classes"], settings["head"], settings["features"])
            model.load_state_dict(load_file(folder / WEIGHTS))
        except Exception as error:  # whatever a file that was changed by hand makes torch and transformers raise
            raise ValueError(f"{folder} is damaged: {error}") from None
        return model.eval(), Backbone(str(folder), folder.name, network, processor, model.size)


def check_place(folder: Path) -> None:
    """Refuse to save where something else is."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and _settings(folder) is None):
        raise FileExistsError(f"{folder} holds something else; name a new folder, or one that a model was saved in")


def _settings(folder: Path) -> dict[str, Any] | None:
    """Those that :meth:`PictureClassifier.save` wrote, if it did."""
    try:
        settings = json.loads((folder / SETTINGS).read_bytes())
    except (OSError, ValueError):
        return None
    ours = isinstance(settings, dict) and {"classes", "head", "features", "backbone"} <= settings.keys()
    return settings if ours else None


@torch.inference_mode()
def predict(model: PictureClassifier, backbone: Backbone, pictures: list[Image.Image]) -> list[list[Found]]:
    """The labels of each picture, the most probable first; exact zeros are left out."""
    p = model(backbone.pixels(pictures))["p"]
    return [
        [Found(model.classes[i], float(row[i])) for i in row.argsort(descending=True).tolist() if row[i] > 0]
        for row in p
    ]
