"""The time of fine-tuning and of generating text with sparse attention in whole models, against torch's attention.

``finetuning``: a step of a given model, and of a long encoder. ``generate``: without a model, decoding with a small
Llama and a long cache, both drawn at random; with one, prefill and decoding of that model, on the text of ``--texts``.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)

from rsoftmax._transformers import max_positions, quiet
from rsoftmax.attention import set_attention
from rsoftmax_lab.bench.benchmark import Benchmark, Case, Goal, Group, Settings
from rsoftmax_lab.bench.timing import Call, training_step

SDPA = "sdpa"
Attentions = Iterable[tuple[str, str]]  # a mapping and its parameters, as in the records


def _with_attention(network: Any, attention: str, parameters: str) -> Any:
    if attention != SDPA:
        pairs = (part.split("=") for part in parameters.split(", ") if part)
        values: dict[str, Any] = {name: float(value) for name, value in pairs}
        set_attention(network, attention, **values)
    return network


def _each(attentions: Attentions, make: Callable[[str, str], Call]) -> Iterator[tuple[Case, Call]]:
    for attention, parameters in attentions:
        yield {"attention": attention, "parameter": parameters}, make(attention, parameters)


@quiet()
def _load(auto: Any, model: str, **options: Any) -> Any:
    try:
        safe = {"use_safetensors": True, "trust_remote_code": False, "attn_implementation": SDPA}
        return auto.from_pretrained(model, **safe, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"the model {model!r}: {error}") from None


def _name(model: str) -> str:
    return model.rstrip("/").rsplit("/", 1)[-1]


# -------------------------------------------------------------------------------------------------------- finetuning

STEPS = ((32, 32), (8, 128), (2, 512))  # texts in a batch, tokens in a text
LONG_STEPS = ((2, 512), (1, 2048))
LONG = "a long encoder"
LONG_CONFIG: dict[str, Any] = {
    "hidden_size": 384,  # the sizes are those of MiniLM-L6
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 2048,
    "attention_probs_dropout_prob": 0.0,  # torch's attention is fastest without dropout
    "initializer_range": 384**-0.5,  # with BERT's 0.02 the scores are so close that t_softmax has no zeros
}
FINETUNED = (
    (SDPA, ""),
    ("softmax", ""),
    ("r_softmax", "r=0.15"),
    ("r_softmax", "r=0.5"),
    ("r_softmax", "r=0.9"),
    ("t_softmax", "t=2"),
    ("sparsemax", ""),
)


def finetuning_groups(settings: Settings) -> Iterator[Group]:
    """The given model, on the lengths that it has positions for, and a BERT of MiniLM's size with random weights."""
    load = partial(_load, AutoModelForSequenceClassification, settings.model)
    network = _with_attention(load(), "r_softmax", "r=0.5")  # or an error that says why it cannot
    longest = getattr(network.config, "max_position_embeddings", STEPS[-1][1])
    steps: list[Any] = [(_name(settings.model), load, shape) for shape in STEPS if shape[1] <= longest]
    long = partial(BertForSequenceClassification._from_config, BertConfig(**LONG_CONFIG), attn_implementation=SDPA)
    steps += [(LONG, long, shape) for shape in LONG_STEPS]
    for name, make, (batch, tokens) in steps[:1] if settings.quick else steps:
        calls = partial(_each, FINETUNED, partial(_step, make, batch, tokens))
        yield Group({"model": name, "batch": batch, "tokens": tokens}, calls, seconds=20.0, rounds=5)


def _step(make: Callable[[], Any], batch: int, length: int, attention: str, parameters: str) -> Call:
    """Forward, loss, backward and AdamW with dropout, on random tokens."""
    torch.manual_seed(0)
    network = _with_attention(make(), attention, parameters)
    optimizer = torch.optim.AdamW(network.train().parameters(), lr=1e-5)
    tokens = torch.randint(network.config.vocab_size, (batch, length))
    lengths = torch.randint(length // 2, length + 1, (batch, 1))
    lengths[0] = length  # padded to the longest text, as in a batch
    mask = (torch.arange(length) < lengths).long()
    labels = torch.randint(2, (batch,))
    return training_step(optimizer, lambda: network(input_ids=tokens, attention_mask=mask, labels=labels).loss)


FINETUNING = Benchmark(
    file="bench_finetuning.jsonl",
    groups=finetuning_groups,
    baseline={"attention": SDPA},
    label="{attention} {parameter}",
    title="a step of {model}, {batch} x {tokens} tokens, threads: {threads}",
    slowest="{model}, {parameter}, {batch} x {tokens} tokens, threads: {threads}",
    goals=(
        Goal("a step with r_softmax, against sdpa", 1.15, {"attention": ("r_softmax",)}),
        Goal(
            "a step on 2048 tokens with r_softmax r=0.9, against sdpa",
            0.8,
            {"parameter": ("r=0.9",), "tokens": (2048,)},
        ),
    ),
    options=("model",),
)

# ---------------------------------------------------------------------------------------- generation without a model

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
        calls = partial(_each, GENERATED, partial(_decoding, dtype, kind, length))
        case = {"dtype": dtype, "cache": kind, "length": length, "new": NEW}
        yield Group(case, calls, seconds=5.0, rounds=5)


def _decoding(dtype: str, kind: str, length: int, attention: str, parameters: str) -> Call:
    """Greedy decoding after a text whose keys and values, drawn at random, are in the cache."""
    torch.manual_seed(0)
    config = LlamaConfig(**CONFIG)
    network: Any = LlamaForCausalLM._from_config(config, attn_implementation=SDPA, dtype=DTYPES[dtype]).eval()
    cache = filled_cache(config, kind, length, DTYPES[dtype])
    tokens = torch.randint(config.vocab_size, (1, length + 1))
    return partial(_decode, _with_attention(network, attention, parameters), tokens, cache)


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


# ---------------------------------------------------------------------------------------- generation with a given model

MODEL_LENGTHS = (512, 2048, 4096, 8192)  # tokens
PREFILL, DECODE = PHASES = ("prefill", "decode")
MODEL_GENERATED = ((SDPA, ""), ("t_softmax", "t=6, edge=0"))
RANDOM = "random tokens"


def model_groups(settings: Settings) -> Iterator[Group]:
    """Prefill and decoding of the given model, by length, on the lengths that it has positions for."""
    network = _language_model(settings.model)
    longest = max_positions(network) or max(MODEL_LENGTHS) + NEW
    lengths = [n for n in MODEL_LENGTHS if n + NEW <= longest]
    window = getattr(network.config, "sliding_window", None)
    if not lengths or (window is not None and window < max(lengths)):
        raise ValueError(
            f"the model {settings.model!r} must have positions for {MODEL_LENGTHS[0] + NEW} tokens and no shorter"
            f" window, got {longest} positions and a window of {window}"
        )
    tokens = _tokens(settings, network.config.vocab_size, max(lengths) + 1)
    for length, phase in product(lengths[:3][-1:] if settings.quick else lengths, PHASES):
        name, text = _name(settings.model), Path(settings.texts).name or RANDOM
        calls = partial(_each, MODEL_GENERATED, partial(_phase, settings.model, phase, tokens[:, : length + 1]))
        yield Group({"model": name, "text": text, "phase": phase, "length": length}, calls, seconds=20.0, rounds=3)


def _language_model(model: str) -> Any:
    return _load(AutoModelForCausalLM, model, dtype=torch.float32).eval()


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


def _phase(model: str, phase: str, tokens: Tensor, attention: str, parameters: str) -> Call:
    """All tokens but the last in one pass, or greedy decoding after them."""
    network = _with_attention(_language_model(model), attention, parameters)

    @torch.no_grad()
    def prefill() -> Any:
        return network(tokens[:, :-1], use_cache=True, logits_to_keep=1).past_key_values

    return prefill if phase == PREFILL else partial(_decode, network, tokens, prefill())


def _model_goal(phase: str, length: int, at_most: float) -> Goal:
    cases = {"phase": (phase,), "length": (length,), "attention": ("t_softmax",), "threads": (1,)}
    return Goal(f"{phase} of a whole model, {length} tokens, t=6, edge=0, against sdpa", at_most, cases)


GENERATE_MODEL = Benchmark(
    file="bench_generate_model.jsonl",
    groups=model_groups,
    baseline={"attention": SDPA},
    label="{attention} {parameter}",
    title="{phase} of {model}, {length} tokens of {text}, threads: {threads}",
    slowest="{model}, {phase}, {length} tokens, threads: {threads}",
    goals=(
        _model_goal(PREFILL, 4096, 0.78),
        _model_goal(PREFILL, 8192, 0.68),
        _model_goal(DECODE, 4096, 0.92),
        _model_goal(DECODE, 8192, 0.85),
    ),
    options=("model", "texts"),
)


def _goal(dtype: str) -> Goal:
    cases = {"dtype": (dtype,), "parameter": ("r=0.9",), "length": LENGTHS[1:]}
    return Goal(f"generation with r=0.9 after 4096 tokens or more, {dtype}, against sdpa", 1.0, cases)


GENERATE = Benchmark(
    file="bench_generate.jsonl",
    groups=generate_groups,
    baseline={"attention": SDPA},
    label="{attention} {parameter}",
    title="{new} tokens after {length}, {dtype}, {cache} cache, threads: {threads}",
    slowest="{length} tokens, {cache} cache, threads: {threads}",
    goals=(_goal("float32"), _goal("bfloat16")),
    with_model=GENERATE_MODEL,
)
