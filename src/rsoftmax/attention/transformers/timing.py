"""The time that a model takes with a mapping, relative to torch's attention, measured on this machine."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from rsoftmax._transformers import quiet
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.api import pretrained_model, set_attention
from rsoftmax.attention.transformers.cache import GrowingCache
from rsoftmax.attention.transformers.compare import Batch, Tick, dense_implementation, length_of, real_tokens, restored
from rsoftmax.attention.transformers.measure import evaluating
from rsoftmax.attention.transformers.parameters import HeadValues

ROUNDS = 5
NEW = 4  # tokens that are generated in a round


class Ratio(NamedTuple):
    """A ratio of times: the median of the rounds, with quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True)
class ExpectedTime:
    """The time with a mapping over the time with torch's attention; below 1 the mapping is faster.

    Attributes:
        tokens: the length of the text.
        text: the time of the whole model for the text; of a decoder as a prompt, without the logits of all its tokens.
        next_token: the time of each token that is generated after it; None for models that do not generate.
    """

    tokens: int
    text: Ratio
    next_token: Ratio | None

    def __str__(self) -> str:
        text = f"time relative to torch's attention: {self.text} for {self.tokens:,} tokens"
        return text if self.next_token is None else f"{text}, {self.next_token} for each token generated after them"


def expected_time(model: nn.Module, batch: Batch, mapping: str | None = None, **setting: HeadValues) -> ExpectedTime:
    """Measure what a mapping would save, before the model is changed.

    Args:
        model: as in :func:`set_attention`. It is left unchanged.
        batch: inputs of the application's length; the model is called as ``model(**batch)``, ten times.
        mapping: a name, followed by the other arguments of :func:`set_attention`. Default: the one the model has.

    Returns:
        Ratios for the text and, if the model generates, for each token after it: with :class:`GrowingCache`, over
        torch's attention with ``DynamicCache``. The two take turns. With one thread it is processor time, otherwise
        elapsed time.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
        >>> batch = {"input_ids": torch.randint(20, (1, 64))}
        >>> print(expected_time(model, batch, "t_softmax", t=6.0, edge=0))  # doctest: +ELLIPSIS
        time relative to torch's attention: ... for 64 tokens, ... for each token generated after them
    """
    host = pretrained_model(model)
    dense = dense_implementation(host)
    with restored(model):
        if mapping is not None:
            set_attention(model, mapping, **setting)  # type: ignore[arg-type]
        if adapter.implementations(host.config) == dense:
            raise ValueError(f"expected_time: the model has {dense!r} attention; name a mapping, as in set_attention")
        return measure_time(model, batch, dense)


@quiet()
def measure_time(
    model: nn.Module, batch: Batch, dense: adapter.Implementation, tick: Tick = lambda: None
) -> ExpectedTime:
    """The time of a model with its present mapping, and with a dense implementation, which it is left with."""
    host: Any = pretrained_model(model)
    implementations = dense, adapter.implementations(host.config)
    generates = adapter.has_head(model) and {"input_ids"} <= batch.keys() <= {"input_ids", "attention_mask", "labels"}
    inputs: list[dict[str, Any]] = [adapter.without_logits(model, batch) for _ in implementations]

    def read(kind: int) -> None:
        if generates:
            cache = (DynamicCache, GrowingCache)[kind](config=host.config)
            inputs[kind] |= {"past_key_values": cache, "use_cache": True}
        model(**inputs[kind])
        tick()

    def generate(kind: int) -> None:
        cache = inputs[kind]["past_key_values"]
        options: Any = {"min_new_tokens": NEW, "max_new_tokens": NEW, "do_sample": False, "num_beams": 1}
        tokens[kind] = host.generate(tokens[kind], past_key_values=cache, **options)

    with torch.no_grad(), evaluating(model):
        text = _take_turns(host, implementations, read)
        if not generates:
            return ExpectedTime(length_of(batch), text, None)
        tokens = [torch.cat([batch["input_ids"], batch["input_ids"][:, -1:]], 1) for _ in implementations]
        return ExpectedTime(length_of(batch), text, _take_turns(host, implementations, generate))


def _take_turns(host: Any, implementations: Sequence[Any], call: Callable[[int], None]) -> Ratio:
    """The time of a call with the second implementation over that with the first."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    ratios = []
    for turn in range(ROUNDS):
        seconds = [0.0, 0.0]
        for kind in (turn % 2, 1 - turn % 2):
            host.set_attn_implementation(implementations[kind])
            start = clock()
            call(kind)
            seconds[kind] = clock() - start
        ratios.append(seconds[1] / max(seconds[0], 1e-9))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Ratio(middle, low, high)


def longest_text(batches: Sequence[Batch]) -> Batch:
    """The text with the most tokens, as a batch."""
    batch = max(batches, key=length_of)
    texts = next(len(value) for value in batch.values() if isinstance(value, Tensor))
    row = int(real_tokens(batch, texts).sum(-1).argmax())
    whole = {name: value for name, value in batch.items() if isinstance(value, Tensor) and len(value) == texts}
    return {**batch, **{name: value[row : row + 1] for name, value in whole.items()}}
