"""One run of Table 1, in one of two ways: a head on frozen features, or the whole network trained."""

from pathlib import Path
from typing import Protocol

from rich.console import Console

from rsoftmax.huggingface.backbone import Backbone
from rsoftmax_lab.experiments.images.finetune import Whole
from rsoftmax_lab.experiments.images.frozen import Frozen
from rsoftmax_lab.experiments.images.grid import Run
from rsoftmax_lab.experiments.images.pictures import Splits
from rsoftmax_lab.running.runs import Row


class Way(Protocol):
    """A way to train, with the network and the pictures at hand."""

    @property
    def splits(self) -> Splits:
        """The pictures that can be opened."""

    def run(self, run: Run) -> Row:
        """Train and score: the row of a run."""

    def save(self, run: Run, epoch: int, folder: Path) -> None:
        """Write the model of a run, of which this epoch was the best."""


def prepare(
    backbone: Backbone,
    splits: Splits,
    out: Path,
    *,
    finetune: bool = False,
    cache: Path | None = None,
    skip_bad: bool = False,
    jobs: int | None = None,
) -> Way:
    """Open all pictures, before hours are spent on some; without ``finetune``, compute their features.

    Args:
        backbone: the network.
        splits: the pictures.
        out: the folder of results, in which checkpoints and features are kept.
        finetune: whether the whole network is trained.
        cache: another folder for the features.
        skip_bad: go on without the pictures that cannot be opened; otherwise the first one raises BadPictureError.
        jobs: processes that compute features.
    """
    console = Console(soft_wrap=True)
    if finetune:
        return Whole.of(backbone.source, out / "finetune", splits, skip_bad, console)
    return Frozen.of(backbone, splits, cache or out / "features", skip_bad, jobs, console)
