"""The native kernels against the reference, at every instruction set that this machine has.

Tolerances. Zeros: identical (except for entries exactly at the threshold of sparsemax, entmax15, entmax). Values: 8
units in the last place, of the value or of the row's largest one (a weight near the threshold is a small difference of
larger numbers, on both sides). Gradients: the truth is the reference in float64; the native error may be four times the
reference's own (sixteen times in half precision, where the probabilities that backward reads are rounded), or 64 units
in the last place of the incoming gradient.
"""

import importlib
import math
import os
import subprocess
import sys
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from cases import ADVERSARIAL, case
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import check_mapping
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

import rsoftmax
from rsoftmax import MAPPINGS, entmax, r_softmax, use_kernels
from rsoftmax.kernels import cpu, reference
from rsoftmax.kernels.cpu import rows as cpu_rows

NATIVE = list(cpu.OPERATIONS)
EXAMPLES: dict[str, dict[str, Any]] = {"r_softmax": {"r": 0.6}, "t_softmax": {"t": 1.5}, "k_softmax": {"k": 2.5}}
EDGED = [name for name in NATIVE if MAPPINGS[name].options]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

levels = ["baseline", "avx2", "avx512"]
levels = levels[: levels.index(cpu.LEVEL) + 1] if cpu.LEVEL in levels else list(filter(None, [cpu.LEVEL]))


@pytest.fixture(params=levels)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    library = importlib.import_module(f"rsoftmax.kernels.cpu._rows_{request.param}")
    monkeypatch.setattr(cpu, "library", library)
    return str(request.param)


def mapped(
    name: str, kernels: str, x: Tensor, mask: Tensor | None, value: object, g: Tensor, **options: float
) -> list[Tensor]:
    """Probabilities, and gradients in the logits and in a tensor parameter."""
    leaves = [x.clone().requires_grad_()]
    if isinstance(value, Tensor):
        leaves.append(value.to(x.dtype).requires_grad_())
    numbers = [] if value is None or isinstance(value, Tensor) else [value]
    with use_kernels(kernels):
        p = MAPPINGS[name].function(*leaves, *numbers, mask=mask, **options)
        return [p.detach(), *torch.autograd.grad(p, leaves, g)]


def assert_same_values(p: Tensor, expected: Tensor, name: str) -> None:
    eps = torch.finfo(p.dtype).eps
    assert torch.equal(p.isnan(), expected.isnan())
    p, expected = p.double(), expected.double()
    # An entry exactly at the threshold of a projection is zero on one side and a rounding error on the other.
    rounding = torch.maximum(p, expected) <= (0 if name.endswith("softmax") else eps * expected.amax(-1, keepdim=True))
    assert (((p == 0) == (expected == 0)) | rounding).all(), (p, expected)
    allowed = 8 * eps * (expected + expected.amax(-1, keepdim=True))
    assert (((p - expected).abs() <= allowed) | expected.isnan()).all(), (p, expected)


def assert_alike(name: str, x: Tensor, mask: Tensor | None, value: object, g: Tensor, **options: Any) -> None:
    if x.dtype == torch.float32:
        check_mapping(name, x, value, g=g, mask=mask, **options)
    mine = mapped(name, "native", x, mask, value, g, **options)
    theirs = mapped(name, "reference", x, mask, value, g, **options)
    truth = mapped(name, "reference", x.double(), mask, value, g.double(), **options)
    assert_same_values(mine[0], theirs[0], name)
    if name in ("r_softmax", "k_softmax") and (x.sort(-1).values.diff(dim=-1) == 0).any():
        return  # which of the entries tied at the threshold passes its gradient on is a matter of choice
    gaps = x.double().sort(-1).values.diff(dim=-1)
    nearest = gaps[gaps > 0].min() if (gaps > 0).any() else 1.0  # slopes are as steep as entries are near
    for a, b, true in zip(mine[1:], theirs[1:], truth[1:], strict=True):
        own_rounding = 64 * torch.finfo(torch.float64).eps * g.double().abs().max() / nearest
        factor = 16 if x.dtype in (torch.float16, torch.bfloat16) else 4
        allowed = factor * (b - true).abs().max() + 64 * torch.finfo(x.dtype).eps * max(g.abs().max(), true.abs().max())
        assert (a - true).abs().max() <= allowed + own_rounding, (a, b, true)


def values_of(name: str, rows: int) -> list[object]:
    per_row = torch.linspace(0.05, 0.95, rows)[:, None]
    match name:
        case "r_softmax":
            return [0.0, 0.1, 0.5, 0.9, 1.0, per_row]
        case "k_softmax":
            return [1.0, 2.0, 7.5, 40.0, math.inf, 1 + 30 * per_row]
        case "t_softmax":
            return [1e-3, 1.0, 5.0, math.inf, 4 * per_row]
        case "entmax":
            return [1.0, 1.01, 1.25, 1.5, 1.8, 2.0, 1 + per_row]
    return [None]


@pytest.mark.parametrize("name", NATIVE)
def test_native_equals_reference(name: str, level: str) -> None:
    for n in (1, 2, 3, 7, 16, 17, 33, 64, 100, 129, 512, 1000, 4097):
        generator = torch.Generator().manual_seed(n)
        x, g = torch.randn(2, 5, n, generator=generator)
        mask = torch.rand(5, n, generator=generator) < 0.7
        for i, value in enumerate(values_of(name, 5)):
            for j, dtype in enumerate(DTYPES):
                kept = mask if (i + j) % 2 else None
                with case(n, dtype, value, "masked" if (i + j) % 2 else "all kept"):
                    assert_alike(name, x.to(dtype), kept, value, g.to(dtype))


@pytest.mark.parametrize("name", EDGED)
def test_native_equals_reference_with_an_edge(name: str, level: str) -> None:
    edges = [0.0, 1e-3, 0.5, 1.0, 4.0]
    for i, n in enumerate((1, 2, 7, 17, 33, 80, 129, 257, 1000)):
        generator = torch.Generator().manual_seed(n)
        x, g = torch.randn(2, 5, n, generator=generator)
        mask = torch.rand(5, n, generator=generator) < 0.7
        for j, value in enumerate(values_of(name, 5)):
            for k, dtype in enumerate(DTYPES):
                edge, kept = edges[(i + j + k) % 5], mask if (j + k) % 2 else None
                with case(n, dtype, value, edge, "masked" if (j + k) % 2 else "all kept"):
                    assert_alike(name, x.to(dtype), kept, value, g.to(dtype), edge=edge)


@pytest.mark.parametrize("name", EDGED)
def test_tiny_and_huge_edges_and_widths_lose_nothing(name: str, level: str) -> None:
    """Weights that underflow or overflow before they are divided."""
    for n in (17, 300):
        x, g = torch.randn(2, 5, n, generator=torch.Generator().manual_seed(n))
        values: list[object] = [1e-30, 1e30, torch.full((5, 1), 1e-30)] if name == "t_softmax" else values_of(name, 5)
        for value, edge in product(values, (1e-42, 1e-30, 1e30)):
            with case(n, value, edge):
                check_mapping(name, x, value, g=g, edge=edge)


@pytest.mark.parametrize("name", EDGED)
def test_ties_at_the_threshold_are_those_of_the_reference_at_every_edge(name: str, level: str) -> None:
    """Few distinct values, both zeros among them: the threshold is tied in nearly every row."""
    for n in (1, 2, 3, 8, 20, 33, 80, 81, 129, 256, 257, 600):
        generator = torch.Generator().manual_seed(n)
        x = torch.randint(-3, 4, (19, n), generator=generator) / 2 * (-1.0) ** torch.arange(n)
        mask = torch.rand(19, n, generator=generator) < 0.7
        per_row = {"r_softmax": 0.0, "k_softmax": 1.0, "t_softmax": 0.5}[name] + torch.arange(19.0)[:, None] / 20
        for edge, dtype, kept, value in product((0.0, 1.0, math.inf), DTYPES, (None, mask), (1.0, per_row)):
            p = MAPPINGS[name].function(x.to(dtype), value, mask=kept, edge=edge)
            with use_kernels("reference"), case(n, edge, dtype, "all kept" if kept is None else "masked"):
                assert_same_values(p, MAPPINGS[name].function(x.to(dtype), value, mask=kept, edge=edge), name)


@pytest.mark.parametrize("name", NATIVE)
def test_adversarial_rows_have_the_same_zeros(name: str, level: str) -> None:
    for kind, row in ADVERSARIAL.items():
        for dtype in DTYPES:
            x = torch.tensor([row], dtype=dtype)
            for value, edge in product(values_of(name, 1), (math.inf, 0.0, 0.7) if name in EDGED else (None,)):
                options = {} if edge is None else {"edge": edge}
                results = []
                for kernels in ("native", "reference"):
                    with use_kernels(kernels):
                        results.append(MAPPINGS[name].function(x, *([] if value is None else [value]), **options))
                with case(kind, dtype, value, edge):
                    assert_same_values(results[0], results[1], name)


SIDE_BY_SIDE = [
    "r_softmax",
    "k_softmax",
    "t_softmax",
    "sparsemax",
    "entmax15",
]  # short rows of these are computed several at once


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_rows_of_all_kinds_side_by_side_are_those_of_the_reference(name: str, level: str) -> None:
    """Odd rows must not disturb the others."""
    for n in (1, 5, 20, 33, 80, 81, 128, 129, 256, 257):
        for masked in (False, True):
            with case(n, "masked" if masked else "all kept"):
                assert_side_by_side_rows_are_alike(name, n, masked)


def assert_side_by_side_rows_are_alike(name: str, n: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(37, n, generator=generator)
    x[1], x[2], x[3] = 0.5, x[2].round(), x[3] * 1e30
    x[4, n // 2], x[5, n // 2], x[6, n // 2], x[7, : n // 2] = math.nan, math.inf, 1e6, -math.inf
    x[8], x[9], x[10] = -math.inf, x[9] * 1e-42, x[10].sort().values
    mask = torch.rand(37, n, generator=generator) < 0.5 if masked else None
    rates = torch.rand(37, 1, generator=generator, dtype=torch.float64)
    rates[::5], rates[3::7] = 0.0, 1.0
    spans = torch.where(rates == 1, math.inf, 4 * rates).clamp(min=1e-50)  # which is 0 in float32
    values: dict[str, list[list[float | Tensor]]] = {
        "r_softmax": [[0.3], [0.97], [rates]],
        "t_softmax": [[2.0], [1e-40], [spans]],
        "k_softmax": [[1.0], [1 + n / 2], [1 + n * rates]],
    }
    for i, value in enumerate(values.get(name, [[]])):
        for j, dtype in enumerate(DTYPES):
            options = {"edge": (math.inf, 0.0, 0.6)[(i + j) % 3]} if name in EDGED else {}
            with use_kernels("reference"):
                expected = MAPPINGS[name].function(x.to(dtype), *value, mask=mask, **options)
            assert_same_values(MAPPINGS[name].function(x.to(dtype), *value, mask=mask, **options), expected, name)


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_a_row_does_not_depend_on_those_beside_it(name: str, level: str) -> None:
    for n in (3, 20, 100, 300, 700):  # long rows pass a hint of their quantile on to the next row
        x = torch.randn(21, n, generator=torch.Generator().manual_seed(n))
        x[3], x[5], x[7], x[9], x[11] = x[3].round(), 1e30 * x[5], 0.5, x[9] - 40, x[11].exp()
        mapping = partial(MAPPINGS[name].function, **EXAMPLES.get(name, {}))
        together = mapping(x)
        with case(n):
            assert torch.equal(torch.cat([mapping(row) for row in x.split(1)]), together)
            assert torch.equal(mapping(x.flip(0)).flip(0), together)


def test_a_lone_entry_has_a_probability_of_exactly_one(level: str) -> None:
    t = torch.linspace(0.05, 0.95, 101)[:, None]
    for n in (20, 700):
        x = torch.zeros(101, n).index_fill(1, torch.tensor([7]), 1.0)
        with case(n):
            assert torch.equal(rsoftmax.t_softmax(x, t), x)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("t_softmax", 2.0, (-1.0, math.nan)),
        ("r_softmax", 0.5, (-0.1, 1.5, math.nan)),
        ("k_softmax", 3.0, (0.5, math.nan)),
        ("entmax", 1.5, (0.5, 5.0, math.nan)),
    ],
)
def test_a_value_out_of_range_makes_its_row_nan_and_no_other(
    name: str, good: float, bad: tuple[float, ...], level: str
) -> None:
    """The library itself, without the checks before it: in graphs nobody looks at values."""
    for n in (20, 700):
        x = torch.randn(len(bad) + 2, n, generator=torch.Generator().manual_seed(0))
        p, _ = cpu_rows.forward(name, x, torch.tensor([[good], *([v] for v in bad), [good]]), None, {}, False)
        with case(n):
            assert p[1:-1].isnan().all()
            assert torch.equal(p[[0, -1]], cpu_rows.forward(name, x[[0, -1]], good, None, {}, False)[0])


def test_entmax_above_two_equals_the_reference_as_far_as_it_is_determined(level: str) -> None:
    """An entry at the threshold leaves zero with an infinite slope: a rounding error e there is e^(1 / (alpha - 1))."""
    for alpha, dtype in product((2.1, 3.0, 4.0), (torch.float32, torch.float64)):
        x = torch.randn(50, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
        with use_kernels("reference"):
            expected = entmax(x.double(), alpha)
        p = entmax(x, alpha)
        error = (p.double() - expected).abs().amax(-1)
        eps = torch.finfo(dtype).eps
        with case(alpha, dtype):
            assert error.max() <= eps ** (1 / (alpha - 1))
            assert error.median() <= 16 * eps  # a row without such an entry
            assert_close(p.sum(-1), torch.ones(50, dtype=dtype))


def test_entmax_at_its_named_values_is_that_mapping() -> None:
    x, mask = torch.randn(20, 33, generator=torch.Generator().manual_seed(0)), torch.arange(33) != 4
    for alpha, name in {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}.items():
        for kernels in ("native", "reference"):
            with case(name, kernels), use_kernels(kernels):
                expected = MAPPINGS[name].function(x, mask=mask)
                assert torch.equal(entmax(x, alpha, mask=mask), expected)
                for_each_row = entmax(x, torch.full((20, 1), alpha), mask=mask)
                assert torch.equal(for_each_row == 0, expected == 0)
                assert_close(for_each_row, expected)


ORDERS = {
    "normal": lambda x: x,
    "sorted": lambda x: x.sort().values,
    "reversed": lambda x: x.sort(descending=True).values,
    "organ pipe": lambda x: torch.cat([x.sort().values[::2], x.sort(descending=True).values[::2]]),
    "two values": lambda x: (x > 0).to(x.dtype),
    "one outlier": lambda x: torch.where(torch.arange(len(x)) == 7, 1e30, x),
    "huge tails": lambda x: x / torch.rand(len(x), generator=torch.Generator().manual_seed(0)) ** 8,
    "all but a few equal": lambda x: torch.where(torch.arange(len(x)) % 1000 == 0, x, 0.25),
}


@pytest.mark.parametrize("n", [1000, 100_000])
def test_no_order_misleads_the_selection(n: int) -> None:
    for kind, order in ORDERS.items():
        x = order(torch.randn(n, generator=torch.Generator().manual_seed(1)))[None]  # type: ignore[no-untyped-call]
        for k in (1, n // 10, n // 2, n - n // 10, n - 1):
            p = r_softmax(x, k / n)
            with case(kind, k), use_kernels("reference"):
                assert torch.equal(p == 0, r_softmax(x, k / n) == 0)


def test_more_nan_than_ranks_misleads_no_selection(level: str) -> None:
    """Ranks become negative, and a sample that misses the NaN; make sanitize checks the arithmetic."""
    x = torch.randn(1, 4000, generator=torch.Generator().manual_seed(1))
    x[0, torch.arange(4000) % 5 % 4 > 0] = math.nan
    for dtype, r in product((torch.float32, torch.float64), (0.05, 0.5, 0.9)):
        with case(dtype, r):
            assert r_softmax(x.to(dtype), r).isnan().all()


floats = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, -1e30, 1e-45, math.inf, -math.inf, math.nan])


@given(data=st.data())
@settings(max_examples=150, deadline=None, print_blob=True)
def test_fuzz(data: st.DataObject) -> None:
    """Shapes, strides, types, masks, ties, NaN, infinities: the same zeros, the same NaN rows, the same values."""
    name = data.draw(st.sampled_from(NATIVE))
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = (*data.draw(st.lists(st.integers(1, 3), max_size=2)), data.draw(st.integers(1, 80)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    x = torch.randn(shape, generator=generator) * data.draw(st.sampled_from([1e-3, 1.0, 20.0]))
    if data.draw(st.booleans()):
        x = x.round()
    flat = x.view(-1)
    for place in data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=6)):
        flat[place] = data.draw(floats)
    x = x.to(dtype)
    if data.draw(st.booleans()):
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    mask = None
    if data.draw(st.booleans()):
        mask = torch.rand(shape[-1:] if data.draw(st.booleans()) else shape, generator=generator) < 0.6
    value = data.draw(st.sampled_from(values_of(name, shape[-2] if len(shape) > 1 else 1)))
    if isinstance(value, Tensor) and len(shape) == 1:
        value = value[0]
    results = []
    for kernels in ("native", "reference"):
        with use_kernels(kernels):
            results.append(MAPPINGS[name].function(x, *([] if value is None else [value]), mask=mask))
    assert_same_values(results[0], results[1], name)


@pytest.mark.parametrize("name", NATIVE)
def test_threads_change_nothing(name: str) -> None:
    x = torch.randn(300, 700, generator=torch.Generator().manual_seed(2))
    value = values_of(name, 300)[-1]
    arguments = [] if value is None else [value]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = MAPPINGS[name].function(x, *arguments)
        torch.set_num_threads(4)
        assert torch.equal(MAPPINGS[name].function(x, *arguments), alone)
    finally:
        torch.set_num_threads(before)


def test_forward_allocates_the_output_only() -> None:
    mask = torch.rand(64, 4096) < 0.7
    for dtype in DTYPES:
        x = torch.randn(64, 4096).to(dtype)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            r_softmax(x, 0.5, mask=mask)
        assert profiler.profiler is not None
        taken = [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        with case(dtype):  # and eight bytes a row for the offsets of the mask
            assert sum(b for b in taken if b > 0) < x.nbytes + 64 * 8 * 4


def test_rows_may_be_strided_and_written_in_place() -> None:
    wide = torch.randn(6, 50)
    x = wide[::2, 3:40]
    expected = r_softmax(x.contiguous(), 0.4)
    assert torch.equal(r_softmax(x, 0.4), expected)
    mine = x.contiguous()
    cpu_rows._run("r_softmax", mine, 0.4, None, mine)
    assert torch.equal(mine, expected)


@pytest.mark.parametrize("name", ["r_softmax", "t_softmax", "entmax"])
def test_parameters_of_any_layout(name: str) -> None:
    x = torch.randn(6, 10)
    wide = torch.rand(6, 3, dtype=torch.float64) + (name == "entmax")
    for value in (wide[0, 0], wide[:1, :1], wide[:, 1:2], wide[:, 1:2].float(), wide[:, :1].expand(6, 1)):
        assert_close(MAPPINGS[name].function(x, value), MAPPINGS[name].function(x, value.contiguous().float()))
        with use_kernels("reference"):
            expected = MAPPINGS[name].function(x, value)
        assert torch.equal(MAPPINGS[name].function(x, value) == 0, expected == 0)


@pytest.mark.parametrize("name", NATIVE)
def test_the_default_device_does_not_matter(name: str) -> None:
    x, mask = torch.randn(3, 5, requires_grad=True), torch.rand(3, 5) < 0.7
    value = values_of(name, 3)[-1]
    arguments = [] if value is None else [value]
    with torch.device("meta"):
        MAPPINGS[name].function(x, *arguments, mask=mask).square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_every_nan_is_a_nan(level: str) -> None:
    patterns = [(torch.float32, torch.int32, bits) for bits in (0x7FC00001, 0x7FC007A2, 0x7FFFFFFF, -1)]
    for name in NATIVE:
        for dtype, view, pattern in (*patterns, (torch.float64, torch.int64, 0x7FF80000000007A2)):
            x = torch.tensor([0.0, 1.0, 0.0], dtype=dtype)
            x.view(view)[2] = pattern
            value = values_of(name, 1)[min(1, len(values_of(name, 1)) - 1)]
            with case(name, hex(pattern)):
                assert MAPPINGS[name].function(x, *([] if value is None else [value])).isnan().all()


def test_saved_tensors_may_come_back_in_another_layout() -> None:
    def turned(t: Tensor) -> Tensor:
        return t.t().contiguous().t() if t.dim() == 2 else t

    x = torch.randn(4, 6)
    gradients = []
    for unpack in (turned, lambda t: t):
        leaf = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            r_softmax(leaf, 0.5).square().sum().backward()
        gradients.append(leaf.grad)
    assert_close(*gradients)


def test_second_derivatives_with_a_detached_threshold() -> None:
    x, r = torch.randn(3, 5, requires_grad=True), torch.full((3, 1), 0.4, requires_grad=True)
    p = r_softmax(x, r, detach_threshold=True)
    (dx, dr) = torch.autograd.grad(p.square().sum(), [x, r], create_graph=True, allow_unused=True)
    assert dr is None
    assert torch.autograd.grad(dx.square().sum(), x)[0].isfinite().all()


def test_masks_and_rates_made_in_inference_mode_serve_training() -> None:
    with torch.inference_mode():
        mask, r = torch.rand(2, 5) < 0.7, torch.full((2, 1), 0.5)
    x = torch.randn(2, 5, requires_grad=True)
    r_softmax(x, r, mask=mask).square().sum().backward()
    assert x.grad is not None


def test_denormal_thresholds_have_finite_gradients() -> None:
    for t in (1e-39, 1e-40):
        x = torch.tensor([0.0, -1.0, -2.0], requires_grad=True)
        rsoftmax.t_softmax(x, t).backward(torch.tensor([1.0, 2.0, 3.0]))
        assert x.grad is not None
        assert (x.grad == 0).all()


def test_a_spread_beyond_the_float_range() -> None:
    rows = ([3e38, -3e38, 1e38], [3e38, 3e38, -3e38], [-3e38, 0.0, 1.0, 3e38])
    for row, r, kernels in product(rows, (0.2, 0.5, 0.8), ("native", "reference")):
        x = torch.tensor(row)
        expected = r_softmax(x.double(), r).float()
        with case(row, r, kernels), use_kernels(kernels):
            assert_close(r_softmax(x, r), expected)


def test_a_view_that_negates_is_read_as_it_looks() -> None:
    x = torch.randn(3, 8, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert_close(r_softmax(x, 0.5), r_softmax(x.clone(), 0.5))


def test_a_broadcast_mask_is_the_expanded_mask() -> None:
    x = torch.randn(2, 3, 7, 9)
    for shape in [(2, 1, 1, 9), (1, 1, 7, 9), (2, 1, 7, 9), (9,), (3, 1, 9), (2, 3, 7, 1)]:
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.6
        with case(shape):
            expanded = mask.expand(x.shape).contiguous()
            assert torch.equal(r_softmax(x, 0.5, mask=mask), r_softmax(x, 0.5, mask=expanded))


def test_logits_changed_in_place_before_backward_raise_an_error() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    scores = x * 1
    p = r_softmax(scores, 0.5)
    scores.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        p.sum().backward()


def test_a_batch_of_gradients_goes_through_the_reference() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    p = r_softmax(x, 0.5)
    directions = torch.eye(15, dtype=torch.float64).reshape(15, 3, 5)
    (batched,) = torch.autograd.grad(p, x, directions, is_grads_batched=True, retain_graph=True)
    looped = torch.stack([torch.autograd.grad(p, x, g, retain_graph=True)[0] for g in directions])
    assert_close(batched, looped)


def test_every_operation_has_its_definition_and_its_mapping() -> None:
    expected = {"softmax", "t_softmax", "r_softmax", "k_softmax", "sparsemax", "entmax15", "entmax"}
    assert expected == set(cpu.OPERATIONS)
    assert set(cpu.OPERATIONS) == set(cpu.STATE)
    assert sorted(cpu.OPERATIONS.values()) == list(range(len(cpu.OPERATIONS)))
    assert set(cpu.DTYPES) == set(DTYPES)
    for name in cpu.OPERATIONS:
        assert name in reference.OPERATIONS
        assert name in MAPPINGS


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"x": 0}, ValueError, "x and p are needed"),
        ({"op": 99}, ValueError, "op is not in OPERATIONS"),
        ({"dtype": -1}, ValueError, "dtype is not in DTYPES"),
        ({"values": 64, "values_dtype": 2}, ValueError, "values must be float32 or float64"),
        ({"g": 64}, ValueError, "g needs dx"),
        ({"g": 64, "dx": 64}, ValueError, "g needs the states of forward"),
        ({"colour": 1}, TypeError, "a call has no field 'colour'"),
        ({"rows": "many"}, TypeError, "'str' object cannot be interpreted as an integer"),
    ],
    ids=str,
)
def test_a_wrong_call_of_the_library_raises_an_error_and_the_next_one_runs(
    fields: dict[str, Any], error: type[Exception], message: str, level: str
) -> None:
    x = torch.randn(2, 3)
    p = torch.zeros(2, 3)
    good = {"op": cpu.OPERATIONS["softmax"], "dtype": cpu.DTYPES[x.dtype], "rows": 2, "n": 3, "x_stride": 3}
    good |= {"x": x.data_ptr(), "p": p.data_ptr(), "threads": 1}
    cpu.library.run(**good)
    with pytest.raises(error, match=message):
        cpu.library.run(**good | fields)
    with pytest.raises(TypeError, match="pass the fields of a call by keyword"):
        cpu.library.run(*good.values())
    p.zero_()
    cpu.library.run(**good)
    assert_close(p, torch.softmax(x, -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_extremes_of_values_are_those_of_torch_and_nan_if_one_is(dtype: torch.dtype, level: str) -> None:
    for n in range(1, 40):  # every number of entries after the last whole vector
        values = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
        assert rsoftmax.kernels.extremes(values) == (values.min().item(), values.max().item()), n
        values[n // 2] = math.nan
        assert all(map(math.isnan, rsoftmax.kernels.extremes(values))), n
    with pytest.raises(ValueError, match="values must be float32 or float64"):
        cpu.library.extremes(values.data_ptr(), 3, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_parameter_for_each_row_is_read_in_its_own_dtype(dtype: torch.dtype, level: str) -> None:
    r = torch.linspace(0, 1, 17).unsqueeze(-1).to(dtype)
    for n, x_dtype in product((5, 90, 300), DTYPES):
        x = torch.randn(17, n, generator=torch.Generator().manual_seed(n)).to(x_dtype)
        one_by_one = torch.cat([r_softmax(x[i : i + 1], r[i].item()) for i in range(17)])
        assert torch.equal(r_softmax(x, r), one_by_one), (n, x_dtype)
        assert torch.equal(r_softmax(x, r[:1]), r_softmax(x, 0.0)), (n, x_dtype)  # broadcast


def test_the_choice_of_kernels_is_set_and_shown() -> None:
    assert rsoftmax.kernels.cpu_kernels() == f"native ({cpu.LEVEL})"
    with use_kernels("reference"):
        assert rsoftmax.kernels.cpu_kernels() == "reference"
        with use_kernels("native"):
            assert rsoftmax.kernels.cpu_kernels().startswith("native")
    assert rsoftmax.kernels.cpu_kernels().startswith("native")
    with (
        pytest.raises(ValueError, match="must be one of native, reference, cpu, triton, got 'fast'"),
        use_kernels("fast"),
    ):
        pass


@pytest.mark.process
@pytest.mark.parametrize(("capability", "expected"), [("default", "baseline"), ("avx2", "avx2")])
def test_the_instruction_set_is_chosen_at_run_time(capability: str, expected: str) -> None:
    program = "import rsoftmax; print(rsoftmax.kernels.cpu_kernels())"
    others = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    chosen = []
    for environment in ({}, {"ATEN_CPU_CAPABILITY": capability}):
        words, env = [sys.executable, "-c", program], others | environment
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
        chosen.append(done.stdout.strip())
    assert chosen[1] == (chosen[0] if chosen[0] == "native (baseline)" else f"native ({expected})")


def test_without_compiled_kernels_it_warns_once_and_works() -> None:
    program = """
import sys, warnings
for level in ("baseline", "avx2", "avx512"):
    sys.modules[f"rsoftmax.kernels.cpu._rows_{level}"] = None
import torch, rsoftmax
assert rsoftmax.kernels.cpu_kernels() == "reference"
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(3):
        p = rsoftmax.r_softmax(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5)
assert (p == 0).sum() == 2
print(len(said), said[0].message)
try:
    with rsoftmax.use_kernels("native"):
        pass
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    warned, refused = done.stdout.splitlines()
    assert warned.startswith("1 rsoftmax was installed without its compiled kernels")
    assert "pip install" in refused
