"""The Triton kernels against the reference and the oracle: on a GPU if there is one, otherwise in Triton's interpreter.

The interpreter has to be chosen before triton is imported, so it runs in a process of its own. It takes a tenth of a
second for each operation's program, however many rows that has: cases are a few programs of many rows.

Tolerances. Zeros: the same, to the entry; but for entries that are rounding errors of the largest one, next to the
threshold of sparsemax and entmax15, and for bfloat16 below the smallest normal number, where the interpreter converts
wrongly (it also cuts off instead of rounding). Values: 8 units in the last place, of the value or of the row's largest
one. Gradients: the truth is the reference in float64; the error may be four times the reference's own (sixteen times in
half precision, where the probabilities that backward reads are rounded), or 64 units in the last place.
"""

import math
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from ctypes import c_float
from functools import partial
from importlib.util import find_spec
from itertools import product
from threading import Lock
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from cases import ADVERSARIAL, case
from rounding import check_weights
from torch import Tensor

import rsoftmax
from rsoftmax import MAPPINGS, r_softmax, use_kernels
from rsoftmax._tensors import is_plain
from rsoftmax.kernels import reference
from rsoftmax.kernels import triton as kernels
from rsoftmax.kernels.triton import check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed; pip install triton"),
]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = (torch.float16, torch.bfloat16)
MANY = 128  # rows of a program, where a case has more rows than production would give it

Run = Callable[..., list[Tensor]]
Interpret = Callable[..., Any]


def run(
    name: str,
    x: Tensor,
    value: float | Tensor | None = None,
    mask: Tensor | None = None,
    g: Tensor | None = None,
    rows: int | None = None,
    **options: float,
) -> list[Tensor]:
    """Probabilities; with an incoming gradient, also the gradients in the scores and in a tensor parameter."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):  # the interpreter computes in NumPy
        if rows is not None and DEVICE == "cpu":
            patch.setattr(kernels, "tile", lambda n, tile=kernels.tile: {**tile(n), "ROWS": rows})
        x, mask, g, value = on_device(x), on_device(mask), on_device(g), on_device(value)
        p, state = kernels.forward(name, x, value, mask, options, keep_state=g is not None)
        found = [p, *([] if g is None else kernels.backward(name, x, value, mask, p, state, g, options))]
        return [a.cpu() for a in found if a is not None]


def on_device(a: Any) -> Any:
    """A tensor on the GPU, if there is one, with the strides it has; anything else as it is."""
    if DEVICE == "cpu" or not isinstance(a, Tensor):
        return a
    memory = torch.empty(0, dtype=a.dtype).set_(a.untyped_storage())
    return memory.to(DEVICE).as_strided(a.shape, a.stride(), a.storage_offset())


@pytest.fixture(scope="session")
def interpret() -> Iterator[Interpret]:
    """Call a function where the kernels can run, in a process of its own if there is no GPU."""
    if DEVICE == "cuda":
        yield lambda function, *arguments, **options: function(*arguments, **options)
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(os.getpid).result()  # the process starts now, with this environment
        yield lambda *arguments, **options: pool.submit(*arguments, **options).result()


@pytest.fixture(scope="session")
def triton(interpret: Interpret) -> Run:
    """The kernels as a function."""
    return partial(interpret, run)


def reference_forward(
    name: str, x: Tensor, value: float | Tensor | None, mask: Tensor | None, g: Tensor, **options: float
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
    p_is_bfloat16 = p.dtype == torch.bfloat16
    p, expected = p.double(), expected.double()
    largest = expected.amax(-1, keepdim=True)
    rounding = eps * largest if name in ("sparsemax", "entmax15") else torch.zeros_like(largest)
    if p_is_bfloat16:
        rounding = rounding.clamp(min=torch.finfo(torch.float32).tiny)
    different = ((p == 0) != (expected == 0)) & (torch.maximum(p, expected) > rounding)
    assert not different.any(), (p[different], expected[different])
    wrong = (p - expected).abs() > 8 * eps * (expected + largest)
    assert not wrong.any(), (p[wrong], expected[wrong])


def sums_over_ties(x: Tensor, d: Tensor) -> Tensor:
    """Each entry of ``d`` replaced by the sum of those at which the row of ``x`` has the same value."""
    groups = torch.stack([row.unique(return_inverse=True)[1] for row in x.flatten(0, -2)]).view(x.shape)
    return torch.zeros_like(d).scatter_add(-1, groups, d).gather(-1, groups)


def assert_same_gradients(name: str, mine: list[Tensor], theirs: list[Tensor], truth: list[Tensor], x: Tensor) -> None:
    """Compares sums over tied entries: which of those passes on the gradient of a threshold is a matter of choice."""
    eps, factor = torch.finfo(x.dtype).eps, 16 if x.dtype in HALVES else 4
    fine = ~theirs[0].isnan().any(-1)
    for place, (a, b, true) in enumerate(zip(mine, theirs, truth, strict=True)):
        if place == 1:
            assert a.dtype == b.dtype
            a, b, true = (sums_over_ties(x, d.double()) for d in (a, b, true))
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
    **options: float,
) -> None:
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(7)).to(x.dtype)
    mine = triton(name, x, value, mask, g, rows, **options)
    theirs = reference_forward(name, x, value, mask, g, **options)
    truth = reference_forward(name, x.double(), value, mask, g.double(), **options)
    assert_same_values(name, mine[0], theirs[0])
    if x.dtype == torch.float32 and name in MAPPINGS:
        check_weights(name, mine[0], x if mask is None else x.masked_fill(~mask, -math.inf), value, **options)
    assert_same_gradients(name, mine, theirs, truth, x if mask is None else x.masked_fill(~mask, -math.inf))


def random_rows(rows: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed + n))


def random_mask(rows: int, n: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, n, generator=torch.Generator().manual_seed(seed + n)) < 0.7


VALUES: dict[str, list[float]] = {
    "t_softmax": [1e-45, 1e-30, 1e-3, 0.5, 1.0, 5.0, 1e30, math.inf],
    "r_softmax": [0.0, 1e-30, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0],
    "k_softmax": [1.0, 1.5, 2.0, 3.0, 6.25, 29.0, 1e30, math.inf],
}


def every_value(name: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Each row with each value of the parameter."""
    if name not in VALUES:
        return x, None
    values = torch.tensor(VALUES[name], dtype=torch.float64).repeat_interleave(len(x)).unsqueeze(-1)
    return x.repeat(len(VALUES[name]), 1), values


@pytest.mark.interpreter
@pytest.mark.parametrize("name", kernels.NAMES)
def test_short_rows(triton: Run, name: str) -> None:
    for n, masked in product((1, 2, 3, 7, 16, 33, 100), (False, True)):
        x, values = every_value(name, random_rows(8, n))
        with case(n, "masked" if masked else "all kept"):
            assert_alike(triton, name, x, values, random_mask(*x.shape) if masked else None, rows=64)


def adversarial(dtype: torch.dtype) -> Tensor:
    """All adversarial rows, of one length by removed entries at their end."""
    longest = max(map(len, ADVERSARIAL.values()))
    return torch.tensor([row + [-math.inf] * (longest - len(row)) for row in ADVERSARIAL.values()]).to(dtype)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", kernels.NAMES)
def test_adversarial_rows(triton: Run, name: str) -> None:
    for dtype in kernels.DTYPES:
        x, values = every_value(name, adversarial(dtype))
        (p,) = triton(name, x, values, None, None, 256)
        with case(dtype):
            assert_same_values(name, p, reference_forward(name, x, values, None, torch.zeros_like(x))[0])
        for row, mine, value in zip(x, p, values if values is not None else [None] * len(x), strict=True):
            expected = oracle.apply(name, row.double().numpy(), None if value is None else value.item())
            with case(dtype, row, value):
                np.testing.assert_allclose(mine.double(), expected, atol=8 * torch.finfo(dtype).eps)


def mixed_rows(n: int, seed: int) -> Tensor:
    """Rows of several scales, many with ties."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(MANY, n, generator=generator)
    x *= torch.tensor([1e-3, 1.0, 20.0])[torch.randint(3, (MANY, 1), generator=generator)]
    return torch.where(torch.rand(MANY, 1, generator=generator) < 0.4, x.round(), x)


def with_specials(x: Tensor, seed: int) -> Tensor:
    """The same rows, half of them with an entry that breaks things."""
    generator = torch.Generator().manual_seed(seed)
    specials = torch.tensor([0.0, -0.0, 1e-30, 1e30, -1e30, 3e38, -3e38, 1e-45, math.inf, -math.inf, math.nan])
    chosen = specials[torch.randint(len(specials), x.shape, generator=generator)]
    return torch.where(torch.rand(x.shape, generator=generator) < 0.7 / x.shape[-1], chosen, x)


def drawn_values(name: str, rows: int, seed: int) -> Tensor | None:
    """A parameter for each row, anywhere in its domain."""
    if name not in VALUES:
        return None
    draw = torch.rand(rows, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"r_softmax": draw, "k_softmax": 1 + 24 * draw}.get(name, 10 ** (3 * draw - 1.5))


@pytest.mark.interpreter
@pytest.mark.parametrize("name", VALUES)
def test_edges(triton: Run, name: str) -> None:
    """Ties and both zeros among the rows; in whole numbers many entries lie exactly at the edge."""
    for edge, dtype in product((0.0, 1e-3, 1.0, 30.0), kernels.DTYPES):
        x = mixed_rows(24, 3).to(dtype)
        with case(edge, dtype):
            assert_alike(triton, name, x, drawn_values(name, MANY, 4), random_mask(MANY, 24), rows=MANY, edge=edge)
    (p,) = triton(name, adversarial(torch.float32), VALUES[name][4], rows=MANY, edge=0.0)
    expected = reference_forward(name, adversarial(torch.float32), VALUES[name][4], None, torch.zeros_like(p), edge=0.0)
    assert_same_values(name, p, expected[0])
    long = random_rows(1, 9000)
    assert_alike(triton, name, long, drawn_values(name, 1, 5), edge=0.5)


@pytest.mark.interpreter
def test_every_count_keeps_so_many(triton: Run) -> None:
    for n, edge in product((3, 24, 97), (0.0, 1.0, math.inf)):
        k = torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)
        (p,) = triton("k_softmax", random_rows(1, n).expand(n, n), k, None, None, MANY, edge=edge)
        assert torch.equal(p.count_nonzero(-1), k[:, 0].long()), (n, edge)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", kernels.NAMES)
def test_rows_with_ties(triton: Run, name: str) -> None:
    for dtype, seed in product(kernels.DTYPES, range(2)):
        x, mask = mixed_rows(24, seed).to(dtype), random_mask(MANY, 24) if seed else None
        with case(dtype, seed):
            assert_alike(triton, name, x, drawn_values(name, MANY, seed), mask, rows=MANY)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", kernels.NAMES)
def test_rows_with_special_entries(triton: Run, name: str) -> None:
    for dtype, seed in product(kernels.DTYPES, range(4)):
        x, values = with_specials(mixed_rows(24, seed), seed).to(dtype), drawn_values(name, MANY, seed)
        (p,) = triton(name, x, values, None, None, MANY)
        with case(dtype, seed):
            assert_same_values(name, p, reference_forward(name, x, values, None, torch.zeros_like(x))[0])


@pytest.mark.interpreter
@pytest.mark.parametrize("name", kernels.NAMES)
def test_rows_in_registers(triton: Run, name: str) -> None:
    for n in (129, 1000, 8192):
        with case(n):
            mask = random_mask(1, n) if n == 1000 else None
            assert_alike(triton, name, random_rows(1, n), drawn_values(name, 1, n), mask)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", kernels.NAMES)
def test_rows_in_chunks(triton: Run, name: str) -> None:
    for n, dtype in ((8193, torch.bfloat16), (20_000, torch.float32)):
        mask = random_mask(1, n) if n == 20_000 else None
        with case(n, dtype):
            assert_alike(triton, name, random_rows(1, n).to(dtype), drawn_values(name, 1, n), mask)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", ["r_softmax", "sparsemax"])
def test_a_vocabulary(triton: Run, name: str) -> None:
    x = 3 * random_rows(1, 262_144)
    (p,) = triton(name, x, drawn_values(name, 1, 5))
    assert_same_values(name, p, reference_forward(name, x, drawn_values(name, 1, 5), None, torch.zeros_like(x))[0])


ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sorted": lambda x: x.sort().values,
    "reversed": lambda x: x.sort(descending=True).values,
    "two values": lambda x: (x > 0).to(x.dtype),
    "one outlier": lambda x: torch.where(torch.arange(x.shape[-1]) == 7, 1e30, x),
    "huge tails": lambda x: x / torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) ** 8,
    "all but a few equal": lambda x: torch.where(torch.arange(x.shape[-1]) % 100 == 0, x, 0.25),
    "of both signs and tiny": lambda x: x * 1e-40,
}


@pytest.mark.interpreter
def test_no_order_misleads_the_search(triton: Run) -> None:
    for n in (700, 9000):
        x = torch.cat([order(random_rows(1, n)) for order in ORDERS.values()])
        for k in (1, n // 2, n - 1):
            (p,) = triton("r_softmax", x, k / n, None, None, len(ORDERS) + 1)
            assert torch.equal(p == 0, reference.r_softmax(x, k / n) == 0), (n, k)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", VALUES)
def test_parameters_as_numbers(triton: Run, name: str) -> None:
    x = random_rows(16, 30)
    for value in VALUES[name]:
        with case(value):
            assert_alike(triton, name, x, value, rows=16)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", VALUES)
def test_parameters_out_of_their_domain_make_their_rows_nan(triton: Run, name: str) -> None:
    values = torch.tensor([[-0.5], [0.5], [math.nan], [1.0]]) + (name == "k_softmax")
    (p,) = triton(name, random_rows(4, 6), values)
    assert p.isnan().all(-1).tolist() == [True, False, True, False]
    assert triton(name, random_rows(4, 6), math.nan)[0].isnan().all()
    assert triton("r_softmax", random_rows(4, 6), 1.5)[0].isnan().all()


@pytest.mark.interpreter
@pytest.mark.parametrize("name", VALUES)
def test_parameters_of_any_type_and_layout(triton: Run, name: str) -> None:
    x = random_rows(8, 10).view(4, 2, 10)
    for dtype in (torch.float64, torch.float32, torch.float16):
        wide = torch.rand(4, 2, 3, generator=torch.Generator().manual_seed(0)).to(dtype) + (name == "k_softmax")
        for value in (wide[:, :, 1:2], wide[:1, :, 2:].expand(4, 2, 1), wide[0, 0, 0].expand(4, 2, 1)):
            with case(dtype, value.stride()):
                assert_alike(triton, name, x, value)


@pytest.mark.interpreter
def test_a_threshold_exactly_at_an_entry(triton: Run) -> None:
    x = torch.tensor([[0.0, -0.1, -0.3, -0.7]])
    near = [-x[0, i].double() * scale for i in (1, 2, 3) for scale in (1 - 2**-50, 1, 1 + 2**-50)]
    values = torch.stack(near).unsqueeze(-1)
    (p,) = triton("t_softmax", x.expand(len(values), 4), values, None, None, 16)
    assert torch.equal(p == 0, reference.t_softmax(x.expand(len(values), 4), values) == 0)


@pytest.mark.interpreter
def test_every_rate_k_over_n_gives_k_zeros(triton: Run) -> None:
    for n in (3, 24, 97):
        k = torch.arange(n, dtype=torch.float64).unsqueeze(-1)
        (p,) = triton("r_softmax", random_rows(1, n).expand(n, n), k / n, None, None, MANY)
        assert torch.equal((p == 0).sum(-1, keepdim=True), k.long()), n


@pytest.mark.interpreter
def test_rates_as_numbers_are_not_rounded_to_float32(triton: Run) -> None:
    n = 20_000
    x = random_rows(1, n)
    misplaced = [k for k in range(1, n) if math.floor(c_float(k / n).value * (n - 1)) != math.floor(k / n * (n - 1))]
    for k in (misplaced[0], misplaced[-1]):
        assert (triton("r_softmax", x, k / n)[0] == 0).sum() == k


def test_a_detached_threshold(triton: Run) -> None:  # no mark: the interpreter's one test in the short suite
    cases: tuple[tuple[int | None, float | Tensor], ...] = ((MANY, torch.rand(6, 1)), (None, 0.5))
    for rows, r in cases:  # many rows in a program, and as many as on a GPU
        with case(rows, r):
            assert_alike(triton, "r_softmax", random_rows(6, 12), r, rows=rows, detach_threshold=True)


@pytest.mark.interpreter
def test_broadcast_masks(triton: Run) -> None:
    x = torch.randn(2, 3, 7, 9)
    for shape in ((2, 1, 1, 9), (1, 1, 7, 9), (2, 1, 7, 9), (9,), (3, 1, 9), (2, 3, 7, 1), (2, 3, 7, 9)):
        mask = (torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.6).expand(x.shape)
        (p,) = triton("r_softmax", x, 0.5, mask, None, 64)
        with case(shape):
            assert torch.equal(p, triton("r_softmax", x, 0.5, mask.clone(), None, 64)[0])
            assert_same_values("r_softmax", p, reference_forward("r_softmax", x, 0.5, mask, x)[0])


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows apart": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "rows swapped": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "entries apart": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "one row": lambda x: x[:1, :1].expand(x.shape),
    "one entry": lambda x: x[..., :1].expand(x.shape),
    "not from the start": lambda x: torch.cat([x, x])[3:],
}


@pytest.mark.interpreter
def test_tensors_of_any_layout(triton: Run) -> None:
    x, mask, g = torch.randn(3, 4, 5), torch.rand(3, 4, 5) < 0.7, torch.randn(3, 4, 5)
    for name, layout in LAYOUTS.items():
        changed = [layout(a) for a in (x, mask, g)]
        plain = [a.contiguous() for a in changed]
        mine, same = (triton("r_softmax", a[0], 0.5, a[1], a[2]) for a in (changed, plain))
        with case(name):
            assert all(map(torch.equal, mine, same))
            assert_same_values(
                "r_softmax", mine[0], reference_forward("r_softmax", plain[0], 0.5, plain[1], plain[2])[0]
            )


@pytest.mark.interpreter
@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_one_large_entry_and_many_next_to_the_threshold_sum_to_one(triton: Run, name: str) -> None:
    power = 1 if name == "sparsemax" else 2
    below = -0.9 * power - 1e-4 * torch.rand(1, 4000, generator=torch.Generator().manual_seed(0))
    (p,) = triton(name, torch.cat([torch.zeros(1, 1), below], -1))
    assert (p > 0).sum() > 1000
    assert abs(p.double().sum() - 1) < 1e-6


@pytest.mark.interpreter
@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_ties_with_the_threshold_are_zero(triton: Run, name: str) -> None:
    tied = {"sparsemax": [0.0, 0.0, -0.5, -0.5, -0.75], "entmax15": [0.0, 0.0, 0.0, 0.0, -1.0]}[name]
    (p,) = triton(name, torch.tensor([tied]))
    assert (p == 0).tolist() == (reference_forward(name, torch.tensor([tied]), None, None, p)[0] == 0).tolist()


@pytest.mark.interpreter
def test_denormal_spreads_have_finite_gradients(triton: Run) -> None:
    g = torch.tensor([[1.0, 2.0, 3.0]])
    for t in (1e-39, 1e-40):
        assert (triton("t_softmax", torch.tensor([[0.0, -1.0, -2.0]]), t, None, g)[1] == 0).all()
    for r in (0.2, 0.5, 0.9):
        assert triton("r_softmax", torch.tensor([[0.0, 1e-45, 3e-45]]), r, None, g)[1].isfinite().all()


@pytest.mark.interpreter
@pytest.mark.parametrize("name", kernels.NAMES)
def test_every_nan_is_a_nan(triton: Run, name: str) -> None:
    for bits in (0x7FC00001, 0x7FC007A2, 0x7FFFFFFF, -1):
        x = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
        x.view(torch.int32)[0, 2] = bits
        (p,) = triton(name, x, {"t_softmax": 1.0, "r_softmax": 0.5, "k_softmax": 2.0}.get(name))
        assert p.isnan().all(-1).tolist() == [True, False], hex(bits)


@pytest.mark.interpreter
def test_exponentials_are_accurate_to_the_last_places(triton: Run) -> None:
    for dtype in kernels.DTYPES:
        x = torch.cat([torch.zeros(1), torch.linspace(-87, -0.01, 4000)])[None].to(dtype)
        exact = torch.softmax(x.double(), -1)
        error = (triton("softmax", x)[0].double() - exact).abs() / exact
        assert error[exact > torch.finfo(dtype).tiny].max() < 3 * torch.finfo(dtype).eps, dtype


# --------------------------------------------------------------------------- kernels check themselves

CHECK_ROWS, CALL_ROWS = check.ROWS, 3


def launches(
    calls: int, threads: int = 1, fault: str | None = None, choice: str = "native", compiled: bool = False
) -> tuple[list[int], list[str], list[Tensor]]:
    """The rows of each launch during calls of r_softmax with its gradient, the warnings, and the last results.

    On the CPU its tensors pass for tensors on a GPU. A fault is put into every result of that name, or is raised.
    """
    rows: list[int] = []
    launch, lock = kernels.Launch.__call__, Lock()
    function: Any = torch.compile(r_softmax, backend="aot_eager", fullgraph=True) if compiled else r_softmax

    def faulty(self: kernels.Launch) -> None:
        rows.append(self.arguments["rows"])
        if fault == "exception":
            raise RuntimeError("out of resource: shared memory")
        with lock:  # the interpreter runs one kernel at a time
            launch(self)
        if fault in self.arguments and (fault == "dx" or "dx" not in self.arguments):
            self.arguments[fault][0, 2] += 1e-3

    def call(_: int) -> list[Tensor]:
        x = on_device(random_rows(CALL_ROWS, 20)).requires_grad_()
        with use_kernels(choice):
            p = function(x, 0.4)
        return [
            p.detach().cpu(),
            *(d.cpu() for d in torch.autograd.grad(p, x, on_device(random_rows(CALL_ROWS, 20, 1)))),
        ]

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(kernels.Launch, "__call__", faulty)
        patch.setattr(check, "_agreeing", set())
        patch.setattr(check, "_differing", set())
        if DEVICE == "cpu":
            patch.setattr(kernels, "tile", lambda n, tile=kernels.tile: {**tile(n), "ROWS": check.ROWS})
            patch.setattr(
                kernels, "supports_call", lambda name, x, value: kernels.supports(name, x.dtype) and is_plain(x)
            )
            patch.setattr(rsoftmax.kernels, "REGISTRY", {"cpu": kernels, "triton": kernels})
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(call, range(calls)))
    return rows, [str(w.message) for w in caught if "Triton" in str(w.message)], results[-1]


def by_reference() -> list[Tensor]:
    x, g = random_rows(CALL_ROWS, 20), random_rows(CALL_ROWS, 20, 1)
    return reference_forward("r_softmax", x, 0.4, None, g)


@pytest.mark.interpreter
def test_a_kernel_is_compared_with_the_reference_before_its_first_result_and_never_again(interpret: Interpret) -> None:
    rows, warned, _ = interpret(launches, calls=3, threads=2)
    assert sorted(rows) == [CALL_ROWS] * 6 + [CHECK_ROWS] * 2  # forward and backward
    assert rows.index(CALL_ROWS) >= 2
    assert warned == []


@pytest.mark.interpreter
@pytest.mark.parametrize(("fault", "compiled"), [("p", False), ("dx", False), ("exception", False), ("p", True)])
def test_a_faulty_kernel_is_reported_once_and_replaced_by_the_reference(
    interpret: Interpret, fault: str, compiled: bool
) -> None:
    rows, warned, results = interpret(launches, calls=2, fault=fault, compiled=compiled)
    assert set(rows) == {CHECK_ROWS}
    assert len(warned) == 1
    assert "r_softmax" in warned[0]
    assert {"exception": "shared memory", "p": "p[0, 2] is", "dx": "dx[0, 2] is"}[fault] in warned[0]
    assert all(map(torch.equal, results, by_reference()))


@pytest.mark.interpreter
def test_a_compiled_graph_runs_a_kernel_that_agrees(interpret: Interpret) -> None:
    rows, warned, _ = interpret(launches, calls=2, compiled=True)
    assert rows == [CHECK_ROWS] * 2 + [CALL_ROWS] * 4
    assert warned == []


@pytest.mark.interpreter
def test_use_kernels_forces_a_kernel_that_was_not_compared(interpret: Interpret) -> None:
    rows, warned, results = interpret(launches, calls=1, fault="p", choice="triton")
    assert (rows, warned) == ([CALL_ROWS] * 2, [])
    assert not torch.equal(results[0], by_reference()[0])
    assert interpret(launches, calls=1, fault="p", choice="reference")[:2] == ([], [])


def compare(name: str, x: Tensor, value: Any, mask: Tensor | None, options: dict[str, float]) -> str | None:
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        if DEVICE == "cpu":
            patch.setattr(kernels, "tile", lambda n, tile=kernels.tile: {**tile(n), "ROWS": check.ROWS})
        return check.compare(name, on_device(x), on_device(value), on_device(mask), options, keep_state=True)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", kernels.NAMES)
def test_every_kernel_agrees_with_the_reference(interpret: Interpret, name: str) -> None:
    """For every dtype, of rows with and without ties, a mask, a parameter as number and tensor, and an edge."""
    for dtype, n in product(kernels.DTYPES, (1, 2, 25, 300)):
        x, mask = torch.empty(1, n, dtype=dtype), None if n == 25 else torch.empty(1, n, dtype=torch.bool)
        value = (0.5 if n == 2 else torch.empty(1, 1, dtype=dtype)) if name in VALUES else None
        with case(dtype, n):
            assert interpret(compare, name, x, value, mask, {"edge": 0.1} if n > 25 and name in VALUES else {}) is None


def test_rates_are_exact_as_sums_of_float32s() -> None:
    for r in torch.rand(1000, dtype=torch.float64).tolist():
        parts = kernels.as_float32s("r_softmax", r)
        assert sum(parts) == r
        assert all(c_float(part).value == part for part in parts)


@pytest.mark.process
def test_triton_is_imported_only_when_called() -> None:
    program = """
import sys, torch, rsoftmax
import rsoftmax.kernels.triton as kernels
assert not kernels.supports_call("softmax", torch.zeros(2, 3), None)
assert not kernels.supports_call("softmax", torch.zeros(2, 3, dtype=torch.float64), None)
rsoftmax.r_softmax(torch.zeros(2, 3), 0.5)
print("triton" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
