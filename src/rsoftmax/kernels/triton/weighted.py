"""softmax, t_softmax and r_softmax: ``p = w e^x / sum``, with weights that rise linearly from a threshold.

An entry is in the support if it is not below ``first``: a comparison, never a difference. Its weight is

    w = (y - anchor) slope + rest,   y = x, or x - max in t_softmax

and constant weights, those of softmax and of ties at the top, are ``slope = 0, rest = 1``.
"""
# mypy: ignore-errors
# ruff: noqa: N803

from typing import Any, NamedTuple

import triton
import triton.language as tl

from rsoftmax.kernels.triton.row import (
    INF,
    LARGEST,
    SMALLEST,
    Line,
    beginning,
    chunk,
    end,
    entries,
    key,
    lifted_exp,
    places,
    power_near_inverse,
    round_down,
    unkey,
    write,
)
from rsoftmax.kernels.triton.search import count_above, kth_largest, survey


class Weights(NamedTuple):
    """The weights of each row, and the state for their gradient."""

    first: Any
    slope: Any
    anchor: Any
    rest: Any
    lo: Any  # the threshold is lo + f (hi - lo)
    hi: Any
    f: Any
    rise: Any  # its derivative in the rate


@triton.jit
def forward(
    x, mask, value, number, p, state, rows, n,
    NAME: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, PIVOTS: tl.constexpr,
):  # fmt: skip
    """Map rows of ``x`` into ``p``, and store the state for backward."""
    row, col = places(rows, ROWS, BLOCK)
    line = Line(entries(x, mask, row, col, n, -INF), None if WHOLE else x, mask, row, col, n, -INF)
    m, bottom, kept, bad = survey(line)
    if NAME == "softmax":
        weights = constant(m)
    else:
        parameter = of_rows(value, number, row)
        bad |= ~(parameter >= 0)
        if NAME == "t_softmax":
            weights = above_t(parameter)
        else:
            bad |= ~(parameter <= 1)
            weights = above_quantile(line, tl.where(bad, 0.0, parameter), m, bottom, kept, PIVOTS)

    total = tl.zeros_like(line.tile)
    for start in range(0, end(line), BLOCK):
        total += mass(chunk(line, start), m, weights, NAME)
    total = tl.sum(total, 1)
    total = tl.where(total == 0, 1.0, total)  # nothing is kept
    inverse = 1 / total
    for start in range(0, end(line), BLOCK):
        e = mass(chunk(line, start), m, weights, NAME)
        share = e * inverse[:, None]
        share += (e - share * total[:, None]) * inverse[:, None]  # a corrected product is as good as a division
        write(p, row, start + col, n, tl.where(bad[:, None], float("nan"), share))
    if state is not None:
        unit = tl.minimum(weights.slope * inverse, LARGEST)
        remember(state + row, rows, (m, weights.first, unit, weights.lo, weights.hi, weights.f, weights.rise))


@triton.jit
def backward(
    g, x, mask, p, state, dx, dvalue, rows, n,
    NAME: tl.constexpr, DETACH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The gradients of t_softmax and r_softmax: in the rows, ``(p + u) h``, and in the threshold, ``- sum u h``.

    ``h = g - sum p g``, and ``u``, e^x / sum in the support, is the derivative of p in its own weight.
    """
    row, col = places(rows, ROWS, BLOCK)
    xs = Line(entries(x, mask, row, col, n, -INF), None if WHOLE else x, mask, row, col, n, -INF)
    ps = Line(entries(p, None, row, col, n, 0.0), None if WHOLE else p, None, row, col, n, 0.0)
    gs = Line(entries(g, None, row, col, n, 0.0), None if WHOLE else g, None, row, col, n, 0.0)
    m, first, unit, lo, hi, f, rise = recall(state + row, rows)

    mean = tl.zeros_like(xs.tile)
    for start in range(0, end(xs), BLOCK):
        mean += chunk(ps, start) * chunk(gs, start)
    mean = tl.sum(mean, 1)[:, None]

    through = tl.zeros_like(xs.tile)
    ties = tl.zeros_like(xs.tile)
    lower = tl.full(xs.tile.shape, -1, tl.int32)
    upper = tl.full(xs.tile.shape, -1, tl.int32)
    for start in range(0, end(xs), BLOCK):
        v = chunk(xs, start)
        u = derivative(v, m, first, unit, NAME)
        if NAME == "t_softmax":  # sum u h, rewritten by sum p h = 0 such that a single maximum contributes exactly 0
            u = tl.where(u > 0, u * ((v - m[:, None]) / lo[:, None]), 0.0)
            ties += tl.where(v == m[:, None], 1.0, 0.0)
        else:
            here = start + col[None, :]
            lower = tl.maximum(lower, tl.where(v == lo[:, None], here, -1))
            upper = tl.maximum(upper, tl.where(v == hi[:, None], here, -1))
        through += u * (chunk(gs, start) - mean)
    through = tl.clamp(tl.sum(through, 1), -LARGEST, LARGEST)
    at_top = (through / tl.maximum(tl.sum(ties, 1), 1.0))[:, None]
    lower, upper = tl.max(lower, 1)[:, None], tl.max(upper, 1)[:, None]

    for start in range(0, end(xs), BLOCK):
        v = chunk(xs, start)
        d = (chunk(ps, start) + derivative(v, m, first, unit, NAME)) * (chunk(gs, start) - mean)
        if NAME == "t_softmax":
            d -= tl.where(v == m[:, None], at_top, 0.0)
        elif not DETACH:
            here = start + col[None, :]
            d -= tl.where(here == lower, (through * (1 - f))[:, None], 0.0)
            d -= tl.where(here == upper, (through * f)[:, None], 0.0)
        write(dx, row, start + col, n, d)
    if dvalue is not None:
        along = through if NAME == "t_softmax" else (tl.zeros_like(through) if DETACH else -through * rise)
        tl.store(dvalue + row, along.to(dvalue.dtype.element_ty))


@triton.jit
def of_rows(value, number, row):
    """The parameter of each row as float64. A number is passed as the sum of three float32."""
    parameter = tl.zeros_like(row).to(tl.float64)
    if value is not None:
        parameter += tl.load(beginning(value, row)).to(tl.float64)
    else:
        parameter += number[0]
        parameter += number[1]
        parameter += number[2]
    return parameter


@triton.jit
def constant(m):
    """The weights of softmax."""
    zero = tl.zeros_like(m)
    return Weights(zero - LARGEST, zero, zero, zero + 1, zero, zero, zero, zero)


@triton.jit
def above_t(t):
    """The weights of t_softmax, constant where t is infinite."""
    lo = round_down(-tl.maximum(t, SMALLEST))
    rising = lo > -INF
    slope = tl.where(rising, power_near_inverse(-lo), 0.0)
    zero = tl.zeros_like(lo)
    return Weights(
        unkey(key(lo) + 1), slope, tl.where(rising, lo, 0.0), tl.where(rising, 0.0, 1.0), lo, zero, zero, zero
    )


@triton.jit
def above_quantile(line, r, m, bottom, kept, PIVOTS: tl.constexpr):
    """The weights of r_softmax: constant where r = 0, and where the quantile is the maximum."""
    sparse = (r > 0) & (kept > 0)
    rank = tl.where(sparse, r * (kept - 1).to(tl.float64), 0.0)
    below = tl.floor(rank)
    f = rank - below
    k = kept - below.to(tl.float32)
    lo = tl.where(sparse, kth_largest(line, k, tl.where(sparse, bottom, m), m, PIVOTS), m)
    above, next_above = count_above(line, lo)
    hi = tl.where((above == k - 1) & (above > 0), next_above, lo)

    rising = lo < m
    slope = tl.where(rising, power_near_inverse(m - lo), 0.0)
    gap = (hi * slope).to(tl.float64) - (lo * slope).to(tl.float64)
    rest = tl.where(rising, ((1 - f) * gap).to(tl.float32), 1.0)
    first = tl.where(rising, next_above, tl.where(sparse, m, -LARGEST))
    rise = (kept - 1).to(tl.float64) * (hi.to(tl.float64) - lo.to(tl.float64))
    return Weights(first, slope, hi, rest, lo, hi, f.to(tl.float32), rise.to(tl.float32))


@triton.jit
def mass(v, m, weights, NAME: tl.constexpr):
    """2^64 w e^(x - m)."""
    d = v - m[:, None]
    y = d if NAME == "t_softmax" else v
    e = lifted_exp(d)
    if NAME != "softmax":
        slope, start = weights.slope[:, None], (weights.anchor * weights.slope)[:, None]
        e *= (y * slope - start) + weights.rest[:, None]
    return tl.where(y >= weights.first[:, None], e, 0.0)


@triton.jit
def derivative(v, m, first, unit, NAME: tl.constexpr):
    """e^(x - m) / sum in the support; finite, so that 0 times it is 0, where the spread is denormal."""
    d = v - m[:, None]
    y = d if NAME == "t_softmax" else v
    return tl.where(y >= first[:, None], tl.minimum(lifted_exp(d) * unit[:, None], LARGEST), 0.0)


@triton.jit
def remember(place, rows, numbers):
    """Store numbers of each row."""
    for i in tl.static_range(len(numbers)):
        tl.store(place + i * rows, numbers[i])


@triton.jit
def recall(place, rows):
    """Load them."""
    return (
        tl.load(place), tl.load(place + rows), tl.load(place + 2 * rows), tl.load(place + 3 * rows),
        tl.load(place + 4 * rows), tl.load(place + 5 * rows), tl.load(place + 6 * rows),
    )  # fmt: skip
