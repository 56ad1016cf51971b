r"""Thresholds for pretrained attention, calibrated to an error on text.

Removing the softmax weights below ``e^-t`` of the largest one changes a pretrained model little: most weights are that
small, and together they hold little mass. :func:`calibrate` finds a small ``t`` whose effect on the model's output
stays within a given error. Half of the batches select candidates:

1. a dense pass collects, per head, the histogram of ``max(x) - x``, by count and by probability. It predicts the moved
   mass, the total variation distance to softmax, for every ``t``; the error grows with its square;
2. bisection finds the ``t`` of a predicted error, and runs of the sparse model correct the prediction;
3. the candidates are the ``t`` predicted to have 10, 30, 55, 75, 90 and 105 % of the error.

The other half, held out, certifies one of them by fixed-sequence testing: candidates are tested in this order, fixed in
advance, up to the first whose mean error cannot be shown to be within the limit (one-sided Student's t bound, 95 %,
over texts). The last one before it is chosen. Each test may use the same batches and the full level of 5 %: for any
threshold that exceeds the error to be certified, the first such one has to pass. See Angelopoulos et al., Learn then
test (2021).

With ``per_head=True`` three families of thresholds compete, and the first half selects the one with the most zeros: one
``t`` for all heads; the same moved mass in every head; the most zeros for a given sum of predicted errors. The
predicted error of a head is half of ``d' C d``, where ``d`` is the change of its output and ``C`` the covariance of the
gradient there, from one backward pass.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.api import HeadTable, parameters, pretrained_model, set_attention
from rsoftmax.attention.transformers.attend import Observed, Observer, observing
from rsoftmax.attention.transformers.compare import (
    CONFIDENCE,
    COSINE,
    LABELS,
    Batch,
    Comparison,
    Outcome,
    Tick,
    check_batches,
    compare,
    outcome_of,
    restored,
    step_of,
)
from rsoftmax.attention.transformers.measure import UNCOMPILED, evaluating, real_pairs, run_observed, zeros_of
from rsoftmax.attention.transformers.saving import certify

Family = Callable[[float], tuple[list[Tensor], float]]
"""From an error to thresholds ``[heads]`` per layer with this predicted error, and the prediction."""

SHARES = (0.1, 0.3, 0.55, 0.75, 0.9, 1.05)  # of the error: the candidates, in the order in which they are tested
MIN_TEXTS, MIN_SAMPLES = 4, 30  # held out; samples are the tokens of a language model, or texts of any other model
BINS, TOP = 640, 32.0  # of the histograms: 0.05 nats each
CORRECTIONS = 2  # of the predicted error, by runs of the sparse model
SCALE = 3.0  # the first guess of error / (moved mass)^2
GRADIENT_BATCHES = 2  # that the gradient's covariance is computed on
GRID = [0.1, 0.2, 0.5, 1.0, *(1.5 + 0.5 * step for step in range(22)), 16.0, 24.0]  # thresholds that heads choose from


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` found; ``print(calibration)`` shows it as tables.

    Attributes:
        t: the threshold, or a table ``[layers, heads]``.
        edge: the width of the edge in nats.
        error: the requested error.
        measured: the mean error of the sparse model on the held-out batches, and its standard error.
        bound: the upper confidence bound of the mean error, which is at most ``error``.
        metric: what the error is.
        zeros: the share of exact zeros per layer and head, on the held-out batches.
        moved: the moved mass per layer and head, predicted from the other batches.
        by_length: number of keys (from, to), error, standard error and number of samples.
        texts: the number of held-out texts.
        max_length: the largest number of keys that was measured.
        time: processor time of the sparse model over that of the model as given, on the held-out batches.
        seconds: how long the calibration took.
    """

    t: float | HeadTable
    edge: float
    error: float
    measured: tuple[float, float]
    bound: float
    metric: str
    zeros: HeadTable
    moved: HeadTable
    by_length: list[tuple[int, int, float, float, int]]
    texts: int
    max_length: int
    time: float
    seconds: float

    def __str__(self) -> str:
        t = f"{self.t:.3g}" if isinstance(self.t, float) else f"{self.t.mean():.3g} on average, one per head"
        lines = [
            f"t_softmax, t = {t}, edge = {self.edge:g}",
            f"{self.metric}: {self.measured[0]:.2g} +- {self.measured[1]:.1g} on {self.texts} held-out texts; below"
            f" {self.bound:.2g} with {CONFIDENCE:.0%} confidence (requested: {self.error:g})",
            f"zeros {self.zeros.mean():.1%}, moved mass {self.moved.mean():.1%}, up to {self.max_length} keys",
            f"time {self.time:.2f} of the dense model's; calibrated in {self.seconds:.0f} s",
            f"{'keys':>12} {'error':>9} {'+-':>8} {'samples':>8}",
        ]
        for first, last, mean, deviation, count in self.by_length:
            lines.append(f"{f'{first + 1}-{last}':>12} {mean:9.5f} {deviation:8.5f} {count:8d}")
        return "\n".join([*lines, str(self.zeros), str(self.moved)])


def calibrate(
    model: nn.Module,
    batches: Iterable[Batch],
    error: float = 0.005,
    *,
    held_out: Iterable[Batch] | None = None,
    per_head: bool = False,
    edge: float = 0.0,
    verbose: bool = False,
) -> Calibration:
    """Switch a pretrained model to ``t_softmax`` attention with a small threshold that stays within a given error.

    Args:
        model: as in :func:`set_attention`. It is modified in place, without training.
        batches: the model's inputs; it is called as ``model(**batch)``. Use texts as long as those of the application.
        error: the limit on the mean error, certified on held-out batches with 95 % confidence. For language models it
            is the Kullback-Leibler divergence of the next-token distribution from the dense model's, in nats per token;
            for classifiers that of the class distribution; for encoders one minus the cosine of the mean-pooled
            embeddings.
        held_out: batches used only to certify the error. Default: the second half of ``batches``.
        per_head: choose a threshold for each head by its moved mass or by its effect on the error, which takes a
            backward pass; a single threshold for all heads is used if that gives more zeros.
        edge: the width of the edge in nats. 0 gives the most zeros for a given error; use 1 if the model will be
            fine-tuned.
        verbose: show a progress bar.

    Returns:
        The threshold and what was measured; see :class:`Calibration`. ``save_pretrained`` stores the threshold with the
        model. The model warns when it is called with more keys than were measured.

    Raises:
        ValueError: no batches, too few held-out samples, no threshold that they certify, or a model whose attention
            cannot be replaced. The model is left unchanged.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> _ = torch.manual_seed(0)
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=50)
        >>> model = BertModel(BertConfig(num_hidden_layers=2, **sizes))
        >>> batches = [{"input_ids": torch.randint(50, (40, 12))} for _ in range(2)]
        >>> found = calibrate(model, batches, error=0.01)
        >>> found.measured[0] < found.bound <= 0.01
        True

    The certificate holds for texts from the same distribution as the held-out ones. It is approximate: the mean over
    the texts is assumed to be normally distributed.
    """
    started = time.perf_counter()
    fit, test = _split(batches, held_out)
    _check(error, edge, test)
    passes = len(fit) * (1 + CORRECTIONS * (4 if per_head else 2)) + len(test) * (1 + len(SHARES))
    with tqdm(total=passes, unit="pass", disable=not verbose) as bar:
        with restored(model):
            set_attention(model, "t_softmax", t=math.inf, edge=edge)
            heads = _collect(model, fit, edge, _gradient_covariance(model, fit) if per_head else None, bar.update)
        families = [_constant(heads, edge)]
        families += [_equal_mass(heads, edge), _loss_aware(heads)] if per_head else []
        tried = _candidates(partial(_try, model, fit, edge, bar.update), families, error)
        candidates = min(tried, key=lambda each: _kept(heads, each[-1]))
        results = _try(model, test, edge, bar.update, candidates)
    index = _choose(results, error)
    chosen, result = candidates[index], results[index]
    mean, deviation = result.mean()
    with restored(model, after="an error"):
        set_attention(model, "t_softmax", t=_simplest(chosen), edge=edge)
        zeros, longest = zeros_of(model, test, step_of(test))
        certificate = {"error": error, "measured": mean, "standard_error": deviation, "bound": result.bound()}
        certify(pretrained_model(model), {**certificate, "max_length": longest})
    return Calibration(
        t=parameters(model) if per_head else _simplest(chosen),
        edge=edge,
        error=error,
        measured=(mean, deviation),
        bound=result.bound(),
        metric=result.metric,
        zeros=zeros,
        moved=HeadTable.of("moved mass", _moved(heads, chosen, edge)),
        by_length=result.by_length(),
        texts=result.texts,
        max_length=longest,
        time=result.time,
        seconds=time.perf_counter() - started,
    )


# ------------------------------------------------------------------------------------------- selection and certificate


def _try(
    model: nn.Module, batches: list[Batch], edge: float, tick: Tick, candidates: list[list[Tensor]]
) -> list[Comparison]:
    settings = [{"mapping": "t_softmax", "t": _simplest(t), "edge": edge} for t in candidates]
    return compare(model, batches, settings, tick)


def _simplest(t: list[Tensor]) -> Any:
    """The thresholds as one number if they are equal."""
    values = torch.cat(t)
    return float(f"{values[0]:.6g}") if (values == values[0]).all() else t


def _candidates(
    measure: Callable[[Any], list[Comparison]], families: list[Family], error: float
) -> list[list[list[Tensor]]]:
    """For each family the thresholds of shares of the error, where runs of the sparse model correct the predictions."""
    scales = [1.0] * len(families)
    for _ in range(CORRECTIONS):
        guesses = [family(error / scale) for family, scale in zip(families, scales, strict=True)]
        measured = [result.mean()[0] for result in measure([t for t, _ in guesses])]
        scales = [max(mean, 1e-12) / max(guess[1], 1e-12) for mean, guess in zip(measured, guesses, strict=True)]
    return [
        [family(share * error / scale)[0] for share in SHARES] for family, scale in zip(families, scales, strict=True)
    ]


def certified(bounds: Iterable[float], error: float) -> int:
    """How many candidates pass before the first failure; that one and all after it are not certified."""
    return len(list(takewhile(lambda bound: bound <= error, bounds)))


def _choose(results: list[Comparison], error: float) -> int:
    """The index of the last certified candidate; raises if there is none."""
    first = results[0]
    if first.samples < MIN_SAMPLES or first.texts < MIN_TEXTS:
        raise ValueError(
            f"calibrate: {first.samples} held-out samples of {first.texts} texts are too few to certify an error; give"
            f" at least {MIN_SAMPLES} samples (tokens of a language model, else texts) of {MIN_TEXTS} texts"
        )
    if not (passed := certified((result.bound() for result in results), error)):
        raise ValueError(
            f"calibrate: no threshold is certified to have an error of at most {error:g}: the safest candidate has"
            f" {first.mean()[0]:.2g}, at most {first.bound():.2g} with {CONFIDENCE:.0%} confidence, on {first.texts}"
            " held-out texts; pass more held-out texts, like those in batches, or a larger error"
        )
    return passed - 1


# ------------------------------------------------------------------------------------------- predictions


@dataclass
class _Heads:
    """Measurements of the heads of one attention module: histograms of ``max(x) - x``, and predicted errors."""

    mass: Tensor  # [heads, bins], softmax weights
    count: Tensor  # [heads, bins], keys
    rows: float = 0.0
    cost: Tensor = field(default_factory=lambda: torch.zeros(()))  # [heads, grid]


def _constant(heads: dict[str, _Heads], edge: float) -> Family:
    """One threshold for all heads: the error is proportional to the square of the mean moved mass."""
    mass = torch.cat([each.mass / max(each.rows, 1) for each in heads.values()])

    def predict(t: float) -> float:
        return SCALE * float(moved_mass(mass, t, edge).mean()) ** 2

    def thresholds(target: float) -> tuple[list[Tensor], float]:
        t = round(_bisect(predict, 0.05, TOP, target), 3)
        return [torch.full((len(each.mass),), t) for each in heads.values()], predict(t)

    return thresholds


def _equal_mass(heads: dict[str, _Heads], edge: float) -> Family:
    """A threshold per head: the same moved mass in every head."""
    mass, grid = torch.cat([each.mass / max(each.rows, 1) for each in heads.values()]), torch.linspace(0.1, TOP, 320)
    moved = torch.stack([moved_mass(mass, float(t), edge) for t in grid], -1)  # decreases along the grid

    def choose(minus_log: float) -> Tensor:
        return (moved > math.exp(-minus_log)).sum(-1).clamp(max=len(grid) - 1)

    def predict(minus_log: float) -> float:
        return SCALE * float(moved.gather(-1, choose(minus_log)[:, None]).mean()) ** 2

    def thresholds(target: float) -> tuple[list[Tensor], float]:
        minus_log = _bisect(predict, 0.0, 20.0, target)
        t = grid[choose(minus_log)]
        return list(t.split([len(each.mass) for each in heads.values()])), predict(minus_log)

    return thresholds


def _loss_aware(heads: dict[str, _Heads]) -> Family:
    """A threshold per head: the fewest keys for a given sum of predicted errors, by a price of error in keys."""
    cost = torch.cat([each.cost / max(each.rows, 1) for each in heads.values()])
    kept = torch.cat([_kept_below(each, torch.tensor(GRID)) for each in heads.values()])

    def choose(log_price: float) -> Tensor:
        return (kept + math.exp(log_price) * cost).argmin(-1)

    def predict(log_price: float) -> float:
        return float(cost.gather(-1, choose(log_price)[:, None]).sum())

    def thresholds(target: float) -> tuple[list[Tensor], float]:
        log_price = _bisect(predict, -20.0, 40.0, target)
        t = torch.tensor(GRID)[choose(log_price)]
        return list(t.split([len(each.mass) for each in heads.values()])), predict(log_price)

    return thresholds


def _kept_below(head: _Heads, t: Tensor) -> Tensor:
    """The share of keys less than ``t`` below the maximum; ``[heads, len(t)]``."""
    shares = F.pad(head.count.cumsum(-1), (1, 0)) / head.count.sum(-1, keepdim=True).clamp(min=1)
    return shares[:, (t * (BINS / TOP)).round().long().clamp(max=BINS)]


def _kept(heads: dict[str, _Heads], t: list[Tensor]) -> float:
    """The mean share of keys that thresholds keep."""
    kept = [_kept_below(each, row).diagonal() for each, row in zip(heads.values(), t, strict=True)]
    return float(torch.cat(kept).mean())


def _bisect(decreasing: Callable[[float], float], low: float, high: float, target: float) -> float:
    """The smallest argument whose value is at most ``target``."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if decreasing(middle) <= target else (middle, high)
    return high


def _moved(heads: dict[str, _Heads], t: list[Tensor], edge: float) -> dict[str, Tensor]:
    rows = zip(heads.items(), t, strict=True)
    return {name: moved_mass(each.mass / max(each.rows, 1), row[:, None], edge) for (name, each), row in rows}


def moved_mass(mass: Tensor, t: Tensor | float, edge: float) -> Tensor:
    """Total variation distance to softmax, of rows whose mass is binned by ``max(x) - x``; ``[heads, bins]``."""
    gap = (torch.arange(BINS) + 0.5) * (TOP / BINS)
    kept = mass * _edge_weight(gap, t, edge)
    return 0.5 * (kept / kept.sum(-1, keepdim=True).clamp(min=1e-30) - mass).abs().sum(-1)


def _edge_weight(gap: Tensor, t: Tensor | float, edge: float) -> Tensor:
    """``min(t - gap, edge)+ / min(t, edge)``: 1 at the maximum, 0 from ``t`` on."""
    if edge == 0:
        return ((gap < t) | (gap == 0)).to(gap.dtype)
    width = torch.as_tensor(t, dtype=gap.dtype).clamp(max=edge)
    return torch.minimum((t - gap).clamp(min=0), width) / width


def _collect(
    model: nn.Module, batches: list[Batch], edge: float, covariance: dict[nn.Module, Tensor] | None, tick: Tick
) -> dict[str, _Heads]:
    """The histograms of every attention module, in one dense pass."""
    found: dict[nn.Module, _Heads] = {}
    for batch in batches:
        see = partial(_add, model, found, batch, edge, covariance)
        run_observed(model, batch, Observer(see, step_of([batch])))
        tick()
    modules = adapter.attention_modules(pretrained_model(model))
    if missing := [name for name, module in modules.items() if module not in found]:
        raise ValueError(f"calibrate: the batches do not reach {', '.join(missing)}; pass inputs for all parts")
    return {name: found[module] for name, module in modules.items()}


def _add(
    model: nn.Module,
    found: dict[nn.Module, _Heads],
    batch: Batch,
    edge: float,
    covariance: dict[nn.Module, Tensor] | None,
    seen: Observed,
) -> None:
    heads = seen.weights.shape[1]
    each = found.setdefault(seen.module, _Heads(torch.zeros(heads, BINS), torch.zeros(heads, BINS)))
    keep, p = real_pairs(model, seen, batch), seen.weights.float()
    gap = p.amax(-1, keepdim=True).log() - p.log()
    bins = (gap * (BINS / TOP)).nan_to_num_(nan=TOP * BINS, posinf=TOP * BINS).clamp_(0, BINS - 1).long()
    bins += BINS * torch.arange(heads, device=bins.device)[:, None, None]
    each.mass += _histogram(bins, p * keep, heads)
    each.count += _histogram(bins, keep.float(), heads)
    each.rows += float(keep.any(-1).sum()) / heads
    if covariance is not None:
        each.cost = each.cost + _costs(seen, p * keep.any(-1, keepdim=True), gap, covariance[seen.module], edge)


def _histogram(bins: Tensor, weights: Tensor, heads: int) -> Tensor:
    return torch.bincount(bins.flatten(), weights.double().flatten(), heads * BINS).view(heads, BINS).float().cpu()


def _costs(seen: Observed, p: Tensor, gap: Tensor, covariance: Tensor, edge: float) -> Tensor:
    """Half of ``d' C d`` summed over the queries, where ``d`` is the change of a head's output; ``[heads, grid]``."""
    value = seen.value.float().repeat_interleave(p.shape[1] // seen.value.shape[1], 1)
    dense, costs = p @ value, []
    for t in GRID:
        weights = p * _edge_weight(gap, t, edge).nan_to_num_()
        change = (weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)) @ value - dense
        costs.append(0.5 * ((change @ covariance) * change).sum((0, 2, 3)))
    return torch.stack(costs, -1).cpu()


def _gradient_covariance(model: nn.Module, batches: list[Batch]) -> dict[nn.Module, Tensor]:
    """The covariance of the gradient at each head's output, ``[heads, width, width]`` by attention module.

    The gradient is that of a loss whose mean square is twice the error: the negative log-likelihood of outputs that are
    sampled from the model, or the projection of the embedding on a random direction.
    """
    leaves: list[tuple[nn.Module, Tensor]] = []
    found: dict[nn.Module, Tensor] = {}

    def tap(module: nn.Module, output: Tensor) -> Tensor:
        leaves.append((module, torch.zeros_like(output, requires_grad=True)))
        return output + leaves[-1][1]

    with _frozen(model), UNCOMPILED:
        for batch in batches[:GRADIENT_BATCHES]:
            with torch.enable_grad(), evaluating(model), observing(Observer(None, tap=tap)):
                _sampled_loss(outcome_of(model, batch, model(**batch))).backward()
            for module, leaf in leaves:
                grad = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                total = torch.einsum("bhqd,bhqe->hde", grad.float(), grad.float()) / grad[:, 0, :, 0].numel()
                found[module] = found.get(module, torch.zeros_like(total)) + total
            leaves.clear()
    return found


def _sampled_loss(outcome: Outcome) -> Tensor:
    if outcome.metric == COSINE:
        return (outcome.values * torch.randn_like(outcome.values)).sum()
    if outcome.metric == LABELS:
        truth = torch.bernoulli(outcome.values.detach().sigmoid())
        return F.binary_cross_entropy_with_logits(outcome.values, truth, reduction="sum")
    labels = torch.distributions.Categorical(logits=outcome.values.detach()).sample()
    return F.cross_entropy(outcome.values, labels, reduction="sum")


# ------------------------------------------------------------------------------------------- batches and models


def _split(batches: Iterable[Batch], held_out: Iterable[Batch] | None) -> tuple[list[Batch], list[Batch]]:
    """Batches to select on and to certify with; a single batch is split by its rows."""
    given = check_batches(batches)
    if held_out is not None:
        return given, [held_out] if isinstance(held_out, Mapping) else list(held_out)
    if len(given) == 1:
        rows = next((len(value) for value in given[0].values() if isinstance(value, Tensor)), 0)
        if rows < 2:
            raise ValueError(f"calibrate: half of the texts are held out, so at least two are needed, got {rows}")
        given = [_rows(given[0], slice(rows // 2)), _rows(given[0], slice(rows // 2, None))]
    return given[: len(given) // 2], given[len(given) // 2 :]


def _rows(batch: Batch, rows: slice) -> Batch:
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in batch.items()}


def _check(error: float, edge: float, test: list[Batch]) -> None:
    if not 0 < error < math.inf:
        raise ValueError(f"calibrate: error must be positive, got {error!r}; 0.005 changes perplexity by about 0.5 %")
    if not edge >= 0:
        raise ValueError(f"calibrate: edge must be at least 0, got {edge!r}")
    if not test:
        raise ValueError("calibrate: no held-out batches; pass held_out= or at least two batches")


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Turn off the gradients of all parameters within the block, and restore them afterwards."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
