"""One run: one model on texts of one kind and one length, in all settings."""

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import rsoftmax
from rsoftmax.attention.transformers import set_attention
from rsoftmax.attention.transformers.api import load_pretrained
from rsoftmax.attention.transformers.compare import Comparison, compare
from rsoftmax.attention.transformers.measure import zeros_of
from rsoftmax_lab.experiments.pretrained.data import batches
from rsoftmax_lab.experiments.pretrained.grid import Run, arguments
from rsoftmax_lab.running.runs import Row

OBSERVED = 128  # queries of each text whose zeros are counted
load = lru_cache(maxsize=1)(load_pretrained)


def run(model: str, files: Mapping[str, Path], calibrated: Mapping[str, dict[str, Any]], run: Run) -> Row:
    """Measure; returns the row of a run."""
    tokenizer, network = load(model, task_head=True)
    texts = batches(tokenizer, network, files[run.texts], run.length, run.samples)
    settings = {words: arguments(words) for words in run.settings} | {name: calibrated[name] for name in run.calibrated}
    found = compare(network, texts, list(settings.values()))
    before, rows = network.config._attn_implementation, {}
    for (name, setting), measured in zip(settings.items(), found, strict=True):
        set_attention(network, **setting)
        zeros, _ = zeros_of(network, texts[:1], max(run.length // OBSERVED, 1))
        rows[name] = _row(measured) | {"zeros": round(zeros.mean(), 4)}
    network.set_attn_implementation(before)
    return {"metric": found[0].metric, "texts": found[0].texts, "settings": rows, "version": rsoftmax.__version__}


def _row(measured: Comparison) -> dict[str, float | None]:
    mean, deviation = measured.mean()
    dense, sparse = measured.loss
    return {
        "error": float(f"{mean:.4g}"),
        "standard_error": None if math.isnan(deviation) else float(f"{deviation:.3g}"),
        "time": round(measured.time, 4),
        "perplexity": None if math.isnan(dense) else round(100 * math.expm1(sparse - dense), 3),
        "dense_perplexity": None if math.isnan(dense) else round(math.exp(dense), 3),
    }
