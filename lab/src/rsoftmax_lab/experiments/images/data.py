"""The images of an experiment: read from a folder or the hub, subsampled, and identified by a hash."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rsoftmax_lab.experiments.images import coco, hub, voc
from rsoftmax_lab.experiments.images.image_set import ImageSet, Splits

if TYPE_CHECKING:
    from rsoftmax_lab.experiments.images.backbone import Backbone

READERS = {"voc": voc.read, "coco": coco.read}


def read(dataset: str, data: str) -> Splits:
    """Read a dataset of images.

    Args:
        dataset: a key of ``READERS``: the layout of the folder.
        data: the folder, or a hub id.
    """
    from rsoftmax.labels.models.inputs import is_hub_id

    folder = Path(data)
    if not folder.is_dir() and is_hub_id(data):
        return hub.read(data)
    return READERS[dataset](folder.resolve())


def subset(splits: Splits, n: int) -> Splits:
    """n images of each split, always the same ones; all if n is 0."""
    if not n:
        return splits

    def taken(images: ImageSet) -> ImageSet:
        return images.take(np.sort(np.random.default_rng(0).permutation(len(images))[:n]))

    return Splits(splits.classes, taken(splits.train), taken(splits.val))


def fingerprint(backbone: "Backbone", splits: Splits) -> str:
    """A hash of the network, the images and their labels."""
    digest = hashlib.sha256(backbone.fingerprint().encode())
    for part in (splits.train, splits.val):
        digest.update(part.fingerprint().encode() + part.labels.tobytes() + part.ignored.tobytes())
    return digest.hexdigest()[:12]
