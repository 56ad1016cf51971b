"""The pictures of an experiment: read from a folder or the hub, all or some of them, and known by a hash."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rsoftmax_lab.experiments.images import coco, hub, voc
from rsoftmax_lab.experiments.images.pictures import Pictures, Splits

if TYPE_CHECKING:
    from rsoftmax.huggingface.backbone import Backbone

READERS = {"voc": voc.read, "coco": coco.read}


def read(dataset: str, data: str) -> Splits:
    """A set of pictures.

    Args:
        dataset: a key of ``READERS``, which says how a folder is laid out.
        data: the folder, or a hub id.
    """
    from rsoftmax.huggingface.encoder import is_hub_id

    folder = Path(data)
    if not folder.is_dir() and is_hub_id(data):
        return hub.read(data)
    return READERS[dataset](folder.resolve())


def subset(splits: Splits, n: int) -> Splits:
    """n pictures of each split, always the same ones; all if n is 0."""
    if not n:
        return splits

    def taken(pictures: Pictures) -> Pictures:
        return pictures.take(np.sort(np.random.default_rng(0).permutation(len(pictures))[:n]))

    return Splits(splits.classes, taken(splits.train), taken(splits.val))


def fingerprint(backbone: "Backbone", splits: Splits) -> str:
    """Changes with the network, the pictures and their labels."""
    digest = hashlib.sha256(backbone.fingerprint().encode())
    for part in (splits.train, splits.val):
        digest.update(part.fingerprint().encode() + part.labels.tobytes() + part.ignored.tobytes())
    return digest.hexdigest()[:12]
