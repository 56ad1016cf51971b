"""The features of a frozen network: computed once and kept in one safetensors file.

While they are under way there is a folder of parts instead. Pictures that could not be opened are tried again each
time.
"""

from pathlib import Path

import numpy as np
from rich.console import Console

from rsoftmax.huggingface.backbone import Backbone
from rsoftmax.pictures import BadPictureError, open_picture
from rsoftmax_lab.experiments.images import extraction
from rsoftmax_lab.experiments.images.extraction import Features, View, load, save
from rsoftmax_lab.experiments.images.pictures import Pictures
from rsoftmax_lab.running import own_files


def extract(
    backbone: Backbone,
    pictures: Pictures,
    cache: Path,
    *,
    skip_bad: bool = False,
    jobs: int | None = None,
    console: Console | None = None,
) -> Path:
    """Make sure that the file of features is there.

    Args:
        backbone: the network.
        pictures: what to look at.
        cache: the folder for the file; made if need be.
        skip_bad: go on without the pictures that cannot be opened; otherwise the first one raises BadPictureError.
        jobs: processes; see :func:`rsoftmax_lab.experiments.images.extraction.extract`.
        console: where progress goes.

    Returns:
        The file, for ``extraction.load``.
    """
    console = console or Console(soft_wrap=True)
    view = View(backbone.source)
    path = cache / f"features-{view.key(backbone, pictures)}.safetensors"
    with extraction.folder_lock(cache, console):
        if path.exists() and _repaired(load(path), pictures):
            path.unlink()
        if not path.exists():
            folder = path.with_suffix(f".parts-{extraction.PART}")
            parts = extraction.extract(view, pictures, folder, skip_bad=skip_bad, jobs=jobs, console=console)
            save(path, _joined([load(part) for part in parts]))
            own_files.remove(folder, *(f"{part.name}*" for part in parts))
    bad = load(path).bad
    if bad and not skip_bad:
        raise BadPictureError(bad[0])
    return path


def _repaired(found: Features, pictures: Pictures) -> bool:
    """Whether a picture that could not be opened can be by now."""
    for place in set(range(len(pictures))).difference(found.kept.tolist()):
        try:
            open_picture(pictures.files[place], pictures.names[place])
        except BadPictureError:
            continue
        return True
    return False


def _joined(several: list[Features]) -> Features:
    return Features(
        np.concatenate([one.X for one in several]),
        np.concatenate([one.kept for one in several]),
        [text for one in several for text in one.bad],
    )
