"""Every mapping in NumPy, one row of kept entries at a time, as its paper writes it.

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


def t_softmax(x: Row, t: float, edge: float = np.inf) -> Row:
    if np.isinf(t):
        return softmax(x)
    return weighted_softmax(x, _rise(x - x.max() + t, edge))


def r_softmax(x: Row, r: float, edge: float = np.inf) -> Row:
    return softmax(x) if r == 0 else _above(x, r * (len(x) - 1), edge)


def k_softmax(x: Row, k: float, edge: float = np.inf) -> Row:
    return softmax(x) if k > len(x) - 1 else _above(x, len(x) - 1 - k, edge)


def _above(x: Row, place: float, edge: float) -> Row:
    """The threshold is the entry at a place in ascending order, or lies between two of them."""
    largest = x == x.max()
    is_above = x > np.sort(x)[int(np.floor(place))]
    x = x - x.max()  # near zero, rounding does not hide a small spread
    theta = np.interp(place, np.arange(len(x)), np.sort(x))
    weights = is_above.astype(float) if edge == 0 else _rise(x - theta, edge)
    return weighted_softmax(x, weights if weights.any() else largest.astype(float))  # the maximum always stays


def _rise(above: Row, edge: float) -> Row:
    """min(x - theta, edge)+; for edge = 0 in units of the edge."""
    return (above > 0).astype(float) if edge == 0 else np.maximum(0, np.minimum(above, edge))


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


def normmax(x: Row, alpha: float) -> Row:
    x, power = x - x.max(), 1 / (alpha - 1)
    tau = _bisect(lambda tau: (np.maximum(0, x - tau) ** (alpha * power)).sum() - 1, -1, 0)
    p = (np.maximum(0, x - tau) / -tau) ** power
    return p / p.sum()


def budget(x: Row, k: float) -> Row:
    if k >= len(x):
        return np.ones_like(x)
    x = _from_kth(x, k, 2)
    tau = _bisect(lambda tau: np.clip(x - tau, 0, 1).sum() - k, -2, 1)
    return np.clip(x - tau, 0, 1)


def lapsum(x: Row, k: float) -> Row:
    if k == 0 or k >= len(x):
        return np.full_like(x, k > 0)
    x = _from_kth(x, k, 1000)
    b = _bisect(lambda b: _laplace(x - b).sum() - k, -2000, 2000)
    return _laplace(x - b)


def _from_kth(x: Row, k: float, limit: float) -> Row:
    """The distance from the k-th largest entry, as far as it matters: beyond, an entry is 0 or 1."""
    return np.clip(x - np.sort(x)[-max(int(np.ceil(k)), 1)], -limit, limit)


def _laplace(u: Row) -> Row:
    return np.where(u < 0, np.exp(-np.abs(u)) / 2, 1 - np.exp(-np.abs(u)) / 2)


def sink_softmax(x: Row, sink: float) -> Row:
    return softmax(np.append(x, sink))[:-1]


def softpick(x: Row) -> Row:
    m = max(x.max(), 0)
    grown = np.where(x > 0, np.exp(x - m) * -np.expm1(-np.abs(x)), np.expm1(np.minimum(x, 0)) * np.exp(-m))
    return np.maximum(grown, 0) / (np.abs(grown).sum() or 1)


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
        k_softmax,
        sparsemax,
        sparsegen_lin,
        sparsegen_exp,
        sparsehourglass,
        spherical_softmax,
        entmax15,
        entmax,
        normmax,
        budget,
        lapsum,
        sink_softmax,
        softpick,
    )
}


def apply(name: str, x: Row, parameter: object = None, **options: float) -> Row:
    """One row with removed entries (-inf) and bad ones (NaN, +inf)."""
    kept = x != -np.inf
    if not kept.any():
        return np.zeros_like(x)
    if np.isnan(x).any() or (x == np.inf).any():
        return np.full_like(x, np.nan)
    arguments = [] if parameter is None else [np.asarray(parameter)[kept] if name == "weighted_softmax" else parameter]
    p = np.zeros_like(x)
    p[kept] = ORACLES[name](x[kept], *arguments, **options)
    return p
