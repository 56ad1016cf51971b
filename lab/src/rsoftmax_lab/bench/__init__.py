"""What the library costs, beside torch in the same run.

A benchmark is a file here that declares a :class:`~rsoftmax_lab.bench.benchmark.Benchmark` named ``BENCHMARK``, and a
line of the table below. This file imports none of them, so that the command line can list them without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rsoftmax_lab.bench.benchmark import Benchmark

BENCHMARKS = {
    "mappings": "Time every mapping beside torch.softmax.",
    "attention": "Time sparse attention beside torch's own, and measure its memory.",
    "finetuning": "Time a fine-tuning step of a model with sparse attention beside torch's own; needs --model.",
    "generate": "Time generating text behind a long cache with sparse attention beside torch's own.",
    "compiled": "Time compiled mappings beside eager ones, and a compiled model beside the same with softmax.",
    "heads": "Time the multi-label heads beside binary cross-entropy's; on one thread if not told otherwise.",
    "warpers": "Time sampling from sparse distributions beside top-k and min-p of transformers.",
}
"""The file of each benchmark, and what it does."""


def load(name: str) -> "Benchmark":
    """The benchmark of that name in the table."""
    benchmark: Benchmark = import_module(f"{__name__}.{name}").BENCHMARK
    return benchmark
