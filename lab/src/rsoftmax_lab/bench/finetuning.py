"""What a fine-tuning step of a whole model costs with sparse attention, beside the same model with torch's own."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from rsoftmax.huggingface import set_attention
from rsoftmax.huggingface.adapter import quiet
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case
from rsoftmax_lab.bench.timing import Call

SHAPES = ((32, 32), (32, 128))  # rows in a batch, tokens in a row
QUICK_SHAPES = ((2, 8),)
SDPA = "sdpa"
ATTENTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "r_softmax": {"r": 0.15},
    "sparsemax": {},
    "sparsehourglass": {"q": 10.0},
}


def groups(settings: Settings) -> list[Group]:
    """All attentions, by threads and shape, once it is clear that the model can be read and be made sparse."""
    try:
        for attention in ATTENTIONS:
            _network(settings.model, attention)
    except (OSError, ValueError) as error:
        raise ValueError(f"the model {settings.model!r}: {error}") from None
    shapes, seconds = (QUICK_SHAPES, 0.1) if settings.quick else (SHAPES, 20.0)
    return [
        Group(
            {"batch": batch, "tokens": tokens, "threads": threads, "measure": "us"},
            partial(_calls, settings.model, batch, tokens),
            seconds,
            rounds=5,
        )
        for threads, (batch, tokens) in product(settings.threads, shapes)
    ]


def _calls(model: str, batch: int, tokens: int) -> Sequence[tuple[Case, Call]]:
    name = model.rstrip("/").rsplit("/", 1)[-1]
    return [
        ({"model": name, "attention": attention}, _step(model, attention, batch, tokens))
        for attention in (SDPA, *ATTENTIONS)
    ]


def _step(model: str, attention: str, batch: int, tokens: int) -> Call:
    """Forward, loss, backward and AdamW, dropout included, on words drawn at random."""
    torch.manual_seed(0)
    network = _network(model, attention)
    optimizer = torch.optim.AdamW(network.train().parameters(), lr=1e-5)
    words = torch.randint(network.config.vocab_size, (batch, tokens))
    kept = torch.arange(tokens) < torch.randint(tokens // 2, tokens + 1, (batch, 1))  # padded, as batches are
    labels = torch.randint(2, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        network(input_ids=words, attention_mask=kept.long(), labels=labels).loss.backward()
        optimizer.step()

    return step


@quiet()
def _network(model: str, attention: str) -> Any:
    network = AutoModelForSequenceClassification.from_pretrained(model, use_safetensors=True, attn_implementation=SDPA)
    if attention != SDPA:
        set_attention(network, attention, **ATTENTIONS[attention])
    return network


BENCHMARK = Benchmark(
    file="bench_finetuning.jsonl",
    groups=groups,
    baseline={"attention": SDPA},
    label="{attention}",
    title="a step of {model}, {batch} x {tokens} tokens, threads: {threads}",
    place="{batch} x {tokens} tokens, threads: {threads}",
    goals=(Goal("a step with r_softmax, beside sdpa", 1.15, {"attention": ("r_softmax",)}),),
    takes_model=True,
)
