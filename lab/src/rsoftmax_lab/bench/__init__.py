"""Benchmarks of the library against torch, measured in the same run.

A benchmark is a :class:`~rsoftmax_lab.bench.benchmark.Benchmark` in a file here, and a line of the table below. This
file imports none of them, so that the command line can list them without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rsoftmax_lab.bench.benchmark import Benchmark

BENCHMARKS = {
    "mappings": ("mappings", "Every mapping against torch.softmax; the default."),
    "attention": ("attention", "Sparse attention against torch's, and its memory."),
    "finetuning": ("models", "A training step of a --model, against torch's attention."),
    "generate": ("generation", "Generating text with a long cache, or with a --model."),
    "compiled": ("compiled", "Compiled mappings against eager ones; a compiled model."),
    "heads": ("heads", "Multi-label heads against binary cross-entropy."),
    "labels": ("heads", "Decoding very many labels; ExpectedF1Classifier."),
    "warpers": ("sampling", "Sampling against top-k and min-p of Transformers."),
}
"""The module of each benchmark, and its description."""


def load(name: str) -> "Benchmark":
    """Load a benchmark by its name in the table: the upper-case name in its module."""
    module, _ = BENCHMARKS[name]
    benchmark: Benchmark = getattr(import_module(f"{__name__}.{module}"), name.upper())
    return benchmark
