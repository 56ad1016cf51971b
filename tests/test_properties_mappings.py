"""Mappings on random rows: both kernels, each row against the oracle, gradients against differences."""

import math
from functools import partial
from typing import Any

import oracle
import torch
from rounding import check_weights
from strategies import FLOATS, Draw, examples
from test_kernels import NATIVE, assert_alike, assert_same_values
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MAPPINGS, MappingSpec, use_kernels

ROUNDING = {torch.float64: 1e-9, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@examples(60)
def test_a_mapping_is_its_definition(draw: Draw) -> None:
    """One mapping on one tensor, along any dimension, by both kernels."""
    mapping, dtype = draw.one_of(*MAPPINGS.values()), draw.one_of(*FLOATS)
    shape = (*(draw.integer(1, 4) for _ in range(draw.integer(0, 2))), draw.one_of(1, 2, 3, 8, 17, 64, 200))
    x = draw.scores(*shape, special=True).to(dtype)
    mask = draw.keep(*draw.smaller(*shape)) if draw.chance(0.5) else None
    value = draw.parameter(mapping, *shape[:-1], 1) if mapping.parameter else None
    options = {option.name: draw.one_of(math.inf, 0.0, 0.01, 0.5, 3.0) for option in mapping.options}  # the edge
    call = partial(mapping.function, mask=mask, **options)
    arguments = [] if value is None else [value]
    with use_kernels("native"):
        p = call(x, *arguments)
    with use_kernels("reference"):
        assert_same_values(p, call(x, *arguments), mapping.name)
    compare_with_oracle(mapping, x, value, mask, options, p)
    dim = draw.integer(-x.dim(), x.dim() - 1)  # along another dimension it is the same
    moved = [a.movedim(-1, dim) if isinstance(a, Tensor) else a for a in arguments]
    elsewhere = None if mask is None else mask.expand(x.shape).movedim(-1, dim)
    q = mapping.function(x.movedim(-1, dim), *moved, dim=dim, mask=elsewhere, **options)
    assert_close(q.movedim(dim, -1), p, rtol=0, atol=0, equal_nan=True)
    if x.abs().max() < 1e3 and dtype != torch.float64:
        rows = x if mask is None else x.masked_fill(~mask, -math.inf)
        check_weights(mapping.name, p, rows, value, **options)
    if x.isfinite().all():
        g = draw.normal(*x.shape)
        if mapping.name in NATIVE:
            assert_alike(mapping.name, x, mask, value, g.to(x.dtype), **options)
        compare_with_differences(lambda x: call(x, *arguments), x.double(), g, draw.normal(*x.shape))


def compare_with_oracle(
    mapping: MappingSpec, x: Tensor, value: Any, mask: Tensor | None, options: dict[str, float], p: Tensor
) -> None:
    rows = x.double() if mask is None else x.double().masked_fill(~mask, -math.inf)
    values = value.double().expand(*x.shape[:-1], 1).flatten() if isinstance(value, Tensor) else None
    n = x.shape[-1]
    for i, (row, of_row) in enumerate(zip(rows.reshape(-1, n), p.reshape(-1, n), strict=True)):
        parameter = value if values is None else float(values[i])
        expected = torch.from_numpy(oracle.apply(mapping.name, row.numpy(), parameter, **options))
        assert_close(of_row.double(), expected, rtol=0, atol=ROUNDING[x.dtype], equal_nan=True)


def compare_with_differences(f: Any, x: Tensor, g: Tensor, direction: Tensor) -> None:
    """The derivative along a direction, unless steps show that the mapping bends between the points compared."""
    step = 1e-6
    ends = [x - step * direction, x + step * direction]
    low, high, nearer_low, nearer_high = map(f, (*ends, x - step / 2 * direction, x + step / 2 * direction))
    same_order = torch.equal(ends[0].argsort(-1), ends[1].argsort(-1))
    if x.abs().max() > 1e3 or not same_order or not torch.equal(low > 0, high > 0):
        return  # a step is lost in rounding, or there is a kink
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(leaf), leaf, g)
    expected, from_half = ((high - low) * g).sum() / (2 * step), ((nearer_high - nearer_low) * g).sum() / step
    atol = 1e-4 * (1 + float(gradient.abs().max()))
    if gradient.abs().max() < 100 and torch.isclose(expected, from_half, rtol=0, atol=atol / 2):
        assert_close((gradient * direction).sum(), expected, rtol=1e-4, atol=atol)  # else the steps are too large
