"""The Triton kernels against the reference and the oracle: on a GPU if there is one, otherwise in Triton's interpreter.

The interpreter has to be chosen before triton is imported, so it runs in a process of its own. It takes a tenth of a
second for each operation's program, however many rows that has: cases are a few programs of many rows.

Tolerances. Zeros: the same, to the entry; but for entries that are rounding errors of the largest one, next to the
threshold of sparsemax and entmax15. Values: 8 units in the last place, of the value or of the row's largest one.
Gradients: the truth is the reference in float64; the error may be four times the reference's own (sixteen times in half
precision, where the probabilities that backward reads are rounded), or 64 units in the last place.
"""

import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from cases import ADVERSARIAL
from torch import Tensor

from rsoftmax.kernels import reference
from rsoftmax.kernels import triton as kernels

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed; pip install triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = (torch.float16, torch.bfloat16)
MANY = 128  # rows of a program, where a case has more rows than production would give it

Run = Callable[..., list[Tensor]]


def run(
    name: str,
    x: Tensor,
    value: float | Tensor | None = None,
    mask: Tensor | None = None,
    g: Tensor | None = None,
    rows: int | None = None,
    **options: bool,
) -> list[Tensor]:
    """Probabilities; with an incoming gradient, also the gradients in the scores and in a tensor parameter."""
    from rsoftmax.kernels.triton import launch

    original = launch.tile
    if rows is not None:
        launch.tile = lambda n: {**original(n), "ROWS": rows}
    try:
        with np.errstate(all="ignore"):  # the interpreter computes in NumPy
            x, value, mask, g = (a.to(DEVICE) if isinstance(a, Tensor) else a for a in (x, value, mask, g))
            p, state = kernels.forward(name, x, value, mask, save=g is not None)
            if g is None:
                return [p.cpu()]
            return [a.cpu() for a in (p, *kernels.backward(name, g, x, value, mask, p, state, **options)) if a is not None]
    finally:
        launch.tile = original


@pytest.fixture(scope="session")
def triton() -> Iterator[Run]:
    """The kernels as a function."""
    if DEVICE == "cuda":
        yield run
        return
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        patch.setenv("TRITON_INTERPRET", "1")
        yield lambda *arguments, **options: pool.submit(run, *arguments, **options).result()


def by_definition(
    name: str, x: Tensor, value: float | Tensor | None, mask: Tensor | None, g: Tensor, **options: bool
) -> list[Tensor]:
    """The same by the reference and torch's autograd."""
    leaves = [x.detach().clone().requires_grad_()]
    if isinstance(value, Tensor):
        leaves.append(value.detach().clone().requires_grad_())
    kept = leaves[0] if mask is None else leaves[0].masked_fill(~mask, -math.inf)
    arguments = [*leaves[1:], *([value] if isinstance(value, float) else [])]
    rows = kept.to(torch.promote_types(x.dtype, torch.float32))
    p = getattr(reference, name)(rows, *arguments, **options).to(x.dtype)
    found = torch.autograd.grad(p, leaves, g, allow_unused=True)
    return [p.detach(), *(torch.zeros_like(a) if d is None else d for a, d in zip(leaves, found, strict=True))]


def assert_same_values(name: str, p: Tensor, expected: Tensor) -> None:
    eps = torch.finfo(p.dtype).eps
    assert p.dtype == expected.dtype
    assert torch.equal(p.isnan(), expected.isnan())
    p, expected = p.double(), expected.double()
    largest = expected.amax(-1, keepdim=True)
    rounding = torch.maximum(p, expected) <= (0 if name.endswith("softmax") else eps * largest)
    different = ((p == 0) != (expected == 0)) & ~rounding
    assert not different.any(), (p[different], expected[different])
    wrong = (p - expected).abs() > 8 * eps * (expected + largest)
    assert not wrong.any(), (p[wrong], expected[wrong])


def assert_same_gradients(name: str, mine: list[Tensor], theirs: list[Tensor], truth: list[Tensor], x: Tensor) -> None:
    """Compares sums over tied entries: which of those passes on the gradient of a threshold is a matter of choice."""
    eps, factor = torch.finfo(x.dtype).eps, 16 if x.dtype in HALVES else 4
    fine = ~theirs[0].isnan().any(-1)
    tied = (x.unsqueeze(-1) == x.unsqueeze(-2)).double()
    for place, (a, b, true) in enumerate(zip(mine, theirs, truth, strict=True)):
        if place == 1:
            assert a.dtype == b.dtype
            a, b, true = ((tied @ d.double().nan_to_num().unsqueeze(-1)).squeeze(-1) for d in (a, b, true))
        if place > 0:
            a, b, true = a.double()[fine], b.double()[fine], true.double()[fine]
            scale = true.abs().amax(-1, keepdim=True).clamp(min=1)
            allowed = factor * (b - true).abs().amax(-1, keepdim=True) + 64 * eps * scale
            wrong = ((a - true).abs() > allowed).any(-1)
            assert not wrong.any(), (name, place, x[fine][wrong], a[wrong], b[wrong], true[wrong])


def assert_alike(
    triton: Run,
    name: str,
    x: Tensor,
    value: float | Tensor | None = None,
    mask: Tensor | None = None,
    rows: int | None = None,
    **options: bool,
) -> None:
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(7)).to(x.dtype)
    mine = triton(name, x, value, mask, g, rows, **options)
    theirs = by_definition(name, x, value, mask, g, **options)
    truth = by_definition(name, x.double(), value, mask, g.double(), **options)
    assert_same_values(name, mine[0], theirs[0])
    assert_same_gradients(name, mine, theirs, truth, x if mask is None else x.masked_fill(~mask, -math.inf))


def random_rows(rows: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed + n))


def random_mask(rows: int, n: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, n, generator=torch.Generator().manual_seed(seed + n)) < 0.7


VALUES: dict[str, list[float]] = {
    "t_softmax": [1e-45, 1e-30, 1e-3, 0.5, 1.0, 5.0, 1e30, math.inf],
    "r_softmax": [0.0, 1e-30, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0],
}


def every_value(name: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Each row with each value of the parameter."""
    if name not in VALUES:
        return x, None
    values = torch.tensor(VALUES[name], dtype=torch.float64).repeat_interleave(len(x)).unsqueeze(-1)
    return x.repeat(len(VALUES[name]), 1), values


@pytest.mark.parametrize("name", kernels.NAMES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 17, 33, 64, 100])
@pytest.mark.parametrize("masked", [False, True], ids=["all kept", "masked"])
def test_short_rows(triton: Run, name: str, n: int, masked: bool) -> None:
    x, values = every_value(name, random_rows(8, n))
    assert_alike(triton, name, x, values, random_mask(*x.shape) if masked else None, rows=64)


def adversarial(dtype: torch.dtype) -> Tensor:
    """All adversarial rows, of one length by removed entries at their end."""
    longest = max(map(len, ADVERSARIAL.values()))
    return torch.tensor([row + [-math.inf] * (longest - len(row)) for row in ADVERSARIAL.values()]).to(dtype)


@pytest.mark.parametrize("name", kernels.NAMES)
@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
def test_adversarial_rows(triton: Run, name: str, dtype: torch.dtype) -> None:
    x, values = every_value(name, adversarial(dtype))
    (p,) = triton(name, x, values, None, None, 256)
    assert_same_values(name, p, by_definition(name, x, values, None, torch.zeros_like(x))[0])
    for row, mine, value in zip(x, p, values if values is not None else [None] * len(x), strict=True):
        expected = oracle.apply(name, row.double().numpy(), None if value is None else value.item())
        np.testing.assert_allclose(mine.double(), expected, atol=8 * torch.finfo(dtype).eps)


def nasty_rows(n: int, seed: int) -> Tensor:
    """Rows of every scale, many with ties, and a few with entries that break things."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(MANY, n, generator=generator)
    x *= torch.tensor([1e-3, 1.0, 20.0, 1e4])[torch.randint(4, (MANY, 1), generator=generator)]
    x = torch.where(torch.rand(MANY, 1, generator=generator) < 0.4, x.round(), x)
    specials = torch.tensor([0.0, -0.0, 1.0, 1e-30, 1e30, -1e30, 3e38, -3e38, 1e-45, math.inf, -math.inf, math.nan])
    chosen = specials[torch.randint(len(specials), (MANY, n), generator=generator)]
    return torch.where(torch.rand(MANY, n, generator=generator) < 0.5 / n, chosen, x)


@pytest.mark.parametrize("name", kernels.NAMES)
@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_nasty_rows(triton: Run, name: str, dtype: torch.dtype, seed: int) -> None:
    x = nasty_rows(24, seed).to(dtype)
    values = None
    if name in VALUES:
        draw = torch.rand(MANY, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values = draw if name == "r_softmax" else 10 ** (3 * draw - 1.5)
    g = random_rows(MANY, 24, seed).to(dtype)
    mask = random_mask(MANY, 24, seed) if seed % 2 else None
    mine = triton(name, x, values, mask, g, MANY)
    theirs = by_definition(name, x, values, mask, g)
    assert_same_values(name, mine[0], theirs[0])
    if (x.abs() > 1e4).any():  # steep rows have no gradient worth comparing
        calm = (x.nan_to_num(1e5, 1e5, 0).abs() <= 1e4).all(-1)
        mine, theirs, x, mask, g = ([a[calm] for a in mine], [a[calm] for a in theirs], x[calm], mask if mask is None else mask[calm], g[calm])
        values = values if values is None else values[calm]
    truth = by_definition(name, x.double(), values, mask, g.double())
    assert_same_gradients(name, mine, theirs, truth, x if mask is None else x.masked_fill(~mask, -math.inf))
