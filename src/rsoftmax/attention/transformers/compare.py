"""The outputs of a sparse model against those of the dense one: error, loss and time."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from rsoftmax._transformers import ENTRY, max_positions, quiet
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.api import pretrained_model, set_attention
from rsoftmax.attention.transformers.measure import evaluating, zeros_of
from rsoftmax.attention.transformers.parameters import attach, parameter_of
from rsoftmax.registry import MAPPINGS

Batch = Mapping[str, Any]
Tick = Callable[[], object]  # called after each forward pass
CONFIDENCE = 0.95  # of upper bounds
ROWS = 128  # queries per text whose weights are observed
LENGTHS = [0, *(1 << power for power in range(5, 14)), 1 << 30]  # buckets of the report
KL, COSINE = "KL divergence from the dense model", "1 - cosine to the dense embedding"
LABELS = "KL divergence of the labels from the dense model"  # logits are log-odds


def compare(
    model: nn.Module, batches: Iterable[Batch], settings: Sequence[Mapping[str, Any]], tick: Tick = lambda: None
) -> list["Comparison"]:
    """Run a model densely and in several sparse settings.

    Args:
        model: as in :func:`set_attention`. It is left unchanged.
        batches: as in :func:`calibrate`.
        settings: the arguments of :func:`set_attention`.
        tick: called after each forward pass, to show progress.

    Returns:
        One comparison per setting. Dense means the model as given, or with softmax if it is sparse already.
    """
    host, results = pretrained_model(model), [Comparison() for _ in settings]
    dense = _dense_implementation(host)
    if any(held is not None and held.scale for held in map(parameter_of, adapter.attention_modules(host).values())):
        raise ValueError("the model has scale='log n', without which softmax is another model: nothing to compare with")
    with restored(model):
        for batch in batches:
            host.set_attn_implementation(dense)
            reference = _run(model, batch)
            tick()
            for setting, result in zip(settings, results, strict=True):
                set_attention(model, **setting)
                result.add(reference, _run(model, batch))
                tick()
    return results


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

    def add(self, dense: "Outcome", sparse: "Outcome") -> None:
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
        dense, sparse = (self._sums[1] / self.samples).tolist()
        return dense, sparse

    @property
    def samples(self) -> int:
        """The number of samples: tokens of a language model, texts of any other model."""
        return sum(map(len, self._errors))

    def mean(self, chosen: Tensor | None = None) -> tuple[float, float]:
        """The mean error and its standard error, for independent texts with dependent tokens."""
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


def student_quantile(degrees: int, probability: float = CONFIDENCE) -> float:
    """The quantile of Student's t distribution, by the Cornish-Fisher expansion; for 3 degrees of freedom or more."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / degrees**power for power, term in enumerate(terms)))


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
    given, rows = check_batches(batches), []
    settings = [{"mapping": "t_softmax", "t": value, "edge": edge} for value in t]
    for setting, result in zip(settings, compare(model, given, settings), strict=True):
        with restored(model):
            set_attention(model, **setting)  # type: ignore[arg-type]
            zeros, _ = zeros_of(model, given, step_of(given))
        rows.append(Trial(setting["t"], zeros.mean(), *result.mean(), result.time))  # type: ignore[arg-type]
    return rows


class Outcome(NamedTuple):
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

    def error(self, sparse: "Outcome") -> Tensor:
        """The error of each sample."""
        if self.metric == COSINE:
            return (1 - (self.values * sparse.values).sum(-1)).cpu()
        divergence = _kl if self.metric == KL else _kl_of_labels
        blocks = zip(self.values.split(256), sparse.values.split(256), strict=True)
        return torch.cat([divergence(*pair) for pair in blocks]).cpu()


def outcome_of(model: nn.Module, batch: Batch, output: Any) -> Outcome:
    """Next-token logits of real tokens, logits of classes or labels, or mean-pooled embeddings."""
    logits = getattr(output, "logits", None)
    if logits is None:
        states = next((value for value in output.values() if isinstance(value, Tensor) and value.dim() == 3), None)
        if states is None:
            raise ValueError(
                f"{type(model).__name__} returns neither logits nor hidden states [texts, tokens, width] to measure an"
                " error on; pass its encoder, or a model with a language modelling or classification head"
            )
        tokens = _tokens(batch, len(states), states.shape[1], decoder=True).to(states.device)
        pooled = (states * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True).clamp(min=1)
        values = F.normalize(pooled.float(), dim=-1)
        return Outcome(COSINE, values, torch.arange(len(states)), tokens.sum(1).long().cpu())
    if logits.dim() == 2:
        lengths = _tokens(batch, len(logits)).sum(-1).long().cpu()
        return Outcome(_metric(model, logits), logits, torch.arange(len(logits)), lengths)
    tokens = _tokens(batch, len(logits), logits.shape[1], decoder=True).bool()
    values = logits.flatten(0, 1) if tokens.all() else logits[tokens.to(logits.device)]
    loss = getattr(output, "loss", None)
    return Outcome(
        KL,
        values,
        torch.nonzero(tokens)[:, 0].cpu(),
        tokens.cumsum(-1)[tokens].cpu(),
        math.nan if loss is None else float(loss),
    )


def check_batches(batches: Iterable[Batch]) -> list[Batch]:
    """The batches as a list; raises if there are none, or if they are not mappings."""
    given = [batches] if isinstance(batches, Mapping) else list(batches)
    for batch in given:
        if not isinstance(batch, Mapping):
            raise TypeError(f"a batch must map the model's argument names to tensors, got {type(batch).__name__}")
    if not given:
        raise ValueError("no batches; pass tokenized texts, e.g. [tokenizer(text, return_tensors='pt')]")
    return given


def _metric(model: nn.Module, logits: Tensor) -> str:
    """How the logits of a text are read: as classes, or as labels if there is one or the model says so."""
    kind = getattr(pretrained_model(model).config, "problem_type", None)
    if kind == "regression" and logits.shape[-1] > 1:
        raise ValueError(f"{type(model).__name__} is a regression, for which there is no error; pass its encoder")
    return LABELS if logits.shape[-1] == 1 or kind == "multi_label_classification" else KL


def _kl(dense: Tensor, sparse: Tensor) -> Tensor:
    p, q = (logits.float().log_softmax(-1) for logits in (dense, sparse))
    return (p.exp() * (p - q)).sum(-1)


def _kl_of_labels(dense: Tensor, sparse: Tensor) -> Tensor:
    p, q = (F.logsigmoid(torch.stack([logits, -logits]).float()) for logits in (dense, sparse))
    return (p.exp() * (p - q)).sum((0, -1))


def _run(model: nn.Module, batch: Batch) -> Outcome:
    with torch.no_grad(), evaluating(model):
        start = time.process_time()
        output = model(**batch)
        return outcome_of(model, batch, output)._replace(seconds=time.process_time() - start)


def _tokens(batch: Batch, rows: int, length: int | None = None, decoder: bool = False) -> Tensor:
    """The padding mask ``[rows, tokens]`` of a batch; ones if it has none of this size."""
    names = ("decoder_attention_mask", "attention_mask") if decoder else ("attention_mask",)
    for name in names:
        mask = batch.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2 and (length is None or mask.shape[1] == length):
            return mask
    return torch.ones(rows, length or length_of(batch), dtype=torch.long)


def length_of(batch: Batch) -> int:
    """The number of tokens per text, with padding."""
    return max(
        (value.shape[1] for value in batch.values() if isinstance(value, Tensor) and value.dim() == 2), default=1
    )


def step_of(batches: list[Batch]) -> int:
    """The step between the queries whose weights are observed."""
    return max(1, *(length_of(batch) // ROWS for batch in batches))


def _dense_implementation(host: PreTrainedModel) -> Any:
    """The attention that the sparse model is compared with: the model's own, or softmax if it is sparse already."""
    chosen = adapter.implementations(host.config)
    return "softmax" if isinstance(chosen, str) and chosen in MAPPINGS else chosen


@contextmanager
def restored(model: nn.Module, after: str = "") -> Iterator[None]:
    """Restore the model's present attention at the end of the block, or only after an error."""
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


@quiet()
def text_batches(
    tokenizer: Any, model: Any, text: str, length: int | None = None, samples: int | None = None
) -> list[Batch]:
    """Batches of evenly spaced parts of a text: ``length`` tokens for language models, otherwise truncated lines.

    Args:
        tokenizer: the model's tokenizer.
        model: a Transformers model.
        text: a long text.
        length: the number of tokens per text. Default: 512, or the model's number of positions if that is lower.
        samples: the number of texts. Default: 16 pieces, or 200 lines.
    """
    positions = max_positions(model) or length or 512
    length = length or min(512, positions)
    if length > positions:
        raise ValueError(f"length must be at most {positions}, the model's number of positions, got {length}")
    if model.get_output_embeddings() is None:
        lines = _spaced([line for line in text.splitlines() if line.strip()], samples or 200)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        options = {"return_tensors": "pt", "padding": True, "truncation": True, "max_length": length}
        return [dict(tokenizer(lines[i : i + 8], **options)) for i in range(0, len(lines), 8)]
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    if len(ids) < length:
        raise ValueError(f"the text has {len(ids)} tokens, fewer than the length of {length}; pass a longer text")
    pieces = ids[: len(ids) // length * length].split(length)
    return [{"input_ids": piece[None]} for piece in _spaced(pieces, samples or 16)]


def _spaced(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` items, evenly spaced."""
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)
