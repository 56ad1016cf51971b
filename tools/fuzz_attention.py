"""sparse_attention with all its options, output and gradients, against the equations on the whole matrix.

The kernel that computes all of it is held against the blocks that are computed with torch's products.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from fuzz_draw import FLOATS, Draw
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MappingSpec, kernels, use_kernels
from rsoftmax.attention import attention_weights, blocks, sparse_attention
from rsoftmax.registry import MAPPINGS

ROUNDING = {torch.float64: 1e-8, torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Case(NamedTuple):
    mapping: MappingSpec
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    shared: int  # heads of queries for each head of keys

    @property
    def leaves(self) -> list[Tensor]:
        """What a gradient is wanted of."""
        found = (self.q, self.k, self.v, *self.options.values())
        return [x for x in found if isinstance(x, Tensor) and x.requires_grad]

    def call(self, v: Tensor | None = None, **more: Any) -> Any:
        options = {"mapping": self.mapping.name, "enable_gqa": True, **self.options, **more}
        return sparse_attention(self.q, self.k, self.v if v is None else v, **options)

    def weights(self) -> Tensor:
        options = {name: a for name, a in self.options.items() if name != "dropout_p"}
        return attention_weights(self.q, self.k, mapping=self.mapping.name, enable_gqa=True, **options)


def check(draw: Draw) -> None:
    """A small case against the equations, and one of any size: the kernel against the blocks."""
    _check_equations(draw)
    _check_kernel(draw)


def _check_kernel(draw: Draw) -> None:
    """The kernel of attention and the blocks with native rows: the same zeros, and numbers up to rounding."""
    large = draw.chance(0.3)
    case = _drawn(draw, torch.float32, *((40, 300, 70) if large else (9, 40, 20)))
    seed, found = draw.integer(0, 1 << 30), []
    for kernel in (kernels.attention_kernel, lambda: None):
        with _kernel(kernel), _state(draw.integer(1, 3), "native"):
            torch.manual_seed(seed)
            o = case.call()
            g = torch.randn(o.shape, generator=torch.Generator().manual_seed(seed))
            found.append((o, *torch.autograd.grad(o, case.leaves, g)))
    for mine, theirs in zip(*found, strict=True):
        assert mine.dtype == theirs.dtype
        assert_close(mine.double(), theirs.double(), rtol=1e-3, atol=_room(1e-3, theirs))


def _check_equations(draw: Draw) -> None:
    """One call, backward in another state of the process than forward."""
    case, seed = _drawn(draw, draw.one_of(torch.float64, torch.float64, *FLOATS), 9, 12, 6), draw.integer(0, 1 << 30)
    rows = draw.one_of("native", "reference")
    with _blocks_of(draw.one_of(1, 10, 50, 1 << 18)):
        with _state(draw.integer(1, 3), rows):
            noise = _noise(case, seed)
            torch.manual_seed(seed)
            o = case.call()
        g = draw.normal(*o.shape)
        with _state(draw.integer(1, 3), draw.one_of("native", "reference")):
            found = torch.autograd.grad(o, case.leaves, g.to(o.dtype))
    with use_kernels(rows):
        expected, p = _whole(case, noise)
        gradients = torch.autograd.grad(expected, case.leaves, g)
        weights = case.weights()
    assert o.dtype == weights.dtype == case.q.dtype
    tolerance = ROUNDING[case.q.dtype]
    assert_close(o.double(), expected, rtol=tolerance, atol=_room(tolerance, expected))
    assert_close(weights.double(), p, rtol=tolerance, atol=tolerance)
    if case.q.dtype == torch.float64:
        for mine, theirs in zip(found, gradients, strict=True):
            assert mine.dtype == theirs.dtype
            assert_close(mine, theirs, rtol=tolerance, atol=_room(tolerance, theirs))
    _check_meta(case, o, found)


def _drawn(draw: Draw, dtype: torch.dtype, most_rows: int, most_keys: int, most_features: int) -> Case:
    mapping = draw.one_of(*MAPPINGS.values())
    lead = tuple(draw.integer(1, 3) for _ in range(draw.integer(0, 2)))
    heads, shared, rows, length = (draw.integer(1, most) for most in (3, 3, most_rows, most_keys))
    width, full = draw.integer(1, most_features), (*lead, heads * shared, rows, length)
    q = draw.normal(*lead, heads * shared, rows, width)
    k, v = draw.normal(*lead, heads, length, width), draw.normal(*lead, heads, length, draw.integer(1, most_features))
    q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
    options: dict[str, Any] = {"is_causal": draw.chance(0.3), "dropout_p": draw.one_of(0.0, 0.0, 0.3, 0.9)}
    if draw.chance(0.3):
        options["scale"] = draw.number(0.05, 2)
    if draw.chance(0.6):
        options["attn_mask"] = _mask(draw, full, dtype)
    if mapping.parameter:
        options[mapping.parameter.name] = _parameter(draw, mapping, full)
    return Case(mapping, q, k, v, options, shared)


def _mask(draw: Draw, full: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    shape = draw.smaller(*full)
    keep = draw.keep(*shape)
    if draw.chance(0.5):
        return keep
    return draw.normal(*shape).to(dtype).masked_fill(~keep, -math.inf).requires_grad_(draw.chance(0.7))


def _parameter(draw: Draw, mapping: MappingSpec, full: tuple[int, ...]) -> Any:
    shape = (full[-3],) if draw.chance(0.5) else (*draw.smaller(*full[:-1]), 1)
    value = draw.parameter(mapping, *shape)
    return value.requires_grad_(draw.chance(0.7)) if isinstance(value, Tensor) else value


def _whole(case: Case, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The equations in float64, on one matrix: output and weights."""
    q, k, v = (x.double() for x in (case.q, case.k, case.v))
    k, v = (x.repeat_interleave(case.shared, -3) for x in (k, v))
    scores = q @ k.mT * case.options.get("scale", 1 / math.sqrt(q.shape[-1]))
    keep, mask = torch.ones(scores.shape, dtype=torch.bool), case.options.get("attn_mask")
    if mask is not None:
        keep, scores = (mask.expand_as(scores), scores) if mask.dtype == torch.bool else (keep, scores + mask)
    if case.options["is_causal"]:
        keep = keep & torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    p = case.mapping.function(scores, *_value(case), mask=keep)
    return (p * noise) @ v, p


def _value(case: Case) -> list[Any]:
    if case.mapping.parameter is None:
        return []
    value = case.options[case.mapping.parameter.name]
    if isinstance(value, Tensor) and value.dim() == 1 and value.shape[0] == case.q.shape[-3]:
        value = value[:, None, None]
    return [value]


@torch.no_grad()
def _noise(case: Case, seed: int) -> Tensor:
    """What dropout multiplies each weight with: seen with the unit vectors as values."""
    if case.options["dropout_p"] == 0:
        return torch.ones(())
    unit = torch.eye(case.k.shape[-2], dtype=case.v.dtype).expand(*case.k.shape[:-1], -1)
    torch.manual_seed(seed)
    dropped: Tensor = case.call(unit).double()
    factor = 65536 / (65536 - round(case.options["dropout_p"] * 65536))
    return torch.where(dropped != 0, factor, 0.0)


@contextmanager
def _blocks_of(scores: int) -> Iterator[None]:
    before, blocks.BLOCK = blocks.BLOCK, scores
    try:
        yield
    finally:
        blocks.BLOCK = before


@contextmanager
def _kernel(kernel: Callable[[], Any]) -> Iterator[None]:
    before, kernels.attention_kernel = kernels.attention_kernel, kernel
    try:
        yield
    finally:
        kernels.attention_kernel = before


@contextmanager
def _state(threads: int, name: str) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with use_kernels(name):
            yield
    finally:
        torch.set_num_threads(before)


def _room(tolerance: float, expected: Tensor) -> float:
    return tolerance * float(1 + expected.detach().abs().max())


def _check_meta(case: Case, o: Tensor, gradients: tuple[Tensor, ...]) -> None:
    q, k, v = (x.detach().to("meta").requires_grad_() for x in case[1:4])
    found = Case(case.mapping, q, k, v, case.options, case.shared).call()
    assert (found.shape, found.dtype) == (o.shape, o.dtype)
    for mine, theirs in zip(torch.autograd.grad(found.sum(), (q, k, v)), gradients, strict=False):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
