"""The inputs of the trained stages for each image, computed once and read from memory-mapped files.

States are stored in float16, with 11 significant bits, which halves the files: 392 KB for an image of 224 x 224 before
the last stage of a ResNet-50. The folder of parts is named after a hash of the network and the images, and can be
deleted between runs.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from rsoftmax.labels.models.images import File
from rsoftmax_lab.experiments.images import extraction
from rsoftmax_lab.experiments.images.backbone import Backbone
from rsoftmax_lab.experiments.images.extraction import View
from rsoftmax_lab.experiments.images.image_set import ImageSet


@dataclass(frozen=True)
class States:
    """The states of the images of a split, all of which can be opened.

    Attributes:
        places: the positions of the images in the files, by name.
        files: the parts of the original images.
        mirrored: the parts of the flipped images; empty if not requested.
    """

    places: dict[str, int]
    files: list[Path]
    mirrored: list[Path]

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        last: int,
        images: ImageSet,
        folder: Path,
        *,
        mirror: bool,
        jobs: int | None,
        console: Console,
    ) -> "States":
        """Compute the inputs of the last stages unless they are cached.

        Args:
            backbone: the network.
            last: the number of last stages.
            images: the images.
            folder: the folder of the parts; created if necessary.
            mirror: whether to compute flipped images as well.
            jobs: the number of processes; see :func:`rsoftmax_lab.experiments.images.extraction.extract`.
            console: shows progress.
        """

        def parts(view: View) -> list[Path]:
            place = folder / f"states-{view.key(backbone, images)}.parts-{extraction.PART}"
            return extraction.extract(view, images, place, skip_bad=False, jobs=jobs, console=console)

        with extraction.folder_lock(folder, console):
            files = parts(View(backbone.source, last))
            mirrored = parts(View(backbone.source, last, mirrored=True)) if mirror else []
        return cls({name: place for place, name in enumerate(images.names)}, files, mirrored)

    def read(self, file: File, name: str, augment: bool) -> Tensor:
        """The states of an image in float32; of the flipped image with probability one half, if requested."""
        files = self.mirrored if augment and torch.rand(()) < 0.5 else self.files
        part, row = divmod(self.places[name], extraction.PART)
        states: Tensor = _rows(files[part])[row]
        return states.float()

    def about(self) -> dict[str, Any]:
        """The storage format, for the row of a run."""
        rows = _rows(self.files[0])
        return {"type": rows.get_dtype(), "shape": rows.get_shape()[1:]}


@cache
def _rows(part: Path) -> Any:
    """The rows of a part, read from the file on access."""
    with extraction.opened(part) as file:
        return file.get_slice("features")
