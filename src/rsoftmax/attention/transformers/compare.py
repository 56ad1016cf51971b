"""The outputs of a sparse model against those of the dense one on batches of texts: error, loss and time."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsoftmax._transformers import ENTRY, max_positions, quiet
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.api import pretrained_model, set_attention
from rsoftmax.attention.transformers.measure import evaluating
from rsoftmax.attention.transformers.parameters import attach, parameter_of
from rsoftmax.registry import MAPPINGS

Batch = Mapping[str, Any]  # from a model's argument names to tensors
Tick = Callable[[], object]  # called after each forward pass
OBSERVED = 128  # queries per text whose weights are observed
CONFIDENCE = 0.95  # of a certificate
SIGMA = 1.5  # of the logarithms of the texts' errors that the test is calibrated for
DRAWS = 2_000_000  # of such errors
LENGTHS = [0, *(1 << power for power in range(5, 14)), 1 << 30]  # buckets of the report
KL, COSINE = "KL divergence from the dense model", "1 - cosine to the dense embedding"
LABEL_KL = "KL divergence of the labels from the dense model"  # logits are log-odds


def compare(
    model: nn.Module, batches: Iterable[Batch], settings: Sequence[Mapping[str, Any]], tick: Tick = lambda: None
) -> list["Comparison"]:
    """Run a model, which is left unchanged, densely and in several settings: the arguments of :func:`set_attention`.

    Dense means the model as it is, or with softmax if it is sparse already.
    """
    host, results = pretrained_model(model), [Comparison() for _ in settings]
    before: Any = adapter.implementations(host.config)
    dense = "softmax" if isinstance(before, str) and before in MAPPINGS else before
    head_parameters = filter(None, map(parameter_of, adapter.attention_modules(host).values()))
    if any(head_parameter.log_scale is not None for head_parameter in head_parameters):
        raise ValueError("the model has log_n_scale, without which softmax is another model: nothing to compare with")
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
    """Errors of a sparse model's outputs over batches, and times."""

    def __init__(self) -> None:
        self._errors: list[Tensor] = []
        self._text: list[Tensor] = []
        self._lengths: list[Tensor] = []
        self._sums = torch.zeros(2, 2)  # seconds and loss, dense and sparse
        self.metric, self.texts = "", 0  # what the error is, and the number of texts

    def add(self, dense: "Outcome", sparse: "Outcome") -> None:
        """Add the errors of a batch."""
        self._errors.append(dense.error(sparse).double())
        self._text.append(dense.text + self.texts)
        self._lengths.append(dense.length)
        self._sums += torch.tensor([[run.seconds, run.loss * len(run.values)] for run in (dense, sparse)]).T
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

    def mean(self) -> tuple[float, float]:
        """The mean error and its standard error."""
        return mean_and_error(torch.cat(self._errors), torch.cat(self._text))

    def is_certified(self, max_error: float) -> bool:
        """Whether the mean error is at most ``max_error`` with confidence."""
        return is_certified(torch.cat(self._errors), torch.cat(self._text), max_error)

    def by_length(self) -> list[tuple[int, int, float, float, int]]:
        """Number of keys (from, to), error, standard error and number of samples."""
        lengths, errors, text = torch.cat(self._lengths), torch.cat(self._errors), torch.cat(self._text)
        table = []
        for first, last in pairwise(LENGTHS):
            chosen = (lengths > first) & (lengths <= last)
            if chosen.any():
                mean, deviation = mean_and_error(errors[chosen], text[chosen])
                table.append((first, min(last, int(lengths.max())), mean, deviation, int(chosen.sum())))
        return table


def mean_and_error(errors: Tensor, text: Tensor) -> tuple[float, float]:
    """The mean error of samples and its standard error, for independent texts with dependent samples.

    The texts are the indices of each sample's text.
    """
    mean, count = errors.mean(), len(text.unique())
    if count < 2:
        return float(mean), math.nan
    sums = torch.zeros(int(text.max()) + 1, dtype=errors.dtype).index_add_(0, text, errors - mean)
    return float(mean), float(sums.square().sum().sqrt() / len(errors) * math.sqrt(count / (count - 1)))


def is_certified(errors: Tensor, text: Tensor, max_error: float) -> bool:
    """Reject that the mean error is more than ``max_error``; the other arguments are as above.

    A text contributes the sum of what its samples' errors exceed the limit by. Student's statistic of these sums is
    compared with a critical value for skewed errors.
    """
    excess = torch.zeros(int(text.max()) + 1, dtype=errors.dtype).index_add_(0, text, errors - max_error)
    spread = excess.std() * math.sqrt(len(excess))
    return bool(excess.sum() <= -critical_value(len(excess)) * spread)


@cache
def critical_value(texts: int) -> float:
    """How many standard errors the mean error of texts must be below a limit.

    Errors of texts are skewed: most samples miss the few texts with large errors, and have a small standard error, too.
    Student's quantiles are then too low. These are the quantiles of Student's statistic for lognormal errors, by
    simulation. They hold for less skewed errors as well.
    """
    texts = min(texts, 1000)
    normal = torch.randn(DRAWS // texts, texts, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    deviations = (SIGMA * normal).exp() - math.exp(SIGMA**2 / 2)
    return float((-deviations.mean(1) / deviations.std(1)).quantile(CONFIDENCE)) * math.sqrt(texts)


def texts_needed(mean: float, deviation: float, max_error: float) -> int | None:
    """The number of texts that would certify an error with this mean and standard deviation over texts, if any.

    It is a power of two.
    """
    counts = (1 << power for power in range(2, 15))
    return next((n for n in counts if mean + critical_value(n) * deviation / math.sqrt(n) <= max_error), None)


class Outcome(NamedTuple):
    """The part of a model's output that an error is measured on."""

    metric: str
    values: Tensor  # logits [samples, classes], or embeddings of length 1
    text: Tensor  # the index of each sample's text
    length: Tensor  # the number of keys that each sample saw
    loss: float = math.nan  # of the model, if the batch has labels
    seconds: float = 0.0  # the processor time of the call

    def error(self, sparse: "Outcome") -> Tensor:
        """The error of each sample."""
        if self.metric == COSINE:
            return (1 - (self.values * sparse.values).sum(-1)).cpu()
        errors = []
        for dense, other in zip(self.values.split(256), sparse.values.split(256), strict=True):
            both = torch.stack([dense, other]).float()
            if self.metric == KL:
                log_p, log_q = both.log_softmax(-1)[:, None]
            else:  # presence and absence of each label
                log_p, log_q = F.logsigmoid(torch.stack([both, -both], 1))
            errors.append((log_p.exp() * (log_p - log_q)).sum((0, -1)))
        return torch.cat(errors).cpu()

    def sampled_loss(self) -> Tensor:
        """A loss whose mean square is twice the error: with outputs sampled from the model, or a random direction."""
        if self.metric == COSINE:
            return (self.values * torch.randn_like(self.values)).sum()
        if self.metric == LABEL_KL:
            truth = torch.bernoulli(self.values.detach().sigmoid())
            return F.binary_cross_entropy_with_logits(self.values, truth, reduction="sum")
        classes = torch.distributions.Categorical(logits=self.values.detach()).sample()
        return F.cross_entropy(self.values, classes, reduction="sum")


def outcome_of(model: nn.Module, batch: Batch, output: Any) -> Outcome:
    """Next-token logits of real tokens, logits of classes or labels, or mean-pooled embeddings."""
    logits = getattr(output, "logits", None)
    if logits is None:
        return _embeddings(model, batch, output)
    if logits.dim() == 2:
        kind, width = getattr(pretrained_model(model).config, "problem_type", None), logits.shape[1]
        if kind == "regression" or (width == 1 and kind != "multi_label_classification"):
            raise ValueError(
                f"{type(model).__name__} is a regression, for which there is no error; pass its encoder, or set"
                " model.config.problem_type = 'multi_label_classification' if its output is the log-odds of a label"
            )
        metric = LABEL_KL if kind == "multi_label_classification" else KL
        lengths = real_tokens(batch, len(logits)).sum(-1).long().cpu()
        return Outcome(metric, logits, torch.arange(len(logits)), lengths)
    tokens = real_tokens(batch, len(logits), logits.shape[1], decoder=True).bool()
    values = logits.flatten(0, 1) if tokens.all() else logits[tokens.to(logits.device)]
    text, lengths = torch.nonzero(tokens)[:, 0].cpu(), tokens.cumsum(-1)[tokens].cpu()
    loss = getattr(output, "loss", None)
    return Outcome(KL, values, text, lengths, math.nan if loss is None else float(loss))


def _embeddings(model: nn.Module, batch: Batch, output: Any) -> Outcome:
    states = next((value for value in output.values() if isinstance(value, Tensor) and value.dim() == 3), None)
    if states is None:
        raise ValueError(
            f"{type(model).__name__} returns neither logits nor hidden states [texts, tokens, width] to measure an"
            " error on; pass its encoder, or a model with a language modelling or classification head"
        )
    tokens = real_tokens(batch, len(states), states.shape[1], decoder=True).to(states.device)
    pooled = (states * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True).clamp(min=1)
    return Outcome(COSINE, F.normalize(pooled.float(), dim=-1), torch.arange(len(states)), tokens.sum(1).long().cpu())


def _run(model: nn.Module, batch: Batch) -> Outcome:
    with torch.no_grad(), evaluating(model):
        start = time.process_time()
        output = model(**batch)
        return outcome_of(model, batch, output)._replace(seconds=time.process_time() - start)


@contextmanager
def restored(model: nn.Module, only_after_error: bool = False) -> Iterator[None]:
    """Restore the model's present attention and modes at the end of the block, or only after an error."""
    host, modes = pretrained_model(model), [(module, module.training) for module in model.modules()]
    implementations, modules = adapter.implementations(host.config), list(adapter.attention_modules(host).values())
    head_parameters = [parameter_of(module) for module in modules]
    entries = [(config, vars(config).get(ENTRY)) for config in adapter.configurations(host.config)]
    restore = True
    try:
        yield
        restore = not only_after_error
    finally:
        if restore:
            host.set_attn_implementation(implementations)  # type: ignore[arg-type]
            for module, head_parameter in zip(modules, head_parameters, strict=True):
                attach(module, head_parameter)
            for config, entry in entries:
                vars(config).pop(ENTRY, None)
                if entry is not None:
                    setattr(config, ENTRY, entry)
            for module, mode in modes:
                module.training = mode


# --------------------------------------------------------------------------- batches of texts


def check_batches(batches: Iterable[Batch]) -> list[Batch]:
    """The batches as a list; raises if there are none, or if they are not mappings."""
    checked = [batches] if isinstance(batches, Mapping) else list(batches)
    for batch in checked:
        if not isinstance(batch, Mapping):
            raise TypeError(f"a batch must map the model's argument names to tensors, got {type(batch).__name__}")
    if not checked:
        raise ValueError("no batches; pass tokenized texts, e.g. [tokenizer(text, return_tensors='pt')]")
    return checked


def split_batches(batches: Iterable[Batch], held_out: Iterable[Batch] | None) -> tuple[list[Batch], list[Batch]]:
    """Batches to select thresholds on and to certify one with; a single batch is split by its texts."""
    first = check_batches(batches)
    if held_out is not None:
        return first, [held_out] if isinstance(held_out, Mapping) else list(held_out)
    if len(first) > 1:
        return first[: len(first) // 2], first[len(first) // 2 :]
    texts = next((len(value) for value in first[0].values() if isinstance(value, Tensor)), 0)
    if texts < 2:
        raise ValueError(f"sparsify: half of the texts are held out, so at least two are needed, got {texts}")
    parts = (slice(texts // 2), slice(texts // 2, None))
    half, rest = ({name: x[part] if isinstance(x, Tensor) else x for name, x in first[0].items()} for part in parts)
    return [half], [rest]


def real_tokens(batch: Batch, texts: int, length: int | None = None, decoder: bool = False) -> Tensor:
    """The padding mask ``[texts, tokens]`` of a batch; ones if it has none of this size."""
    names = ("decoder_attention_mask", "attention_mask") if decoder else ("attention_mask",)
    for name in names:
        mask = batch.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2 and (length is None or mask.shape[1] == length):
            return mask
    return torch.ones(texts, length or length_of(batch), dtype=torch.long)


def length_of(batch: Batch) -> int:
    """The number of tokens per text, with padding."""
    return max((x.shape[1] for x in batch.values() if isinstance(x, Tensor) and x.dim() == 2), default=1)


def step_of(batches: list[Batch]) -> int:
    """The step between the queries whose weights are observed."""
    return max(1, *(length_of(batch) // OBSERVED for batch in batches))


@quiet()
def text_batches(
    tokenizer: Any, model: Any, text: str, length: int | None = None, samples: int | None = None
) -> list[Batch]:
    """Batches of evenly spaced parts of a text: ``length`` tokens for language models, otherwise truncated lines.

    The length is 512 by default, or the model's number of positions if that is lower; the number of samples is 32
    pieces, or 200 lines.
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
    return [{"input_ids": piece[None]} for piece in _spaced(pieces, samples or 32)]


def _spaced(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` items, evenly spaced."""
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)
