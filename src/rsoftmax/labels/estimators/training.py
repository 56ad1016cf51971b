"""Training of the networks: skorch's loop with the head's loss, several networks in lockstep, early stopping, progress.

The only module that imports skorch.
"""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNet
from skorch.callbacks import EarlyStopping
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from rsoftmax.labels.decoding import Decoder
from rsoftmax.labels.estimators.targets import Matrix, has_unknown
from rsoftmax.labels.head import MultiLabelHead
from rsoftmax.labels.rules import Output, Scores

M = TypeVar("M", bound=nn.Module)

DELAY = 10  # seconds without a progress bar, by default

# Arguments of skorch that do not depend on the user's settings.
LOOP = {
    "criterion": nn.Identity,  # unused: the head has its own loss
    "optimizer": torch.optim.AdamW,
    "train_split": None,
    "callbacks__print_log": None,
    "verbose": 0,
}


class Rows(Dataset[Any]):
    """Features, labels and weights, indexed many rows at a time; on the CPU, whatever torch's default device.

    Args:
        X: features, dense or sparse, rows first.
        Y: labels [rows, K], dense or sparse, NaN where unknown.
        weight: weights of the rows, [rows].
        class_weight: weights of negative and positive entries of each label, [2, K].
    """

    def __init__(self, X: Matrix, Y: Matrix = None, weight: Matrix = None, class_weight: Tensor | None = None) -> None:
        self.X: Matrix = _keep_sparse(X)
        self.Y: Matrix = None if Y is None else _keep_sparse(Y)
        self.weight = None if weight is None else _tensor(weight)
        self.class_weight = class_weight
        self.has_unknown = Y is not None and has_unknown(self.Y)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, index: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor | None] | None]:
        return _dense(self.X, index), None if self.Y is None else self._targets(index)

    def take(self, index: Tensor) -> "Rows":
        """Some of the rows, with their labels and weights."""
        weight = None if self.weight is None else self.weight[index]
        return Rows(self.X[index.numpy()], self.Y[index.numpy()], weight, self.class_weight)

    def labels(self) -> Tensor:
        """All labels, dense; NaN where unknown."""
        return _dense(self.Y, torch.arange(len(self), device="cpu"))

    def positive(self) -> Matrix:
        """All labels, 1 where positive, otherwise 0; sparse if they are."""
        return (self.Y == 1).astype(np.float32) if sp.issparse(self.Y) else (self.Y == 1).float().numpy()

    def _targets(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Labels, and weights [rows, 1], [rows, K] or None; unknown labels have the weight 0."""
        y = _dense(self.Y, index)
        weight = None if self.weight is None else self.weight[index, None]
        if self.has_unknown or self.class_weight is not None:
            known = (~y.isnan()).to(y.dtype)
            y = y.nan_to_num()
            weight = known if weight is None else known * weight
            if self.class_weight is not None:
                weight = weight * torch.where(y == 1, self.class_weight[1], self.class_weight[0])
        return y, weight


class Batches:
    """A data loader that slices whole batches out of :class:`Rows`, shuffled if there is a generator."""

    def __init__(self, rows: Rows, batch_size: int, generator: torch.Generator | None = None) -> None:
        self.rows, self.batch_size, self.generator = rows, batch_size, generator

    def __iter__(self) -> Iterator[Any]:
        n, g = len(self.rows), self.generator
        order = torch.arange(n, device="cpu") if g is None else torch.randperm(n, generator=g, device="cpu")
        return map(self.rows.__getitem__, order.split(self.batch_size))


def _keep_sparse(rows: Matrix) -> Matrix:
    return rows if sp.issparse(rows) or isinstance(rows, Tensor) else _tensor(rows)


def _dense(rows: Matrix, index: Tensor) -> Tensor:
    return _tensor(rows[index.numpy()].toarray()) if sp.issparse(rows) else rows[index]


def _tensor(rows: Matrix) -> Tensor:
    contiguous = np.ascontiguousarray(rows)  # torch does not take negative strides
    return torch.tensor(contiguous, dtype=torch.float32, device="cpu")


class Dropout(nn.Module):
    """Dropout with an explicit generator, so that results do not depend on other threads.

    Args:
        p: the dropout rate.
        generator: on the CPU; on another device it is replaced by one with the same seed.
    """

    def __init__(self, p: float, generator: torch.Generator) -> None:
        super().__init__()
        self.p, self.generator = p, generator

    def forward(self, x: Tensor) -> Tensor:
        """Set entries to zero at rate p and scale the others by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return x
        if self.generator.device != x.device:
            self.generator = torch.Generator(x.device).manual_seed(self.generator.initial_seed())
        kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * kept / (1 - self.p)

    def extra_repr(self) -> str:
        """The rate shown by ``repr``."""
        return f"p={self.p}"


class Network(nn.Module):
    """Hidden layers with ReLU and dropout, and a head. In training it returns scores, otherwise decoded outputs.

    Args:
        features: the number of features.
        labels: the number of labels.
        hidden: sizes of the hidden layers.
        head: arguments of :class:`rsoftmax.labels.MultiLabelHead`.
        seed: seeds the initial weights and dropout.
        dropout: dropout rate of the hidden layers.
        input_dropout: dropout rate of the features.
        backbone: a module in place of the hidden layers, from rows to features of the head. A copy is trained, starting
            from its weights.
        example: a few rows, from which the output size of the backbone is found.
    """

    def __init__(
        self,
        features: int,
        labels: int,
        hidden: Sequence[int],
        head: dict[str, Any],
        seed: int,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        backbone: nn.Module | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__()
        generator = torch.Generator("cpu").manual_seed(seed)
        sizes = [features, *hidden]
        with torch.device("meta"):
            if backbone is None:
                layers: list[nn.Module] = [Dropout(input_dropout, generator)]
                for size, following in pairwise(sizes):
                    layers += [nn.Linear(size, following), nn.ReLU(), Dropout(dropout, generator)]
                own: nn.Module = _initialize(nn.Sequential(*layers), generator)
            else:
                own, sizes = copy.deepcopy(backbone), [_output_size(backbone, example)]
            self.backbone = own
            self.head = _initialize(MultiLabelHead(sizes[-1], labels, **head), generator)

    def forward(self, x: Tensor) -> Scores | Output:
        """Map features [rows, features] to scores or, in evaluation mode, decoded outputs."""
        scores = self.scores(x)
        return scores if self.training else self.head.decode(scores)

    def scores(self, x: Tensor) -> Scores:
        """Map features to scores."""
        return self.head.scores(self.backbone(x))


def _initialize(module: M, generator: torch.Generator) -> M:
    """Materialise a module of the meta device with torch's initialization of linear layers, from the generator."""
    module = module.float().to_empty(device="cpu")
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            bound = 1 / math.sqrt(layer.in_features)
            for weights in layer.parameters():
                nn.init.uniform_(weights, -bound, bound, generator=generator)
        elif isinstance(layer, Decoder):
            layer.reset()
    return module


@torch.no_grad()
def _output_size(backbone: nn.Module, example: Tensor | None) -> int:
    found = copy.deepcopy(backbone).cpu().eval()(example)
    if not isinstance(found, Tensor) or found.ndim != 2:
        kind = f"a tensor of shape {[*found.shape]}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ValueError(f"SparseLabelClassifier: backbone must return a tensor [rows, features], got {kind}")
    return int(found.shape[1])


class Net(NeuralNet):  # type: ignore[misc]
    """skorch's training loop with the head's loss; rows are shuffled by an explicit generator."""

    def get_loss(self, y_pred: Scores | Output, y_true: tuple[Tensor, Tensor | None], *_: Any, **__: Any) -> Tensor:
        """The head's loss of a batch."""
        y, weight = (None if entries is None else entries.to(self.device) for entries in y_true)
        loss: Tensor = self.module_.head.loss(y_pred, y, weight=weight)
        return loss

    def get_iterator(self, dataset: Rows, training: bool = False) -> Batches:
        """Batches, shuffled in training."""
        return Batches(dataset, self.batch_size, self.order if training else None)

    def validation_step(self, batch: Any, **_: Any) -> dict[str, Any]:
        """The loss of held-out rows, without decoding."""
        scores = self.scores(batch[0])
        return {"loss": self.get_loss(scores, batch[1]), "y_pred": scores}

    @torch.no_grad()
    def scores(self, x: Tensor) -> Scores:
        """The scores of a batch."""
        scores: Scores = self.module_.eval().scores(x.to(self.device))
        return scores


class Stopping:
    """Early stopping of several networks in lockstep: keeps the weights with the lowest mean loss on held-out rows."""

    def __init__(self, patience: int) -> None:
        self.patience, self.misses, self.lowest = patience, 0, float("inf")
        self.losses: list[float] = []
        self.weights: list[dict[str, Tensor]] = []

    def update(self, nets: Sequence[Net], loss: float) -> bool:
        """Record an epoch; return whether the loss has not improved for ``patience`` epochs."""
        self.misses += 1
        self.losses.append(loss)
        if loss < self.lowest:
            self.lowest, self.misses = loss, 0
            self.weights = [{name: tensor.clone() for name, tensor in net.module_.state_dict().items()} for net in nets]
        return self.misses >= self.patience

    def still_falls(self) -> bool:
        """Whether the loss fell in the last epochs by more than a hundredth of the loss after the first epoch."""
        recent = self.losses[-1 - self.patience :]
        return len(recent) < 2 or recent[0] - recent[-1] > 0.01 * self.losses[0]

    def restore(self, nets: Sequence[Net]) -> None:
        """Load the weights of the best epoch."""
        for net, weights in zip(nets, self.weights, strict=False):
            net.module_.load_state_dict(weights)


def new_net(**settings: Any) -> Net:
    """Create an initialized net; ``settings`` are skorch's, ``module__...`` those of :class:`Network`."""
    net: Net = Net(Network, **LOOP, **settings).initialize()
    return net


def train(
    nets: Sequence[Net],
    parts: Sequence[tuple[Rows, Rows | None]],
    epochs: int,
    seed: int,
    *,
    stopping: Stopping | None,
    progress: int | None,
) -> None:
    """Train each net on its own rows for some epochs, and record the loss on its held-out rows.

    Raises:
        ValueError: the weights did not stay finite.

    Warns if the loss on held-out rows still falls after the last epoch.
    """
    for i, (net, rows) in enumerate(zip(nets, parts, strict=True)):
        net.order = torch.Generator("cpu").manual_seed(seed + i)
        net.train_split = None if rows[1] is None else lambda *_, rows=rows, **__: rows
        net.notify("on_train_begin", X=rows[0], y=None)
    delay = DELAY if progress is None else 0
    with tqdm(total=epochs * len(nets), unit="epoch", delay=delay, disable=progress == 0) as bar:
        stopped = _run_epochs(nets, parts, epochs, stopping, bar)
    for net, rows in zip(nets, parts, strict=True):
        net.notify("on_train_end", X=rows[0], y=None)
        net.train_split = None
    if stopping is not None:
        stopping.restore(nets)
    _check_end(nets, epochs, converged=stopping is None or stopped or not stopping.still_falls())


def _run_epochs(
    nets: Sequence[Net], parts: Sequence[tuple[Rows, Rows | None]], epochs: int, stopping: Stopping | None, bar: Any
) -> bool:
    """Train all nets epoch by epoch; return whether they were stopped early."""
    for _ in range(epochs):
        for net, rows in zip(nets, parts, strict=True):
            try:
                net.fit_loop(rows[0], epochs=1)
            except KeyboardInterrupt:  # skorch's callbacks raise it to stop; one from the user is raised again
                if not any(_has_stopped(callback) for _, callback in net.callbacks_):
                    raise
                return True
            bar.update()
        losses = {name: _mean_loss(nets, name) for name in ("train_loss", "valid_loss")}
        bar.set_postfix({name: f"{loss:.4g}" for name, loss in losses.items() if loss is not None}, refresh=False)
        if stopping is not None and stopping.update(nets, losses["valid_loss"] or 0.0):
            return True
    return False


def _has_stopped(callback: Any) -> bool:
    return isinstance(callback, EarlyStopping) and bool(callback.misses_ >= callback.patience)


def _mean_loss(nets: Sequence[Net], name: str) -> float | None:
    losses = [net.history[-1].get(name) for net in nets]
    return None if None in losses else sum(losses) / len(losses)


def _check_end(nets: Sequence[Net], epochs: int, converged: bool) -> None:
    if not all(weights.isfinite().all() for net in nets for weights in net.module_.parameters()):
        raise ValueError(
            "SparseLabelClassifier: training diverged, the weights are not finite;"
            f" scale the features or lower lr={nets[0].lr!r}"
        )
    if not converged:
        warnings.warn(
            f"SparseLabelClassifier: the loss on held-out rows still fell after max_epochs={epochs};"
            f" increase max_epochs or lr={nets[0].lr!r}",
            ConvergenceWarning,
            stacklevel=5,
        )
