"""Texts as batches of a pretrained model, and the thresholds of calibrated models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rsoftmax.attention.transformers import parameters
from rsoftmax.attention.transformers.api import load_pretrained
from rsoftmax.attention.transformers.compare import text_batches


def batches(tokenizer: Any, network: Any, path: Path, length: int, samples: int) -> list[dict[str, Any]]:
    """The texts of a file, in pieces of ``length`` tokens; for a language model with labels, so that it has a loss."""
    found = text_batches(tokenizer, network, path.read_text(encoding="utf-8"), length, samples)
    return [_labelled(network, batch) for batch in found]


def thresholds(folder: Path) -> dict[str, Any]:
    """The arguments of ``set_attention`` of a calibrated model."""
    _, model = load_pretrained(str(folder), task_head=True)
    if "calibration" not in getattr(model.config, "rsoftmax", {}):
        raise ValueError(f"{folder} is not a calibrated model; `rsoftmax calibrate --out FOLDER` writes one")
    values = parameters(model).values
    return {"mapping": "t_softmax", "t": values.tolist(), "edge": model.config.rsoftmax["edge"]}


def _labelled(network: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    return {**batch, "labels": batch["input_ids"]} if network.can_generate() else dict(batch)
