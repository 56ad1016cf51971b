"""softmax and t-, r- and k_softmax: ``p = w e^x / sum``, with weights that rise linearly from a threshold.

An entry is in the support if it is not below ``first``: a comparison, never a difference. Its weight is

    w = min((y - anchor) slope + rest, cap),   y = x, or x - max in t_softmax

and constant weights, those of softmax, of ties at the top and of ``edge = 0``, are ``slope = 0, rest = 1``. Without an
edge, None, there is no cap.
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
    SMALLEST_NORMAL,
    Chunks,
    chunk,
    count_above,
    end,
    indices,
    key,
    kth_largest,
    load_rows,
    power_near_inverse,
    round_down,
    row_start,
    row_statistics,
    scaled_exp,
    store_rows,
    unkey,
)


class Weights(NamedTuple):
    """The weights of each row, and what their gradient needs."""

    first: Any
    slope: Any
    anchor: Any
    rest: Any
    cap: Any
    lo: Any  # the threshold is lo + f (hi - lo), hi the anchor of a quantile
    f: Any
    rise: Any  # its derivative in the parameter


@triton.jit
def forward(
    x, mask, value, number, edge, p, state, rows, n,
    NAME: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, PIVOTS: tl.constexpr,
):  # fmt: skip
    """Map rows of ``x`` into ``p``, and store the state for backward."""
    row, col = indices(rows, ROWS, BLOCK)
    chunks = Chunks(load_rows(x, mask, row, col, n, -INF), None if WHOLE else x, mask, row, col, n, -INF)
    m, bottom, count, bad = row_statistics(chunks)
    if NAME == "softmax":
        weights = constant_weights(m)
    else:
        parameter = load_parameter(value, number, row)
        bad |= ~(parameter >= (1 if NAME == "k_softmax" else 0))
        if NAME == "t_softmax":
            weights = t_softmax_weights(parameter)
            weights = with_edge(weights, -weights.lo, edge)
        else:
            if NAME == "r_softmax":
                bad |= ~(parameter <= 1)
            weights = quantile_weights(chunks, tl.where(bad, 0.0, parameter), m, bottom, count, NAME, PIVOTS)
            weights = with_edge(weights, m - weights.lo, edge)

    total = tl.zeros_like(chunks.tile)
    for start in range(0, end(chunks), BLOCK):
        total += mass(chunk(chunks, start), m, weights, edge, NAME)
    total = tl.sum(total, 1)
    total = tl.where(total == 0, 1.0, total)  # a fully masked row
    inverse = 1 / total
    for start in range(0, end(chunks), BLOCK):
        e = mass(chunk(chunks, start), m, weights, edge, NAME)
        share = e * inverse[:, None]
        share += (e - share * total[:, None]) * inverse[:, None]  # a corrected product is as good as a division
        store_rows(p, row, start + col, n, tl.where(bad[:, None], float("nan"), share))
    if state is not None:
        unit = tl.minimum(weights.slope * inverse, LARGEST)
        w = weights
        store_state(state + row, rows, (m, unit, w.first, w.slope, w.anchor, w.rest, w.cap, w.lo, w.f, w.rise))


@triton.jit
def backward(
    g, x, mask, edge, p, state, dx, dvalue, rows, n,
    NAME: tl.constexpr, DETACH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The gradients of t-, r- and k_softmax: in the rows, ``(p + u) h``, and in the threshold, ``- sum u h``.

    ``h = g - sum p g``, and ``u``, e^x / sum where the weight rises, is the derivative of p in its own weight.
    """
    row, col = indices(rows, ROWS, BLOCK)
    xs = Chunks(load_rows(x, mask, row, col, n, -INF), None if WHOLE else x, mask, row, col, n, -INF)
    ps = Chunks(load_rows(p, None, row, col, n, 0.0), None if WHOLE else p, None, row, col, n, 0.0)
    gs = Chunks(load_rows(g, None, row, col, n, 0.0), None if WHOLE else g, None, row, col, n, 0.0)
    m, unit, weights = load_state(state + row, rows)

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
        u = derivative(v, m, weights, unit, edge, NAME)
        if NAME == "t_softmax":  # sum u h; without a cap rewritten by sum p h = 0: a lone maximum contributes exactly 0
            share = tl.where(weights.cap[:, None] < INF, 1.0, (v - m[:, None]) / weights.lo[:, None])
            u = tl.where(u > 0, u * share, 0.0)
            ties += tl.where(v == m[:, None], 1.0, 0.0)
        else:
            here = start + col[None, :]
            lower = tl.maximum(lower, tl.where(v == weights.lo[:, None], here, -1))
            upper = tl.maximum(upper, tl.where(v == weights.anchor[:, None], here, -1))
        through += u * (chunk(gs, start) - mean)
    through = tl.clamp(tl.sum(through, 1), -LARGEST, LARGEST)
    at_top = (through / tl.maximum(tl.sum(ties, 1), 1.0))[:, None]
    lower, upper = tl.max(lower, 1)[:, None], tl.max(upper, 1)[:, None]

    for start in range(0, end(xs), BLOCK):
        v = chunk(xs, start)
        d = (chunk(ps, start) + derivative(v, m, weights, unit, edge, NAME)) * (chunk(gs, start) - mean)
        if NAME == "t_softmax":
            d -= tl.where(v == m[:, None], at_top, 0.0)
        elif not DETACH:
            here = start + col[None, :]
            d -= tl.where(here == lower, (through * (1 - weights.f))[:, None], 0.0)
            d -= tl.where(here == upper, (through * weights.f)[:, None], 0.0)
        store_rows(dx, row, start + col, n, d)
    if dvalue is not None:
        along = through if NAME == "t_softmax" else (tl.zeros_like(through) if DETACH else -through * weights.rise)
        tl.store(dvalue + row, along.to(dvalue.dtype.element_ty))


@triton.jit
def load_parameter(value, number, row):
    """The parameter of each row as float64. A number is passed as the sum of three float32."""
    parameter = tl.zeros_like(row).to(tl.float64)
    if value is not None:
        parameter += tl.load(row_start(value, row)).to(tl.float64)
    else:
        parameter += number[0]
        parameter += number[1]
        parameter += number[2]
    return parameter


@triton.jit
def constant_weights(m):
    """The weights of softmax."""
    zero = tl.zeros_like(m)
    return Weights(zero - LARGEST, zero, zero, zero + 1, zero + INF, zero, zero, zero)


@triton.jit
def t_softmax_weights(t):
    """The weights of t_softmax, constant where t is infinite."""
    lo = round_down(-tl.maximum(t, SMALLEST))
    rising = lo > -INF
    slope = tl.where(rising, power_near_inverse(-lo), 0.0)
    zero = tl.zeros_like(lo)
    anchor, rest = tl.where(rising, lo, 0.0), tl.where(rising, 0.0, 1.0)
    return Weights(unkey(key(lo) + 1), slope, anchor, rest, zero + INF, lo, zero, zero)


@triton.jit
def quantile_weights(chunks, parameter, m, bottom, count, NAME: tl.constexpr, PIVOTS: tl.constexpr):
    """The weights of r_softmax and k_softmax: constant without a threshold, and where it is the maximum."""
    last = (count - 1).to(tl.float64)
    if NAME == "r_softmax":
        sparse, rank, along = parameter > 0, parameter * last, last
    else:
        sparse, rank, along = parameter <= last, last - parameter, tl.zeros_like(last) - 1
    sparse &= count > 0
    rank = tl.where(sparse, rank, 0.0)
    below = tl.floor(rank)
    f = rank - below
    k = count - below.to(tl.float32)
    lo = tl.where(sparse, kth_largest(chunks, k, tl.where(sparse, bottom, m), m, PIVOTS), m)
    above, next_above = count_above(chunks, lo)
    hi = tl.where((above == k - 1) & (above > 0), next_above, lo)

    rising = lo < m
    slope = tl.where(rising, power_near_inverse(m - lo), 0.0)
    gap = (hi * slope).to(tl.float64) - (lo * slope).to(tl.float64)
    rest = tl.where(rising, ((1 - f) * gap).to(tl.float32), 1.0)
    first = tl.where(rising, next_above, tl.where(sparse, m, -LARGEST))
    rise = along * (hi.to(tl.float64) - lo.to(tl.float64))
    return Weights(first, slope, hi, rest, tl.zeros_like(m) + INF, lo, f.to(tl.float32), rise.to(tl.float32))


@triton.jit
def with_edge(weights, span, edge):
    """The weights with an edge; constant where it is 0, and without a cap where it does not lie within the span."""
    if edge is None:
        return weights
    else:
        rising = (weights.slope > 0) & (edge > 0)
        cap = tl.where(rising & (edge < span), tl.maximum(edge * weights.slope, SMALLEST_NORMAL), INF)
        slope, rest = tl.where(rising, weights.slope, 0.0), tl.where(rising, weights.rest, 1.0)
        return Weights(weights.first, slope, weights.anchor, rest, cap, weights.lo, weights.f, weights.rise)


@triton.jit
def weight(y, weights):
    """The weight in the support, but for its cap."""
    slope, start = weights.slope[:, None], (weights.anchor * weights.slope)[:, None]
    return (y * slope - start) + weights.rest[:, None]


@triton.jit
def mass(v, m, weights, edge, NAME: tl.constexpr):
    """2^64 w e^(x - m)."""
    d = v - m[:, None]
    y = d if NAME == "t_softmax" else v
    e = scaled_exp(d)
    if NAME != "softmax":
        w = weight(y, weights)
        e *= w if edge is None else tl.minimum(w, weights.cap[:, None])
    return tl.where(y >= weights.first[:, None], e, 0.0)


@triton.jit
def derivative(v, m, weights, unit, edge, NAME: tl.constexpr):
    """e^(x - m) / sum where the weight rises; finite, so that 0 times it is 0, where the spread is denormal."""
    d = v - m[:, None]
    y = d if NAME == "t_softmax" else v
    rises = y >= weights.first[:, None]
    if edge is not None:
        rises &= weight(y, weights) < weights.cap[:, None]
    return tl.where(rises, tl.minimum(scaled_exp(d) * unit[:, None], LARGEST), 0.0)


@triton.jit
def store_state(address, rows, numbers):
    """Store numbers of each row."""
    for i in tl.static_range(len(numbers)):
        tl.store(address + i * rows, numbers[i])


@triton.jit
def load_state(address, rows):
    """Load them: the maximum, the unit and the weights."""
    at = address + 2 * rows
    weights = Weights(
        tl.load(at), tl.load(at + rows), tl.load(at + 2 * rows), tl.load(at + 3 * rows),
        tl.load(at + 4 * rows), tl.load(at + 5 * rows), tl.load(at + 6 * rows), tl.load(at + 7 * rows),
    )  # fmt: skip
    return tl.load(address), tl.load(address + rows), weights
