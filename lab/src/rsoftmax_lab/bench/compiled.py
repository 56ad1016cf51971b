"""Compiled mappings against eager ones, and a small compiled BERT against the same model with softmax."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from rsoftmax import entmax15, r_softmax, sparsemax, t_softmax
from rsoftmax.attention.transformers import set_attention
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case
from rsoftmax_lab.bench.timing import MODES, Call, in_mode

SHAPES = ((12288, 128), (6144, 512), (256, 30522))
QUICK_SHAPES = ((512, 64),)
MAPPED: dict[str, Callable[[Tensor], Tensor]] = {
    "r_softmax r=0.5": partial(r_softmax, r=0.5),
    "t_softmax t=2": partial(t_softmax, t=2.0),
    "sparsemax": sparsemax,
    "entmax15": entmax15,
}
STEP = "training step"
BATCH, QUICK_BATCH = (32, 128), (2, 8)  # texts, tokens
BASELINE, MEASURED = "baseline", "measured"


def groups(settings: Settings) -> list[Group]:
    """Each mapping eager and compiled, by threads, shape and mode; then the model, by threads."""
    shapes, seconds, batch = (QUICK_SHAPES, 0.1, QUICK_BATCH) if settings.quick else (SHAPES, 2.0, BATCH)
    mapped = [
        Group(_common(mode, shape, threads, settings), partial(_mapped, name, mode, shape, settings.device), seconds)
        for threads, shape, name, mode in product(settings.threads, shapes, MAPPED, MODES)
    ]
    steps = [
        Group(_common(STEP, batch, threads, settings), partial(_steps, batch, settings.device), 5 * seconds, rounds=5)
        for threads in settings.threads
    ]
    return mapped + steps


def _common(mode: str, shape: tuple[int, int], threads: int, settings: Settings) -> Case:
    sizes = {"rows": shape[0], "n": shape[1]}
    return {"mode": mode, **sizes, "threads": threads, "device": settings.device, "measure": "us"}


def _mapped(name: str, mode: str, shape: tuple[int, int], device: str) -> Sequence[tuple[Case, Call]]:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    calls = {BASELINE: in_mode(mode, MAPPED[name], x), MEASURED: in_mode(mode, torch.compile(MAPPED[name]), x)}
    calls[MEASURED]()  # compiles
    says = {BASELINE: f"{name}, eager", MEASURED: f"{name}, compiled"}
    return [({"what": says[role], "role": role}, call) for role, call in calls.items()]


def _steps(batch: tuple[int, int], device: str) -> Sequence[tuple[Case, Call]]:
    return [
        ({"what": "BERT with softmax, compiled", "role": BASELINE}, _step("softmax", batch, device)),
        ({"what": "BERT with r_softmax r=0.15, compiled", "role": MEASURED}, _step("r_softmax", batch, device, r=0.15)),
    ]


def _step(attention: str, batch: tuple[int, int], device: str, **parameter: Any) -> Call:
    """Forward, loss, backward and AdamW of two compiled layers of width 128, on random tokens."""
    torch.manual_seed(0)
    size: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    network: Any = BertForSequenceClassification(BertConfig(**size, intermediate_size=512))
    network.to(device)
    set_attention(network, attention, **parameter)
    optimizer = torch.optim.AdamW(network.train().parameters(), lr=1e-5)
    words = torch.randint(network.config.vocab_size, batch).to(device)
    labels = torch.randint(2, batch[:1]).to(device)
    compiled: Any = torch.compile(network)

    def step() -> None:
        optimizer.zero_grad()
        compiled(input_ids=words, labels=labels).loss.backward()
        optimizer.step()

    step()  # compiles, and allocates AdamW's moments
    return step


BENCHMARK = Benchmark(
    file="bench_compiled.jsonl",
    groups=groups,
    baseline={"role": BASELINE},
    label="{what}",
    title="{mode}, {rows} x {n}, {device}, threads: {threads}",
    place="{what}, {rows} x {n}, {device}, threads: {threads}",
    goals=(
        *(Goal(f"compiled, {mode}, against eager", 1.2, {"mode": (mode,), "role": (MEASURED,)}) for mode in MODES),
        Goal("a compiled training step with r_softmax, against softmax", 1.05, {"mode": (STEP,), "role": (MEASURED,)}),
    ),
    takes_device=True,
)
