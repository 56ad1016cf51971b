"""Table 1 on frozen features, where a head is trained in seconds."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from rsoftmax.labels import LabelModel
from rsoftmax_lab.comparison import METHODS, Data, Samples, classifier, train_and_score
from rsoftmax_lab.experiments.images import extraction, features
from rsoftmax_lab.experiments.images.backbone import Backbone
from rsoftmax_lab.experiments.images.grid import Run, hold_out
from rsoftmax_lab.experiments.images.image_set import ImageSet, Splits, report_bad
from rsoftmax_lab.running.runs import Row


class Part(NamedTuple):
    """A split with its file of features, without images that cannot be opened."""

    file: Path
    images: ImageSet


@dataclass(frozen=True)
class Frozen:
    """A frozen network and its features.

    Attributes:
        model: the network's folder or hub id.
        classes: the labels' names.
        train: the training split.
        val: the evaluation split.
    """

    model: str
    classes: list[str]
    train: Part
    val: Part

    @classmethod
    def of(
        cls, backbone: Backbone, splits: Splits, cache: Path, skip_bad: bool, jobs: int | None, console: Console
    ) -> "Frozen":
        """Compute the features unless they are cached."""

        def part(images: ImageSet) -> Part:
            file = features.extract(backbone, images, cache, skip_bad=skip_bad, jobs=jobs, console=console)
            found = extraction.load(file)
            report_bad(found.bad, len(images), console)
            return Part(file, images.take(found.kept))

        return cls(backbone.source, splits.classes, part(splits.train), part(splits.val))

    @property
    def splits(self) -> Splits:
        """The images with features."""
        return Splits(self.classes, self.train.images, self.val.images)

    def run(self, run: Run) -> Row:
        """Train a head and score it; returns the row of a run."""
        return train_and_score(run, self.data(run), curves=not run.selection_share)

    def data(self, run: Run) -> Data:
        """The rows of a run, with unscaled features, as a head sees them on top of the network."""
        train, val = self.train.images, self.val.images
        learn, select = hold_out(len(train), run)
        X, V = _features(self.train.file), _features(self.val.file)
        test = Samples(V, val.labels, val.ignored)
        aside = Samples(X[select], train.labels[select], train.ignored[select])
        return Data(Samples(X[learn], train.labels[learn]), aside if run.selection_share else test, test)

    def save(self, run: Run, epoch: int, folder: Path) -> None:
        """Retrain a head on all training images, and save it with its network as one model."""
        run = replace(run, selection_share=0.0)
        model, rows = classifier(run), self.data(run).train
        for _ in range(epoch):
            model.partial_fit(rows.X, rows.Y)
        whole = LabelModel.from_encoder(self.model, self.classes, "samples", **METHODS[run.method].head)
        whole.network.head.load_state_dict(model.estimators_[0].module_.head.state_dict())
        whole.save_pretrained(folder)


@lru_cache(maxsize=2)  # consecutive runs use the same data
def _features(file: Path) -> NDArray[np.float32]:
    return extraction.load(file).X
