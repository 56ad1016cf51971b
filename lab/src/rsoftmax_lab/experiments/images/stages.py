"""Splits a network of stages into the frozen first stages, and the last stages with the pooling."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def check(network: Any, last: int) -> None:
    """Reject a network that cannot be split before its last stages."""
    stages = getattr(getattr(network, "encoder", None), "stages", None)
    name = type(network).__name__
    if stages is None or not hasattr(network, "embedder"):
        raise ValueError(
            f"{name} has no stages; use a network like ResNetModel, or --finetune to train the whole network"
        )
    if not 1 <= last <= len(stages):
        raise ValueError(f"{name} has {len(stages)} stages; the last {last} of them cannot be trained")


def remove_last(network: Any, last: int) -> None:
    """Remove the last stages: the last hidden state of the rest is their input."""
    check(network, last)
    del network.encoder.stages[-last:]


@contextmanager
def begins_with_last(network: Any, last: int) -> Iterator[None]:
    """Within the block, the network consists of its last stages and the pooling, and takes the output of the others.

    With ``last=0`` it is unchanged and takes images.
    """
    if not last:
        yield
        return
    check(network, last)
    embedder, stages = network.embedder, network.encoder.stages
    network.embedder, network.encoder.stages = nn.Identity(), stages[-last:]
    try:
        yield
    finally:
        network.embedder, network.encoder.stages = embedder, stages
