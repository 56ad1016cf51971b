"""One run of Table 1, in one of two ways: a head on frozen features, or the network trained, all or the end of it."""

from pathlib import Path
from typing import Protocol

from rich.console import Console

from rsoftmax.huggingface.backbone import Backbone
from rsoftmax_lab.experiments.images import stages
from rsoftmax_lab.experiments.images.finetune import Finetuning
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
    train_last: int = 0,
    augment: bool = False,
    cache: Path | None = None,
    skip_bad: bool = False,
    jobs: int | None = None,
) -> Way:
    """Open all pictures, before hours are spent on some, and compute once what is not trained.

    Args:
        backbone: the network.
        splits: the pictures.
        out: the folder of results, in which checkpoints and features are kept.
        finetune: whether the network is trained; otherwise its features are computed.
        train_last: how many stages at its end are trained, on states that are computed once; 0: the whole network.
        augment: whether mirrored pictures are wanted for that.
        cache: another folder for features and states.
        skip_bad: go on without the pictures that cannot be opened; otherwise the first one raises BadPictureError.
        jobs: processes that compute features or states.
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
