"""How a network is trained: skorch's loop with the head's loss, early stopping, a progress bar, and a seed.

The only file that knows skorch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from skorch import NeuralNet
from skorch.callbacks import Callback, EarlyStopping
from torch import Tensor, nn
from tqdm.auto import tqdm

from rsoftmax.multilabel import Output, Scores
from rsoftmax.sklearn.data import Batches, Rows, Split
from rsoftmax.sklearn.network import Network

# What skorch is told whatever the user's settings.
LOOP = {
    "criterion": nn.Identity,  # not used: the head has its own loss
    "optimizer": torch.optim.AdamW,
    "iterator_train": Batches,
    "iterator_train__shuffle": True,
    "iterator_valid": Batches,
    "train_split": None,
    "callbacks__print_log": None,
    "verbose": 0,
}


class Net(NeuralNet):  # type: ignore[misc]
    """skorch's training loop, with the head's loss."""

    def get_loss(self, y_pred: Scores | Output, y_true: Tensor, *_: Any, **__: Any) -> Tensor:
        """The head's loss of a batch."""
        loss: Tensor = self.module_.head.loss(y_pred, y_true.to(self.device))
        return loss


class Stopping(EarlyStopping):  # type: ignore[misc]
    """Early stopping on a share of the rows: ends with the weights of the epoch with the lowest loss on them."""

    def __init__(self, patience: int, share: float, seed: int) -> None:
        super().__init__(patience=patience, threshold=0.0, load_best=True)
        self.split = Split(share, seed)

    @property
    def reached(self) -> bool:
        """The loss has not fallen for as many epochs as patience allows."""
        return bool(self.misses_ >= self.patience)


class Progress(Callback):  # type: ignore[misc]
    """A bar of epochs, with the latest losses."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_train_begin(self, net: NeuralNet, *_: Any, **__: Any) -> None:
        """Show the bar."""
        self.bar = tqdm(total=self.epochs, unit="epoch")

    def on_epoch_end(self, net: NeuralNet, *_: Any, **__: Any) -> None:
        """Move it by one epoch."""
        losses = {name: net.history[-1].get(name) for name in ("train_loss", "valid_loss")}
        self.bar.set_postfix({name: f"{loss:.4g}" for name, loss in losses.items() if loss is not None}, refresh=False)
        self.bar.update()

    def on_train_end(self, net: NeuralNet, *_: Any, **__: Any) -> None:
        """Leave it as it is."""
        self.bar.close()


def new_net(seed: int, **settings: Any) -> Net:
    """A net with new weights; ``settings`` are skorch's, ``module__...`` those of :class:`Network`."""
    with seeded(seed), torch.device("cpu"):
        net: Net = Net(Network, **LOOP, **settings).initialize()
    return net


def train(net: Net, rows: Rows, epochs: int, seed: int, *, stopping: Stopping | None, progress: bool) -> None:
    """Train for some epochs more; raises if the weights do not stay finite."""
    with _callbacks(net, Progress(epochs) if progress else None, stopping):
        net.notify("on_train_begin", X=rows, y=None)
        with _ended_early(stopping), seeded(seed):
            net.fit_loop(rows, epochs=epochs)
        net.notify("on_train_end", X=rows, y=None)
    if not all(weights.isfinite().all() for weights in net.module_.parameters()):
        raise ValueError(
            "SparseLabelClassifier: training diverged, the weights are no longer finite;"
            f" scale the features or lower lr={net.lr!r}"
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A block in which torch's random numbers start at a seed; outside it nothing changes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def _callbacks(net: Net, progress: Progress | None, stopping: Stopping | None) -> Iterator[None]:
    """A block in which the net has these callbacks too, and sets rows aside if there is early stopping."""
    usual = list(net.callbacks_)
    added = {"progress": progress, "early_stopping": stopping}
    net.callbacks_ += [(name, callback) for name, callback in added.items() if callback]
    net.train_split = stopping and stopping.split
    try:
        yield
    finally:
        net.callbacks_, net.train_split = usual, None


@contextmanager
def _ended_early(stopping: Stopping | None) -> Iterator[None]:
    """A block that early stopping may end, which skorch does by a KeyboardInterrupt; that of a user is raised again."""
    try:
        yield
    except KeyboardInterrupt:
        if stopping is None or not stopping.reached:
            raise
