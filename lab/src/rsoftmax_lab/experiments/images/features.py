"""The features of a frozen network, computed once and cached in one safetensors file.

During the computation there is a folder of parts instead. Images that could not be opened are tried again each time.
"""

from pathlib import Path

import numpy as np
from rich.console import Console

from rsoftmax.labels.models.folders import remove
from rsoftmax.labels.models.images import BadImageError, open_image
from rsoftmax_lab.experiments.images import extraction
from rsoftmax_lab.experiments.images.backbone import Backbone
from rsoftmax_lab.experiments.images.extraction import Features, View, load, save
from rsoftmax_lab.experiments.images.image_set import ImageSet


def extract(
    backbone: Backbone,
    images: ImageSet,
    cache: Path,
    *,
    skip_bad: bool = False,
    jobs: int | None = None,
    console: Console | None = None,
) -> Path:
    """Compute the features unless they are cached.

    Args:
        backbone: the network.
        images: the images.
        cache: the folder of the file; created if necessary.
        skip_bad: skip images that cannot be opened; otherwise the first one raises BadImageError.
        jobs: the number of processes; see :func:`rsoftmax_lab.experiments.images.extraction.extract`.
        console: shows progress.

    Returns:
        The file, for ``extraction.load``.
    """
    console = console or Console(soft_wrap=True)
    view = View(backbone.source)
    path = cache / f"features-{view.key(backbone, images)}.safetensors"
    with extraction.folder_lock(cache, console):
        if path.exists() and _repaired(load(path), images):
            path.unlink()
        if not path.exists():
            folder = path.with_suffix(f".parts-{extraction.PART}")
            parts = extraction.extract(view, images, folder, skip_bad=skip_bad, jobs=jobs, console=console)
            save(path, _joined([load(part) for part in parts]))
            remove(folder, *(f"{part.name}*" for part in parts))
    bad = load(path).bad
    if bad and not skip_bad:
        raise BadImageError(bad[0])
    return path


def _repaired(found: Features, images: ImageSet) -> bool:
    """Whether an image that could not be opened before can be opened now."""
    for place in set(range(len(images))).difference(found.kept.tolist()):
        try:
            open_image(images.files[place], images.names[place])
        except BadImageError:
            continue
        return True
    return False


def _joined(several: list[Features]) -> Features:
    return Features(
        np.concatenate([one.X for one in several]),
        np.concatenate([one.kept for one in several]),
        [text for one in several for text in one.bad],
    )
