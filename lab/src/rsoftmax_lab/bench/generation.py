"""The time of generating text with sparse attention, against torch's attention.

Without a model: decoding with a small Llama and a long cache, both drawn at random. With one: reading the text of
``--texts`` with that model, and going on with it token by token.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)
from transformers.cache_utils import DynamicLayer

from rsoftmax.attention import GrowingCache
from rsoftmax.attention.transformers.cache import GrowingLayer
from rsoftmax_lab.bench.benchmark import Benchmark, Case, Goal, Group, Record, Settings
from rsoftmax_lab.bench.models import SDPA, each, load_model, model_name, with_attention
from rsoftmax_lab.bench.timing import Call

# ----------------------------------------------------------------------------------------------- without a model

LENGTHS = (512, 4096, 16384)  # tokens in the cache
NEW = 8  # tokens that a call generates
CONFIG: dict[str, Any] = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1536,
    "max_position_embeddings": 32768,
    "eos_token_id": None,  # no end-of-text token
    "pad_token_id": 0,
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CACHES = ("dynamic", "static")
GENERATED = ((SDPA, ""), ("softmax", ""), ("r_softmax", "r=0.5"), ("r_softmax", "r=0.9"))


def generate_groups(settings: Settings) -> Iterator[Group]:
    """All attention implementations, by dtype, cache and its length."""
    for dtype, kind, length in product(DTYPES, CACHES, LENGTHS[1:2] if settings.quick else LENGTHS):
        calls = partial(each, GENERATED, partial(_decoding, dtype, kind, length))
        case = {"dtype": dtype, "cache": kind, "length": length, "new": NEW}
        yield Group(case, calls, seconds=5.0, rounds=5)


def _decoding(dtype: str, kind: str, length: int, attention: str, parameters: str) -> Call:
    """Greedy decoding after a text whose keys and values, drawn at random, are in the cache."""
    torch.manual_seed(0)
    config = LlamaConfig(**CONFIG)
    network: Any = LlamaForCausalLM._from_config(config, attn_implementation=SDPA, dtype=DTYPES[dtype]).eval()
    cache = filled_cache(config, kind, length, DTYPES[dtype])
    tokens = torch.randint(config.vocab_size, (1, length + 1))
    return partial(_decode, with_attention(network, attention, parameters), tokens, cache)


def _decode(network: Any, tokens: Tensor, cache: Any) -> None:
    network.generate(tokens, past_key_values=cache, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    rewind(cache)


def filled_cache(config: LlamaConfig, kind: str, length: int, dtype: torch.dtype) -> Any:
    """A "dynamic" or "static" cache of random keys and values."""
    static = kind == "static"
    cache: Any = StaticCache(config=config, max_cache_len=length + NEW) if static else DynamicCache(config=config)
    shape: Any = (1, config.num_key_value_heads, length, config.head_dim)
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), layer)
    return cache


def rewind(cache: Any) -> None:
    """Remove the tokens that a call added to the cache."""
    if isinstance(cache, DynamicCache):
        cache.crop(-NEW)
    else:
        for layer in cache.layers:
            layer.cumulative_length.sub_(NEW)


# -------------------------------------------------------------------------------------------------- with a given model

MODEL_LENGTHS = (128, 1024, 2048, 4096, 8192, 16384)  # tokens of the text
PREFILL, DECODE = PHASES = ("prefill", "decode")
DYNAMIC, GROWING = "dynamic", "growing"  # transformers' cache, and the one that grows in place
SPARSE = ("t_softmax", "t=6, edge=0")
READERS = ((SDPA, "", GROWING), (*SPARSE, GROWING))  # of a prompt, for which the cache makes no difference
DECODERS = ((SDPA, "", DYNAMIC), *READERS)
COMPARED = 256  # tokens after the text, for the distance from the dense model
STEPS = 512  # more tokens than are generated
RANDOM = "random tokens"
STRETCH = 2  # beyond its positions, a model is stretched by dynamic RoPE, which changes nothing within them


@dataclass
class Continuation:
    """A text that a model reads, and goes on with: the calls to measure, and what one leaves for the next."""

    networks: dict[str, Any]  # by attention
    tokens: Tensor  # [1, tokens], longer than the text
    length: int  # of the text
    caches: dict[str, Any] = field(default_factory=dict)  # that hold the text, by attention

    def prefill(self) -> Iterator[tuple[Case, Call]]:
        """Reading the text, up to the logits of its last token."""
        for attention, parameters, cache in READERS:
            case = {"attention": attention, "parameter": parameters, "cache": cache}
            yield case, partial(self._read, attention)

    def decode(self) -> Iterator[tuple[Case, Call]]:
        """Reading one more token."""
        for attention in self.networks.keys() - self.caches.keys():
            self._read(attention)
        dense = self._log_probabilities(SDPA)
        for attention, parameters, kind in DECODERS:
            kl = float(F.kl_div(self._log_probabilities(attention), dense, reduction="batchmean", log_target=True))
            cache = as_dynamic(self.caches[attention]) if kind == DYNAMIC else self.caches.pop(attention)
            case = {"attention": attention, "parameter": parameters, "cache": kind, "kl": kl}
            yield case, partial(self._go_on, attention, cache)

    @torch.no_grad()
    def _read(self, attention: str) -> None:
        network = self.networks[attention]
        self.caches[attention] = cache = GrowingCache(network.config)
        network(self.tokens[:, : self.length], past_key_values=cache, logits_to_keep=1)

    @torch.no_grad()
    def _go_on(self, attention: str, cache: Any, count: int = 1) -> Tensor:
        start = int(cache.get_seq_length())
        logits: Tensor = self.networks[attention](self.tokens[:, start : start + count], past_key_values=cache).logits
        return logits[0]

    def _log_probabilities(self, attention: str) -> Tensor:
        """Of the tokens after the text; the cache is left as it is."""
        return self._go_on(attention, copy.deepcopy(self.caches[attention]), COMPARED).log_softmax(-1)


def as_dynamic(cache: GrowingCache) -> DynamicCache:
    """A copy of a cache as transformers' own."""
    result = DynamicCache()
    result.layers = copy.deepcopy(cache.layers)
    for i, layer in enumerate(cache.layers):
        if isinstance(layer, GrowingLayer):
            result.layers[i] = plain = DynamicLayer()
            plain.update(layer.keys, layer.values)
    return result


def model_groups(settings: Settings) -> Iterator[Group]:
    """Both phases by length, on the lengths that the model has positions for."""
    config = load_model(AutoConfig, settings.model)
    longest = _stretch(config) - STEPS
    lengths = [n for n in MODEL_LENGTHS if n <= longest]
    if not lengths:
        raise ValueError(
            f"the model {settings.model!r} must have positions for {MODEL_LENGTHS[0] + STEPS} tokens, got"
            f" {longest + STEPS}"
        )
    tokens = _tokens(settings, config.vocab_size, max(lengths) + STEPS)
    load = partial(load_model, AutoModelForCausalLM, settings.model, dtype=torch.float32)
    networks = {name: with_attention(load(config=copy.deepcopy(config)).eval(), name, p) for name, p, _ in READERS}
    case = {"model": model_name(settings.model), "text": Path(settings.texts).name or RANDOM, "dtype": "float32"}
    for length in lengths[:4][-1:] if settings.quick else lengths:
        text = Continuation(networks, tokens, length)
        shared = {**case, "length": length}
        yield Group({**shared, "phase": PREFILL}, text.prefill, seconds=15.0, rounds=1, memory=False)
        yield Group({**shared, "phase": DECODE}, text.decode, seconds=15.0, rounds=9)


def _stretch(config: Any) -> int:
    """Stretch the positions, if they are rotations; returns their number."""
    positions: int = config.max_position_embeddings
    rotations = getattr(config, "rope_parameters", None) or {}
    if rotations.get("rope_type") != "default":
        return positions
    rotations |= {"rope_type": "dynamic", "factor": float(STRETCH)}
    return STRETCH * positions + STEPS


def _tokens(settings: Settings, vocabulary: int, count: int) -> Tensor:
    """The first tokens of the text; without one, random tokens."""
    if not settings.texts:
        return torch.randint(vocabulary, (1, count), generator=torch.Generator().manual_seed(0))
    try:
        text = Path(settings.texts).read_text(encoding="utf-8")
        tokens = AutoTokenizer.from_pretrained(settings.model, trust_remote_code=False)(text)["input_ids"]
    except (OSError, ValueError) as error:
        raise ValueError(f"the text {settings.texts!r} with the tokenizer of {settings.model!r}: {error}") from None
    if len(tokens) < count:
        raise ValueError(f"the text {settings.texts!r} has {len(tokens)} tokens; {count} are needed: pass a longer one")
    return torch.tensor([tokens[:count]])


def draw_decoding(records: Sequence[Record], path: Path) -> None:
    """Plot the time of a generated token against the length of the text, for each processor and model."""
    from matplotlib.figure import Figure  # imported when the records are complete

    decoded = [record for record in records if record["phase"] == DECODE and record["threads"] == 1]
    panels = list(dict.fromkeys((record["model"], record["machine"]) for record in decoded))
    lengths = sorted({record["length"] for record in decoded})
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for (model, machine), axis in zip(panels, axes, strict=True):
        for (attention, _, cache), (name, colour) in zip(DECODERS, LINES, strict=True):
            case = {"machine": machine, "model": model, "attention": attention, "cache": cache}
            line = {r["length"]: r["median"] / 1000 for r in decoded if r.items() >= case.items()}
            axis.plot(list(line), list(line.values()), color=colour, marker="o", markersize=3, label=name)
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axis.set_ylim(0, 1.1e-3 * max(record["median"] for record in decoded))
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_title(f"{model}, {machine}", fontsize=9)
    axes[0].legend(loc="upper left", frameon=False, fontsize=9)
    figure.supylabel("milliseconds per token, one thread", fontsize=9)
    figure.supxlabel("tokens read before", fontsize=9)
    figure.savefig(path, dpi=120)


LINES = (
    ("torch's attention, DynamicCache", "#8a8a8a"),
    ("torch's attention, GrowingCache", "#2f6690"),
    ("t-softmax, t = 6, GrowingCache", "#c44536"),
)


def _decode_goal(length: int, at_most: float, against: str) -> Goal:
    cases = {"phase": (DECODE,), "model": (GOAL_MODEL,), "length": (length,), "attention": SPARSE[:1], "threads": (1,)}
    title = f"a token after {length}, {GOAL_MODEL}, t=6, edge=0, against sdpa with the {against} cache"
    return Goal(title, at_most, cases, {"attention": SDPA, "parameter": "", "cache": against})


def _prefill_goal(length: int, at_most: float) -> Goal:
    cases = {"phase": (PREFILL,), "model": (GOAL_MODEL,), "length": (length,), "attention": SPARSE[:1], "threads": (1,)}
    return Goal(f"prefill of {length} tokens, {GOAL_MODEL}, t=6, edge=0, against sdpa", at_most, cases)


GOAL_MODEL = "SmolLM2-135M"
GENERATE_MODEL = Benchmark(
    file="bench_generate_model.jsonl",
    groups=model_groups,
    baseline={"attention": SDPA},
    label="{attention} {parameter} ({cache} cache)",
    title="{phase} of {model}, {length} tokens of {text}, threads: {threads}",
    slowest="{model}, {phase}, {length} tokens, {machine}",
    goals=(
        _prefill_goal(4096, 0.78),
        _prefill_goal(8192, 0.68),
        _decode_goal(4096, 0.58, DYNAMIC),
        _decode_goal(8192, 0.40, DYNAMIC),
        _decode_goal(16384, 0.28, DYNAMIC),
        _decode_goal(4096, 0.75, GROWING),
        _decode_goal(8192, 0.55, GROWING),
        _decode_goal(16384, 0.45, GROWING),
    ),
    options=("model", "texts"),
    keeps_memory=False,  # a copy of a growing cache is larger than all that was freed, so that its memory is new
    keeps_groups=True,
    draw=draw_decoding,
)


# ------------------------------------------------------------------------------------------------------- the benchmark


def _random_goal(dtype: str) -> Goal:
    cases = {"dtype": (dtype,), "parameter": ("r=0.9",), "length": LENGTHS[1:]}
    return Goal(f"generation with r=0.9 after 4096 tokens or more, {dtype}, against sdpa", 1.0, cases)


GENERATE = Benchmark(
    file="bench_generate.jsonl",
    groups=generate_groups,
    baseline={"attention": SDPA},
    label="{attention} {parameter}",
    title="{new} tokens after {length}, {dtype}, {cache} cache, threads: {threads}",
    slowest="{length} tokens, {cache} cache, threads: {threads}",
    goals=(_random_goal("float32"), _random_goal("bfloat16")),
    with_model=GENERATE_MODEL,
)
