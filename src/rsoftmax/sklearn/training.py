"""How networks are trained: skorch's loop with the head's loss, several nets side by side, early stopping, a bar.

The only file that knows skorch.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNet
from skorch.callbacks import EarlyStopping
from torch import Tensor, nn
from tqdm.auto import tqdm

from rsoftmax.multilabel import Output, Scores
from rsoftmax.sklearn.data import Batches, Rows
from rsoftmax.sklearn.network import Network

# What skorch is told whatever the user's settings.
LOOP = {
    "criterion": nn.Identity,  # not used: the head has its own loss
    "optimizer": torch.optim.AdamW,
    "train_split": None,
    "callbacks__print_log": None,
    "verbose": 0,
}


class Net(NeuralNet):  # type: ignore[misc]
    """skorch's training loop, with the head's loss and an order of rows drawn from a generator of its own."""

    def get_loss(self, y_pred: Scores | Output, y_true: tuple[Tensor, Tensor | None], *_: Any, **__: Any) -> Tensor:
        """The head's loss of a batch."""
        y, weight = (None if entries is None else entries.to(self.device) for entries in y_true)
        loss: Tensor = self.module_.head.loss(y_pred, y, weight=weight)
        return loss

    def get_iterator(self, dataset: Rows, training: bool = False) -> Batches:
        """Batches, shuffled in training."""
        return Batches(dataset, self.batch_size, self.order if training else None)

    def validation_step(self, batch: Any, **_: Any) -> dict[str, Any]:
        """The loss of held-out rows, which needs no decoding."""
        scores = self.scores(batch[0])
        return {"loss": self.get_loss(scores, batch[1]), "y_pred": scores}

    @torch.no_grad()
    def scores(self, x: Tensor) -> Scores:
        """What the head says about a batch, not decoded."""
        scores: Scores = self.module_.eval().scores(x.to(self.device))
        return scores


class Stopping:
    """Early stopping of several nets at once: the weights of the epoch with the lowest mean loss on rows held out."""

    def __init__(self, patience: int) -> None:
        self.patience, self.misses, self.lowest = patience, 0, float("inf")
        self.losses: list[float] = []
        self.weights: list[dict[str, Tensor]] = []

    def reached(self, nets: Sequence[Net], loss: float) -> bool:
        """Take note of an epoch; whether the loss has not fallen for as many epochs as patience allows."""
        self.misses += 1
        self.losses.append(loss)
        if loss < self.lowest:
            self.lowest, self.misses = loss, 0
            self.weights = [{name: tensor.clone() for name, tensor in net.module_.state_dict().items()} for net in nets]
        return self.misses >= self.patience

    def still_falls(self) -> bool:
        """Whether the loss fell in the last epochs by more than a hundredth of what it was after the first."""
        recent = self.losses[-1 - self.patience :]
        return len(recent) < 2 or recent[0] - recent[-1] > 0.01 * self.losses[0]

    def restore(self, nets: Sequence[Net]) -> None:
        """Give the nets the weights of the best epoch."""
        for net, weights in zip(nets, self.weights, strict=False):
            net.module_.load_state_dict(weights)


def new_net(**settings: Any) -> Net:
    """A net with new weights; ``settings`` are skorch's, ``module__...`` those of :class:`Network`."""
    net: Net = Net(Network, **LOOP, **settings).initialize()
    return net


def train(
    nets: Sequence[Net],
    parts: Sequence[tuple[Rows, Rows | None]],
    epochs: int,
    seed: int,
    *,
    stopping: Stopping | None,
    progress: bool,
) -> None:
    """Train nets for some epochs more, each on its own rows, and watch the loss on the rows held out.

    Raises if the weights do not stay finite, warns if early stopping was never reached.
    """
    for i, (net, rows) in enumerate(zip(nets, parts, strict=True)):
        net.order = torch.Generator("cpu").manual_seed(seed + i)
        net.train_split = _given(rows) if rows[1] is not None else None
        net.notify("on_train_begin", X=rows[0], y=None)
    with tqdm(total=epochs, unit="epoch", disable=not progress) as bar:
        stopped = _epochs(nets, parts, epochs, stopping, bar)
    for net, rows in zip(nets, parts, strict=True):
        net.notify("on_train_end", X=rows[0], y=None)
        net.train_split = None
    if stopping is not None:
        stopping.restore(nets)
    _check_end(nets, epochs, converged=stopping is None or stopped or not stopping.still_falls())


def _epochs(
    nets: Sequence[Net], parts: Sequence[tuple[Rows, Rows | None]], epochs: int, stopping: Stopping | None, bar: Any
) -> bool:
    """Epoch by epoch, all nets; whether something stopped them early."""
    for _ in range(epochs):
        for net, rows in zip(nets, parts, strict=True):
            try:
                net.fit_loop(rows[0], epochs=1)
            except KeyboardInterrupt:  # by which callbacks of skorch stop; that of a user is raised again
                if not any(isinstance(callback, EarlyStopping) and _stops(callback) for _, callback in net.callbacks_):
                    raise
                return True
        losses = {name: _mean_loss(nets, name) for name in ("train_loss", "valid_loss")}
        bar.set_postfix({name: f"{loss:.4g}" for name, loss in losses.items() if loss is not None}, refresh=False)
        bar.update()
        if stopping is not None and stopping.reached(nets, losses["valid_loss"] or 0.0):
            return True
    return False


def _stops(callback: EarlyStopping) -> bool:
    return bool(callback.misses_ >= callback.patience)


def _given(rows: tuple[Rows, Rows | None]) -> Any:
    """The split that skorch asks for, made already."""
    return lambda *_, **__: rows


def _mean_loss(nets: Sequence[Net], name: str) -> float | None:
    losses = [net.history[-1].get(name) for net in nets]
    return None if None in losses else sum(losses) / len(losses)


def _check_end(nets: Sequence[Net], epochs: int, converged: bool) -> None:
    if not all(weights.isfinite().all() for net in nets for weights in net.module_.parameters()):
        raise ValueError(
            "SparseLabelClassifier: training diverged, the weights are no longer finite;"
            f" scale the features or lower lr={nets[0].lr!r}"
        )
    if not converged:
        warnings.warn(
            f"SparseLabelClassifier: the loss on held-out rows still fell after {epochs} epochs;"
            f" more epochs or a higher lr={nets[0].lr!r} will do better",
            ConvergenceWarning,
            stacklevel=5,
        )
