"""Laws that hold for the whole table, and every mapping against the independent oracle."""

import math
from itertools import product

import numpy as np
import oracle
import pytest
import torch
from cases import ADVERSARIAL, FUNCTIONS, WEIGHTED, case, example_of, parameter_of, rows, value_strategy
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import UNIT, Truth, check_weights
from torch import Tensor
from torch.testing import assert_close

import rsoftmax
from rsoftmax import MAPPINGS, MappingSpec, k_softmax, r_softmax, softmax, t_softmax

pytestmark = pytest.mark.usefixtures("both_kernels")

every_mapping = pytest.mark.parametrize("mapping", FUNCTIONS.values(), ids=FUNCTIONS)
every_float = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)


EDGED = [spec for spec in MAPPINGS.values() if any(option.name == "edge" for option in spec.options)]
EDGES = [math.inf, 0.0, 1e-3, 0.5, 1.0, 3.0, 100.0]


def call(mapping: MappingSpec, x: Tensor, arguments: list[Tensor], dim: int = -1, mask: Tensor | None = None) -> Tensor:
    return mapping.function(x, *arguments, dim=dim, mask=mask)


@every_mapping
def test_the_suite_has_an_oracle_for(mapping: MappingSpec) -> None:
    assert mapping.name in oracle.ORACLES, f"write {mapping.name} in tests/oracle.py, one row, in NumPy"


@every_mapping
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_equals_the_oracle(mapping: MappingSpec, data: st.DataObject) -> None:
    x = data.draw(rows())
    value: float | np.ndarray | None = None
    arguments: list[float | Tensor] = []
    if mapping is WEIGHTED:
        weights = data.draw(st.lists(st.sampled_from([0.0, 1.0, 1e-3, 1e3]), min_size=len(x), max_size=len(x)))
        value = np.array(weights)
        arguments = [torch.from_numpy(value)]
    elif mapping.parameter:
        value = data.draw(value_strategy(mapping))
        arguments = [value]
    options = {"edge": data.draw(st.sampled_from(EDGES))} if mapping.options else {}
    p = mapping.function(torch.from_numpy(x), *arguments, **options)
    assert_close(p, torch.from_numpy(oracle.apply(mapping.name, x, value, **options)), rtol=1e-9, atol=1e-9)


VALUES: dict[str, list[float]] = {
    "r_softmax": [0.0, 0.1, 0.34, 0.75, 1.0],
    "t_softmax": [math.inf, 1e-30, 1e30],
    "k_softmax": [1.0, 2.0, 2.5, 100.0, math.inf],
    "budget": [0.0, 1.0, 2.5, 100.0, math.inf],
    "lapsum": [0.0, 1.0, 2.5, 100.0, math.inf],
    "sink_softmax": [-math.inf, -2.0, 1e4, 2.0**99],
}


@every_mapping
def test_adversarial_rows_equal_the_oracle(mapping: MappingSpec) -> None:
    for (kind, row), dtype in product(ADVERSARIAL.items(), (torch.float64, torch.float32)):
        x = torch.tensor(row, dtype=dtype)
        values: list[float | Tensor | None] = [None, *VALUES.get(mapping.name, [])]
        if mapping.parameter:
            values[0] = torch.arange(len(row)).to(dtype) if mapping is WEIGHTED else mapping.parameter.example
        for value, edge in product(values, (math.inf, 0.0, 1.0) if mapping.options else (None,)):
            options = {} if edge is None else {"edge": edge}
            p = mapping.function(x, *([] if value is None else [value]), **options)
            plain = value.double().numpy() if isinstance(value, Tensor) else value
            expected = torch.from_numpy(oracle.apply(mapping.name, x.double().numpy(), plain, **options))
            tolerance = 1e-12 if dtype == torch.float64 else 2e-6
            with case(kind, dtype, value, edge):
                assert_close(p.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@every_mapping
@every_float
def test_sums_to_one_is_between_zero_and_one_and_keeps_dtype(mapping: MappingSpec, dtype: torch.dtype) -> None:
    x = torch.randn(50, 33, generator=torch.Generator().manual_seed(1)).to(dtype) * 3
    p = call(mapping, x, parameter_of(mapping, x))
    assert p.dtype == dtype
    assert (p >= 0).all()
    assert (p <= 1).all()
    # each of 33 entries is rounded once to dtype
    if mapping.sums_to_one:
        assert_close(p.double().sum(-1), torch.ones(50).double(), rtol=0, atol=33 / 2 * torch.finfo(dtype).eps)


@every_mapping
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_float32_rounded_once(mapping: MappingSpec, dtype: torch.dtype) -> None:
    x = torch.randn(20, 17, generator=torch.Generator().manual_seed(2)).to(dtype)
    arguments = parameter_of(mapping, x.float())
    assert torch.equal(call(mapping, x, arguments), call(mapping, x.float(), arguments).to(dtype))


@every_mapping
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_any_dim_is_that_dim_moved_last(mapping: MappingSpec, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    for dim in range(-len(shape), len(shape)):
        arguments = parameter_of(mapping, x, dim)
        last = call(mapping, x.movedim(dim, -1).contiguous(), [a.movedim(dim, -1) for a in arguments])
        assert_close(call(mapping, x, arguments, dim), last.movedim(-1, dim), rtol=0, atol=0)


@every_mapping
def test_odd_shapes_and_strides(mapping: MappingSpec) -> None:
    for shape in [(0, 4), (4, 0), (0,), (3, 1), (), (1, 1, 1)]:
        x = torch.randn(shape)
        p = call(mapping, x, parameter_of(mapping, x))
        assert p.shape == x.shape
        if x.numel() and (not shape or shape[-1] == 1) and mapping.sums_to_one:
            assert_close(p, torch.ones(shape))
    wide = torch.randn(6, 20)
    for x in (wide[:, ::2], wide.t(), wide[::2, 3:], wide[:1].expand(4, 20)):
        arguments = parameter_of(mapping, x)
        assert_close(call(mapping, x, arguments), call(mapping, x.contiguous(), arguments), rtol=0, atol=0)


@every_mapping
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_masked_is_minus_infinity_is_removed(mapping: MappingSpec, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    x = torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 999))))
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    arguments = parameter_of(mapping, x)
    p = call(mapping, x, arguments, mask=keep)
    assert_close(p, call(mapping, x.masked_fill(~keep, -math.inf), arguments), rtol=0, atol=0)
    assert (p[:, ~keep] == 0).all()
    left = [a[:, keep] if mapping is WEIGHTED else a for a in arguments]
    assert_close(p[:, keep], call(mapping, x[:, keep], left), rtol=1e-12, atol=1e-12)


@every_mapping
def test_order_shift_and_sum_hold_where_the_table_says_so(mapping: MappingSpec) -> None:
    x = torch.randn(100, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    arguments = parameter_of(mapping, x)
    p = call(mapping, x, arguments)
    ordered = p.gather(-1, x.argsort(-1))
    assert bool((ordered.diff(dim=-1) >= 0).all()) == mapping.keeps_order
    shifted = call(mapping, x + 7, arguments)
    assert torch.allclose(p, shifted, rtol=1e-9, atol=1e-12) == mapping.shift_invariant
    assert torch.allclose(p.sum(-1), torch.ones(100).double()) == mapping.sums_to_one


@every_mapping
def test_permuting_a_row_permutes_its_probabilities(mapping: MappingSpec) -> None:
    x = torch.randn(20, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    arguments = parameter_of(mapping, x)
    turn = torch.randperm(15, generator=torch.Generator().manual_seed(6))
    turned = call(mapping, x[:, turn], [a[:, turn] if a.shape == x.shape else a for a in arguments])
    assert_close(call(mapping, x, arguments)[:, turn], turned, rtol=1e-12, atol=1e-12)


@every_mapping
def test_a_bad_row_touches_no_other(mapping: MappingSpec) -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(7))
    arguments = parameter_of(mapping, x)
    good = call(mapping, x, arguments)
    x[1, 3], x[3, 0] = math.nan, math.inf
    p = call(mapping, x, arguments)
    assert p[[1, 3]].isnan().all()
    assert_close(p[[0, 2, 4]], good[[0, 2, 4]], rtol=0, atol=0)


@every_mapping
@pytest.mark.parametrize("kind", ["normal", "constant", "two values", "sorted", "heavy tail"])
def test_long_rows(mapping: MappingSpec, kind: str, both_kernels: str) -> None:
    n = 100_000 if both_kernels == "native" else 20_000
    generator = torch.Generator().manual_seed(8)
    x = {
        "normal": torch.randn(n, generator=generator),
        "constant": torch.full((n,), 0.3),
        "two values": torch.randint(0, 2, (n,), generator=generator).float(),
        "sorted": torch.linspace(-5, 5, n),
        "heavy tail": torch.randn(n, generator=generator) / torch.rand(n, generator=generator),
    }[kind][None]
    arguments = example_of(mapping, n)
    values = [a.numpy() if isinstance(a, Tensor) else a for a in arguments]
    p = mapping.function(x, *arguments)
    expected = torch.from_numpy(oracle.apply(mapping.name, x[0].double().numpy(), *values))
    if mapping is WEIGHTED:  # each weight is w e^(x - max), divided by their sum
        relative = UNIT * (4 * (1 + (x[0] - x.max()).abs().double()) + math.sqrt(n))
        Truth(expected, relative * expected).check("p", p[0])
    else:
        check_weights(mapping.name, p, x, *arguments)
    exact = [a.double() if isinstance(a, Tensor) else a for a in arguments]
    assert_close(mapping.function(x.double(), *exact)[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 20, 129, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_rate_k_over_n_gives_k_zeros(n: int, dtype: torch.dtype) -> None:
    x = torch.randperm(n, generator=torch.Generator().manual_seed(n)).to(dtype) / n * 9
    for k in range(n):
        assert (r_softmax(x, k / n) == 0).sum() == k
    assert (r_softmax(x, 1.0) == 0).sum() == n - 1
    if n > 1:  # all at once, one rate for each row
        rates = torch.arange(n, dtype=torch.float64)[:, None] / n
        assert torch.equal((r_softmax(x.expand(n, n), rates) == 0).sum(-1), torch.arange(n))


@pytest.mark.parametrize("k", [1, 7, 49_999, 50_000, 99_998, 99_999])
def test_rate_k_over_n_is_exact_in_long_rows(k: int) -> None:
    x = torch.randperm(100_000, generator=torch.Generator().manual_seed(k)).float() / 25_000
    assert (r_softmax(x, k / 100_000) == 0).sum() == k
    assert (r_softmax(x[None], torch.tensor([[k / 100_000]], dtype=torch.float64)) == 0).sum() == k


@given(row=rows(30), r=st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_zero_count_of_distinct_entries(row: np.ndarray, r: float) -> None:
    x = torch.from_numpy(np.unique(row[np.isfinite(row)]))
    n = len(x)
    if n and x[-1] - x[0] < 600:  # beyond, exp underflows and makes zeros of its own
        expected = 0 if r == 0 else min(math.floor(r * (n - 1)) + 1, n - 1)
        assert (r_softmax(x, r) == 0).sum() == expected


def test_entries_a_rounding_error_apart_are_told_apart() -> None:
    x = 10 + torch.arange(16, dtype=torch.float32) * 2**-20  # neighbours in float32
    for k in range(16):
        assert (r_softmax(x, k / 16) == 0).sum() == k
    denormal = torch.arange(16, dtype=torch.float32) * torch.finfo(torch.float32).smallest_normal / 2**20
    for k in range(16):
        assert (r_softmax(denormal, k / 16) == 0).sum() == k


def test_rate_zero_is_softmax_and_rate_one_is_the_maximum() -> None:
    x = torch.randn(30, 12, generator=torch.Generator().manual_seed(9))
    assert_close(r_softmax(x, 0.0), torch.softmax(x, -1))
    assert_close(r_softmax(x, 1.0), (x == x.amax(-1, keepdim=True)).float(), rtol=0, atol=0)
    mixed = r_softmax(x, torch.tensor([0.0, 1.0] * 15)[:, None])
    assert_close(mixed[::2], torch.softmax(x[::2], -1))
    assert_close(r_softmax(torch.tensor([1.0, 3.0, 3.0]), 1.0), torch.tensor([0.0, 0.5, 0.5]), rtol=0, atol=0)


@pytest.mark.parametrize("r", [0.0, 0.3, 0.5, 1.0])
def test_a_constant_row_is_uniform_at_every_rate(r: float) -> None:
    assert_close(r_softmax(torch.full((6,), 2.5), r), torch.full((6,), 1 / 6))


def test_the_papers_special_cases() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    assert_close(t_softmax(x, math.inf), torch.softmax(x, -1))
    assert_close(t_softmax(x, 1.0), torch.tensor([0.0, 0, 0, 1]).double())  # theorem 1: t = max - second largest
    literal = t_softmax(x, 3.0)  # the formula at r = 0, read literally
    assert_close(literal, torch.tensor([0, 0.035, 0.190, 0.775]).double(), rtol=0, atol=5e-4)
    assert_close(r_softmax(x, 0.4), t_softmax(x, float(x.max() - torch.quantile(x, 0.4))))
    assert_close(rsoftmax.sparsegen_lin(x, 0.0), rsoftmax.sparsemax(x))
    assert_close(rsoftmax.sparsegen_exp(x, float(1 - x.exp().sum())), torch.softmax(x, -1))
    assert_close(rsoftmax.sparsehourglass(x, 1e12), rsoftmax.sparsemax(x))
    assert_close(rsoftmax.sparsehourglass(x, 0.0), rsoftmax.sparsehourglass(5 * x, 0.0))


def test_numbers_at_the_ends_of_the_float_range() -> None:
    x = torch.tensor([1.0, 2.0, 2.0])
    assert_close(t_softmax(x, 1e-50), torch.tensor([0.0, 0.5, 0.5]))
    assert_close(rsoftmax.sparsehourglass(x, 1e300), rsoftmax.sparsemax(x))
    huge = torch.tensor([3e38, 3e38, 0.0])
    assert_close(rsoftmax.sparsehourglass(huge), torch.tensor([0.5, 0.5, 0.0]))
    spread = torch.tensor([3e38, -3e38, 1.0, 2.0])
    assert_close(r_softmax(spread, 0.1), torch.tensor([1.0, 0.0, 0.0, 0.0]))


def test_weights_of_any_scale() -> None:
    weigh = rsoftmax.weighted_softmax
    assert_close(weigh(torch.zeros(3), torch.tensor([1e38, 1e38, 1e38])), torch.full((3,), 1 / 3))
    assert_close(weigh(torch.tensor([-200.0, 0.0]), torch.tensor([1e30, 1e-30])), torch.tensor([0.0, 1.0]))
    mask = torch.tensor([False, True, True])
    for hidden in (1e30, math.nan, -1.0):
        w = torch.tensor([hidden, 1e-30, 1e-30])
        assert_close(weigh(torch.zeros(3), w, mask=mask), torch.tensor([0.0, 0.5, 0.5]))


def parameters_for(mapping: MappingSpec, rows: int) -> list[Tensor]:
    """Parameters for rows of 12 entries that set some of them to zero."""
    low, high = {"t_softmax": (0.5, 3.0), "r_softmax": (0.1, 0.9), "k_softmax": (1.0, 11.0)}[mapping.name]
    return [torch.linspace(low, high, rows, dtype=torch.float64)[:, None]]


@pytest.mark.parametrize("mapping", EDGED, ids=lambda spec: spec.name)
def test_the_edge_changes_weights_and_never_the_support(mapping: MappingSpec) -> None:
    x = torch.randn(40, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(12))
    arguments = parameters_for(mapping, 40)
    found = {edge: mapping.function(x, *arguments, edge=edge) for edge in EDGES}
    for edge, p in found.items():
        with case(edge):
            assert torch.equal(p == 0, found[math.inf] == 0)
            assert_close(p.sum(-1), torch.ones(40, dtype=torch.float64))
    assert_close(found[100.0], found[math.inf])  # an edge beyond the spread is none
    support = found[0.0] != 0
    assert_close(found[0.0], torch.softmax(x.masked_fill(~support, -math.inf), -1))  # edge = 0: softmax of the support
    tiny = mapping.function(x, *arguments, edge=1e-12)
    assert_close(tiny, found[0.0], rtol=1e-6, atol=1e-9)  # and it is the limit
    assert not torch.equal(found[0.5], found[1.0])


def test_the_edge_makes_weights_constant_from_there_on() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    for p in (t_softmax(x, 3.0, edge=1.5), k_softmax(x, 3, edge=1.5), r_softmax(x, 0.25, edge=1.5)):
        weights = p / x.exp()
        assert_close(weights / weights[-1], torch.tensor([0, 0, 1 / 1.5, 1, 1]).double())


def test_without_a_threshold_the_edge_does_not_matter() -> None:
    x = torch.randn(7, 12, generator=torch.Generator().manual_seed(13))
    for edge in EDGES:
        for p in (t_softmax(x, math.inf, edge=edge), r_softmax(x, 0.0, edge=edge), k_softmax(x, 12, edge=edge)):
            with case(edge):
                assert_close(p, torch.softmax(x, -1))


def test_k_softmax_keeps_exactly_k() -> None:
    for n in (1, 2, 3, 10, 129, 1000):
        x = torch.randperm(n, generator=torch.Generator().manual_seed(n)).float() / n * 9
        for k in {1, 2, 3, n // 2 + 1, max(n - 1, 1), n, n + 5}:
            for count in (float(k), max(k - 0.5, 1.0)):
                with case(n, count):
                    assert (k_softmax(x, count) != 0).sum() == min(math.ceil(count), n)
                    each = torch.full((2, 1), count, dtype=torch.float64)
                    assert ((k_softmax(x.expand(2, n), each) != 0).sum(-1) == min(math.ceil(count), n)).all()


def test_k_counts_kept_entries_and_is_r_softmax_of_the_matching_rate() -> None:
    x = torch.randn(9, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(14))
    mask = torch.arange(20) < 11
    for k in (1.0, 4.0, 7.25, 9.5):
        with case(k):
            assert_close(k_softmax(x, k, mask=mask), r_softmax(x, (10 - k) / 10, mask=mask))
    assert_close(k_softmax(x, 11.0, mask=mask), softmax(x, mask=mask))
    assert_close(k_softmax(torch.tensor([1.0, 3.0, 3.0]), 1), torch.tensor([0.0, 0.5, 0.5]))  # ties at the top share
    assert_close(
        k_softmax(torch.tensor([1.0, 2.0, 2.0, 3.0]), 2), torch.tensor([0.0, 0.0, 0.0, 1.0])
    )  # ties go together


def test_softmax_is_torchs() -> None:
    x = torch.randn(40, 31, generator=torch.Generator().manual_seed(10)) * 10
    assert_close(softmax(x), torch.softmax(x, -1))


def test_a_rate_for_each_head_broadcasts() -> None:
    x = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(11))
    rates = torch.tensor([0.0, 0.25, 0.5])[:, None, None]
    p = r_softmax(x, rates)
    for head in range(3):
        assert_close(p[:, head], r_softmax(x[:, head], float(rates[head])), rtol=0, atol=0)


def test_dim_is_positional_as_in_torch_and_mask_is_not() -> None:
    x = torch.randn(3, 5, 4)
    for mapping in FUNCTIONS.values():
        arguments = parameter_of(mapping, x, 1)
        with case(mapping.name):
            assert torch.equal(mapping.function(x, *arguments, 1), mapping.function(x, *arguments, dim=1))
            with pytest.raises(TypeError, match="positional argument"):
                mapping.function(x, *arguments, 1, x > 0)
