"""Training of the networks: the head's loss and AdamW, several networks in lockstep, early stopping, progress."""

import copy
import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm.auto import tqdm

from rsoftmax.labels.decoding import Decoder
from rsoftmax.labels.estimators.targets import Matrix, has_unknown
from rsoftmax.labels.head import MultiLabelHead
from rsoftmax.labels.rules import Output, Scores
from rsoftmax.labels.windows import Windows, pool_scores

M = TypeVar("M", bound=nn.Module)

DELAY = 10  # seconds without a progress bar, by default


class Samples:
    """Features, labels and weights of samples, on the CPU, whatever torch's default device.

    Args:
        X: features, dense or sparse, samples first; or those of the windows of each sample.
        Y: labels [samples, K], dense or sparse, NaN where unknown.
        weight: weights of the samples, [samples].
        class_weight: weights of negative and positive entries of each label, [2, K].
    """

    def __init__(self, X: Matrix, Y: Matrix = None, weight: Matrix = None, class_weight: Tensor | None = None) -> None:
        self.X, self.Y, self.weight = (
            values if values is None or sp.issparse(values) or isinstance(values, Tensor | Windows) else _tensor(values)
            for values in (X, Y, weight)
        )
        self.class_weight = class_weight
        self.has_unknown = Y is not None and has_unknown(self.Y)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def batches(self, size: int, generator: torch.Generator | None = None) -> Sequence[Tensor]:
        """The indices of the samples in batches, shuffled if there is a generator."""
        n = len(self)
        shuffled = generator is not None
        order = torch.randperm(n, generator=generator, device="cpu") if shuffled else torch.arange(n, device="cpu")
        batches: Sequence[Tensor] = order.split(size)
        return batches

    def features(self, index: Tensor) -> Tensor | Windows:
        """The features of some samples, dense."""
        features: Tensor | Windows = _dense(self.X, index)
        return features

    def targets(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Labels of some samples, and weights [n, 1], [n, K] or None; unknown labels have the weight 0."""
        y = _dense(self.Y, index)
        weight = None if self.weight is None else self.weight[index, None]
        if self.has_unknown or self.class_weight is not None:
            known = (~y.isnan()).to(y.dtype)
            y = y.nan_to_num()
            weight = known if weight is None else known * weight
            if self.class_weight is not None:
                weight = weight * torch.where(y == 1, self.class_weight[1], self.class_weight[0])
        return y, weight

    def labels(self) -> Tensor:
        """All labels, dense; NaN where unknown."""
        labels: Tensor = _dense(self.Y, torch.arange(len(self), device="cpu"))
        return labels

    def take(self, index: Tensor) -> "Samples":
        """Some of the samples, with their labels and weights."""
        weight = None if self.weight is None else self.weight[index]
        return Samples(self.X[index.numpy()], self.Y[index.numpy()], weight, self.class_weight)


def _dense(rows: Matrix, index: Tensor) -> Any:
    return _tensor(rows[index.numpy()].toarray()) if sp.issparse(rows) else rows[index]


def _tensor(values: Matrix) -> Tensor:
    contiguous = np.ascontiguousarray(values)  # torch does not take negative strides
    return torch.tensor(contiguous, dtype=torch.float32, device="cpu")


TrainingData = tuple[Samples, Samples | None]
"""The training samples of a network, and its held-out samples."""


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
        mask = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * mask / (1 - self.p)

    def extra_repr(self) -> str:
        """The rate shown by ``repr``."""
        return f"p={self.p}"


class Network(nn.Module):
    """A backbone and a head; the weights are drawn from a generator of their own.

    Args:
        backbone: a module from samples to features, of which a copy is trained from its weights, or a sequence of
            sizes, of the input and of hidden layers with ReLU.
        num_labels: the number of labels.
        head: arguments of :class:`rsoftmax.labels.MultiLabelHead`.
        seed: seeds the initial weights and dropout.
        dropout: dropout rates of the input and of the hidden layers.
        example: the features of a few samples, from which the output size of a module is inferred.
    """

    def __init__(
        self,
        backbone: nn.Module | Sequence[int],
        num_labels: int,
        head: dict[str, Any],
        seed: int,
        dropout: tuple[float, float],
        example: Tensor,
    ) -> None:
        super().__init__()
        generator = torch.Generator("cpu").manual_seed(seed)
        with torch.device("meta"):
            if isinstance(backbone, nn.Module):
                self.backbone, in_features = copy.deepcopy(backbone), _output_size(backbone, example)
            else:
                layers: list[nn.Module] = [Dropout(dropout[0], generator)]
                for size, following in pairwise(backbone):
                    layers += [nn.Linear(size, following), nn.ReLU(), Dropout(dropout[1], generator)]
                self.backbone, in_features = _initialize(nn.Sequential(*layers), generator), backbone[-1]
            self.head = _initialize(MultiLabelHead(in_features, num_labels, **head), generator)

    def forward(self, x: Tensor) -> Output:
        """Map features [samples, in_features] to decoded outputs."""
        return self.head.decode(self.scores(x))

    def scores(self, x: Tensor) -> Scores:
        """Map features to scores, all that the loss needs."""
        return self.head.scores(self.backbone(x.to(next(self.head.parameters()).device)))


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
def _output_size(backbone: nn.Module, example: Tensor) -> int:
    h = copy.deepcopy(backbone).cpu().eval()(example)
    if not isinstance(h, Tensor) or h.ndim != 2:
        kind = f"a tensor of shape {[*h.shape]}" if isinstance(h, Tensor) else f"a {type(h).__name__}"
        raise ValueError(f"SparseLabelClassifier: backbone must return a tensor [samples, features], got {kind}")
    return int(h.shape[1])


class EarlyStopping:
    """Early stopping of several networks in lockstep: remembers the weights with the lowest mean held-out loss."""

    def __init__(self, networks: Sequence[nn.Module], patience: int) -> None:
        self.networks, self.patience, self.losses = networks, patience, list[float]()
        self.lowest, self.misses = math.inf, 0
        self.weights: list[dict[str, Tensor]] = []

    def update(self, loss: float) -> bool:
        """Record an epoch; return whether the loss has not fallen for ``patience`` epochs."""
        self.losses.append(loss)
        self.misses += 1
        if loss < self.lowest:
            self.lowest, self.misses = loss, 0
            self.weights = [{name: w.clone() for name, w in net.state_dict().items()} for net in self.networks]
        return self.misses >= self.patience

    def still_falls(self) -> bool:
        """Whether the loss fell in the last epochs by more than a hundredth of the loss after the first epoch."""
        recent = self.losses[-1 - self.patience :]
        return len(recent) < 2 or recent[0] - recent[-1] > 0.01 * self.losses[0]

    def restore(self) -> None:
        """Load the weights of the best epoch."""
        for network, weights in zip(self.networks, self.weights, strict=False):  # no weights if every loss is NaN
            network.load_state_dict(weights)


def train(
    networks: Sequence[Network],
    optimizers: Sequence[Optimizer],
    parts: Sequence[TrainingData],
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    patience: int | None,
    verbose: int | None,
) -> list[dict[str, float]]:
    """Train networks in lockstep, each on samples of its own.

    Args:
        networks, optimizers: one optimizer for each network.
        parts: the training samples of each network, and its held-out samples or None.
        epochs: the (largest) number of epochs.
        batch_size: samples per step.
        seed: seeds the order of the samples.
        patience: the number of epochs without a lower loss on held-out samples after which training stops; None: never.
        verbose: 1 shows a progress bar, 0 does not; None shows it after ten seconds.

    Returns:
        The losses of each epoch, mean over the networks.

    Raises ValueError if the weights did not stay finite; warns if the held-out loss still falls after the last epoch.
    """
    stopping = None if patience is None else EarlyStopping(networks, patience)
    orders = [torch.Generator("cpu").manual_seed(seed + i) for i in range(len(networks))]
    members = list(zip(networks, optimizers, parts, orders, strict=True))
    history, stopped, lr = list[dict[str, float]](), False, optimizers[0].param_groups[0]["lr"]
    delay = DELAY if verbose is None else 0
    with tqdm(total=epochs * len(networks), unit="epoch", delay=delay, disable=verbose == 0) as bar:
        while len(history) < epochs and not stopped:
            losses = [_train_epoch(*member, batch_size, bar) for member in members]
            history.append({name: sum(loss[name] for loss in losses) / len(losses) for name in losses[0]})
            bar.set_postfix({name: f"{loss:.4g}" for name, loss in history[-1].items()}, refresh=False)
            stopped = stopping is not None and stopping.update(history[-1]["valid_loss"])
        bar.total = bar.n  # 100 %, also if stopped early
    if stopping is not None:
        stopping.restore()
    if not all(weights.isfinite().all() for network in networks for weights in network.parameters()):
        raise ValueError(
            f"SparseLabelClassifier: training diverged, the weights are not finite; scale the features or lower {lr=}"
        )
    if stopping is not None and not stopped and stopping.still_falls():
        warnings.warn(
            f"SparseLabelClassifier: the loss on held-out samples still fell after max_epochs={epochs}; increase"
            f" max_epochs or {lr=}",
            ConvergenceWarning,
            stacklevel=4,
        )
    return history


def _train_epoch(
    network: Network, optimizer: Optimizer, part: TrainingData, order: torch.Generator, batch_size: int, bar: Any
) -> dict[str, float]:
    """Train a network for an epoch; the mean losses on its training and its held-out samples."""
    samples, held_out = part
    losses = {"train_loss": _run_epoch(network, samples, batch_size, optimizer, order)}
    if held_out is not None:
        losses["valid_loss"] = _run_epoch(network, held_out, batch_size)
    bar.update()
    return losses


def _run_epoch(
    network: Network,
    samples: Samples,
    batch_size: int,
    optimizer: Optimizer | None = None,
    order: torch.Generator | None = None,
) -> float:
    """The mean loss of an epoch; of training, if there is an optimizer."""
    network.train(optimizer is not None)
    batches, losses = samples.batches(batch_size, order), []
    with torch.set_grad_enabled(optimizer is not None):
        for index in batches:
            scores, (y, weight) = pool_scores(network.scores, samples.features(index)), samples.targets(index)
            weight = None if weight is None else weight.to(scores.logits)
            loss = network.head.loss(scores, y.to(scores.logits), weight=weight)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
    return float(np.average(losses, weights=[len(index) for index in batches]))
