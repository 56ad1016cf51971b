"""How an encoder's answer becomes one row of features."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def mean(answer: Any, mask: Tensor | None) -> Tensor:
    """The mean over the tokens that are there."""
    states: Tensor = answer.last_hidden_state
    if mask is None:
        return states.mean(1)
    kept = mask.unsqueeze(-1).to(states.dtype)
    return (states * kept).sum(1) / kept.sum(1).clamp(min=1)


def cls(answer: Any, mask: Tensor | None) -> Tensor:
    """The first token."""
    states: Tensor = answer.last_hidden_state
    return states[:, 0]


def pooled(answer: Any, mask: Tensor | None) -> Tensor:
    """What the encoder itself has pooled."""
    found: Tensor = answer.pooler_output
    return found.flatten(1)


POOLINGS: dict[str, Callable[[Any, Tensor | None], Tensor]] = {"mean": mean, "cls": cls, "pooled": pooled}


def check_pooling(pooling: str) -> None:
    """Raise unless it is one of ``POOLINGS``."""
    if pooling not in POOLINGS:
        raise ValueError(f"LabelModel: no pooling is called {pooling!r}; there are {', '.join(map(repr, POOLINGS))}")
