"""The time of fine-tuning whole models with sparse attention, against torch's: a given model, and a long encoder."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)

from rsoftmax._transformers import quiet
from rsoftmax.attention import set_attention
from rsoftmax_lab.bench.benchmark import Benchmark, Case, Goal, Group, Settings
from rsoftmax_lab.bench.timing import Call, training_step

SDPA = "sdpa"
Attentions = Iterable[tuple[str, str]]  # a mapping and its parameters, as in the records


def with_attention(network: Any, attention: str, parameters: str) -> Any:
    """The network with a mapping in place of softmax."""
    if attention != SDPA:
        pairs = (part.split("=") for part in parameters.split(", ") if part)
        values: dict[str, Any] = {name: float(value) for name, value in pairs}
        set_attention(network, attention, **values)
    return network


def each(attentions: Attentions, make: Callable[[str, str], Call]) -> Iterator[tuple[Case, Call]]:
    """A call for each attention, with its fields of the records."""
    for attention, parameters in attentions:
        yield {"attention": attention, "parameter": parameters}, make(attention, parameters)


@quiet()
def load_model(auto: Any, model: str, **options: Any) -> Any:
    """A configuration or a model of transformers, with torch's attention."""
    try:
        safe = {"use_safetensors": True, "trust_remote_code": False, "attn_implementation": SDPA}
        return auto.from_pretrained(model, **safe, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"the model {model!r}: {error}") from None


def model_name(model: str) -> str:
    """The last part of a folder or hub id."""
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
    load = partial(load_model, AutoModelForSequenceClassification, settings.model)
    network = with_attention(load(), "r_softmax", "r=0.5")  # or an error that says why it cannot
    longest = getattr(network.config, "max_position_embeddings", STEPS[-1][1])
    steps: list[Any] = [(model_name(settings.model), load, shape) for shape in STEPS if shape[1] <= longest]
    steps += [(LONG, _long_encoder, shape) for shape in LONG_STEPS]
    for name, make, (batch, tokens) in steps[:1] if settings.quick else steps:
        calls = partial(each, FINETUNED, partial(_step, make, batch, tokens))
        yield Group({"model": name, "batch": batch, "tokens": tokens}, calls, seconds=20.0, rounds=5)


def _long_encoder() -> Any:
    """With a configuration of its own, which says what its attention is."""
    return BertForSequenceClassification._from_config(BertConfig(**LONG_CONFIG), attn_implementation=SDPA)


def _step(make: Callable[[], Any], batch: int, length: int, attention: str, parameters: str) -> Call:
    """Forward, loss, backward and AdamW with dropout, on random tokens."""
    torch.manual_seed(0)
    network = with_attention(make(), attention, parameters)
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
