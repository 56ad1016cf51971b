"""What a fine-tuning step of a whole model costs with sparse attention, beside the same model with torch's own."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from rsoftmax.huggingface import set_attention
from rsoftmax.huggingface.quiet import quiet
from rsoftmax_lab.bench.mappings import machine, take_turns

SHAPES = ((32, 32), (32, 128))  # rows in a batch, tokens in a row
SDPA = "sdpa"
ATTENTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "r_softmax": {"r": 0.15},
    "sparsemax": {},
    "sparsehourglass": {"q": 10.0},
}
GOAL = 1.15  # r_softmax, as a multiple of sdpa


@dataclass
class Row:
    """One row of results: microseconds, and ratios to the same model with torch's own attention."""

    model: str
    attention: str
    batch: int
    tokens: int
    threads: int
    median_us: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    machine: str = field(default_factory=machine)
    torch: str = torch.__version__


def check(model: str) -> None:
    """Find out before anything is timed whether the model can be read and be made sparse."""
    for name in ATTENTIONS:
        _network(model, name)


def run(model: str, threads: list[int], quick: bool) -> Iterator[list[Row]]:
    """The whole benchmark, group by group; ``model`` is a folder or a name on the hub."""
    before = torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            for batch, tokens in ((2, 8),) if quick else SHAPES:
                calls = {name: _step(model, name, batch, tokens) for name in (SDPA, *ATTENTIONS)}
                spreads = take_turns(calls, SDPA, 0.1 if quick else 20.0, rounds=5)
                yield [Row(_name(model), name, batch, tokens, count, **asdict(s)) for name, s in spreads.items()]
    finally:
        torch.set_num_threads(before)


def _step(model: str, attention: str, batch: int, tokens: int) -> Callable[[], object]:
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


def _name(model: str) -> str:
    return model.rstrip("/").rsplit("/", 1)[-1]


def verdict(rows: list[Row]) -> str:
    """Whether the goal for r_softmax was met, case by case."""
    found = [row for row in rows if row.attention == "r_softmax"]
    costs = ", ".join(f"{row.ratio:.2f} at {row.batch} x {row.tokens}, threads: {row.threads}" for row in found)
    met = "met" if all(row.ratio <= GOAL for row in found) else "missed"
    return f"goal, a step with r_softmax at most {GOAL} times sdpa's: {met} ({costs})"
