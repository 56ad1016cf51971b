"""The time of text generation with sparse attention over a long cache, against torch's attention."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from rsoftmax.huggingface import set_attention
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
    words = torch.randint(config.vocab_size, (1, length + 1))

    def decode() -> None:
        network.generate(words, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        _rewind(cache)

    return decode


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
)
