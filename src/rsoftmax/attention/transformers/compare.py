"""The outputs of a sparse model against those of the dense one on batches of texts: error, loss and time."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from rsoftmax._transformers import ENTRY, max_positions, quiet
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.api import pretrained_model, set_attention
from rsoftmax.attention.transformers.measure import UNCOMPILED, evaluating
from rsoftmax.attention.transformers.parameters import attach, parameter_of
from rsoftmax.registry import MAPPINGS

Batch = Mapping[str, Any]  # from a model's argument names to tensors
Tick = Callable[[], object]  # called after each forward pass
LOGITS = 1 << 23  # that are computed at a time: 32 tokens of a vocabulary of 262,144
IGNORED = -100  # the label of a token without one
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

    Dense means the model as it is, or with torch's attention if it is sparse already.
    """
    host, results = pretrained_model(model), [Comparison() for _ in settings]
    dense: Any = dense_implementation(host)
    head_parameters = filter(None, map(parameter_of, adapter.attention_modules(host).values()))
    if any(head_parameter.log_scale is not None for head_parameter in head_parameters):
        raise ValueError("the model has log_n_scale, without which softmax is another model: nothing to compare with")
    held = len(settings) if adapter.has_head(model) else 1  # outcomes in memory: hidden states are small, logits not
    with restored(model), torch.no_grad(), evaluating(model), UNCOMPILED:
        for batch in batches:
            host.set_attn_implementation(dense)
            reference = run(model, batch)
            tick()
            for first in range(0, len(settings), held):
                chosen, outcomes = slice(first, first + held), list[Outcome]()
                for setting in settings[chosen]:
                    set_attention(model, **setting)
                    outcomes.append(run(model, batch))
                    tick()
                for result, outcome, errors in zip(
                    results[chosen], outcomes, measured(reference, outcomes), strict=True
                ):
                    result.add(reference, outcome, errors)
    return results


def dense_implementation(host: PreTrainedModel) -> adapter.Implementation:
    """The model's present attention, or torch's if that is a mapping."""
    before = adapter.implementations(host.config)
    return adapter.torch_implementation(host) if isinstance(before, str) and before in MAPPINGS else before


class Comparison:
    """Errors of a sparse model's outputs over batches, and times."""

    def __init__(self) -> None:
        self._errors: list[Tensor] = []  # [samples, 3]: the error, the dense and the sparse loss
        self._text: list[Tensor] = []
        self._lengths: list[Tensor] = []
        self._seconds = torch.zeros(2)  # dense and sparse
        self.metric, self.texts = "", 0  # what the error is, and the number of texts

    def add(self, dense: "Outcome", sparse: "Outcome", errors: Tensor) -> None:
        """Add what :func:`measured` returned for a batch."""
        text = dense.text
        self._errors.append(errors)
        self._text.append(text + self.texts)
        self._lengths.append(torch.cat([part.length for part in dense.parts]))
        self._seconds += torch.tensor([dense.seconds, sparse.seconds])
        self.metric, self.texts = dense.metric, self.texts + int(text.max()) + 1

    @property
    def time(self) -> float:
        """The sparse model's processor time over the dense model's."""
        dense, sparse = self._seconds.tolist()
        return float(sparse / max(dense, 1e-9))

    @property
    def loss(self) -> tuple[float, float]:
        """The mean loss of the dense and of the sparse model, if the batches have labels, else NaN."""
        dense, sparse = torch.cat(self._errors)[:, 1:].nanmean(0).tolist()
        return dense, sparse

    @property
    def errors(self) -> Tensor:
        """The error of each sample."""
        return torch.cat(self._errors)[:, 0]

    @property
    def samples(self) -> int:
        """The number of samples: tokens of a language model, texts of any other model."""
        return len(self.errors)

    def mean(self) -> tuple[float, float]:
        """The mean error and its standard error."""
        return mean_and_error(self.errors, torch.cat(self._text))

    def is_certified(self, max_error: float) -> bool:
        """Whether the mean error is at most ``max_error`` with confidence."""
        return is_certified(self.errors, torch.cat(self._text), max_error)

    def by_length(self) -> list[tuple[int, int, float, float, int]]:
        """Number of keys (from, to), error, standard error and number of samples."""
        lengths, errors, text = torch.cat(self._lengths), self.errors, torch.cat(self._text)
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
    simulation. They also hold for lognormal errors with a smaller sigma, and for errors measured on models, but not for
    errors with heavier tails: of lognormal ones with a sigma of 2, 16 % pass just above the limit.
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


# --------------------------------------------------------------------------- what an error is measured on


class Part(NamedTuple):
    """Some samples of a model's output."""

    values: Callable[[], Tensor]  # computes their logits [samples, classes], or embeddings of length 1
    text: Tensor  # the index of each sample's text
    length: Tensor  # the number of keys that each sample saw
    labels: Tensor | None = None  # the class of each sample, or IGNORED


class Outcome(NamedTuple):
    """The part of a model's output that an error is measured on."""

    metric: str
    parts: list[Part]
    seconds: float = 0.0  # the processor time of the call; of a decoder with the logits of the last token alone

    @property
    def text(self) -> Tensor:
        """The index of each sample's text."""
        return torch.cat([part.text for part in self.parts])


def run(model: nn.Module, batch: Batch) -> Outcome:
    """Run a model; the logits of a decoder are computed later, a few tokens at a time, from its hidden states."""
    start = time.process_time()
    if adapter.has_head(model):
        output = adapter.run_base(model, batch)  # type: ignore[arg-type]
        seconds = time.process_time() - start
        return Outcome(KL, token_parts(model, batch, output), seconds)
    output = model(**batch)
    return outcome_of(model, batch, output)._replace(seconds=time.process_time() - start)


def token_parts(model: Any, batch: Batch, output: Any) -> list[Part]:
    """The next-token logits of real tokens, of a decoder with this output of its base model."""
    states = output.last_hidden_state
    tokens, lengths, labels = _tokens(model, batch, *states.shape[:2])

    def part(columns: Tensor) -> Part:
        chosen = tokens[:, columns]
        labelled = None if labels is None else labels[:, columns][chosen]
        return Part(partial(logits, columns, chosen), *_texts(chosen, lengths[:, columns]), labelled)

    def logits(columns: Tensor, chosen: Tensor) -> Tensor:
        found = adapter.run_head(model, batch, output, columns.to(states.device))
        return found.flatten(0, 1) if chosen.all() else found[chosen.to(found.device)]

    size = max(LOGITS // (len(states) * model.config.get_text_config(decoder=True).vocab_size), 1)
    return [part(columns) for columns in torch.arange(states.shape[1]).split(size)]


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
        return Outcome(metric, [Part(lambda: logits, torch.arange(len(logits)), lengths)])
    tokens, lengths, labels = _tokens(model, batch, *logits.shape[:2])
    values = logits.flatten(0, 1) if tokens.all() else logits[tokens.to(logits.device)]
    text, lengths = _texts(tokens, lengths)
    labels = None if labels is None else labels[tokens]

    def part(first: int) -> Part:
        some = slice(first, first + size)
        return Part(lambda: values[some], text[some], lengths[some], None if labels is None else labels[some])

    size = max(LOGITS // values.shape[1], 1)
    return Outcome(KL, [part(first) for first in range(0, len(values), size)])


def _embeddings(model: nn.Module, batch: Batch, output: Any) -> Outcome:
    states = next((value for value in output.values() if isinstance(value, Tensor) and value.dim() == 3), None)
    if states is None:
        raise ValueError(
            f"{type(model).__name__} returns neither logits nor hidden states [texts, tokens, width] to measure an"
            " error on; pass its encoder, or a model with a language modelling or classification head"
        )
    tokens = real_tokens(batch, len(states), states.shape[1], decoder=True).to(states.device)
    pooled = (states * tokens[..., None]).sum(1) / tokens.sum(1, keepdim=True).clamp(min=1)
    values = F.normalize(pooled.float(), dim=-1)
    return Outcome(COSINE, [Part(lambda: values, torch.arange(len(states)), tokens.sum(1).long().cpu())])


def measured(dense: Outcome, others: Sequence[Outcome]) -> list[Tensor]:
    """For each of the other outcomes the error, the dense and its own loss of each sample, ``[samples, 3]``."""
    columns: list[list[Tensor]] = [[] for _ in others]
    for part, *parts in zip(dense.parts, *(other.parts for other in others), strict=True):
        reference = part.values()
        loss = _loss(reference, part.labels)
        for column, other in zip(columns, parts, strict=True):
            values = other.values()
            error = error_of(dense.metric, reference, values).double().cpu()
            column.append(torch.stack([error, loss, _loss(values, part.labels)], -1))
    return [torch.cat(column) for column in columns]


def error_of(metric: str, dense: Tensor, sparse: Tensor) -> Tensor:
    """The error of each sample."""
    if metric == COSINE:
        return 1 - (dense * sparse).sum(-1)
    if metric == KL:
        log_p, log_q = dense.float().log_softmax(-1), sparse.float().log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)
    log_p, log_q = (F.logsigmoid(torch.stack([x, -x]).float()) for x in (dense, sparse))  # of presence and absence
    return (log_p.exp() * (log_p - log_q)).sum((0, -1))


def _loss(values: Tensor, labels: Tensor | None) -> Tensor:
    """The loss of each sample, NaN without a label."""
    if labels is None:
        return torch.full((len(values),), math.nan, dtype=torch.float64)
    losses = F.cross_entropy(values.float(), labels.to(values.device), reduction="none", ignore_index=IGNORED)
    return losses.double().cpu().masked_fill(labels == IGNORED, math.nan)


def sampled_loss(metric: str, values: Tensor) -> Tensor:
    """A loss whose mean square is twice the error: with outputs sampled from the model, or a random direction."""
    if metric == COSINE:
        return (values * torch.randn_like(values)).sum()
    if metric == LABEL_KL:
        truth = torch.bernoulli(values.detach().sigmoid())
        return F.binary_cross_entropy_with_logits(values, truth, reduction="sum")
    classes = torch.distributions.Categorical(logits=values.detach()).sample()
    return F.cross_entropy(values, classes, reduction="sum")


def sampled_gradient(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """What a sampled loss is computed from, in the graph of a run, and its gradient there; or the loss and None."""
    if not adapter.has_head(model):
        outcome = outcome_of(model, batch, model(**batch))
        losses = [sampled_loss(outcome.metric, part.values()) for part in outcome.parts]
        return torch.stack(losses).sum(), None
    output = adapter.run_base(model, batch)  # type: ignore[arg-type]
    states = output.last_hidden_state
    output.last_hidden_state = leaf = states.detach().requires_grad_()
    parts = token_parts(model, batch, output)
    gradients = (torch.autograd.grad(sampled_loss(KL, part.values()), leaf)[0] for part in parts)
    return states, sum(gradients, torch.zeros_like(leaf))


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


def _tokens(model: nn.Module, batch: Batch, texts: int, length: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Which tokens of a language model are real, the keys that each one sees, and its label: a decoder's next token."""
    tokens = real_tokens(batch, texts, length, decoder=True).bool().cpu()
    labels, host = batch.get("labels"), pretrained_model(model)
    if labels is not None and host.can_generate() and not host.config.is_encoder_decoder:
        labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return tokens, tokens.cumsum(-1), None if labels is None else labels.cpu()


def _texts(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Of each real token, the index of its text, and its number of keys."""
    return torch.nonzero(tokens)[:, 0], lengths[tokens]


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


def samples_of(model: nn.Module, batch: Batch) -> list[int] | None:
    """The largest number of samples of each text, if the inputs tell: its real tokens, or one if it has one output."""
    ids, host = batch.get("input_ids"), pretrained_model(model)
    if model is not host or host.config.is_encoder_decoder or not isinstance(ids, Tensor) or ids.dim() != 2:
        return None
    has_one = host.base_model is host or type(host).__name__.endswith("ForSequenceClassification")
    return [1] * len(ids) if has_one else [int(count) for count in real_tokens(batch, *ids.shape).sum(-1)]


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
    pieces, or 200 lines. A beginning-of-text token that the tokenizer adds comes first in every piece.
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
    first = ids[:1] if ids[0] == getattr(tokenizer, "bos_token_id", None) else ids[:0]  # of every text
    pieces = [piece for piece in ids[len(first) :].split(length - len(first)) if len(first) + len(piece) == length]
    return [{"input_ids": torch.cat([first, piece])[None]} for piece in _spaced(pieces, samples or 32)]


def _spaced(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` items, evenly spaced."""
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)
