"""Schedules of a rate in training: from the fraction of steps done, in [0, 1], to the fraction of the final rate.

>>> [round(cosine(done), 3) for done in (0, 0.25, 0.5, 1)]
[0.0, 0.146, 0.5, 1.0]
"""

import math
from collections.abc import Callable


def linear(done: float) -> float:
    """Grow linearly, as in the paper."""
    return done


def cosine(done: float) -> float:
    """Grow along half a period of the cosine: slowly at both ends."""
    return (1 - math.cos(math.pi * done)) / 2


def constant(done: float) -> float:
    """Use the final rate from the first step."""
    return 1.0


SHAPES: dict[str, Callable[[float], float]] = {shape.__name__: shape for shape in (linear, cosine, constant)}
