"""The native kernel of attention: numbers, zeros and gradients by float64; threads, memory layouts."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import case
from rounding import check_attention, check_weights
from test_attention import threads
from torch import Tensor

import rsoftmax
from rsoftmax import MAPPINGS, kernels
from rsoftmax.attention import plan
from rsoftmax.kernels import cpu
from rsoftmax.kernels.attention_args import AttentionArgs

sparse_attention: Callable[..., Tensor] = rsoftmax.attention.sparse_attention  # called with dictionaries of arguments
pytestmark = pytest.mark.skipif(not cpu.LEVEL, reason="the kernels were not compiled here")
NATIVE = [name for name in MAPPINGS if name in cpu.OPERATIONS]
EXAMPLES: dict[str, dict[str, Any]] = {
    "t_softmax": {"t": 2.0},
    "r_softmax": {"r": 0.7},
    "k_softmax": {"k": 9.0},
    "entmax": {"alpha": 1.3},
}
every_mapping = pytest.mark.parametrize("mapping", NATIVE)
SIZES = [  # batch, heads, shared, queries, keys, width, width of values
    (2, 2, 1, 50, 70, 64, 64),
    (1, 1, 3, 30, 130, 33, 5),
    (2, 1, 2, 1, 300, 80, 24),
    (1, 2, 1, 1, 77, 33, 5),
    (1, 2, 1, 5, 75, 20, 16),
    (1, 2, 1, 26, 17, 8, 40),
    (1, 1, 1, 1, 1, 1, 1),
]


@pytest.fixture(autouse=True)
def the_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Every test here has at least one call that the kernel takes."""
    taken: list[bool] = []
    original = plan.plan

    def watched(args: AttentionArgs) -> plan.Plan:
        found = original(args)
        taken.append(found.fused)
        return found

    monkeypatch.setattr(plan, "plan", watched)
    yield taken
    assert any(taken)


@contextmanager
def without_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "attention_kernel", lambda: None)
        yield


def qkv(size: tuple[int, ...] = SIZES[0], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    batch, heads, shared, queries, keys, width, values = size
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads * shared, queries, width), (heads, keys, width), (heads, keys, values))
    return [torch.randn(batch, *shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def whole_numbers(*shape: int) -> Tensor:
    """Scores of these are exact in float32, and often tied."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


def results(leaves: list[Tensor], *arguments: Any, **options: Any) -> list[Tensor]:
    torch.manual_seed(3)
    o = sparse_attention(*arguments, enable_gqa=True, **options)
    g = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.dtype)
    return [o.detach(), *torch.autograd.grad(o, leaves, g)]


def seeded_attention(q: Tensor, k: Tensor, v: Tensor, /, **options: Any) -> Tensor:
    """The same weights are dropped in every call."""
    torch.manual_seed(3)
    return sparse_attention(q, k, v, **options)


def dropout_factors(q: Tensor, k: Tensor, dropout_p: float) -> Tensor:
    """Those of the blocks, seen in weights that are all equal."""
    keys = k.shape[-2]
    with without_kernel():
        p = seeded_attention(0 * q, 0 * k, torch.eye(keys).expand(*k.shape[:-1], keys), enable_gqa=True,
                             mapping="softmax", dropout_p=dropout_p)  # fmt: skip
    dropped = round(dropout_p * 65536)
    return (p != 0) * (65536 / max(65536 - dropped, 1))


def check(q: Tensor, k: Tensor, v: Tensor, /, **options: Any) -> None:
    factors = dropout_factors(q, k, options["dropout_p"]) if "dropout_p" in options else None
    check_attention(seeded_attention, q, k, v, factors=factors, **options)


def masks(size: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    batch, heads, shared, queries, keys, *_ = size
    generator = torch.Generator().manual_seed(2)
    keep = torch.rand(batch, heads * shared, queries, keys, generator=generator) < 0.7
    bias = torch.randn(heads * shared, queries, keys, generator=generator)
    query, key = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)  # the last query sees all keys
    part = torch.arange(1, batch + 1)[:, None, None, None]  # another mask for each batch element
    return {
        "none": {},
        "left padding": {"attn_mask": (key <= query) & (key >= 3 * part)},
        "right padding": {"attn_mask": (key <= query) & (key < keys - 3 * part)},
        "window": {"attn_mask": (key <= query) & (key > query - 8 * part)},
        "packed": {"attn_mask": (key <= query) & (key // (9 * part) == query // (9 * part))},
        "packed for all": {"attn_mask": (key // 20 == query // 20), "is_causal": True},
        "holes": {"attn_mask": ((key <= query) & (key % 5 > 0))[None, None]},
        "causal": {"is_causal": True},
        "attn_mask": {"attn_mask": keep},
        "mask for all keys": {"attn_mask": keep[..., :1]},
        "strided mask": {"attn_mask": keep.mT.contiguous().mT},
        "padding": {"attn_mask": (torch.arange(keys) < max(1, keys // 2))[None, None, None], "is_causal": True},
        "bias": {"attn_mask": bias.masked_fill(~keep[0], -math.inf)},
        "bias for all queries": {"attn_mask": bias[:1, :1]},
        "bias for all keys": {"attn_mask": bias[..., :1]},
        "bias and dropout": {"attn_mask": bias, "dropout_p": 0.3},
        "dropout": {"dropout_p": 0.1},
        "all dropped": {"dropout_p": 1.0},
    }


@every_mapping
def test_numbers_and_gradients_are_those_of_float64(mapping: str) -> None:
    for size in SIZES:
        for masking, options in masks(size).items():
            with case(size, masking):
                check(*qkv(size), mapping=mapping, **options, **EXAMPLES.get(mapping, {}))


def test_the_kernel_drops_the_same_weights_as_the_blocks() -> None:
    """Half a million weights, so that one draw of 65,536 that is read otherwise would show."""
    check(*qkv((1, 6, 1, 300, 300, 16, 16)), mapping="softmax", dropout_p=0.5)


@pytest.mark.parametrize(
    ("mapping", "letter"), [("r_softmax", "r"), ("t_softmax", "t"), ("k_softmax", "k"), ("entmax", "alpha")]
)
def test_a_parameter_of_any_shape_has_the_gradient_of_float64(mapping: str, letter: str) -> None:
    for shape in [(2,), (2, 1, 1), (2, 1, 1, 1), (2, 2, 50, 1), (1, 50, 1), ()]:
        value = 0.05 + 0.9 * torch.rand(shape, generator=torch.Generator().manual_seed(4))
        value = value * 60 + 1 if letter == "k" else 2 * value + 1 if letter == "alpha" else value
        with case(shape):
            check(*qkv(), mapping=mapping, **{letter: value})


@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.25, 1.5, 1.75, 2.0, 3.0])
def test_entmax_has_the_gradients_of_float64_for_every_alpha(alpha: float) -> None:
    for i, size in enumerate(SIZES):
        with case(size):
            alphas = torch.full((size[1] * size[2],), alpha)
            check(*qkv(size), mapping="entmax", alpha=alphas, is_causal=i % 2 == 1)


@pytest.mark.parametrize("mapping", [name for name in EXAMPLES if MAPPINGS[name].options])
def test_an_edge_has_the_numbers_and_gradients_of_float64(mapping: str) -> None:
    letter, number = next(iter(EXAMPLES[mapping].items()))
    for i, size in enumerate(SIZES):
        edge = (0.0, 0.25, 1.0, 8.0)[i % 4]
        with case(size, edge):
            options = {"is_causal": i % 2 == 1, "edge": edge, letter: torch.full((size[1] * size[2],), number)}
            check(*qkv(size), mapping=mapping, **options)


@pytest.mark.parametrize("edge", [1e-42, 1e-30, 1e30])
@pytest.mark.parametrize("mapping", [name for name in EXAMPLES if MAPPINGS[name].options])
def test_tiny_and_huge_edges_and_widths_lose_nothing(mapping: str, edge: float) -> None:
    """Weights that underflow or overflow before they are divided."""
    letter, number = next(iter(EXAMPLES[mapping].items()))
    for value in (1e-30, 1e30) if mapping == "t_softmax" else (number, number / 3):
        with case(value):
            check(*qkv(), mapping=mapping, edge=edge, **{letter: torch.full((2,), value)})


@every_mapping
def test_half_precision(mapping: str) -> None:
    for i, size in enumerate(SIZES):
        with case(size):
            check(*qkv(size, (torch.float16, torch.bfloat16)[i % 2]), mapping=mapping, **EXAMPLES.get(mapping, {}))


@every_mapping
def test_zeros_are_those_of_the_mapping_on_the_same_scores(mapping: str) -> None:
    """Values that are unit vectors show the weights; scores of whole numbers are exact, and full of ties."""
    for keys in (1, 2, 7, 33, 200):
        q, k = whole_numbers(1, 2, 40, 6), whole_numbers(1, 2, keys, 6)
        for i, r in enumerate((0.0, 0.3, 0.5, 0.9, 1.0) if mapping in EXAMPLES else (0.0,)):
            values = {"r_softmax": {"r": r}, "t_softmax": {"t": 4 * r + 0.5}, "k_softmax": {"k": 1 + keys * r}}
            given: dict[str, float] = (values | {"entmax": {"alpha": 1 + 2 * r}}).get(mapping, {})
            if MAPPINGS[mapping].options:
                given["edge"] = (math.inf, 0.0, 1.0)[i % 3]
            with case(keys, given):
                v = torch.eye(keys).expand(1, 2, -1, -1)
                p = sparse_attention(q, k, v, mapping=mapping, scale=0.25, **given)
                expected = MAPPINGS[mapping].function(0.25 * q @ k.mT, **given)
                assert torch.equal(p == 0, expected == 0)
                check(q, k, v, mapping=mapping, scale=0.25, exact_scores=True, **given)


@every_mapping
def test_gradients_with_ties_are_those_of_float64_and_of_the_reference(mapping: str) -> None:
    """Of entries tied at the threshold the kernel chooses the same ones for its gradient."""
    leaves = [x.requires_grad_() for x in (whole_numbers(1, 2, 40, 6), whole_numbers(1, 2, 30, 6))]
    leaves.append(torch.randn(1, 2, 30, 8, requires_grad=True))
    options = {"mapping": mapping, "scale": 0.25, **EXAMPLES.get(mapping, {})}
    check(*leaves, exact_scores=True, **options)
    check(*leaves, exact_scores=True, ties=True, **options)


@every_mapping
def test_a_bad_query_spoils_its_own_row_and_every_gradient_of_its_head(mapping: str) -> None:
    leaves = qkv()
    with torch.no_grad():
        leaves[0][0, 0, 3, 5] = math.nan
        leaves[0][0, 0, 7, 5] = math.inf
    mine = results(leaves, *leaves, mapping=mapping, **EXAMPLES.get(mapping, {}))
    with without_kernel():
        theirs = results(leaves, *leaves, mapping=mapping, **EXAMPLES.get(mapping, {}))
    assert mine[0][0, 0, [3, 7]].isnan().all()
    for found, expected in zip(mine, theirs, strict=True):
        assert torch.equal(found.isnan(), expected.isnan())


@every_mapping
def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient(mapping: str) -> None:
    leaves = q, k, v = qkv()
    keep = torch.rand(50, 70) < 0.8
    keep[3], keep[40] = False, False
    o = sparse_attention(q, k, v, mapping=mapping, attn_mask=keep, **EXAMPLES.get(mapping, {}))
    assert o[..., [3, 40], :].count_nonzero() == 0
    blind = torch.autograd.grad(o[..., [3, 40], :].sum(), leaves, retain_graph=True)
    assert all(found.count_nonzero() == 0 for found in blind)
    assert all(found.isfinite().all() for found in torch.autograd.grad(o.sum(), leaves))


@every_mapping
def test_the_number_of_threads_changes_no_bit(mapping: str) -> None:
    every: list[dict[str, Any]] = [{}, {"is_causal": True}, {"dropout_p": 0.3}]
    options = every[NATIVE.index(mapping) % 3] | EXAMPLES.get(mapping, {})
    leaves = qkv((3, 2, 2, 260, 70, 16, 16))
    bias = torch.randn(1, 4, 260, 70, requires_grad=True)
    window = (torch.arange(70) - torch.arange(260)[:, None] % 70).abs() < torch.tensor([9, 20, 70])[:, None, None, None]
    for mask in (bias, window):
        wanted = [*leaves, bias] if mask is bias else leaves
        found = []
        for count in (1, 2, 4, 4):
            with threads(count):
                found.append(results(wanted, *leaves, mapping=mapping, attn_mask=mask, **options))
        for others in found[1:]:
            assert all(torch.equal(mine, first) for mine, first in zip(others, found[0], strict=True))


@every_mapping
def test_no_bit_depends_on_threads_or_on_the_heads_and_calls_before(mapping: str) -> None:
    """Whether a product is dense or sparse follows from its block alone, also where scores tie at the threshold."""
    spread = torch.tensor([0.125, 0.25, 1.0, 4.0])[:, None, None]
    q, k = spread * whole_numbers(1, 4, 260, 6), whole_numbers(1, 4, 150, 6)
    v = torch.randn(1, 4, 150, 16)
    values = {"t": (1, 2, 4, 8), "r": (0.15, 0.4, 0.6, 0.9), "k": (5, 60, 90, 140), "alpha": (1, 1.3, 1.5, 2)}

    def attend(heads: list[int]) -> Tensor:
        given = {letter: torch.tensor(values[letter]).float()[heads] for letter in EXAMPLES.get(mapping, {})}
        return sparse_attention(q[:, heads], k[:, heads], v[:, heads], mapping=mapping, scale=0.25, **given)

    first = attend([0, 1, 2, 3])
    for heads in ([0, 1, 2, 3], [3, 2, 1, 0], [2], [1, 3]):
        for count in (1, 2, 3):
            with case(heads, count), threads(count):
                assert torch.equal(attend(heads), first[:, heads])


def test_softmax_is_torch_attention() -> None:
    softmaxes: list[dict[str, Any]] = [{"mapping": "softmax"}, {"r": 0.0}, {"mapping": "t_softmax", "t": math.inf}]
    inputs = qkv((2, 3, 1, 70, 70, 64, 64))
    for i, way in enumerate(softmaxes):
        with case(way):
            ours = partial(sparse_attention, **way)
            for attend in (ours, F.scaled_dot_product_attention):

                def call(q: Tensor, k: Tensor, v: Tensor, attend: Any = attend, **options: Any) -> Tensor:
                    del options["mapping"]
                    return attend(q, k, v, **options)  # type: ignore[no-any-return]

                check_attention(call, *inputs, mapping="softmax", is_causal=i % 2 == 1)


def test_keys_may_lie_in_memory_as_they_come() -> None:
    size = (2, 2, 2, 30, 40, 16, 8)
    for leaves in ([x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in qkv(size)],
                   [x.detach().mT.contiguous().mT for x in qkv(size)],
                   [x.detach().repeat_interleave(2, -1)[..., ::2] for x in qkv(size)]):  # fmt: skip
        check(*leaves, mapping="r_softmax", r=0.6)


def test_a_wrong_hint_of_the_quantile_changes_nothing() -> None:
    """Rows whose quantiles jump about, among them constant rows, masked rows and rows of two values."""
    for length, r in ((65, 0.1), (65, 0.9), (128, 0.5), (700, 0.1), (700, 0.999), (5000, 0.5), (5000, 0.9)):
        generator = torch.Generator().manual_seed(length)
        scores = torch.randn(1, 1, 30, length, generator=generator)
        scores *= torch.tensor([1e-3, 1.0, 30.0]).repeat(10)[:, None]
        scores[..., 3, :], scores[..., 11, :] = 1.0, scores[..., 11, :].sign()
        scores[..., 5, 1:] = -math.inf
        scores[..., 17, ::2] = -math.inf
        zero = torch.zeros(1, 1, 30, 1), torch.zeros(1, 1, length, 1)
        with case(length, r):
            p = sparse_attention(*zero, torch.eye(length)[None, None], scores, r=r)
            expected = MAPPINGS["r_softmax"].function(scores, r)
            assert torch.equal(p == 0, expected == 0)
            check_weights("r_softmax", p, scores, r)


def test_calls_that_the_kernel_does_not_take_go_block_by_block(the_kernel_runs: list[bool]) -> None:
    q, k, v = (x.detach() for x in qkv())
    sparse_attention(q, k, v, r=0.5)
    sparse_attention(q.double(), k.double(), v.double(), r=0.5)
    sparse_attention(q, k, v, mapping="sparsehourglass")
    sparse_attention(q[..., :0, :], k, v, r=0.5)
    assert the_kernel_runs == [True, False, False, False]
