"""Benchmarks of the library against torch, measured in the same run.

A benchmark is a file here that declares a :class:`~rsoftmax_lab.bench.benchmark.Benchmark` named ``BENCHMARK``, and a
line of the table below. This file does not import them, so that the command line can list them without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rsoftmax_lab.bench.benchmark import Benchmark

BENCHMARKS = {
    "mappings": "Time every mapping against torch.softmax.",
    "attention": "Time sparse attention against torch's, and measure its memory.",
    "finetuning": "Time a fine-tuning step of a model with sparse attention against torch's; needs --model.",
    "generate": "Time text generation with a long cache, with sparse attention against torch's.",
    "compiled": "Time compiled mappings against eager ones, and a compiled model against the same model with softmax.",
    "heads": "Time the multi-label heads against binary cross-entropy; on one thread by default.",
    "labels": "Time label sets from sparse marginals of very many labels, and ExpectedF1Classifier against a bare fit.",
    "warpers": "Time sampling from sparse distributions against top-k and min-p of Transformers.",
}
"""The module of each benchmark, and its description."""


def load(name: str) -> "Benchmark":
    """Load a benchmark by its name in the table."""
    benchmark: Benchmark = import_module(f"{__name__}.{name}").BENCHMARK
    return benchmark
