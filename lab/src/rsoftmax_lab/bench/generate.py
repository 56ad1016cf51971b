"""The time of text generation with sparse attention, against torch's attention.

Without a model: decoding with a small Llama and a long cache, both drawn at random. With ``--model``: prefill and
decoding of that model, on the text of ``--texts``.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from rsoftmax._transformers import max_positions, quiet
from rsoftmax.attention.transformers import set_attention
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case
from rsoftmax_lab.bench.timing import Call

LENGTHS = (512, 4096, 16384)  # tokens in the cache
QUICK_LENGTHS = (64,)
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
SMALLER = {"num_hidden_layers": 1, "vocab_size": 100}  # with --quick
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CACHES = ("dynamic", "static")
SDPA = "sdpa"
ATTENTIONS: dict[tuple[str, str], dict[str, Any]] = {
    (SDPA, ""): {},
    ("softmax", ""): {},
    ("r_softmax", "r=0.5"): {"r": 0.5},
    ("r_softmax", "r=0.9"): {"r": 0.9},
}


def groups(settings: Settings) -> list[Group]:
    """All attention implementations, by threads, dtype, cache and its length."""
    lengths, smaller, seconds = (QUICK_LENGTHS, SMALLER, 0.1) if settings.quick else (LENGTHS, {}, 5.0)
    return [
        Group(
            {"dtype": dtype, "cache": cache, "length": length, "new": NEW, "threads": threads, "measure": "us"},
            partial(_calls, CONFIG | smaller, dtype, cache, length),
            seconds,
            rounds=5,
        )
        for threads, dtype, cache, length in product(settings.threads, DTYPES, CACHES, lengths)
    ]


def _calls(sizes: dict[str, Any], dtype: str, cache: str, length: int) -> Sequence[tuple[Case, Call]]:
    return [
        ({"attention": attention, "parameter": parameter}, _decoding(sizes, attention, given, dtype, cache, length))
        for (attention, parameter), given in ATTENTIONS.items()
    ]


def _decoding(sizes: dict[str, Any], attention: str, given: dict[str, Any], dtype: str, kind: str, length: int) -> Call:
    """Greedy decoding after a text whose keys and values, drawn at random, are in the cache."""
    torch.manual_seed(0)
    config = LlamaConfig(**sizes)
    network: Any = LlamaForCausalLM._from_config(config, attn_implementation=SDPA, dtype=DTYPES[dtype]).eval()
    if attention != SDPA:
        set_attention(network, attention, **given)
    cache = _filled(config, kind, length, DTYPES[dtype])
    return partial(_decode, network, torch.randint(config.vocab_size, (1, length + 1)), cache)


def _decode(network: Any, words: Tensor, cache: Any) -> None:
    network.generate(words, past_key_values=cache, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    _rewind(cache)


def _filled(config: LlamaConfig, kind: str, length: int, dtype: torch.dtype) -> Any:
    static = kind == "static"
    cache: Any = StaticCache(config=config, max_cache_len=length + NEW) if static else DynamicCache(config=config)
    shape: Any = (1, config.num_key_value_heads, length, config.head_dim)
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), layer)
    return cache


def _rewind(cache: Any) -> None:
    """Remove the tokens that a call added to the cache."""
    if isinstance(cache, DynamicCache):
        cache.crop(-NEW)
    else:
        for layer in cache.layers:
            layer.cumulative_length.sub_(NEW)


# ------------------------------------------------------------------------------------------------- a given model

MODEL_LENGTHS = (2048, 4096, 8192)  # tokens
PHASES = ("prefill", "decode")
MODEL_ATTENTIONS: dict[tuple[str, str], dict[str, Any]] = {
    (SDPA, ""): {},
    ("t_softmax", "t=6, edge=0"): {"t": 6.0, "edge": 0.0},
}
RANDOM = "random tokens"


def model_groups(settings: Settings) -> list[Group]:
    """Prefill and decoding of the given model, by threads and length, on the lengths that it has positions for."""
    network = _given(settings.model)
    longest = max_positions(network) or max(MODEL_LENGTHS) + NEW
    lengths = [n for n in (QUICK_LENGTHS if settings.quick else MODEL_LENGTHS) if n + NEW <= longest]
    window = getattr(network.config, "sliding_window", None)
    if not lengths or (window is not None and window < max(lengths)):
        least = min(QUICK_LENGTHS if settings.quick else MODEL_LENGTHS) + NEW
        raise ValueError(
            f"the model {settings.model!r} must have positions for {least} tokens and no shorter window, got"
            f" {longest} positions and a window of {window}"
        )
    words = _words(settings, network.config.vocab_size, max(lengths, default=0) + 1)
    name, text = settings.model.rstrip("/").rsplit("/", 1)[-1], Path(settings.texts).name or RANDOM
    return [
        Group(
            {"model": name, "text": text, "phase": phase, "length": length, "threads": threads, "measure": "us"},
            partial(_model_calls, settings.model, phase, words[:, : length + 1]),
            seconds=0.1 if settings.quick else 20.0,
            rounds=3,
        )
        for threads, length, phase in product(settings.threads, lengths, PHASES)
    ]


@quiet()
def _given(model: str) -> Any:
    try:
        return AutoModelForCausalLM.from_pretrained(
            model, use_safetensors=True, trust_remote_code=False, attn_implementation=SDPA, dtype=torch.float32
        ).eval()
    except (OSError, ValueError) as error:
        raise ValueError(f"the model {model!r}: {error}") from None


def _words(settings: Settings, vocabulary: int, count: int) -> Tensor:
    """The first tokens of the text; without one, random tokens."""
    if not settings.texts:
        return torch.randint(vocabulary, (1, count), generator=torch.Generator().manual_seed(0))
    try:
        text = Path(settings.texts).read_text(encoding="utf-8")
        words = AutoTokenizer.from_pretrained(settings.model, trust_remote_code=False)(text)["input_ids"]
    except (OSError, ValueError) as error:
        raise ValueError(f"the text {settings.texts!r} with the tokenizer of {settings.model!r}: {error}") from None
    if len(words) < count:
        raise ValueError(f"the text {settings.texts!r} has {len(words)} tokens; {count} are needed: pass a longer one")
    return torch.tensor([words[:count]])


def _model_calls(model: str, phase: str, words: Tensor) -> Sequence[tuple[Case, Call]]:
    return [
        ({"attention": attention, "parameter": parameter}, _phase(model, attention, given, phase, words))
        for (attention, parameter), given in MODEL_ATTENTIONS.items()
    ]


def _phase(model: str, attention: str, given: dict[str, Any], phase: str, words: Tensor) -> Call:
    """All tokens but the last in one pass, or greedy decoding after them."""
    network = _given(model)
    if attention != SDPA:
        set_attention(network, attention, **given)

    @torch.no_grad()
    def prefill() -> Any:
        return network(words[:, :-1], use_cache=True, logits_to_keep=1).past_key_values

    return prefill if phase == "prefill" else partial(_decode, network, words, prefill())


def _model_goal(phase: str, length: int, at_most: float) -> Goal:
    cases = {"phase": (phase,), "length": (length,), "attention": ("t_softmax",), "threads": (1,)}
    return Goal(f"{phase} of a whole model, {length} tokens, t=6, edge=0, against sdpa", at_most, cases)


WITH_MODEL = Benchmark(
    file="bench_generate_model.jsonl",
    groups=model_groups,
    baseline={"attention": SDPA},
    label="{attention} {parameter}",
    title="{phase} of {model}, {length} tokens of {text}, threads: {threads}",
    place="{model}, {phase}, {length} tokens, threads: {threads}",
    goals=(
        _model_goal("prefill", 4096, 0.78),
        _model_goal("prefill", 8192, 0.68),
        _model_goal("decode", 4096, 0.92),
        _model_goal("decode", 8192, 0.85),
    ),
    takes_model=True,
    takes_texts=True,
)


def _goal(dtype: str, at_most: float) -> Goal:
    cases = {"dtype": (dtype,), "parameter": ("r=0.9",), "length": LENGTHS[1:]}
    return Goal(f"generation with r=0.9 after 4096 tokens or more, {dtype}, against sdpa", at_most, cases)


BENCHMARK = Benchmark(
    file="bench_generate.jsonl",
    groups=groups,
    baseline={"attention": SDPA},
    label="{attention} {parameter}",
    title="{new} tokens after {length}, {dtype}, {cache} cache, threads: {threads}",
    place="{length} tokens, {cache} cache, threads: {threads}",
    goals=(_goal("float32", 1.0), _goal("bfloat16", 1.0)),
    with_model=WITH_MODEL,
)
