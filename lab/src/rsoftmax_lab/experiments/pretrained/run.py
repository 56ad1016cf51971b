"""One run: one model on texts of one kind and one length, in all settings."""

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import rsoftmax
from rsoftmax.huggingface import parameters, set_attention
from rsoftmax.huggingface.attention.api import load_pretrained
from rsoftmax.huggingface.attention.compare import Comparison, compare, text_batches
from rsoftmax.huggingface.attention.measure import zeros_of
from rsoftmax_lab.experiments.pretrained.grid import Run, arguments
from rsoftmax_lab.running.runs import Row

OBSERVED = 128  # queries of each text whose zeros are counted
load = lru_cache(maxsize=1)(load_pretrained)


def thresholds(folder: Path) -> dict[str, Any]:
    """The arguments of ``set_attention`` of a calibrated model."""
    _, model = load_pretrained(str(folder), task_head=True)
    if "calibration" not in getattr(model.config, "rsoftmax", {}):
        raise ValueError(f"{folder} is not a calibrated model; `rsoftmax calibrate --out FOLDER` writes one")
    values = parameters(model).values
    return {"mapping": "t_softmax", "t": values.tolist(), "edge": model.config.rsoftmax["edge"]}


def run(model: str, files: Mapping[str, Path], calibrated: Mapping[str, dict[str, Any]], run: Run) -> Row:
    """Measure; returns the row of a run."""
    tokenizer, network = load(model, task_head=True)
    text = files[run.texts].read_text(encoding="utf-8")
    batches = [_labelled(network, batch) for batch in text_batches(tokenizer, network, text, run.length, run.samples)]
    settings = {words: arguments(words) for words in run.settings} | {name: calibrated[name] for name in run.calibrated}
    found = compare(network, batches, list(settings.values()))
    before, rows = network.config._attn_implementation, {}
    for (name, setting), measured in zip(settings.items(), found, strict=True):
        set_attention(network, **setting)
        zeros, _ = zeros_of(network, batches[:1], max(run.length // OBSERVED, 1))
        rows[name] = _row(measured) | {"zeros": round(zeros.mean(), 4)}
    network.set_attn_implementation(before)
    return {"metric": found[0].metric, "texts": found[0].texts, "settings": rows, "version": rsoftmax.__version__}


def _labelled(network: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of a language model with labels, so that it computes its loss."""
    return {**batch, "labels": batch["input_ids"]} if network.can_generate() else dict(batch)


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
