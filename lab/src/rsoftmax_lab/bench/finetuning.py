"""The time of a fine-tuning step of a whole model with sparse attention, against torch's attention."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from rsoftmax._transformers import quiet
from rsoftmax.attention.transformers import set_attention
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case
from rsoftmax_lab.bench.timing import Call

SHAPES = ((32, 32), (8, 128), (2, 512))  # rows in a batch, tokens in a row
LONG_SHAPES = ((2, 512), (1, 2048))
QUICK_SHAPES = ((2, 8),)
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
SDPA = "sdpa"
ATTENTIONS: dict[tuple[str, str], dict[str, Any]] = {
    (SDPA, ""): {},
    ("softmax", ""): {},
    ("r_softmax", "r=0.15"): {"r": 0.15},
    ("r_softmax", "r=0.5"): {"r": 0.5},
    ("r_softmax", "r=0.9"): {"r": 0.9},
    ("t_softmax", "t=2"): {"t": 2.0},
    ("sparsemax", ""): {},
}


class Model(NamedTuple):
    """A model to measure: its name in rows, a constructor with torch's attention, and its batch sizes."""

    name: str
    make: Callable[[], Any]
    shapes: Sequence[tuple[int, int]]


def groups(settings: Settings) -> list[Group]:
    """All attention implementations, by threads, model and shape; first checks that the model supports them."""
    seconds = 0.1 if settings.quick else 20.0
    return [
        Group(
            {"model": model.name, "batch": batch, "tokens": tokens, "threads": threads, "measure": "us"},
            partial(_calls, model.make, batch, tokens),
            seconds,
            rounds=5,
        )
        for threads, model in product(settings.threads, (_given(settings), _long(settings)))
        for batch, tokens in model.shapes
    ]


def _given(settings: Settings) -> Model:
    """The requested model, on the lengths that it has positions for."""
    make = partial(_read, settings.model)
    try:
        network = make()
        set_attention(network, "r_softmax", r=0.5)
    except (OSError, ValueError) as error:
        raise ValueError(f"the model {settings.model!r}: {error}") from None
    shapes = QUICK_SHAPES if settings.quick else SHAPES
    longest = getattr(network.config, "max_position_embeddings", max(tokens for _, tokens in shapes))
    name = settings.model.rstrip("/").rsplit("/", 1)[-1]
    return Model(name, make, [shape for shape in shapes if shape[1] <= longest])


def _long(settings: Settings) -> Model:
    """A BERT of MiniLM's size with 2048 positions, with random weights; smaller with --quick."""
    if settings.quick:
        return Model(LONG, partial(_random, LONG_CONFIG | {"num_hidden_layers": 1, "vocab_size": 100}), QUICK_SHAPES)
    return Model(LONG, partial(_random, LONG_CONFIG), LONG_SHAPES)


@quiet()
def _read(model: str) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(
        model, use_safetensors=True, trust_remote_code=False, attn_implementation=SDPA
    )


def _random(config: dict[str, Any]) -> Any:
    return BertForSequenceClassification._from_config(BertConfig(**config), attn_implementation=SDPA)


def _calls(make: Callable[[], Any], batch: int, tokens: int) -> Sequence[tuple[Case, Call]]:
    return [
        ({"attention": attention, "parameter": parameter}, _step(make, attention, given, batch, tokens))
        for (attention, parameter), given in ATTENTIONS.items()
    ]


def _step(make: Callable[[], Any], attention: str, given: dict[str, Any], batch: int, tokens: int) -> Call:
    """Forward, loss, backward and AdamW with dropout, on random tokens."""
    torch.manual_seed(0)
    network = make()
    if attention != SDPA:
        set_attention(network, attention, **given)
    optimizer = torch.optim.AdamW(network.train().parameters(), lr=1e-5)
    words = torch.randint(network.config.vocab_size, (batch, tokens))
    lengths = torch.randint(tokens // 2, tokens + 1, (batch, 1))
    lengths[0] = tokens  # padded to the longest row, as in a batch
    kept = (torch.arange(tokens) < lengths).long()
    labels = torch.randint(2, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        network(input_ids=words, attention_mask=kept, labels=labels).loss.backward()
        optimizer.step()

    return step


BENCHMARK = Benchmark(
    file="bench_finetuning.jsonl",
    groups=groups,
    baseline={"attention": SDPA},
    label="{attention} {parameter}",
    title="a step of {model}, {batch} x {tokens} tokens, threads: {threads}",
    place="{model}, {parameter}, {batch} x {tokens} tokens, threads: {threads}",
    goals=(
        Goal("a step with r_softmax, against sdpa", 1.15, {"attention": ("r_softmax",)}),
        Goal(
            "a step on 2048 tokens with r_softmax r=0.9, against sdpa",
            0.8,
            {"parameter": ("r=0.9",), "tokens": (2048,)},
        ),
    ),
    takes_model=True,
)
