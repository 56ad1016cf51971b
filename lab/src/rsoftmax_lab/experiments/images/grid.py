"""The grid of Table 1."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rsoftmax_lab.comparison import METHODS, Training
from rsoftmax_lab.experiments.images.image_set import Splits

DATASETS = ("voc", "coco")
WAYS = ("frozen", "last", "whole")
LEARNING_RATES = (1e-3, 1e-4, 1e-5)
SHARES = (0.2, 0.0)  # held-out, and the paper's protocol


@dataclass(frozen=True)
class Run(Training):
    """One method on one dataset.

    ``model`` and ``data`` identify the network and the images, so that runs on others are not mixed; ``pictures`` is
    the number of images of each split, 0 for all. ``finetune`` trains the network: its last ``train_last`` stages, or
    all of it if that is 0.
    """

    PLACE = ("dataset",)
    VARIED = (*Training.VARIED, "lr", "selection_share")

    epochs: int = 100
    hidden: int = 0
    dataset: str = "voc"
    selection_share: float = SHARES[0]
    finetune: bool = False
    train_last: int = 0
    augment: bool = False
    pictures: int = 0  # the name of the field in saved rows
    model: str = ""
    data: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset not in DATASETS:
            raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {self.dataset!r}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"a learning rate must be above 0, got {self.lr}")

    @property
    def point(self) -> str:
        """The data of the comparison."""
        return self.dataset

    @property
    def way(self) -> str:
        """One of ``WAYS``: frozen network, trained last stages, or fully trained network."""
        return "frozen" if not self.finetune else "last" if self.train_last else "whole"


def grid(
    methods: Sequence[str] = tuple(METHODS),
    seeds: int = 3,
    learning_rates: Sequence[float] | None = None,
    shares: Sequence[float] | None = None,
    **rest: Any,
) -> list[Run]:
    """Table 1: every method with both protocols."""
    return [
        Run(method=method, seed=seed, lr=lr, selection_share=share, **rest)
        for seed in range(seeds)
        for share in shares or SHARES
        for lr in learning_rates or LEARNING_RATES
        for method in methods
    ]


def quick_grid(
    methods: Sequence[str] = tuple(METHODS), learning_rates: Sequence[float] | None = None, **rest: Any
) -> list[Run]:
    """A grid with one seed, one learning rate by default, and few epochs."""
    return grid(methods, **{**rest, "seeds": 1, "epochs": 10, "learning_rates": learning_rates or LEARNING_RATES[:1]})


def hold_out(n: int, run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of the training images and of the held-out images."""
    order = np.random.default_rng(run.seed).permutation(n)
    held_out = round(run.selection_share * n)
    return order[held_out:], order[:held_out]


def check(splits: Splits, runs: Iterable[Run]) -> None:
    """Reject data that no run can use."""
    if len(splits.classes) < 2:
        raise ValueError(f"a dataset needs at least two classes, got {', '.join(splits.classes)}")
    if not len(splits.val):
        raise ValueError("no image of val can be used")
    for run in {run.selection_share: run for run in runs}.values():
        learn, select = hold_out(len(splits.train), run)
        if not len(learn) or (run.selection_share and not len(select)):
            held = f"with a fraction of {run.selection_share} held out"
            raise ValueError(f"{len(splits.train)} training images are too few {held}; take more, or --share 0")
