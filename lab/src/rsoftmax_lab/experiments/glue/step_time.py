"""The time of a training step on a task's batches, against the same step with torch's attention."""

import copy
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

TIMED = 9  # batches, evenly spread over an epoch, which is sorted by length in chunks


def step_time(network: PreTrainedModel, batches: Sequence[Any], *, bf16: bool = False) -> dict[str, float]:
    """Time steps of a trained network and of a copy with torch's attention, interleaved batch by batch.

    Ratios are computed for each batch, so that other load affects both equally. Time is processor time, which other
    programs affect least; on an accelerator it is the time until the device has finished.

    Args:
        network: the network; copies of it are trained.
        batches: the batches of one epoch.
        bf16: whether matrices are multiplied in bfloat16, as in training.

    Returns:
        Medians over batches: ``seconds`` of a step, ``sdpa_seconds`` with torch's attention, and their ``ratio``.
    """
    mine, other = copy.deepcopy(network), copy.deepcopy(network)
    other.set_attn_implementation("sdpa")
    steps = [_Step(mine, bf16), _Step(other, bf16)]
    for step in steps:
        step(batches[0])  # allocates AdamW's state
    pairs = []
    for turn, batch in enumerate(batches[:: -(-len(batches) // TIMED)]):
        first, second = steps if turn % 2 else reversed(steps)
        times = {first: first(batch), second: second(batch)}
        pairs.append([times[step] for step in steps])
    own, others = zip(*pairs, strict=True)
    return {
        "seconds": statistics.median(own),
        "sdpa_seconds": statistics.median(others),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


class _Step:
    """Forward, loss, backward and AdamW with dropout; returns the time of a batch."""

    def __init__(self, network: PreTrainedModel, bf16: bool) -> None:
        self.network = network.train()
        self.autocast = torch.autocast(network.device.type, torch.bfloat16, enabled=bf16)
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)

    def __call__(self, batch: Any) -> float:
        start = _now()
        self.optimizer.zero_grad()
        with self.autocast:
            loss = self.network(**batch).loss
        loss.backward()
        self.optimizer.step()
        return _now() - start


def _now() -> float:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
        return time.perf_counter()
    return time.process_time()
