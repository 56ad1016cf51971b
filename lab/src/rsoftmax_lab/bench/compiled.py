"""Compiled mappings against eager ones, and a small compiled BERT against the same model with softmax."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from rsoftmax import entmax15, r_softmax, sparsemax, t_softmax
from rsoftmax.attention import set_attention
from rsoftmax_lab.bench.benchmark import Benchmark, Case, Goal, Group, Settings
from rsoftmax_lab.bench.timing import MODES, Call, in_mode, training_step

SHAPES = ((12288, 128), (6144, 512), (256, 30522))
BATCH = (32, 128)  # texts, tokens
STEP = "training step"
BASELINE, MEASURED = "baseline", "measured"
MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "r_softmax r=0.5": partial(r_softmax, r=0.5),
    "t_softmax t=2": partial(t_softmax, t=2.0),
    "sparsemax": sparsemax,
    "entmax15": entmax15,
}


def groups(settings: Settings) -> Iterator[Group]:
    """Each mapping eager and compiled, by shape and mode; then the model."""

    def case(mode: str, n: int, length: int) -> Case:
        return {"mode": mode, "rows": n, "n": length, "device": settings.device}

    for shape, name, mode in product(SHAPES[1:2] if settings.quick else SHAPES, MAPPINGS, MODES):
        yield Group(case(mode, *shape), partial(mapping_calls, name, mode, shape, settings.device), seconds=2.0)
    yield Group(case(STEP, *BATCH), partial(step_calls, settings.device), seconds=10.0, rounds=5)


def mapping_calls(name: str, mode: str, shape: tuple[int, int], device: str) -> Iterator[tuple[Case, Call]]:
    """A mapping, eager and compiled."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    compiled = in_mode(mode, torch.compile(MAPPINGS[name]), x)
    compiled()  # compiles
    yield {"what": f"{name}, eager", "role": BASELINE}, in_mode(mode, MAPPINGS[name], x)
    yield {"what": f"{name}, compiled", "role": MEASURED}, compiled


def step_calls(device: str) -> Iterator[tuple[Case, Call]]:
    """A training step with softmax and with r_softmax."""
    yield {"what": "BERT with softmax, compiled", "role": BASELINE}, _step(device, "softmax")
    yield {"what": "BERT with r_softmax r=0.15, compiled", "role": MEASURED}, _step(device, "r_softmax", r=0.15)


def _step(device: str, attention: str, **parameter: Any) -> Call:
    """Forward, loss, backward and AdamW of two compiled layers of width 128, on random tokens."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
    network: Any = BertForSequenceClassification(config)
    network.to(device)
    set_attention(network, attention, **parameter)
    optimizer = torch.optim.AdamW(network.train().parameters(), lr=1e-5)
    tokens = torch.randint(config.vocab_size, BATCH).to(device)
    labels = torch.randint(2, BATCH[:1]).to(device)
    compiled: Any = torch.compile(network)
    return training_step(optimizer, lambda: compiled(input_ids=tokens, labels=labels).loss)


COMPILED = Benchmark(
    file="bench_compiled.jsonl",
    groups=groups,
    baseline={"role": BASELINE},
    label="{what}",
    title="{mode}, {rows} x {n}, {device}, threads: {threads}",
    slowest="{what}, {rows} x {n}, {device}, threads: {threads}",
    goals=(
        *(Goal(f"compiled, {mode}, against eager", 1.2, {"mode": (mode,), "role": (MEASURED,)}) for mode in MODES),
        Goal("a compiled training step with r_softmax, against softmax", 1.05, {"mode": (STEP,), "role": (MEASURED,)}),
    ),
    options=("device",),
)
