"""How a rate grows while a model trains: from the share of steps done to the share of the final rate."""

import math
from collections.abc import Callable


def linear(done: float) -> float:
    """Grow evenly, as in the paper.

    Args:
        done: the share of steps done, in [0, 1].

    Returns:
        The share of the final rate: 0 at the start, 1 at the end.

    Example:
        >>> [linear(done) for done in (0, 0.25, 1)]
        [0, 0.25, 1]
    """
    return done


def cosine(done: float) -> float:
    """Grow slowly at both ends: half a wave of the cosine.

    Args:
        done: the share of steps done, in [0, 1].

    Returns:
        The share of the final rate: 0 at the start, 1 at the end.

    Example:
        >>> [round(cosine(done), 3) for done in (0, 0.25, 0.5, 1)]
        [0.0, 0.146, 0.5, 1.0]
    """
    return (1 - math.cos(math.pi * done)) / 2


def constant(done: float) -> float:
    """The final rate from the first step on.

    Args:
        done: the share of steps done, in [0, 1].

    Returns:
        The share of the final rate, always 1.

    Example:
        >>> [constant(done) for done in (0, 0.25, 1)]
        [1.0, 1.0, 1.0]
    """
    return 1.0


SHAPES: dict[str, Callable[[float], float]] = {shape.__name__: shape for shape in (linear, cosine, constant)}
