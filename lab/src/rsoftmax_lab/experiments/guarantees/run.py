"""One run: every guarantee on one dataset, over random halves of its test rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rsoftmax.labels import precision_threshold, recall_threshold
from rsoftmax_lab.experiments.guarantees.data import Scored, scored
from rsoftmax_lab.experiments.guarantees.grid import GUARANTEES, OURS, Guarantee, Run
from rsoftmax_lab.experiments.guarantees.peer import thresholds_of_mapie
from rsoftmax_lab.running.runs import Row

DECIMALS = 4
Thresholds = Callable[[Tensor], Tensor]  # from rows that set the threshold


def run(folder: Path, texts: Path | None, run: Run) -> Row:
    """Fit once, resplit many times; returns the row of a run."""
    rows = scored(folder, texts, run.dataset)
    halves = [_half(len(rows.y), seed) for seed in range(run.resplits)]
    found = {
        name: {title: _measured(rows, one, halves, method) for title, method in _methods(rows, one).items()}
        for name, one in GUARANTEES.items()
    }
    return {"rows": len(rows.y), "labels": rows.y.shape[1], "guarantees": found}


def _half(rows: int, seed: int) -> Tensor:
    """Which rows set the threshold, bool [rows]."""
    order = np.random.RandomState(seed).permutation(rows)
    return torch.from_numpy(order < rows // 2)


def _methods(rows: Scored, one: Guarantee) -> dict[str, Thresholds]:
    """From the rows that set the threshold to the threshold: infinite if nothing can be promised, NaN for a label."""

    def ours(half: Tensor) -> Tensor:
        function = recall_threshold if one.what == "recall" else precision_threshold
        try:
            return function(rows.pi[half], rows.y[half], one.level, by=one.by, confidence=one.confidence)  # type: ignore[arg-type]
        except ValueError:  # the rows do not suffice
            return torch.tensor([-torch.inf if one.what == "recall" else torch.inf])

    peers = {name: thresholds_of_mapie(rows.pi, rows.y, one, name) for name in one.peers}
    return {OURS: ours} | {name: peer for name, peer in peers.items() if peer is not None}


def _measured(rows: Scored, one: Guarantee, halves: list[Tensor], method: Thresholds) -> dict[str, list[float | None]]:
    """For each resplit: the level on the other rows, labels per row, and the share of labels with a guarantee."""
    numbers = [_measure(one, method(half), Scored(rows.pi[~half], rows.y[~half])) for half in halves]
    return {name: [each[name] for each in numbers] for name in ("level", "size", "controlled")}


def _measure(one: Guarantee, threshold: Tensor, rows: Scored) -> dict[str, float | None]:
    failed = threshold.isnan() | threshold.isinf()
    found, y = rows.pi >= threshold, rows.y == 1
    right, size = found & y, y if one.what == "recall" else found
    if one.by == "samples":
        level = torch.where(size.any(1), right.sum(1) / size.sum(1).clamp(min=1), 1.0).mean()
    elif one.by == "micro":
        level = right.sum() / size.sum() if size.any() else torch.tensor(1.0)
    else:
        level = (right.sum(0) / size.sum(0))[~failed & size.any(0)].mean()  # of labels that have rows and a guarantee
    sizes = found[:, ~failed] if one.by == "label" else found
    return {
        "level": None if level.isnan() else round(float(level), DECIMALS),
        "size": round(float(sizes.sum(1).double().mean()), DECIMALS),
        "controlled": round(1 - float(failed.double().mean()), DECIMALS),
    }
