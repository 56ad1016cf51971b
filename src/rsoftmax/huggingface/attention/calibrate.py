r"""Thresholds for pretrained attention, calibrated to an error on text.

Softmax with the weights below ``e^-t`` of the largest one removed changes a pretrained model little: most weights are
that small, and together they hold little mass. :func:`calibrate` finds a small ``t`` whose effect on the model's output
stays within an error. Half of the batches select candidates:

1. a dense pass collects, per head, the histogram of ``max(x) - x``, by count and by probability. It predicts the moved
   mass, the total variation distance to softmax, for every ``t``; the error grows with its square;
2. bisection finds the ``t`` of a predicted error, and runs of the sparse model correct the prediction;
3. candidates are the ``t`` of 10, 25, 50, 70 and 85 % of the error.

The other half, held out, certifies one of them by fixed-sequence testing: candidates are tested in this order, which
was fixed before, up to the first whose mean error cannot be shown to be within the limit (one-sided Student's t bound,
95 %, over texts). The last one before it is chosen. Each test may use the same batches and the full level of 5 %: to
certify any threshold that exceeds the error, the first such one has to pass. See Angelopoulos et al., Learn then test
(2021).

With ``per_head=True`` step 1 also predicts the error of each head: half of ``d' C d``, where ``d`` is the change of the
head's output and ``C`` the covariance of the gradient there, from one backward pass.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, takewhile
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.huggingface.attention import adapter
from rsoftmax.huggingface.attention.api import HeadTable, parameters, pretrained_model, set_attention
from rsoftmax.huggingface.attention.attend import Observed, Observer, observing
from rsoftmax.huggingface.attention.measure import UNCOMPILED, evaluating, real_pairs, run_observed, zeros_of
from rsoftmax.huggingface.attention.parameters import attach, parameter_of
from rsoftmax.huggingface.attention.saving import ENTRY, certify

Batch = Mapping[str, Any]
Family = Callable[[float], tuple[list[Tensor], float]]
"""From an error to thresholds ``[heads]`` per layer with this predicted error, and the prediction."""

SHARES = (0.1, 0.25, 0.5, 0.7, 0.85)  # of the error: the candidates, in the order in which they are tested
CONFIDENCE = 0.95  # of the certificate
MIN_TEXTS, MIN_SAMPLES = 4, 30  # held out; samples are the tokens of a language model, or texts of any other model
BINS, TOP = 640, 32.0  # of the histograms: 0.05 nats each
ROWS = 128  # queries per text whose weights are observed
CORRECTIONS = 2  # of the predicted error, by runs of the sparse model
SCALE = 3.0  # the first guess of error / (moved mass)^2
GRADIENT_BATCHES = 2  # that the gradient's covariance is computed on
GRID = [0.1, 0.2, 0.5, 1.0, *(1.5 + 0.5 * step for step in range(22)), 16.0, 24.0]  # thresholds that heads choose from
LENGTHS = [0, *(1 << power for power in range(5, 14)), 1 << 30]  # buckets of the report
KL, COSINE = "KL divergence from the dense model", "1 - cosine to the dense embedding"


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` found; ``print(calibration)`` shows it as tables.

    Attributes:
        t: the threshold, or a table ``[layers, heads]``.
        edge: the width of the edge in nats.
        error: the error that was asked for.
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
) -> Calibration:
    """Switch a pretrained model to ``t_softmax`` attention with a small threshold that stays within an error.

    Args:
        model: as in :func:`set_attention`. It is modified in place, without training.
        batches: the model's inputs; it is called as ``model(**batch)``. Use texts as long as those of the application.
        error: the limit of the mean error, which held-out batches certify with a confidence of 95 %. For language
            models it is the Kullback-Leibler divergence of the next-token distribution from the dense model's, in nats
            per token; for classifiers that of the class distribution; for encoders one minus the cosine of the
            mean-pooled embeddings.
        held_out: batches that certify the error, not used otherwise. Default: the second half of ``batches``.
        per_head: choose one threshold per head by its effect on the error, which takes a backward pass.
        edge: the width of the edge in nats. 0 has the most zeros at an error; choose 1 to fine-tune the model.

    Returns:
        The threshold and what was measured; see :class:`Calibration`. ``save_pretrained`` stores the threshold with the
        model, which then warns at calls with more keys than were measured.

    Raises:
        ValueError: no batches, too few held-out samples, no threshold that they certify, or a model that cannot be
            sparse. The model is left unchanged.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> _ = torch.manual_seed(0)
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=50)
        >>> model = BertModel(BertConfig(num_hidden_layers=2, **sizes))
        >>> batches = [{"input_ids": torch.randint(50, (40, 12))} for _ in range(2)]
        >>> found = calibrate(model, batches, error=0.01)
        >>> found.measured[0] < found.bound <= 0.01
        True

    The certificate holds for texts that are drawn like the held-out ones. It is approximate in that a mean over few
    texts is taken as normally distributed.
    """
    started = time.perf_counter()
    fit, test = _split(batches, held_out)
    _check(error, edge, test)
    with _restored(model):
        set_attention(model, "t_softmax", t=math.inf, edge=edge)
        heads = _collect(model, fit, edge, _gradient_covariance(model, fit) if per_head else None)
    family = _per_head(heads) if per_head else _constant(heads, edge)
    candidates = _candidates(partial(_try, model, fit, edge), family, error)
    results = _try(model, test, edge, candidates)
    index = _choose(results, error)
    chosen, result = candidates[index], results[index]
    mean, deviation = result.mean()
    with _restored(model, after="an error"):
        set_attention(model, "t_softmax", t=_simplest(chosen), edge=edge)
        zeros, longest = zeros_of(model, test, _step(test))
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
    given, rows = _split(batches, [])[0], []
    settings = [{"mapping": "t_softmax", "t": value, "edge": edge} for value in t]
    for setting, result in zip(settings, compare(model, given, settings), strict=True):
        with _restored(model):
            set_attention(model, **setting)  # type: ignore[arg-type]
            zeros, _ = zeros_of(model, given, _step(given))
        rows.append(Trial(setting["t"], zeros.mean(), *result.mean(), result.time))  # type: ignore[arg-type]
    return rows


# ------------------------------------------------------------------------------------------- selection and certificate


def _try(model: nn.Module, batches: list[Batch], edge: float, candidates: list[list[Tensor]]) -> list["Comparison"]:
    settings = [{"mapping": "t_softmax", "t": _simplest(t), "edge": edge} for t in candidates]
    return compare(model, batches, settings)


def _simplest(t: list[Tensor]) -> Any:
    """The thresholds as one number if they are equal."""
    values = torch.cat(t)
    return float(f"{values[0]:.6g}") if (values == values[0]).all() else t


def _candidates(measure: Callable[[Any], list["Comparison"]], family: Family, error: float) -> list[list[Tensor]]:
    """The thresholds of shares of the error, where runs of the sparse model correct the predictions."""
    scale = 1.0
    for _ in range(CORRECTIONS):
        t, predicted = family(error / scale)
        scale = max(measure([t])[0].mean()[0], 1e-12) / max(predicted, 1e-12)
    return [family(share * error / scale)[0] for share in SHARES]


def certified(bounds: Iterable[float], error: float) -> int:
    """How many candidates pass before the first that does not: the next one and all behind it are not certified."""
    return len(list(takewhile(lambda bound: bound <= error, bounds)))


def _choose(results: list["Comparison"], error: float) -> int:
    """The index of the last certified candidate; raises if there is none."""
    first = results[0]
    first.check()
    if not (passed := certified((result.bound() for result in results), error)):
        raise ValueError(
            f"calibrate: no threshold is certified to have an error of at most {error:g}: the safest candidate has"
            f" {first.mean()[0]:.2g}, at most {first.bound():.2g} with {CONFIDENCE:.0%} confidence, on {first.texts}"
            " held-out texts; give more held-out texts, like those in batches, or a larger error"
        )
    return passed - 1


def student_quantile(degrees: int, probability: float = CONFIDENCE) -> float:
    """The quantile of Student's t distribution, by the expansion of Cornish and Fisher; for 3 degrees or more."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / degrees**power for power, term in enumerate(terms)))


# ------------------------------------------------------------------------------------------- predictions


@dataclass
class _Heads:
    """What the heads of one attention module showed: histograms of ``max(x) - x``, and predicted errors."""

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


def _per_head(heads: dict[str, _Heads]) -> Family:
    """A threshold per head: the fewest keys at a sum of predicted errors, by a price of error in keys."""
    cost = torch.cat([each.cost / max(each.rows, 1) for each in heads.values()])
    counts = torch.cat([each.count for each in heads.values()])
    below = torch.tensor([round(t * BINS / TOP) for t in GRID])
    kept = F.pad(counts.cumsum(-1), (1, 0))[:, below] / counts.sum(-1, keepdim=True).clamp(min=1)

    def choose(log_price: float) -> Tensor:
        return (kept + math.exp(log_price) * cost).argmin(-1)

    def predict(log_price: float) -> float:
        return float(cost.gather(-1, choose(log_price)[:, None]).sum())

    def thresholds(target: float) -> tuple[list[Tensor], float]:
        log_price = _bisect(predict, -20.0, 40.0, target)
        t = torch.tensor(GRID)[choose(log_price)]
        return list(t.split([len(each.mass) for each in heads.values()])), predict(log_price)

    return thresholds


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
    model: nn.Module, batches: list[Batch], edge: float, covariance: dict[nn.Module, Tensor] | None
) -> dict[str, _Heads]:
    """The histograms of every attention module, in one dense pass."""
    found: dict[nn.Module, _Heads] = {}
    for batch in batches:
        see = partial(_add, model, found, batch, edge, covariance)
        run_observed(model, batch, Observer(see, _step([batch])))
    modules = adapter.attention_modules(pretrained_model(model))
    if missing := [name for name, module in modules.items() if module not in found]:
        raise ValueError(f"calibrate: the batches do not reach {', '.join(missing)}; give inputs for all parts")
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
                _sampled_loss(_outcome(batch, model(**batch))).backward()
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


# ------------------------------------------------------------------------------------------- errors of outputs


class _Outcome(NamedTuple):
    """The part of a model's output that an error is measured on.

    Attributes:
        metric: what the error is.
        values: logits ``[samples, classes]``, or embeddings of length 1.
        text: the text that each sample belongs to.
        length: the number of keys that each sample saw.
        loss: the model's loss, NaN without labels.
        seconds: the processor time of the call.
    """

    metric: str
    values: Tensor
    text: Tensor
    length: Tensor
    loss: float = math.nan
    seconds: float = 0.0

    def error(self, sparse: "_Outcome") -> Tensor:
        """The error of each sample."""
        if self.metric == COSINE:
            return (1 - (self.values * sparse.values).sum(-1)).cpu()
        blocks = zip(self.values.split(256), sparse.values.split(256), strict=True)
        return torch.cat([_kl(*pair) for pair in blocks]).cpu()


def _outcome(batch: Batch, output: Any) -> _Outcome:
    logits = getattr(output, "logits", None)
    if logits is None:
        states = next(value for value in output.values() if isinstance(value, Tensor) and value.dim() == 3)
        tokens = _tokens(batch, len(states), states.shape[1]).to(states.device)
        pooled = (states * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True).clamp(min=1)
        values = F.normalize(pooled.float(), dim=-1)
        return _Outcome(COSINE, values, torch.arange(len(states)), tokens.sum(1).long().cpu())
    if logits.dim() == 2:
        lengths = _tokens(batch, len(logits)).sum(-1).long().cpu()
        return _Outcome(KL, logits, torch.arange(len(logits)), lengths)
    tokens = _tokens(batch, len(logits), logits.shape[1], decoder=True).bool()
    values = logits.flatten(0, 1) if tokens.all() else logits[tokens.to(logits.device)]
    loss = getattr(output, "loss", None)
    return _Outcome(
        KL,
        values,
        torch.nonzero(tokens)[:, 0].cpu(),
        tokens.cumsum(-1)[tokens].cpu(),
        math.nan if loss is None else float(loss),
    )


def _kl(dense: Tensor, sparse: Tensor) -> Tensor:
    p, q = (logits.float().log_softmax(-1) for logits in (dense, sparse))
    return (p.exp() * (p - q)).sum(-1)


def compare(model: nn.Module, batches: Iterable[Batch], settings: Sequence[Mapping[str, Any]]) -> list["Comparison"]:
    """Run a model densely and in several sparse settings.

    Args:
        model: as in :func:`set_attention`. It is left unchanged.
        batches: as in :func:`calibrate`.
        settings: the arguments of :func:`set_attention`.

    Returns:
        One comparison per setting. Dense is the model as given, or softmax if it is sparse already.
    """
    host, results = pretrained_model(model), [Comparison() for _ in settings]
    dense = _dense_implementation(host)
    with _restored(model):
        for batch in batches:
            host.set_attn_implementation(dense)
            reference = _run(model, batch)
            for setting, result in zip(settings, results, strict=True):
                set_attention(model, **setting)
                result.add(reference, _run(model, batch))
    return results


def _run(model: nn.Module, batch: Batch) -> _Outcome:
    with torch.no_grad(), evaluating(model):
        start = time.process_time()
        output = model(**batch)
        return _outcome(batch, output)._replace(seconds=time.process_time() - start)


class Comparison:
    """Errors of a sparse model's outputs over batches, and times.

    Attributes:
        metric: what the error is.
        texts: the number of texts.
    """

    def __init__(self) -> None:
        self._errors: list[Tensor] = []
        self._owners: list[Tensor] = []
        self._lengths: list[Tensor] = []
        self._sums = torch.zeros(2, 2)  # seconds and loss, dense and sparse
        self.metric, self.texts = "", 0

    def add(self, dense: _Outcome, sparse: _Outcome) -> None:
        """Add the errors of a batch."""
        self._errors.append(dense.error(sparse).double())
        self._owners.append(dense.text + self.texts)
        self._lengths.append(dense.length)
        self._sums += torch.tensor([[each.seconds, each.loss * len(each.values)] for each in (dense, sparse)]).T
        self.metric, self.texts = dense.metric, self.texts + int(dense.text.max()) + 1

    @property
    def time(self) -> float:
        """The sparse model's processor time over the dense model's."""
        return float(self._sums[0, 1] / self._sums[0, 0].clamp(min=1e-9))

    @property
    def loss(self) -> tuple[float, float]:
        """The mean loss of the dense and of the sparse model, if the batches have labels, else NaN."""
        dense, sparse = (self._sums[1] / sum(map(len, self._errors))).tolist()
        return dense, sparse

    def check(self) -> None:
        """Raise if the samples are too few for a certificate."""
        samples = sum(map(len, self._errors))
        if samples < MIN_SAMPLES or self.texts < MIN_TEXTS:
            raise ValueError(
                f"calibrate: {samples} held-out samples of {self.texts} texts are too few to certify an error; give at"
                f" least {MIN_SAMPLES} samples (tokens of a language model, else texts) of {MIN_TEXTS} texts"
            )

    def mean(self, chosen: Tensor | None = None) -> tuple[float, float]:
        """The mean error and its standard error, where texts are independent and their tokens are not."""
        errors, owners = torch.cat(self._errors), torch.cat(self._owners)
        if chosen is not None:
            errors, owners = errors[chosen], owners[chosen]
        mean, count = errors.mean(), len(owners.unique())
        if count < 2:
            return float(mean), math.nan
        sums = torch.zeros(self.texts, dtype=errors.dtype).index_add_(0, owners, errors - mean)
        return float(mean), float(sums.square().sum().sqrt() / len(errors) * math.sqrt(count / (count - 1)))

    def bound(self) -> float:
        """The upper confidence bound of the mean error."""
        mean, deviation = self.mean()
        return mean + student_quantile(self.texts - 1) * deviation

    def by_length(self) -> list[tuple[int, int, float, float, int]]:
        """Number of keys (from, to), error, standard error and number of samples."""
        lengths, rows = torch.cat(self._lengths), []
        for first, last in pairwise(LENGTHS):
            chosen = (lengths > first) & (lengths <= last)
            if chosen.any():
                rows.append((first, min(last, int(lengths.max())), *self.mean(chosen), int(chosen.sum())))
        return rows


# ------------------------------------------------------------------------------------------- batches and models


def _split(batches: Iterable[Batch], held_out: Iterable[Batch] | None) -> tuple[list[Batch], list[Batch]]:
    """Batches to select on and to certify with; a single batch is split by its rows."""
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


def _check(error: float, edge: float, test: list[Batch]) -> None:
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
    return torch.ones(rows, length or _length(batch), dtype=torch.long)


def _length(batch: Batch) -> int:
    """The number of tokens per text, with padding."""
    return max(
        (value.shape[1] for value in batch.values() if isinstance(value, Tensor) and value.dim() == 2), default=1
    )


def _step(batches: list[Batch]) -> int:
    """Every how many queries the weights are observed."""
    return max(1, *(_length(batch) // ROWS for batch in batches))


def _dense_implementation(host: PreTrainedModel) -> Any:
    """The attention that the sparse model is compared with: the model's own, or softmax if it is sparse already."""
    chosen = adapter.implementations(host.config)
    return "softmax" if isinstance(chosen, str) and chosen in ROW_MAPPINGS else chosen


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
def _restored(model: nn.Module, after: str = "") -> Iterator[None]:
    """Give a model the attention that it has now back at the end, or only after an error."""
    host = pretrained_model(model)
    chosen, modules = adapter.implementations(host.config), list(adapter.attention_modules(host).values())
    held = [parameter_of(module) for module in modules]
    entries = [(config, vars(config).get(ENTRY)) for config in adapter.configurations(host.config)]
    restore = True
    try:
        yield
        restore = not after
    finally:
        if restore:
            host.set_attn_implementation(chosen)  # type: ignore[arg-type]
            for module, each in zip(modules, held, strict=True):
                attach(module, each)
            for config, entry in entries:
                vars(config).pop(ENTRY, None)
                if entry is not None:
                    setattr(config, ENTRY, entry)


@adapter.quiet()
def text_batches(
    tokenizer: Any, model: Any, text: str, length: int | None = None, samples: int | None = None
) -> list[Batch]:
    """Batches from a text: pieces of ``length`` tokens for language models, else lines, truncated; evenly spaced.

    Args:
        tokenizer: of the model.
        model: a Transformers model.
        text: a long text.
        length: the number of tokens per text. Default: 512, or as many as the model has positions.
        samples: the number of texts. Default: 16 pieces, or 200 lines.
    """
    positions = getattr(model.config, "max_position_embeddings", length or 512)
    length = length or min(512, positions)
    if length > positions:
        raise ValueError(f"length must be at most {positions}, the positions of the model, got {length}")
    if model.get_output_embeddings() is None:
        lines = _spaced([line for line in text.splitlines() if line.strip()], samples or 200)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        options = {"return_tensors": "pt", "padding": True, "truncation": True, "max_length": length}
        return [dict(tokenizer(lines[i : i + 8], **options)) for i in range(0, len(lines), 8)]
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    if len(ids) < length:
        raise ValueError(f"the text has {len(ids)} tokens, fewer than the length of {length}; give more text")
    pieces = ids[: len(ids) // length * length].split(length)
    return [{"input_ids": piece[None]} for piece in _spaced(pieces, samples or 16)]


def _spaced(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` items, evenly spaced."""
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)
