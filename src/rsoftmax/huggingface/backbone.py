"""A pre-trained network that turns pictures into features, and what prepares pictures for it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from rsoftmax.huggingface import encoder


@dataclass(frozen=True)
class Backbone:
    """A network and its image processor, as Hugging Face saves them.

    Attributes:
        source: the folder or hub id.
        name: the folder's last name, or the hub id.
        network: a module that answers with a ``pooler_output``.
        processor: scales and normalises pictures.
        size: the number of features.
    """

    source: str
    name: str
    network: Any
    processor: Any
    size: int

    @classmethod
    def load(cls, model: str) -> "Backbone":
        """From a folder, or a hub id ``owner/name``."""
        network, processor, missing = encoder.load(model)
        try:
            if missing:
                raise ValueError(f"its file lacks {min(missing)}, which would be drawn at random")
            size = _size(network, processor)
        except Exception as error:  # whatever a network of another kind makes transformers raise
            raise encoder.unloadable(model, error) from None
        name = Path(model).resolve().name if Path(model).is_dir() else model
        return cls(model, name, network, processor, size)

    def pixels(self, pictures: list[Image.Image]) -> Tensor:
        """[pictures, 3, height, width], as the network wants them."""
        return _pixels(self.processor, pictures)

    def fingerprint(self) -> str:
        """Changes with the weights, the configuration and the processor."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        for settings in (self.network.config, self.processor):
            settings = {key: value for key, value in settings.to_dict().items() if key not in _PASSING}
            digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        return digest.hexdigest()


_PASSING = ("_name_or_path", "transformers_version")  # the same network elsewhere, or loaded by a later release


def _pixels(processor: Any, pictures: list[Image.Image]) -> Tensor:
    pixels: Tensor = processor(images=pictures, return_tensors="pt")["pixel_values"]
    return pixels


@torch.inference_mode()
def _size(network: nn.Module, processor: Any) -> int:
    """How many features the network pools of pictures, which need not be of one shape."""
    shapes = ((224, 224), (64, 96))
    return features(network, _pixels(processor, [Image.new("RGB", shape) for shape in shapes])).shape[-1]


def features(network: nn.Module, pixels: Tensor) -> Tensor:
    """What the network has pooled of each picture, [pictures, features]."""
    pooled = getattr(network(pixels), "pooler_output", None)
    if pooled is None:
        raise ValueError(f"{type(network).__name__} pools no features; take a network like ResNetModel")
    flat: Tensor = pooled.flatten(1)
    return flat
