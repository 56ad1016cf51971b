"""A pretrained network that turns images into features, with its image processor."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from rsoftmax.labels.models.inputs import IMAGE, cannot_load, example_items, load_encoder


@dataclass(frozen=True)
class Backbone:
    """A network and its image processor, as Hugging Face saves them.

    Attributes:
        source: the folder or hub id.
        name: the folder's name, or the hub id.
        network: a module whose output has a ``pooler_output``.
        processor: resizes and normalizes images.
        size: the number of features.
    """

    source: str
    name: str
    network: Any
    processor: Any
    size: int

    @classmethod
    def load(cls, model: str) -> "Backbone":
        """Load a network from a folder or hub id ``owner/name``."""
        network, processor, missing, _ = load_encoder(model)
        try:
            if missing:
                raise ValueError(f"its weights lack {min(missing)}, which would be initialized at random")
            size = _size(network, processor)
        except Exception as error:  # for networks of other kinds transformers raises many kinds
            raise cannot_load(model, error) from None
        name = Path(model).resolve().name if Path(model).is_dir() else model
        return cls(model, name, network, processor, size)

    def pixels(self, images: list[Image.Image]) -> Tensor:
        """[images, 3, height, width], as the network takes them."""
        return _pixels(self.processor, images)

    def fingerprint(self) -> str:
        """A hash of the weights, the configuration and the processor."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        for settings in (self.network.config, self.processor):
            settings = {key: value for key, value in settings.to_dict().items() if key not in PASSING}
            digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        return digest.hexdigest()


PASSING = ("_name_or_path", "transformers_version")  # paths and versions do not change the network


def _pixels(processor: Any, images: list[Image.Image]) -> Tensor:
    pixels: Tensor = processor(images=images, return_tensors="pt")[IMAGE]
    return pixels


@torch.inference_mode()
def _size(network: nn.Module, processor: Any) -> int:
    """The number of features, found by running the network."""
    return features(network, _pixels(processor, example_items(IMAGE))).shape[-1]


def features(network: nn.Module, pixels: Tensor) -> Tensor:
    """The pooled output of the network, [images, features]."""
    pooled = getattr(network(pixels), "pooler_output", None)
    if pooled is None:
        raise ValueError(f"{type(network).__name__} has no pooler output; choose a network like ResNetModel")
    flat: Tensor = pooled.flatten(1)
    return flat
