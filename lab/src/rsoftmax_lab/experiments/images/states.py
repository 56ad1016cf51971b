"""What the stages before the trained ones say of each picture: computed once, and read from memory-mapped files.

States are kept as float16, with 11 significant bits, which halves the files: 392 KB for a picture of 224 x 224 before
the last stage of a ResNet-50. They are in a folder of parts, named by a hash of what they were computed from, which may
be deleted at any time between runs.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from rsoftmax.huggingface.backbone import Backbone
from rsoftmax.pictures import File
from rsoftmax_lab.experiments.images import extraction
from rsoftmax_lab.experiments.images.extraction import View
from rsoftmax_lab.experiments.images.pictures import Pictures


@dataclass(frozen=True)
class States:
    """The states of the pictures of a split, all of which can be opened.

    Attributes:
        places: of the pictures in the files, by their names.
        files: parts of the pictures as they are.
        mirrored: parts of the same pictures, mirrored; none if they were not asked for.
    """

    places: dict[str, int]
    files: list[Path]
    mirrored: list[Path]

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        last: int,
        pictures: Pictures,
        folder: Path,
        *,
        mirror: bool,
        jobs: int | None,
        console: Console,
    ) -> "States":
        """Compute the states that the last stages read, unless they are kept already.

        Args:
            backbone: the network.
            last: how many stages at its end read the states.
            pictures: what to look at.
            folder: where the parts are kept; made if need be.
            mirror: compute those of the mirrored pictures too.
            jobs: processes; see :func:`rsoftmax_lab.experiments.images.extraction.extract`.
            console: where progress goes.
        """

        def parts(view: View) -> list[Path]:
            place = folder / f"states-{view.key(backbone, pictures)}.parts-{extraction.PART}"
            return extraction.extract(view, pictures, place, skip_bad=False, jobs=jobs, console=console)

        with extraction.folder_lock(folder, console):
            files = parts(View(backbone.source, last))
            mirrored = parts(View(backbone.source, last, mirrored=True)) if mirror else []
        return cls({name: place for place, name in enumerate(pictures.names)}, files, mirrored)

    def read(self, file: File, name: str, augment: bool) -> Tensor:
        """The states of a picture, in float32; of the mirrored one every other time, if so asked."""
        files = self.mirrored if augment and torch.rand(()) < 0.5 else self.files
        part, row = divmod(self.places[name], extraction.PART)
        states: Tensor = _rows(files[part])[row]
        return states.float()

    def about(self) -> dict[str, Any]:
        """How they are kept, for the row of a run."""
        rows = _rows(self.files[0])
        return {"type": rows.get_dtype(), "shape": rows.get_shape()[1:]}


@cache
def _rows(part: Path) -> Any:
    """The rows of a part, each read from the file when it is asked for."""
    with extraction.opened(part) as file:
        return file.get_slice("features")
