"""Mappings: native kernels against the reference, each row against the oracle, gradients against differences."""

import math
from typing import Any

import oracle
import torch
from fuzz_draw import FLOATS, Draw
from test_kernels import NATIVE, assert_alike, assert_same_values
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MAPPINGS, MappingSpec, use_kernels

Options = dict[str, float]
ROUNDING = {torch.float64: 1e-9, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def check(draw: Draw) -> None:
    """One mapping on one tensor, along any dimension."""
    mapping, dtype = draw.one_of(*MAPPINGS.values()), draw.one_of(*FLOATS)
    shape = (*(draw.integer(1, 4) for _ in range(draw.integer(0, 2))), draw.one_of(1, 2, 3, 8, 17, 64, 200))
    x = draw.scores(*shape, special=True).to(dtype)
    mask = draw.keep(*draw.smaller(*shape)) if draw.chance(0.5) else None
    value = _value(draw, mapping, shape)
    options = {option.name: draw.one_of(math.inf, 0.0, 0.01, 0.5, 3.0) for option in mapping.options}  # the edge
    p = _both_kernels(mapping, x, value, mask, options)
    _compare_with_oracle(mapping, x, value, mask, options, p)
    _compare_dimensions(draw, mapping, x, value, mask, options, p)
    if x.isfinite().all():
        _check_gradient(draw, mapping, x, value, mask, options)


def _value(draw: Draw, mapping: MappingSpec, shape: tuple[int, ...]) -> Any:
    if mapping.parameter is None:
        return None
    return draw.parameter(mapping, *shape[:-1], 1)


def _call(mapping: MappingSpec, x: Tensor, value: Any, mask: Tensor | None, options: Options, dim: int = -1) -> Tensor:
    return mapping.function(x, *([] if value is None else [value]), dim=dim, mask=mask, **options)


def _both_kernels(mapping: MappingSpec, x: Tensor, value: Any, mask: Tensor | None, options: Options) -> Tensor:
    found = []
    for kernels in ("native", "reference"):
        with use_kernels(kernels):
            found.append(_call(mapping, x, value, mask, options))
    assert_same_values(found[0], found[1], mapping.name)
    return found[0]


def _compare_with_oracle(
    mapping: MappingSpec, x: Tensor, value: Any, mask: Tensor | None, options: Options, p: Tensor
) -> None:
    n = x.shape[-1]
    kept = x.double() if mask is None else x.double().masked_fill(~mask, -math.inf)
    values = (
        value.double().expand(*x.shape[:-1], -1).reshape(-1, value.shape[-1]) if isinstance(value, Tensor) else None
    )
    for number, (row, found) in enumerate(zip(kept.reshape(-1, n), p.reshape(-1, n), strict=True)):
        own: Any = value if values is None else values[number].numpy()
        if values is not None:
            own = float(own[0])
        expected = torch.from_numpy(oracle.apply(mapping.name, row.numpy(), own, **options))
        assert_close(found.double(), expected, rtol=0, atol=ROUNDING[x.dtype], equal_nan=True)


def _compare_dimensions(
    draw: Draw, mapping: MappingSpec, x: Tensor, value: Any, mask: Tensor | None, options: Options, p: Tensor
) -> None:
    """Along another dimension it is the same."""
    dim = draw.integer(-x.dim(), x.dim() - 1)
    if isinstance(value, Tensor):
        value = value.movedim(-1, dim)
    if mask is not None:
        mask = mask.expand(x.shape).movedim(-1, dim)
    found = _call(mapping, x.movedim(-1, dim), value, mask, options, dim).movedim(dim, -1)
    assert_close(found, p, rtol=0, atol=0, equal_nan=True)


def _check_gradient(
    draw: Draw, mapping: MappingSpec, x: Tensor, value: Any, mask: Tensor | None, options: Options
) -> None:
    g = draw.normal(*x.shape)
    if mapping.name in NATIVE and mapping.name != "weighted_softmax":
        assert_alike(mapping.name, x, mask, value, g.to(x.dtype), **options)
    _compare_with_differences(draw, mapping, x.double(), value, mask, options, g)


def _compare_with_differences(
    draw: Draw, mapping: MappingSpec, x: Tensor, value: Any, mask: Tensor | None, options: Options, g: Tensor
) -> None:
    """The derivative along a random direction, unless steps show that the mapping bends between the points compared."""
    step, direction = 1e-6, draw.normal(*x.shape)
    ends = [x - step * direction, x + step * direction]
    low, high = (_call(mapping, end, value, mask, options) for end in ends)
    nearer = [_call(mapping, x + half * direction, value, mask, options) for half in (-step / 2, step / 2)]
    same_order = torch.equal(ends[0].argsort(-1), ends[1].argsort(-1))
    if x.abs().max() > 1e3 or not same_order or not torch.equal(low > 0, high > 0):
        return  # a step is lost in rounding, or there is a kink
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(_call(mapping, leaf, value, mask, options), leaf, g)
    expected = ((high - low) * g).sum() / (2 * step)
    from_half = ((nearer[1] - nearer[0]) * g).sum() / step
    atol = 1e-4 * (1 + float(found.abs().max()))
    if found.abs().max() < 100 and torch.isclose(expected, from_half, rtol=0, atol=atol / 2):
        assert_close((found * direction).sum(), expected, rtol=1e-4, atol=atol)  # otherwise the steps are too large
