"""One run of Table 1: a head on frozen features, or a network trained completely or in its last stages."""

from pathlib import Path
from typing import Protocol

from rich.console import Console

from rsoftmax_lab.experiments.images import stages
from rsoftmax_lab.experiments.images.backbone import Backbone
from rsoftmax_lab.experiments.images.finetune import Finetuning
from rsoftmax_lab.experiments.images.frozen import Frozen
from rsoftmax_lab.experiments.images.grid import Run
from rsoftmax_lab.experiments.images.image_set import Splits
from rsoftmax_lab.running.runs import Row


class Way(Protocol):
    """A way of training, with a loaded network and data."""

    @property
    def splits(self) -> Splits:
        """The images that can be opened."""

    def run(self, run: Run) -> Row:
        """Train and score; returns the row of a run."""

    def save(self, run: Run, epoch: int, folder: Path) -> None:
        """Save the model of a run whose best epoch is given."""


def prepare(
    backbone: Backbone,
    splits: Splits,
    out: Path,
    *,
    finetune: bool = False,
    train_last: int = 0,
    augment: bool = False,
    cache: Path | None = None,
    skip_bad: bool = False,
    jobs: int | None = None,
) -> Way:
    """Check that all images can be opened, and compute the outputs of the frozen part once.

    Args:
        backbone: the network.
        splits: the images.
        out: the folder of results, with checkpoints and cached features.
        finetune: whether the network is trained; otherwise its features are computed.
        train_last: the number of trained last stages, whose inputs are computed once; 0 for the whole network.
        augment: whether to compute flipped images as well.
        cache: another folder for the cache.
        skip_bad: skip images that cannot be opened; otherwise the first one raises BadImageError.
        jobs: the number of processes that compute features.
    """
    console = Console(soft_wrap=True)
    cache = (cache or out / "features").resolve()
    if not finetune:
        return Frozen.of(backbone, splits, cache, skip_bad, jobs, console)
    if train_last:
        stages.check(backbone.network, train_last)
    whole = Finetuning.of(backbone.source, out / "finetune", splits, skip_bad, console)
    if not train_last:
        return whole
    return whole.of_last(backbone, train_last, cache, mirror=augment, jobs=jobs, console=console)
