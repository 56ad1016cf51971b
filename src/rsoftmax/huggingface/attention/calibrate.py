r"""Thresholds for pretrained attention, calibrated to an error on text.

Softmax with the weights below ``e^-t`` of the largest one removed changes a pretrained model little: most weights are
that small, and together they hold little mass. :func:`calibrate` finds the smallest ``t`` whose effect on the model's
output stays within an error:

1. one dense pass collects, per head, the histogram of ``max(x) - x``, by count and by probability. It predicts the
   moved mass, the total variation distance to softmax, for every ``t``; the error grows with its square;
2. bisection finds the ``t`` of the predicted error;
3. the sparse model runs on held-out batches. The measured error corrects the prediction until the model passes.

With ``per_head=True`` step 1 also predicts the error of each head: half of ``d' C d``, where ``d`` is the change of the
head's output and ``C`` the covariance of the gradient there, from one backward pass.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

from rsoftmax.huggingface.attention import adapter
from rsoftmax.huggingface.attention.api import HeadTable, parameters, pretrained_model, set_attention, set_parameter
from rsoftmax.huggingface.attention.attend import Observed, Observer, observing
from rsoftmax.huggingface.attention.measure import evaluating, real_pairs
from rsoftmax.huggingface.attention.parameters import HeadParameter, attach, parameter_of
from rsoftmax.huggingface.attention.saving import ENTRY, certify

Batch = Mapping[str, Any]

BINS, TOP = 640, 32.0  # of the histograms: 0.05 nats each
GRADIENT_BATCHES = 2  # that the gradient's covariance is computed on
ROWS = 128  # queries per text whose weights are observed
MIN_SAMPLES = 30  # held-out tokens of a language model, or texts of any other model
RUNS = 8  # sparse runs until the search gives up
CLOSE = 0.8  # a certified error above this share of the target is not improved further
SCALE = 3.0  # the first guess of error / (moved mass)^2
GRID = [1.5 + 0.5 * step for step in range(22)] + [16.0, 24.0]  # thresholds that heads choose from
LENGTHS = [0, 128, 256, 512, 1024, 2048, 4096, 8192, 1 << 30]


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` found; ``print(calibration)`` shows it as a table.

    Attributes:
        t: the threshold, or a table ``[layers, heads]``.
        edge: the width of the edge in nats.
        error: the error that was asked for.
        measured: the error of the sparse model on the held-out batches, and its standard error.
        metric: what the error is.
        zeros: the share of exact zeros per layer and head, on the held-out batches.
        moved: the predicted moved mass per layer and head.
        by_length: number of keys (from, to), error, standard error and number of samples.
        max_length: the largest number of keys that was measured.
        seconds: how long the calibration took.
    """

    t: float | HeadTable
    edge: float
    error: float
    measured: tuple[float, float]
    metric: str
    zeros: HeadTable
    moved: HeadTable
    by_length: list[tuple[int, int, float, float, int]]
    max_length: int
    seconds: float

    def __str__(self) -> str:
        t = f"{self.t:.3g}" if isinstance(self.t, float) else f"{self.t.mean():.3g} on average, one per head"
        lines = [
            f"t_softmax, t = {t}, edge = {self.edge:g}",
            f"{self.metric}: {self.measured[0]:.2g} +- {self.measured[1]:.1g} (at most {self.error:g} requested)",
            f"zeros {self.zeros.mean():.1%}, moved mass {self.moved.mean():.1%}, up to {self.max_length} keys",
            f"{'keys':>12} {'error':>9} {'+-':>8} {'samples':>8}",
        ]
        for first, last, mean, deviation, count in self.by_length:
            lines.append(f"{f'{first + 1}-{last}':>12} {mean:9.5f} {deviation:8.5f} {count:8d}")
        return "\n".join([*lines, str(self.zeros)])


def calibrate(
    model: nn.Module,
    batches: Iterable[Batch],
    error: float = 0.005,
    *,
    held_out: Iterable[Batch] | None = None,
    per_head: bool = False,
    edge: float = 0.0,
) -> Calibration:
    """Switch a pretrained model to ``t_softmax`` attention with the smallest threshold that stays within an error.

    Args:
        model: as in :func:`set_attention`. It is modified in place, without training.
        batches: the model's inputs; it is called as ``model(**batch)``. Use texts as long as those of the application.
        error: the largest mean error on held-out batches, including one standard error. For language models it is the
            Kullback-Leibler divergence of the next-token distribution from the dense model's, in nats per token; for
            classifiers that of the class distribution; for encoders one minus the cosine of the mean-pooled embeddings.
        held_out: batches that certify the error. Default: the second half of ``batches``.
        per_head: choose one threshold per head by its effect on the error, which takes a backward pass.
        edge: the width of the edge in nats. 0 has the most zeros at an error; choose 1 to fine-tune the model.

    Returns:
        The threshold and what was measured; see :class:`Calibration`. ``save_pretrained`` stores the threshold with the
        model, which then warns at calls with more keys than were measured.

    Raises:
        ValueError: no batches, too few held-out samples, or a model that cannot be sparse. The model is left unchanged.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> _ = torch.manual_seed(0)
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=50)
        >>> model = BertModel(BertConfig(num_hidden_layers=2, **sizes))
        >>> batches = [{"input_ids": torch.randint(50, (40, 12))} for _ in range(2)]
        >>> found = calibrate(model, batches, error=0.01)
        >>> sum(found.measured) <= 0.01
        True
    """
    started = time.perf_counter()
    fit, test = _split(batches, held_out)
    _check(error, edge, fit, test)
    with _restored_on_error(model):
        set_attention(model, "t_softmax", t=math.inf, edge=edge)
        covariance = _gradient_covariance(model, fit) if per_head else None
        statistics = _collect(model, fit, edge, covariance)
        search: _Search = _PerHead(statistics, edge) if per_head else _Constant(statistics, edge)
        chosen, result = _search(model, test, search, error)
        set_parameter(model, search.values(chosen))
        mean, deviation = result.mean()
        measured = {"measured": mean, "standard_error": deviation, "max_length": result.max_length}
        certify(pretrained_model(model), {"error": error, **measured})
    return Calibration(
        t=parameters(model) if per_head else float(chosen),
        edge=edge,
        error=error,
        measured=(mean, deviation),
        metric=result.metric,
        zeros=result.zeros(model),
        moved=HeadTable.of("moved mass", search.moved(chosen)),
        by_length=result.by_length(),
        max_length=result.max_length,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class Trial:
    """One row of :func:`sweep`: threshold, share of zeros, error with its standard error, time relative to dense."""

    t: float
    zeros: float
    error: float
    standard_error: float
    time: float


def sweep(
    model: nn.Module,
    batches: Iterable[Batch],
    t: Sequence[float] = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0),
    *,
    edge: float = 0.0,
) -> list[Trial]:
    """Zeros, error and time of a model at several thresholds.

    Args:
        model: as in :func:`calibrate`. It is left unchanged.
        batches: as in :func:`calibrate`.
        t: the thresholds.
        edge: the width of the edge in nats.

    Returns:
        One row per threshold. The time is the processor time of the sparse model over that of the model as given.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=50)
        >>> model = BertModel(BertConfig(num_hidden_layers=2, **sizes))
        >>> rows = sweep(model, [{"input_ids": torch.randint(50, (4, 12))}], t=[0.5, 8.0])
        >>> rows[0].zeros >= rows[1].zeros
        True
    """
    results, times, dense_time = {value: _Result() for value in t}, dict.fromkeys(t, 0.0), 0.0
    for batch in _split(batches, [])[0]:
        dense, spent = _timed(model, batch)
        dense_time += spent
        with _restored(model):
            set_attention(model, "t_softmax", t=math.inf, edge=edge)
            for value, result in results.items():
                set_parameter(model, value)
                sparse, spent = _timed(model, batch)
                times[value] += spent
                result.add(dense, sparse)
                _run(model, batch, result.observer(model, batch))
    return [
        Trial(value, result.zeros(model).mean(), *result.mean(), times[value] / dense_time)
        for value, result in results.items()
    ]


# ------------------------------------------------------------------------------------------- search


def _search(model: nn.Module, test: list[Batch], search: "_Search", error: float) -> tuple[Any, "_Result"]:
    """Run the sparse model with thresholds of a predicted error until the measured one is within ``error``."""
    scale, best = search.scale, None
    for _ in range(RUNS):
        chosen, predicted = search.solve(0.95 * error / scale)
        result = _measure(model, test, search.values(chosen))
        found = sum(result.mean())
        if found <= error:
            best = chosen, result
            if found >= CLOSE * error or predicted == 0:
                break
        elif best is not None:
            break
        scale = max(found, 1e-12) / max(predicted, 1e-12)
    if best is None:
        raise RuntimeError(
            f"calibrate: no threshold had an error of at most {error:g} in {RUNS} runs; the last had {found:.3g}"
        )
    return best


def _measure(model: nn.Module, test: list[Batch], t: Any) -> "_Result":
    """The errors of the sparse model on held-out batches."""
    result = _Result()
    for batch in test:
        set_parameter(model, math.inf)
        dense = _run(model, batch)
        set_parameter(model, t)
        result.add(dense, _run(model, batch, result.observer(model, batch)))
    result.check()
    return result


@dataclass
class _Statistics:
    """Histograms of ``max(x) - x`` of the heads of one attention module, and what thresholds would do to them."""

    mass: Tensor  # [heads, bins], softmax weights
    count: Tensor  # [heads, bins], keys
    rows: float = 0.0
    cost: Tensor = field(default_factory=lambda: torch.zeros(()))  # [heads, grid], predicted error


class _Search:
    """Thresholds by predicted error."""

    scale = 1.0

    def __init__(self, statistics: dict[str, _Statistics], edge: float) -> None:
        self.statistics, self.edge = statistics, edge
        self.mass = [each.mass / max(each.rows, 1) for each in statistics.values()]

    def solve(self, target: float) -> tuple[Any, float]:
        """The sparsest choice whose predicted error is at most ``target``, and that error."""
        raise NotImplementedError

    def values(self, chosen: Any) -> Any:
        """The choice as the parameter of :func:`set_attention`."""
        raise NotImplementedError

    def moved(self, chosen: Any) -> dict[str, Tensor]:
        """The predicted moved mass per head."""
        raise NotImplementedError


class _Constant(_Search):
    """One threshold for all heads: the error is proportional to the square of the mean moved mass."""

    scale = SCALE

    def solve(self, target: float) -> tuple[float, float]:
        low, high = 0.05, TOP
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self._error(middle) <= target else (middle, high)
        return round(high, 3), self._error(round(high, 3))

    def values(self, chosen: float) -> float:
        return chosen

    def moved(self, chosen: float) -> dict[str, Tensor]:
        return {
            name: moved_mass(mass, chosen, self.edge) for name, mass in zip(self.statistics, self.mass, strict=True)
        }

    def _error(self, t: float) -> float:
        return float(torch.cat(list(self.moved(t).values())).mean()) ** 2


class _PerHead(_Search):
    """A threshold per head: the most zeros at a sum of predicted errors."""

    def __init__(self, statistics: dict[str, _Statistics], edge: float) -> None:
        super().__init__(statistics, edge)
        self.cost = torch.cat([each.cost / max(each.rows, 1) for each in statistics.values()])
        below = torch.tensor([[round(t * BINS / TOP) for t in GRID]])
        counts = torch.cat([each.count for each in statistics.values()])
        kept = F.pad(counts.cumsum(-1), (1, 0)).gather(-1, below.expand(len(counts), -1))
        self.kept = kept / counts.sum(-1, keepdim=True).clamp(min=1)

    def solve(self, target: float) -> tuple[Tensor, float]:
        low, high = -20.0, 40.0  # log of the price of error in keys
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self._error(self._choose(middle)) <= target else (middle, high)
        chosen = self._choose(high)
        return chosen, self._error(chosen)

    def values(self, chosen: Tensor) -> list[Tensor]:
        sizes = [len(each.mass) for each in self.statistics.values()]
        return list(torch.tensor(GRID)[chosen].split(sizes))

    def moved(self, chosen: Tensor) -> dict[str, Tensor]:
        rows = zip(self.statistics, self.mass, self.values(chosen), strict=True)
        return {name: moved_mass(mass, t[:, None], self.edge) for name, mass, t in rows}

    def _choose(self, log_price: float) -> Tensor:
        return (self.kept + math.exp(log_price) * self.cost).argmin(-1)

    def _error(self, chosen: Tensor) -> float:
        return float(self.cost.gather(-1, chosen[:, None]).sum())


def moved_mass(mass: Tensor, t: Tensor | float, edge: float) -> Tensor:
    """Total variation distance to softmax, of rows whose mass is binned by ``max(x) - x``; ``[heads, bins]``."""
    gap = (torch.arange(BINS) + 0.5) * (TOP / BINS)
    weight = _edge_weight(gap, t, edge)
    kept = mass * weight
    return 0.5 * (kept / kept.sum(-1, keepdim=True).clamp(min=1e-30) - mass).abs().sum(-1)


def _edge_weight(gap: Tensor, t: Tensor | float, edge: float) -> Tensor:
    """``min(t - gap, edge)+ / min(t, edge)``: 1 at the maximum, 0 from ``t`` on."""
    if edge == 0:
        return ((gap < t) | (gap == 0)).to(gap.dtype)
    width = torch.as_tensor(t, dtype=gap.dtype).clamp(max=edge)
    return torch.minimum((t - gap).clamp(min=0), width) / width


# ------------------------------------------------------------------------------------------- passes over the batches


def _collect(
    model: nn.Module, batches: list[Batch], edge: float, covariance: dict[nn.Module, Tensor] | None
) -> dict[str, _Statistics]:
    """The histograms of every attention module, in one dense pass."""
    found: dict[nn.Module, _Statistics] = {}
    for batch in batches:
        see = partial(_add, model, found, batch, edge, covariance)
        _run(model, batch, Observer(see, _step(batch)))
    modules = adapter.attention_modules(pretrained_model(model))
    if missing := [name for name, module in modules.items() if module not in found]:
        raise ValueError(f"calibrate: the batches do not reach {', '.join(missing)}; give inputs for all parts")
    return {name: found[module] for name, module in modules.items()}


def _add(
    model: nn.Module,
    found: dict[nn.Module, _Statistics],
    batch: Batch,
    edge: float,
    covariance: dict[nn.Module, Tensor] | None,
    seen: Observed,
) -> None:
    heads = seen.weights.shape[1]
    each = found.setdefault(seen.module, _Statistics(torch.zeros(heads, BINS), torch.zeros(heads, BINS)))
    keep, p = real_pairs(model, seen, batch), seen.weights.float()
    gap = p.amax(-1, keepdim=True).log() - p.log()
    bins = (gap * (BINS / TOP)).nan_to_num_(nan=TOP * BINS, posinf=TOP * BINS).clamp_(0, BINS - 1).long()
    bins += BINS * torch.arange(heads, device=bins.device)[:, None, None]
    each.mass += _histogram(bins, (p * keep).double(), heads)
    each.count += _histogram(bins, keep.double(), heads)
    each.rows += float(keep.any(-1).sum()) / heads
    if covariance is not None:
        each.cost = each.cost + _costs(seen, p * keep.any(-1, keepdim=True), gap, covariance[seen.module], edge)


def _histogram(bins: Tensor, weights: Tensor, heads: int) -> Tensor:
    return torch.bincount(bins.flatten(), weights.flatten(), heads * BINS).view(heads, BINS).float().cpu()


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

    with _frozen(model):
        for batch in batches[:GRADIENT_BATCHES]:
            with torch.enable_grad(), evaluating(model), observing(Observer(None, tap=tap)):
                _sampled_loss(_Outcome(model, batch, model(**batch))).backward()
            for module, leaf in leaves:
                grad = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                total = torch.einsum("bhqd,bhqe->hde", grad.float(), grad.float()) / grad[:, 0, :, 0].numel()
                found[module] = found.get(module, torch.zeros_like(total)) + total
            leaves.clear()
    return found


def _sampled_loss(outcome: "_Outcome") -> Tensor:
    if outcome.metric == COSINE:
        return (outcome.values * torch.randn_like(outcome.values)).sum()
    labels = torch.distributions.Categorical(logits=outcome.values.detach()).sample()
    return F.cross_entropy(outcome.values, labels, reduction="sum")


def _run(model: nn.Module, batch: Batch, observer: Observer | None = None) -> "_Outcome":
    with torch.no_grad(), evaluating(model):
        if observer is None:
            return _Outcome(model, batch, model(**batch))
        with observing(observer):
            return _Outcome(model, batch, model(**batch))


def _timed(model: nn.Module, batch: Batch) -> tuple["_Outcome", float]:
    start = time.process_time()
    outcome = _run(model, batch)
    return outcome, time.process_time() - start


# ------------------------------------------------------------------------------------------- errors of outputs

KL, COSINE = "KL divergence from the dense model", "1 - cosine to the dense embedding"


class _Outcome:
    """The part of a model's output that an error is measured on.

    Attributes:
        metric: what the error is.
        values: logits ``[samples, classes]``, or embeddings of length 1.
        text: the text that each sample belongs to.
        length: the number of keys that each sample saw.
    """

    def __init__(self, model: nn.Module, batch: Batch, output: Any) -> None:
        logits = getattr(output, "logits", None)
        if logits is None:
            states = next(value for value in output.values() if isinstance(value, Tensor) and value.dim() == 3)
            tokens = _tokens(batch, len(states), states.shape[1]).to(states.device)
            pooled = (states * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True).clamp(min=1)
            self.metric, self.values = COSINE, F.normalize(pooled.float(), dim=-1)
            self.text, self.length = torch.arange(len(states)), tokens.sum(1).long().cpu()
        elif logits.dim() == 2:
            self.metric, self.values = KL, logits
            self.text, self.length = torch.arange(len(logits)), _tokens(batch, len(logits)).sum(-1).long().cpu()
        else:
            tokens = _tokens(batch, len(logits), logits.shape[1], decoder=True).bool()
            self.metric, self.values = KL, logits.flatten(0, 1)
            if not tokens.all():
                self.values = logits[tokens.to(logits.device)]
            self.text, self.length = torch.nonzero(tokens)[:, 0].cpu(), tokens.cumsum(-1)[tokens].cpu()

    def error(self, sparse: "_Outcome") -> Tensor:
        """The error of each sample."""
        if self.metric == COSINE:
            return (1 - (self.values * sparse.values).sum(-1)).cpu()
        return torch.cat(
            [_kl(*pair) for pair in zip(self.values.split(256), sparse.values.split(256), strict=True)]
        ).cpu()


def _kl(dense: Tensor, sparse: Tensor) -> Tensor:
    p, q = (logits.float().log_softmax(-1) for logits in (dense, sparse))
    return (p.exp() * (p - q)).sum(-1)


class _Result:
    """Errors of samples, and zeros of sampled queries, over batches."""

    def __init__(self) -> None:
        self.errors: list[Tensor] = []
        self.texts: list[Tensor] = []
        self.lengths: list[Tensor] = []
        self.metric, self.max_length, self.count = "", 0, 0
        self.zero: dict[nn.Module, Tensor] = {}
        self.kept: dict[nn.Module, Tensor] = {}

    def add(self, dense: _Outcome, sparse: _Outcome) -> None:
        """Add the errors of a batch."""
        self.errors.append(dense.error(sparse).double())
        self.texts.append(dense.text + self.count)
        self.lengths.append(dense.length)
        self.metric, self.count = dense.metric, self.count + int(dense.text.max()) + 1

    def observer(self, model: nn.Module, batch: Batch) -> Observer:
        """Counts the zeros of a batch."""

        def see(seen: Observed) -> None:
            keep, module = real_pairs(model, seen, batch), seen.module
            self.zero[module] = self.zero.get(module, 0) + ((seen.weights == 0) & keep).sum((0, 2, 3))
            self.kept[module] = self.kept.get(module, 0) + keep.sum((0, 2, 3))
            self.max_length = max(self.max_length, seen.weights.shape[-1])

        return Observer(see, _step(batch))

    def zeros(self, model: nn.Module) -> HeadTable:
        """The share of exact zeros."""
        modules = adapter.attention_modules(pretrained_model(model))
        return HeadTable.of(
            "zeros", {name: self.zero[m] / self.kept[m] for name, m in modules.items() if m in self.kept}
        )

    def check(self) -> None:
        """Raise if the samples are too few for a certificate."""
        samples = sum(map(len, self.errors))
        if samples < MIN_SAMPLES or self.count < 2:
            raise ValueError(
                f"calibrate: {samples} held-out samples of {self.count} texts are too few to certify an error; give at"
                f" least {MIN_SAMPLES} samples (tokens of a language model, else texts) of 2 texts"
            )

    def mean(self, chosen: Tensor | None = None) -> tuple[float, float]:
        """The mean error and its standard error, where texts are independent and their tokens are not."""
        errors, texts = torch.cat(self.errors), torch.cat(self.texts)
        if chosen is not None:
            errors, texts = errors[chosen], texts[chosen]
        mean, used = errors.mean(), texts.unique()
        if len(used) < 2:
            return float(mean), math.nan
        sums = torch.zeros(self.count, dtype=errors.dtype).index_add_(0, texts, errors - mean)[used]
        return float(mean), float(sums.square().sum().sqrt() / len(errors) * math.sqrt(len(used) / (len(used) - 1)))

    def by_length(self) -> list[tuple[int, int, float, float, int]]:
        lengths, rows = torch.cat(self.lengths), []
        for first, last in pairwise(LENGTHS):
            chosen = (lengths > first) & (lengths <= last)
            if chosen.any():
                rows.append((first, min(last, self.max_length), *self.mean(chosen), int(chosen.sum())))
        return rows


# ------------------------------------------------------------------------------------------- batches and models


def _split(batches: Iterable[Batch], held_out: Iterable[Batch] | None) -> tuple[list[Batch], list[Batch]]:
    """Batches to fit on and to test on; a single batch is split by its rows."""
    given = [batches] if isinstance(batches, Mapping) else list(batches)
    for batch in given:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"calibrate: a batch must map the model's argument names to tensors, got {type(batch).__name__}"
            )
    if not given:
        raise ValueError("calibrate: no batches; give tokenized texts, e.g. [tokenizer(text, return_tensors='pt')]")
    if held_out is not None:
        return given, [held_out] if isinstance(held_out, Mapping) else list(held_out)
    if len(given) == 1:
        rows = next(len(value) for value in given[0].values() if isinstance(value, Tensor))
        given = [_rows(given[0], slice(rows // 2)), _rows(given[0], slice(rows // 2, None))]
    return given[: len(given) // 2], given[len(given) // 2 :]


def _rows(batch: Batch, rows: slice) -> Batch:
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in batch.items()}


def _check(error: float, edge: float, fit: list[Batch], test: list[Batch]) -> None:
    if not 0 < error < math.inf:
        raise ValueError(f"calibrate: error must be positive, got {error!r}; 0.005 changes perplexity by about 0.5 %")
    if not edge >= 0:
        raise ValueError(f"calibrate: edge must be at least 0, got {edge!r}")
    if not test:
        raise ValueError("calibrate: no held-out batches; give held_out= or at least two batches")


def _tokens(batch: Batch, rows: int, length: int | None = None, decoder: bool = False) -> Tensor:
    """The padding mask ``[rows, tokens]`` of a batch; ones if it has none of this size."""
    names = ("decoder_attention_mask", "attention_mask") if decoder else ("attention_mask",)
    for name in names:
        mask = batch.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2 and (length is None or mask.shape[1] == length):
            return mask
    ids = batch.get("input_ids")
    return torch.ones(rows, length or (ids.shape[1] if isinstance(ids, Tensor) else 1), dtype=torch.long)


def _step(batch: Batch) -> int:
    lengths = [value.shape[1] for value in batch.values() if isinstance(value, Tensor) and value.dim() == 2]
    return max(max(lengths, default=1) // ROWS, 1)


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter requires a gradient; afterwards each does as before."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def _restored_on_error(model: nn.Module) -> Iterator[None]:
    restore = _restorer(model)
    try:
        yield
    except BaseException:
        restore()
        raise


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    restore = _restorer(model)
    try:
        yield
    finally:
        restore()


def _restorer(model: nn.Module) -> Callable[[], None]:
    """A function that gives a model the attention that it has now."""
    host = pretrained_model(model)
    chosen, modules = adapter.implementations(host.config), list(adapter.attention_modules(host).values())
    held: list[HeadParameter | None] = [parameter_of(module) for module in modules]
    entries = [(config, vars(config).get(ENTRY)) for config in adapter.configurations(host.config)]

    def restore() -> None:
        host.set_attn_implementation(chosen)  # type: ignore[arg-type]
        for module, each in zip(modules, held, strict=True):
            attach(module, each)
        for config, entry in entries:
            vars(config).pop(ENTRY, None)
            if entry is not None:
                setattr(config, ENTRY, entry)

    return restore


# ------------------------------------------------------------------------------------------- folders


def calibrate_folder(
    source: str, texts: Path, out: Path, *, length: int = 512, samples: int = 16, **options: Any
) -> Calibration:
    """Calibrate a saved model on a text file and save it with its tokenizer.

    Args:
        source: a folder or hub id of a model with its tokenizer.
        texts: a UTF-8 text file. Language models get pieces of ``length`` tokens, others one line per text.
        out: the folder to write.
        length: the number of tokens per text.
        samples: the number of texts.
        options: further arguments of :func:`calibrate`.
    """
    tokenizer, model = _load(source)
    batches = _batches(tokenizer, model, texts.read_text(encoding="utf-8"), length, samples)
    found = calibrate(model, batches, **options)
    with adapter.quiet():
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    return found


@adapter.quiet()
def _load(source: str) -> tuple[Any, Any]:
    """The tokenizer and the model with its own task head, from safetensors only and without remote code."""
    try:
        options: dict[str, Any] = {"trust_remote_code": False}
        config = AutoConfig.from_pretrained(source, **options)
        kind = getattr(transformers, (config.architectures or ["AutoModel"])[0], AutoModel)
        return AutoTokenizer.from_pretrained(source, **options), kind.from_pretrained(source, use_safetensors=True)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"{source!r} is not a folder or hub id with a model and its tokenizer: {why}") from error


def _batches(tokenizer: Any, model: Any, text: str, length: int, samples: int) -> list[Batch]:
    if model.get_output_embeddings() is None:
        lines = [line for line in text.splitlines() if line.strip()][:samples]
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        options = {"return_tensors": "pt", "padding": True, "truncation": True, "max_length": length}
        return [dict(tokenizer(lines[i : i + 8], **options)) for i in range(0, len(lines), 8)]
    with adapter.quiet():  # a text longer than the model is expected here
        ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    pieces = ids[: len(ids) // length * length].view(-1, length)[:samples]
    return [{"input_ids": piece[None]} for piece in pieces]
