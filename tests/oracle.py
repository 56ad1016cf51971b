"""Every mapping again, in NumPy, one row of kept entries at a time, as its paper writes it.

Independent on purpose: no sorting tricks, no shared code, projections by bisection. Slow and obvious.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]


def softmax(x: Row) -> Row:
    e = np.exp(x - x.max())
    return e / e.sum()


def weighted_softmax(x: Row, w: Row) -> Row:
    if not w.any():
        return np.zeros_like(x)
    mass = (w / w.max()) * np.exp(np.minimum(x - x[w > 0].max(), 0))
    return mass / mass.sum()


def t_softmax(x: Row, t: float) -> Row:
    if np.isinf(t):
        return softmax(x)
    return weighted_softmax(x, np.maximum(0, x - x.max() + t))


def r_softmax(x: Row, r: float) -> Row:
    if r == 0:
        return softmax(x)
    x = x - x.max()  # near zero, the quantile's rounding does not drown a small spread
    weights = np.maximum(0, x - np.quantile(x, r))
    if not weights.any():  # the quantile is the maximum: the limit t -> 0+
        weights = (x == x.max()).astype(float)
    return weighted_softmax(x, weights)


def sparsemax(x: Row) -> Row:
    x = x - x.max()
    tau = _bisect(lambda tau: np.maximum(0, x - tau).sum() - 1, -1, 0)
    p = np.maximum(0, x - tau)
    return p / p.sum()


def sparsegen_lin(x: Row, lam: float) -> Row:
    return sparsemax((x - x.max()) / (1 - lam))


def sparsegen_exp(x: Row, lam: float) -> Row:
    # exp(x) - exp(max), without inf - inf where both overflow
    with np.errstate(over="ignore", invalid="ignore"):
        below = np.where(x == x.max(), 0, np.expm1(x - x.max()) * np.exp(x.max()) / (1 - lam))
    return sparsemax(below)


def sparsehourglass(x: Row, q: float) -> Row:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        a = (1 + len(x) * q) / (abs(x.sum()) + len(x) * q)
        below = np.where(x == x.max(), 0, a * (x - x.max()))
    return sparsemax(below)


def spherical_softmax(x: Row) -> Row:
    if not x.any():
        return np.full_like(x, 1 / len(x))
    squares = (x / np.abs(x).max()) ** 2
    return squares / squares.sum()


def entmax15(x: Row) -> Row:
    x = (x - x.max()) / 2
    tau = _bisect(lambda tau: (np.maximum(0, x - tau) ** 2).sum() - 1, -1, 0)
    p = np.maximum(0, x - tau) ** 2
    return p / p.sum()


def entmax(x: Row, alpha: float) -> Row:
    if alpha == 1:
        return softmax(x)
    z, power = (alpha - 1) * (x - x.max()), 1 / (alpha - 1)
    tau = _bisect(lambda tau: (np.maximum(0, z - tau) ** power).sum() - 1, -1, 0)
    p = np.maximum(0, z - tau) ** power
    return p / p.sum()


def _bisect(excess: Callable[[float], float], low: float, high: float) -> float:
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return low


ORACLES: dict[str, Callable[..., Row]] = {
    f.__name__: f
    for f in (
        softmax,
        weighted_softmax,
        t_softmax,
        r_softmax,
        sparsemax,
        sparsegen_lin,
        sparsegen_exp,
        sparsehourglass,
        spherical_softmax,
        entmax15,
        entmax,
    )
}


def apply(name: str, x: Row, parameter: object = None) -> Row:
    """One row with removed entries (-inf) and bad ones (NaN, +inf)."""
    kept = x != -np.inf
    if not kept.any():
        return np.zeros_like(x)
    if np.isnan(x).any() or (x == np.inf).any():
        return np.full_like(x, np.nan)
    arguments = [] if parameter is None else [np.asarray(parameter)[kept] if name == "weighted_softmax" else parameter]
    p = np.zeros_like(x)
    p[kept] = ORACLES[name](x[kept], *arguments)
    return p
