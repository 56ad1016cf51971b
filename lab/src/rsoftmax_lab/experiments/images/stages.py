"""A network of stages, cut in two: what lies before the last ones, and the last ones with what follows them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def check(network: Any, last: int) -> None:
    """Refuse a network that cannot be cut before so many of its last stages."""
    stages = getattr(getattr(network, "encoder", None), "stages", None)
    name = type(network).__name__
    if stages is None or not hasattr(network, "embedder"):
        raise ValueError(f"{name} has no stages; take a network like ResNetModel, or --finetune to train all of it")
    if not 1 <= last <= len(stages):
        raise ValueError(f"{name} has {len(stages)} stages; the last {last} of them cannot be trained")


def remove_last(network: Any, last: int) -> None:
    """Take the last stages away: what is left says, as its last hidden state, what they would have read."""
    check(network, last)
    del network.encoder.stages[-last:]


@contextmanager
def begins_with_last(network: Any, last: int) -> Iterator[None]:
    """Meanwhile the network is its last stages and what follows them, and reads what the others would have said.

    With ``last=0`` it stays whole and reads pictures.
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
