"""Thresholds of ``t_softmax`` and predictions of their error, from dense passes over some batches.

A pass with softmax collects, per head, the histogram of ``max(x) - x``, by count and by probability. It gives the total
variation distance from softmax for every threshold; the error of the model grows with its square. A family maps a
predicted error to thresholds: one for all heads; the same distance in every head; or the most zeros for a given sum of
predicted errors of the heads, where that of a head is half of ``d' C d``, with the change ``d`` of its output and the
covariance ``C`` of the gradient there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.api import HeadTable, pretrained_model
from rsoftmax.attention.transformers.attend import AttentionCall, Observer, observing
from rsoftmax.attention.transformers.compare import Batch, Tick, sampled_gradient, step_of
from rsoftmax.attention.transformers.measure import UNCOMPILED, evaluating, real_pairs, run_observed

Thresholds = list[Tensor]  # [heads], per layer
Family = Callable[[float], tuple[Thresholds, float]]
"""From an error to thresholds with this predicted error, and the prediction."""

BINS, TOP = 640, 32.0  # of the histograms: 0.05 nats each
SCALE = 3.0  # the first guess of error / distance^2
GRADIENT_BATCHES = 2  # that the gradient's covariance is computed on
GRID = [0.1, 0.2, 0.5, 1.0, *(1.5 + 0.5 * step for step in range(22)), 16.0, 24.0]  # thresholds that heads choose from
GRID_OF_DISTANCES = torch.linspace(0.1, TOP, 320)


@dataclass
class Histograms:
    """Measurements of the heads of one attention module: histograms of ``max(x) - x``, and predicted errors."""

    mass: Tensor  # [heads, bins], softmax weights
    count: Tensor  # [heads, bins], keys
    queries: float = 0.0
    cost: Tensor = field(default_factory=lambda: torch.zeros(()))  # [heads, grid]

    @property
    def mean_mass(self) -> Tensor:
        """The mean over the queries, ``[heads, bins]``."""
        return self.mass / max(self.queries, 1)

    def keys_below(self, t: Tensor) -> Tensor:
        """The share of keys less than ``t`` below the maximum; ``[heads, len(t)]``."""
        shares = F.pad(self.count.cumsum(-1), (1, 0)) / self.count.sum(-1, keepdim=True).clamp(min=1)
        return shares[:, (t * (BINS / TOP)).round().long().clamp(max=BINS)]


Layers = dict[str, Histograms]


# ------------------------------------------------------------------------------------------- families


def one_for_all(layers: Layers, edge: float) -> Family:
    """One threshold for all heads: the error is proportional to the square of the mean distance."""
    mass = torch.cat([layer.mean_mass for layer in layers.values()])

    def predict(t: float) -> float:
        return SCALE * float(total_variation(mass, t, edge).mean()) ** 2

    def thresholds(error: float) -> tuple[Thresholds, float]:
        t = round(_bisect(predict, 0.05, TOP, error), 3)
        return [torch.full((len(layer.mass),), t) for layer in layers.values()], predict(t)

    return thresholds


def equal_distance(layers: Layers, edge: float) -> Family:
    """A threshold per head: the same total variation distance in every head."""
    mass, grid = torch.cat([layer.mean_mass for layer in layers.values()]), GRID_OF_DISTANCES
    distance = torch.stack([total_variation(mass, float(t), edge) for t in grid], -1)  # decreases along the grid

    def choose(minus_log: float) -> Tensor:
        return (distance > math.exp(-minus_log)).sum(-1).clamp(max=len(grid) - 1)

    def predict(minus_log: float) -> float:
        return SCALE * float(distance.gather(-1, choose(minus_log)[:, None]).mean()) ** 2

    return partial(_per_head, layers, grid, choose, predict, (0.0, 20.0))


def fewest_keys(layers: Layers) -> Family:
    """A threshold per head: the fewest keys for a given sum of predicted errors, by a price of error in keys."""
    cost = torch.cat([layer.cost / max(layer.queries, 1) for layer in layers.values()])
    grid = torch.tensor(GRID)
    keys = torch.cat([layer.keys_below(grid) for layer in layers.values()])

    def choose(log_price: float) -> Tensor:
        return (keys + math.exp(log_price) * cost).argmin(-1)

    def predict(log_price: float) -> float:
        return float(cost.gather(-1, choose(log_price)[:, None]).sum())

    return partial(_per_head, layers, grid, choose, predict, (-20.0, 40.0))


def _per_head(
    layers: Layers,
    grid: Tensor,
    choose: Callable[[float], Tensor],
    predict: Callable[[float], float],
    limits: tuple[float, float],
    error: float,
) -> tuple[Thresholds, float]:
    x = _bisect(predict, *limits, error)
    return list(grid[choose(x)].split([len(layer.mass) for layer in layers.values()])), predict(x)


def _bisect(decreasing: Callable[[float], float], low: float, high: float, target: float) -> float:
    """The smallest argument whose value is at most ``target``."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if decreasing(middle) <= target else (middle, high)
    return high


def mean_keys(layers: Layers, t: Thresholds) -> float:
    """The mean share of keys that are not zero."""
    shares = [layer.keys_below(each).diagonal() for layer, each in zip(layers.values(), t, strict=True)]
    return float(torch.cat(shares).mean())


def distances(layers: Layers, t: Thresholds, edge: float) -> HeadTable:
    """The total variation distance from softmax per layer and head."""
    pairs = zip(layers.items(), t, strict=True)
    table = {name: total_variation(layer.mean_mass, each[:, None], edge) for (name, layer), each in pairs}
    return HeadTable.of("total variation", table)


def total_variation(mass: Tensor, t: Tensor | float, edge: float) -> Tensor:
    """Total variation distance from softmax, of weights that are binned by ``max(x) - x``; ``[heads, bins]``."""
    gap = (torch.arange(BINS) + 0.5) * (TOP / BINS)
    weights = mass * _edge_weight(gap, t, edge)
    return 0.5 * (weights / weights.sum(-1, keepdim=True).clamp(min=1e-30) - mass).abs().sum(-1)


def _edge_weight(gap: Tensor, t: Tensor | float, edge: float) -> Tensor:
    """``min(t - gap, edge)+ / min(t, edge)``: 1 at the maximum, 0 from ``t`` on."""
    if edge == 0:
        return ((gap < t) | (gap == 0)).to(gap.dtype)
    width = torch.as_tensor(t, dtype=gap.dtype).clamp(max=edge)
    return torch.minimum((t - gap).clamp(min=0), width) / width


# ------------------------------------------------------------------------------------------- dense passes


def collect(
    model: nn.Module, batches: list[Batch], edge: float, covariance: dict[nn.Module, Tensor] | None, tick: Tick
) -> Layers:
    """The histograms of every attention module, in one pass with softmax weights."""
    histograms: dict[nn.Module, Histograms] = {}

    def add(batch: Batch, call: AttentionCall) -> None:
        heads = call.weights.shape[1]
        layer = histograms.setdefault(call.module, Histograms(torch.zeros(heads, BINS), torch.zeros(heads, BINS)))
        keep, p = real_pairs(model, call, batch), call.weights.float()
        gap = p.amax(-1, keepdim=True).log() - p.log()
        bins = (gap * (BINS / TOP)).nan_to_num_(nan=TOP * BINS, posinf=TOP * BINS).clamp_(0, BINS - 1).long()
        bins += BINS * torch.arange(heads, device=bins.device)[:, None, None]
        layer.mass += _histogram(bins, p * keep, heads)
        layer.count += _histogram(bins, keep.float(), heads)
        layer.queries += float(keep.any(-1).sum()) / heads
        if covariance is not None:
            costs = _costs(call, p * keep.any(-1, keepdim=True), gap, covariance[call.module], edge)
            layer.cost = layer.cost + costs

    for batch in batches:
        run_observed(model, batch, Observer(partial(add, batch), step_of([batch])))
        tick()
    modules = adapter.attention_modules(pretrained_model(model))
    if missing := [name for name, module in modules.items() if module not in histograms]:
        raise ValueError(f"sparsify: the batches do not reach {', '.join(missing)}; pass inputs for all parts")
    return {name: histograms[module] for name, module in modules.items()}


def _histogram(bins: Tensor, weights: Tensor, heads: int) -> Tensor:
    return torch.bincount(bins.flatten(), weights.double().flatten(), heads * BINS).view(heads, BINS).float().cpu()


def _costs(call: AttentionCall, p: Tensor, gap: Tensor, covariance: Tensor, edge: float) -> Tensor:
    """Half of ``d' C d`` summed over the queries, where ``d`` is the change of a head's output; ``[heads, grid]``."""
    value = call.value.float().repeat_interleave(p.shape[1] // call.value.shape[1], 1)
    dense, costs = p @ value, []
    for t in GRID:
        weights = p * _edge_weight(gap, t, edge).nan_to_num_()
        change = (weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)) @ value - dense
        costs.append(0.5 * ((change @ covariance) * change).sum((0, 2, 3)))
    return torch.stack(costs, -1).cpu()


def gradient_covariance(model: nn.Module, batches: list[Batch]) -> dict[nn.Module, Tensor]:
    """The covariance of the sampled loss's gradient at each head's output, ``[heads, width, width]`` by module."""
    leaves: list[tuple[nn.Module, Tensor]] = []
    covariance: dict[nn.Module, Tensor] = {}

    def add_leaf(module: nn.Module, output: Tensor) -> Tensor:
        leaves.append((module, torch.zeros_like(output, requires_grad=True)))
        return output + leaves[-1][1]

    for batch in batches[:GRADIENT_BATCHES]:
        leaves.clear()
        with torch.enable_grad(), evaluating(model), UNCOMPILED, observing(Observer(None, replace=add_leaf)):
            source, gradient = sampled_gradient(model, batch)
            outputs = [leaf for _, leaf in leaves]
            gradients = torch.autograd.grad(source, outputs, gradient, materialize_grads=True)
        for (module, _), grad in zip(leaves, gradients, strict=True):
            total = torch.einsum("bhqd,bhqe->hde", grad.float(), grad.float()) / grad[:, 0, :, 0].numel()
            covariance[module] = covariance.get(module, torch.zeros_like(total)) + total
    return covariance
