"""Attention against torch's own and against one row at a time: blocks, equations, gradients, errors."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import case
from rounding import check_attention
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import rsoftmax
from rsoftmax import MAPPINGS, MappingSpec, kernels, use_kernels
from rsoftmax.attention import blocks as attention_blocks

sparse_attention: Callable[..., Tensor] = rsoftmax.attention.sparse_attention  # called with dictionaries of arguments
attention_weights: Callable[..., Tensor] = rsoftmax.attention.attention_weights
every_mapping = pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
RATE = 0.37  # not a fraction of a short row, so gradients have no kink there
BLOCKS = (attention_blocks.BLOCK, 50, 1)  # one block, several, one for each row


def qkv(
    batch: tuple[int, ...] = (2,), heads: int = 4, shared: int = 1, rows: int = 7, length: int = 9, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as leaves, with ``shared`` query heads for each key head."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, rows, 6), (heads // shared, length, 6), (heads // shared, length, 5))
    q, k, v = (torch.randn(*batch, *s, generator=generator, dtype=torch.float64).to(**options) for s in shapes)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def given(mapping: MappingSpec) -> dict[str, Any]:
    """The arguments that select a mapping, with its example parameter."""
    return {"mapping": mapping.name} | (
        {mapping.parameter.name: mapping.parameter.example} if mapping.parameter else {}
    )


def one_at_a_time(
    mapping: MappingSpec, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, parameter: Tensor | None
) -> Tensor:
    """Each query alone with the keys that it sees; ``bias`` and ``parameter`` fully expanded."""
    rows = []
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        seen = bias[b, h, i] > -math.inf
        shared = h * k.shape[1] // q.shape[1]
        scores = k[b, shared, seen] @ q[b, h, i] / math.sqrt(q.shape[-1]) + bias[b, h, i, seen]
        p = mapping.function(scores, *([] if parameter is None else [parameter[b, h, i]]))
        rows.append(p @ v[b, shared, seen])
    return torch.stack(rows).reshape(*q.shape[:3], -1)


@contextmanager
def block_size(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_blocks, "BLOCK", size)
        yield


def maskings() -> dict[str, tuple[dict[str, Any], Tensor]]:
    """Arguments, and the same as a bias [2, 4, 7, 9]."""
    generator = torch.Generator().manual_seed(1)
    bias = torch.randn(2, 4, 7, 9, generator=generator, dtype=torch.float64)
    keep = torch.rand(2, 4, 7, 9, generator=generator) < 0.6
    padding = torch.arange(9) < torch.tensor([5, 9])[:, None, None, None]
    causal = torch.ones(7, 9, dtype=torch.bool).tril()

    def removed(seen: Tensor) -> Tensor:
        return torch.zeros(2, 4, 7, 9, dtype=torch.float64).masked_fill(~seen, -math.inf)

    biased = bias.masked_fill(~keep, -math.inf)
    return {
        "mask": ({"attn_mask": keep}, removed(keep)),
        "bias": ({"attn_mask": biased}, biased),
        "causal": ({"is_causal": True}, removed(causal)),
        "padding": ({"attn_mask": padding}, removed(padding)),
        "padding and causal": ({"attn_mask": padding, "is_causal": True}, removed(padding & causal)),
        "none": ({}, removed(torch.tensor(True))),
    }


def without_mapping(attend: Callable[..., Tensor], **way: Any) -> Callable[..., Tensor]:
    """A function that is softmax attention in its own way."""
    return lambda *inputs, mapping, **options: attend(*inputs, **options, **way)


def test_softmax_is_torch_attention() -> None:
    softmaxes: list[dict[str, Any]] = [{"mapping": "softmax"}, {"r": 0.0}, {"r": torch.zeros(4)}]
    for i, (masking, (arguments, bias)) in enumerate(maskings().items()):
        for shared in (1, 2, 4):
            way, size = softmaxes[(i + shared) % 3], BLOCKS[i % 3]
            inputs = qkv(shared=shared, dtype=torch.float32)
            with case(masking, shared, way, size), block_size(size):
                check_attention(without_mapping(sparse_attention, **way), *inputs, mapping="softmax", **arguments)
                torchs = without_mapping(F.scaled_dot_product_attention)
                check_attention(torchs, *inputs, mapping="softmax", attn_mask=bias.float())


def test_arguments_have_the_names_the_order_and_the_meaning_of_torch() -> None:
    q, k, v = (x.detach() for x in qkv(shared=2))
    mask = torch.randn(7, 9).double()
    positional = (mask, 0.0, False, 0.3, True)
    ours = sparse_attention(q, k, v, *positional, mapping="softmax")
    assert_close(ours, F.scaled_dot_product_attention(q, k, v, mask, 0.0, False, scale=0.3, enable_gqa=True))
    shapes = [((7, 6), (9, 6)), ((3, 7, 6), (3, 9, 6)), ((2, 4, 7, 6), (1, 4, 9, 6)), ((2, 4, 7, 6), (2, 1, 9, 6)),
              ((4, 7, 6), (2, 4, 9, 6)), ((2, 3, 4, 7, 6), (2, 3, 4, 9, 6))]  # fmt: skip
    for left, right in shapes:
        q, k = torch.randn(left).double(), torch.randn(right).double()
        with case(left, right):
            assert_close(sparse_attention(q, k, k, mapping="softmax"), F.scaled_dot_product_attention(q, k, k))


@every_mapping
def test_it_is_the_mapping_of_each_row_alone(mapping: MappingSpec) -> None:
    inputs = qkv(shared=2)
    value = None
    if mapping.parameter:
        free = torch.randn(2, 4, 7, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        value = mapping.parameter.domain.constrain(free).requires_grad_()
    options: dict[str, Any] = {"mapping": mapping.name, "enable_gqa": True}
    options |= {mapping.parameter.name: value} if mapping.parameter else {}
    for i, (masking, (arguments, bias)) in enumerate(maskings().items()):
        with case(masking, BLOCKS[i % 3]), block_size(BLOCKS[i % 3]):
            ours = sparse_attention(*inputs, **arguments, **options)
            alone = one_at_a_time(mapping, *inputs, bias, value)
            assert_close(ours, alone)
            wanted = inputs if value is None else [*inputs, value]
            found = (torch.autograd.grad(o.sin().sum(), wanted) for o in (ours, alone))
            for mine, expected in zip(*found, strict=True):
                assert_close(mine, expected)
            weights = attention_weights(*inputs[:2], **arguments, **options)
            assert_close(weights @ inputs[2].repeat_interleave(2, 1), ours)


def test_gradients_are_true() -> None:
    inputs = qkv(rows=3, length=5, shared=2)
    bias = torch.randn(4, 3, 5, dtype=torch.float64)
    for i, shape in enumerate([(4,), (4, 1, 1), (2, 1, 1, 1), (2, 1, 3, 1), (1,), ()]):
        r = 0.2 + 0.25 * torch.rand(shape, dtype=torch.float64) ** 2
        wanted = [x.requires_grad_() for x in (*inputs, r, bias)]
        kernels = ("native", "reference")[i % 2]
        with case(shape, kernels), use_kernels(kernels), block_size(BLOCKS[i % 3]):
            assert gradcheck(
                lambda q, k, v, r, bias: sparse_attention(q, k, v, bias, enable_gqa=True, r=r),
                wanted, fast_mode=True, atol=1e-4,
            )  # fmt: skip


@every_mapping
def test_second_derivatives_are_true(mapping: MappingSpec) -> None:
    inputs = qkv((), heads=2, rows=2, length=4)
    call = {"scale": 0.3, **given(mapping)}
    if "r" in call:
        call["r"] = RATE
    assert gradgradcheck(lambda q, k, v: sparse_attention(q, k, v, **call), inputs, fast_mode=True, atol=1e-3)


REMOVALS: dict[str, Callable[[Tensor], dict[str, Any]]] = {
    "mask": lambda keep: {"attn_mask": keep},
    "mask for each batch": lambda keep: {"attn_mask": keep.expand(2, 1, 1, 9)},
    "bias": lambda keep: {"attn_mask": torch.zeros(9).masked_fill(~keep, -math.inf)},
}


def results(inputs: tuple[Tensor, ...], **options: Any) -> list[Tensor]:
    o = sparse_attention(*inputs, **options)
    return [o.detach(), *torch.autograd.grad(o.sin().sum(), inputs)]


def with_more_keys(k: Tensor, v: Tensor, arguments: dict[str, Any]) -> Callable[..., Tensor]:
    """Attention to further keys and values, which the arguments mask."""
    more = k.detach(), v.detach()

    def attend(query: Tensor, /, *keys: Tensor, **_: Any) -> Tensor:
        return sparse_attention(query, *(torch.cat(pair, -2) for pair in zip(keys, more, strict=True)), **arguments)

    return attend


@every_mapping
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["blocks", "kernel"])
def test_a_removed_key_has_no_influence_whatever_it_holds(mapping: MappingSpec, dtype: torch.dtype) -> None:
    q, k, v = qkv(dtype=dtype)
    short = q, k[..., :5, :].detach().clone().requires_grad_(), v[..., :5, :].detach().clone().requires_grad_()
    alone = results(short, **given(mapping))
    keep = torch.arange(9) < 5
    first = list(MAPPINGS).index(mapping.name)  # over all mappings, every pair of a value and a removal
    for i, held in enumerate((1e6, math.nan, math.inf, -math.inf, torch.finfo(dtype).max)):
        with torch.no_grad():
            k[..., 5:, :], v[..., 5:, :] = held, -held
        removal = list(REMOVALS)[(first + i) % len(REMOVALS)]
        arguments = {**REMOVALS[removal](keep), **given(mapping)}
        with case(held, removal), block_size(BLOCKS[i % 3]):
            o, dq, dk, dv = results((q, k, v), **arguments)
            if dtype == torch.float64:
                assert_close([o, dq, dk[..., :5, :], dv[..., :5, :]], alone)
            else:
                check_attention(with_more_keys(k[..., 5:, :], v[..., 5:, :], arguments), *short, **given(mapping))
            assert dk[..., 5:, :].count_nonzero() == dv[..., 5:, :].count_nonzero() == 0
            weights = attention_weights(q, k, **arguments)
            assert weights[..., 5:].count_nonzero() == 0
            assert weights.isfinite().all()


def test_a_removed_key_has_no_influence_in_second_derivatives_transforms_and_with_dropout() -> None:
    q, k, v = qkv()
    short = q.detach(), k.detach()[..., :5, :], v.detach()[..., :5, :]
    with torch.no_grad():
        k[..., 5:, :], v[..., 5:, :] = math.nan, math.inf
    options: dict[str, Any] = {"attn_mask": torch.arange(9) < 5}

    def loss(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return sparse_attention(q, k, v, r=RATE, **options).sin().sum()

    assert_close(vmap(grad(lambda q, k, v: loss(q, k, v, **options)))(q.detach(), k, v), vmap(grad(loss))(*short))
    found = []
    for inputs, more in (((q, k, v), options), (tuple(x.requires_grad_() for x in short), {})):
        (dq,) = torch.autograd.grad(loss(*inputs, **more), inputs[:1], create_graph=True)
        found.append(torch.autograd.grad(dq.square().sum(), inputs[0])[0])
    assert_close(*found)
    assert sparse_attention(q, k, v, **options, r=RATE, dropout_p=0.5).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["blocks", "kernel"])
def test_a_key_that_is_removed_for_some_queries_reaches_only_the_others(dtype: torch.dtype) -> None:
    """Causal: the last key is seen by the last query alone."""
    for mapping, held in product(("softmax", "r_softmax", "sparsemax"), (math.nan, torch.finfo(dtype).max)):
        q, k, v = qkv(rows=9, dtype=dtype)
        with torch.no_grad():
            k[..., -1, :] = v[..., -1, :] = held
        with case(mapping, held):
            o = sparse_attention(q, k, v, is_causal=True, **given(MAPPINGS[mapping]))
            assert o[..., :-1, :].isfinite().all()
            assert not math.isnan(held) or o[..., -1, :].isnan().all()
            (dq,) = torch.autograd.grad(o[..., :-1, :].sum(), q)
            assert dq[..., :-1, :].isfinite().all()


@every_mapping
def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient(mapping: MappingSpec) -> None:
    inputs = qkv()
    keep = torch.ones(7, 9, dtype=torch.bool)
    keep[2] = False
    for i, mask in enumerate((keep, torch.zeros(7, 9).masked_fill(~keep, -math.inf))):
        with case(mask.dtype), block_size(BLOCKS[i]):
            o = sparse_attention(*inputs, mask, **given(mapping))
            assert o[..., 2, :].count_nonzero() == 0
            blind = torch.autograd.grad(o[..., 2, :].sum(), inputs, retain_graph=True)
            assert all(found.count_nonzero() == 0 for found in blind)
            assert all(found.isfinite().all() for found in torch.autograd.grad(o.sum(), inputs))


def test_the_edge_reaches_the_mapping_in_every_path() -> None:
    q, k, v = qkv()
    for mapping, parameter in (("t_softmax", {"t": 1.0}), ("r_softmax", {"r": RATE}), ("k_softmax", {"k": 2.5})):
        for edge in (0.0, 0.4, math.inf):
            options: dict[str, Any] = {"mapping": mapping, "edge": edge, **parameter}
            scores = q @ k.mT / math.sqrt(6)
            p = MAPPINGS[mapping].function(scores, *parameter.values(), edge=edge)
            with case(mapping, edge):
                assert_close(attention_weights(q, k, **options), p)
                expected = torch.autograd.grad((p @ v).sin().sum(), (q, k, v))
                for size in (1 << 18, 20):
                    with block_size(size):
                        o, *gradients = results((q, k, v), **options)
                    assert_close(o, p @ v)
                    assert_close(gradients, [*expected])
                check_attention(sparse_attention, q.float(), k.float(), v.float(), **options)
                vmapped = vmap(lambda q, k, v, o=options: sparse_attention(q, k, v, **o))(q, k, v)
                assert_close(vmapped, p @ v)


def test_each_head_has_its_rate() -> None:
    q, k, v = qkv(heads=4, rows=3, length=8)
    weights = attention_weights(q, k, r=torch.tensor([0.0, 0.25, 0.5, 0.75]))
    assert [(weights[:, h] == 0).sum(-1).unique().tolist() for h in range(4)] == [[0], [2], [4], [6]]
    r = torch.full((4,), RATE, requires_grad=True)
    (found,) = torch.autograd.grad(sparse_attention(q, k, v, r=r)[:, 1].square().sum(), r)
    assert found[1] != 0
    assert found[[0, 2, 3]].count_nonzero() == 0


def test_half_precision_is_computed_in_float32() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        inputs = qkv(dtype=dtype)
        o, weights = sparse_attention(*inputs, r=0.5), attention_weights(*inputs[:2], r=0.5)
        assert o.dtype == weights.dtype == dtype
        q, k, v = (x.float() for x in inputs)
        assert torch.equal(o, sparse_attention(q, k, v, r=0.5).to(dtype))
        assert all(found.dtype == dtype for found in torch.autograd.grad(o.sum(), inputs))


def test_autocast_does_what_it_does_to_torch_attention() -> None:
    inputs = qkv(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        o = sparse_attention(*inputs, r=0.5)
        assert o.dtype == F.scaled_dot_product_attention(*inputs).dtype == torch.bfloat16
        inside = torch.autograd.grad(o.float().sum(), inputs, retain_graph=True)
    for mine, expected in zip(inside, torch.autograd.grad(o.float().sum(), inputs), strict=True):
        assert torch.equal(mine, expected)
    q, k, v = (x.bfloat16() for x in inputs)
    assert torch.equal(o, sparse_attention(q, k, v, r=0.5))


def test_any_number_of_leading_dimensions() -> None:
    q, k, v = qkv((2, 3))
    mask = torch.rand(3, 1, 7, 9) < 0.7
    o = sparse_attention(q, k, v, mask, r=0.4)
    for i in range(2):
        assert_close(o[i], sparse_attention(q[i], k[i], v[i], mask, r=0.4))
        assert_close(o[i, 1], sparse_attention(q[i, 1], k[i, 1], v[i, 1], mask[1], r=0.4))


def test_empty_inputs_give_empty_or_zero_outputs() -> None:
    for shape in ({"rows": 0}, {"length": 0}, {"batch": (0,)}):
        inputs = qkv(**shape)
        with case(shape):
            o = sparse_attention(*inputs, r=torch.full((4,), 0.5, requires_grad=True))
            assert o.count_nonzero() == 0
            assert o.shape == (*inputs[0].shape[:-1], 5)
            assert all(found.count_nonzero() == 0 for found in torch.autograd.grad(o.sum(), inputs))


def test_dropout_is_the_same_in_backward_and_keeps_the_mean() -> None:
    inputs = qkv(heads=2, rows=3, length=5)

    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(3)
        return sparse_attention(q, k, v, r=RATE, dropout_p=0.4)

    for size in BLOCKS:
        with case(size), block_size(size):
            assert gradcheck(dropped, inputs, fast_mode=True)
            assert gradgradcheck(dropped, inputs, fast_mode=True, atol=1e-3)
    q, k, v = (x.detach() for x in inputs)
    many = torch.stack([sparse_attention(q, k, v, r=RATE, dropout_p=0.4) for _ in range(400)])
    assert not torch.equal(many[0], many[1])
    for path in (nullcontext(), use_kernels("reference")):  # heads with the same inputs drop other weights
        with path:
            alike = sparse_attention(*(x[:, :1].expand(-1, 2, -1, -1) for x in (q, k, v)), r=RATE, dropout_p=0.4)
            assert not torch.equal(alike[:, 0], alike[:, 1])
    assert_close(many.mean(0), sparse_attention(q, k, v, r=RATE), rtol=0, atol=0.3)
    assert sparse_attention(q, k, v, r=RATE, dropout_p=1.0).count_nonzero() == 0


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation created."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@every_mapping
def test_the_whole_matrix_is_never_held(mapping: MappingSpec) -> None:
    inputs = qkv(heads=2, rows=200, length=200)
    keep = torch.rand(2, 1, 1, 200) < 0.9
    with threads(1), block_size(1 << 14), Largest() as largest:  # type: ignore[no-untyped-call]
        sparse_attention(*inputs, keep, **given(mapping)).sum().backward()
    assert largest.elements <= 1 << 14 < 2 * 2 * 200 * 200 / 5


def test_works_under_torch_func() -> None:
    q, k, v = qkv()
    for mapping in MAPPINGS.values():

        def loss(q: Tensor, k: Tensor, v: Tensor, mapping: MappingSpec = mapping) -> Tensor:
            return sparse_attention(q, k, v, **given(mapping)).sin().sum()

        with case(mapping.name):
            expected = torch.autograd.grad(loss(q, k, v), q)[0]
            assert_close(vmap(grad(loss))(q.detach(), k, v), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mapping": "softmin"}, ValueError, "mapping must be one of softmax, t_softmax, r_softmax"),
        ({"mapping": "weighted_softmax"}, ValueError, "got 'weighted_softmax'"),
        ({}, TypeError, "r_softmax needs r, e.g. r=0.5; it must be in [0, 1]: it is the fraction of each row"),
        ({"mapping": "t_softmax"}, TypeError, "t_softmax needs t, e.g. t=2.0; it must be > 0: entries at least"),
        ({"r": 0.5, "t": 1.0}, TypeError, "r_softmax takes r and edge, got t=1.0"),
        ({"t": torch.ones(4)}, TypeError, "r_softmax takes r and edge, got t=a tensor of shape (4,)"),
        ({"mapping": "sparsemax", "r": 0.5}, TypeError, "sparsemax takes no parameter, got r=0.5"),
        ({"r": 0.5, "edge": -1.0}, ValueError, "edge must be >= 0, got -1.0; weights grow over this"),
        ({"r": 0.5, "edge": torch.ones(4)}, TypeError, "edge must be a number, got a tensor of shape (4,)"),
        ({"mapping": "softmax", "edge": 1.0}, TypeError, "softmax takes no parameter, got edge=1.0"),
        ({"r": 1.5}, ValueError, "r must be in [0, 1], got 1.5"),
        ({"r": torch.tensor([0.1, 0.2, -0.5, 0.1])}, ValueError, "got -0.5 in a tensor of shape (4,)"),
        (
            {"r": torch.full((12,), 0.1)},
            ValueError,
            "r of shape (12,) is one value for each head, but query has 4 heads;"
            " pass 4 values, or a tensor that broadcasts to (2, 4, 7, 1)",
        ),
        ({"r": torch.full((3, 1), 0.1)}, ValueError, "r of shape (3, 1) does not broadcast to (2, 4, 7, 1)"),
        ({"r": torch.tensor(1)}, TypeError, "r must be floating point, got torch.int64; use r.float()"),
        ({"r": "half"}, TypeError, "r must be a number or a tensor, got 'half'"),
        ({"r": 0.5, "attn_mask": torch.ones(8) > 0}, ValueError, "attn_mask of shape (8,) does not broadcast to"),
        ({"r": 0.5, "attn_mask": torch.ones(9).long()}, TypeError, "attn_mask must be bool, True = keep, or float"),
        ({"r": 0.5, "dropout_p": 1.5}, ValueError, "dropout_p must be in [0, 1], got 1.5"),
        ({"r": 0.5, "dropout_p": "0.1"}, ValueError, "dropout_p must be in [0, 1], got '0.1'"),
        ({"r": 0.5, "is_causal": "no"}, TypeError, "is_causal must be a bool, got 'no'"),
    ],
    ids=str,
)
def test_bad_arguments_raise_an_error_with_a_remedy(arguments: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error) as raised:
        sparse_attention(*qkv(), **arguments)
    assert message in str(raised.value)
    assert str(raised.value).startswith("sparse_attention: ")
    if "dropout_p" not in arguments:
        with pytest.raises(error, match=r"^attention_weights: "):
            attention_weights(*qkv()[:2], **arguments)


def test_shapes_that_do_not_fit_raise_an_error() -> None:
    q, k, v = qkv()
    gqa = "pass enable_gqa=True for fewer key heads than query heads"
    cases: list[tuple[Any, type, str, dict[str, Any]]] = [
        ((q[0, 0, 0], k, v), ValueError, "must be [..., length, features]", {}),
        ((q.expand(2, 4, 7, 6), k.repeat(2, 1, 1, 1)[:3], v), ValueError, "do not broadcast", {}),
        ((q, k, v[..., :3, :]), ValueError, "do not fit; use [..., Q, D]", {}),
        ((q[..., :3], k, v), ValueError, "do not fit", {}),
        ((q, k[:, :2], v[:, :2]), ValueError, gqa, {}),
        ((q, k[:, :3], v[:, :3]), ValueError, "must be a multiple of the number of key", {"enable_gqa": True}),
        ((q, k, v.float()), TypeError, "must have the same dtype, got torch.float64, ", {}),
        ((q.long(), k, v), TypeError, "query must be a floating-point tensor, got torch.int64", {}),
        ((q, k, v.tolist()), TypeError, "value must be a floating-point tensor, got list", {}),
    ]
    for inputs, error, message, options in cases:
        with case(message), pytest.raises(error) as raised:
            sparse_attention(*inputs, r=0.5, **options)
        assert message in str(raised.value)


# --------------------------------------------------------------------------- backward uses the state of forward


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


STATES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], AbstractContextManager[Any]]]] = {
    "more threads": (lambda: threads(1), lambda: threads(4)),
    "fewer threads": (lambda: threads(4), lambda: threads(1)),
    "native, then reference": (lambda: use_kernels("native"), lambda: use_kernels("reference")),
    "reference, then native": (lambda: use_kernels("reference"), lambda: use_kernels("native")),
    "autocast entered": (nullcontext, lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast left": (lambda: torch.autocast("cpu", torch.bfloat16), nullcontext),
    "threads limited from outside": (nullcontext, lambda: threadpool_limits(2 if torch.get_num_threads() == 1 else 1)),
}


@pytest.mark.parametrize("state", STATES)
def test_backward_does_not_depend_on_the_state_of_the_process(state: str) -> None:
    """Scores with many ties: reference and native kernels pass their gradient to different entries."""
    forward, other = STATES[state]
    q, k, v = (x.detach().round().float().requires_grad_() for x in qkv(rows=5))
    r = torch.full((4,), 0.5, requires_grad=True)
    wanted = (q, k, v, r)
    for order in (1, 2):
        found = []
        for backward in (forward, other):
            torch.manual_seed(5)
            with block_size(50), forward():
                o = sparse_attention(q, k, v, r=r, dropout_p=0.4).float()
            with block_size(50), backward():
                gradients = torch.autograd.grad(o.sin().sum(), wanted, create_graph=order == 2)
            if order == 2:
                gradients = torch.autograd.grad([g.square().sum() for g in gradients], wanted)
            found.append(gradients)
        for mine, expected in zip(*found, strict=True):
            with case(f"derivative of order {order}"):
                assert torch.equal(mine, expected)


def test_an_input_changed_in_place_before_backward_raises_an_error() -> None:
    for changed in ("r", "mask", "bias", "key"):
        q, k, v = (x.detach() for x in qkv())
        q.requires_grad_()
        tensors = {
            "r": torch.full((4,), 0.3),
            "mask": torch.ones(7, 9) > 0,
            "bias": torch.zeros(7, 9).double(),
            "key": k,
        }
        o = sparse_attention(q, k, v, tensors["bias" if changed == "bias" else "mask"], r=tensors["r"])
        tensors[changed].zero_()
        with case(changed), pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.sum().backward()


# --------------------------------------------------------------------------- the meta device


OPTIONS: dict[str, dict[str, Any]] = {
    "a rate for each head": {"r": torch.full((4,), 0.5)},
    "dropout": {"r": 0.5, "dropout_p": 0.3},
    "causal": {"r": 0.5, "is_causal": True},
    "mask": {"r": 0.5, "attn_mask": torch.ones(2, 1, 7, 9) > 0},
    "bias": {"r": 0.5, "attn_mask": torch.zeros(7, 9)},
    "all": {"r": torch.full((4,), 0.5), "attn_mask": torch.zeros(7, 9), "dropout_p": 0.3, "is_causal": True},
    **{name: given(row) for name, row in MAPPINGS.items()},
}


def on(device: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: a.to(device) if isinstance(a, Tensor) else a for name, a in arguments.items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_on_the_meta_device_shapes_and_dtypes_are_those_of_the_cpu(options: dict[str, Any]) -> None:
    without_dropout = {name: a for name, a in options.items() if name != "dropout_p"}
    for dtype in (torch.float32, torch.float64, torch.bfloat16) if "r" in options else (torch.float32,):
        found = []
        for device, arguments in (("cpu", {}), ("meta", {}), ("meta", {"on": "meta"})):
            inputs = [x.detach().to(device).requires_grad_() for x in qkv(shared=2, dtype=dtype)]
            moved, rest = ((on("meta", a) if arguments else a) for a in (options, without_dropout))
            o = sparse_attention(*inputs, enable_gqa=True, **moved)
            tensors = [o, attention_weights(*inputs[:2], enable_gqa=True, **rest)]
            tensors += torch.autograd.grad(o.sum(), inputs)
            assert {tensor.device.type for tensor in tensors} == {device}
            found.append([(tensor.shape, tensor.dtype) for tensor in tensors])
        with case(dtype):
            assert found[0] == found[1] == found[2]


def test_autocast_leaves_the_meta_device_alone_as_in_torch_attention() -> None:
    q, k, v = (x.detach().to("meta") for x in qkv(dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse_attention(q, k, v, r=0.5).dtype == F.scaled_dot_product_attention(q, k, v).dtype


def test_a_scale_for_each_head_or_row_multiplies_its_scores() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64)
    for scale in (torch.rand(4), torch.rand(2, 1, 5, 1), torch.tensor(0.3)):
        factor = (scale[:, None, None] if scale.dim() == 1 else scale).double()
        for causal in (False, True):
            ours = sparse_attention(q, k, v, is_causal=causal, scale=scale.double(), mapping="t_softmax", t=1.5)
            assert_close(
                ours, sparse_attention(q * factor, k, v, is_causal=causal, scale=1.0, mapping="t_softmax", t=1.5)
            )
    s = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: sparse_attention(q, k, v, scale=s, r=0.4), (s,))
    with pytest.raises(ValueError, match=r"scale of shape \(3,\) is one value for each head, but query has 4 heads"):
        sparse_attention(q, k, v, scale=torch.rand(3), r=0.4)
    with pytest.raises(TypeError, match=r"scale must be a number or a tensor, got 'log n'; .* log_n_scale=True"):
        sparse_attention(q, k, v, scale="log n", r=0.4)


def test_log_n_counts_the_keys_that_a_query_may_see() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64)
    keep = torch.rand(2, 1, 5, 5) < 0.6
    keep[0, 0, 3] = False  # a query that sees nothing
    bias = torch.zeros(2, 1, 1, 5).masked_fill(torch.tensor([0, 0, 0, 1, 1]).bool(), -math.inf)
    cases = [
        (None, False, torch.full((5, 1), 5.0)),
        (None, True, torch.arange(1.0, 6.0)[:, None]),
        (keep, False, keep.sum(-1, keepdim=True)),
        (keep, True, keep.tril().sum(-1, keepdim=True)),
        (keep[:, :, :1], True, keep[:, :, :1].expand(2, 1, 5, 5).tril().sum(-1, keepdim=True)),
        (keep[..., :1], False, 5 * keep[..., :1].double()),
        (bias.double(), False, torch.tensor(3.0)),
    ]
    for mask, causal, n in cases:
        scaled = q * n.clamp(min=1).log().double()
        for given in ({"mapping": "softmax"}, {"mapping": "k_softmax", "k": 2.0}):
            for scale in (None, 0.7, torch.rand(4).double()):
                options = {"is_causal": causal, "scale": scale, **given}
                ours = sparse_attention(q, k, v, mask, log_n_scale=True, **options)
                assert_close(ours, sparse_attention(scaled, k, v, mask, **options))
                assert_close(attention_weights(q, k, mask, log_n_scale=True, **options) @ v, ours)


def test_the_scale_of_asentmax_is_delta_plus_beta_log_n_to_gamma_for_each_head() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64)
    numbers = torch.rand(3, 4, dtype=torch.float64).requires_grad_()
    log_n = torch.arange(1, 6).clamp(min=2).log().double()[:, None]  # one key has its weight at every scale

    def attend(q: Tensor, *log_n_scale: Any, **options: Any) -> Tensor:
        options |= {"log_n_scale": log_n_scale} if log_n_scale else {}
        return sparse_attention(q, k, v, mapping="entmax15", is_causal=True, **options)

    delta, beta, gamma = numbers[:, :, None, None]
    assert_close(attend(q, *numbers), attend(q * (delta + beta * log_n**gamma)))
    assert_close(attend(q, 0.0, 1.0, 1.0, scale=0.3), attend(q, scale=0.3, log_n_scale=True))
    assert torch.autograd.gradcheck(lambda *numbers: attend(q, *numbers), tuple(numbers.detach().requires_grad_()))
    for wrong in ((1.0, 2.0), 0.5, "log n"):
        with pytest.raises(TypeError, match=r"log_n_scale must be a bool or a triple \(delta, beta, gamma\), got"):
            sparse_attention(q, k, v, log_n_scale=wrong, mapping="softmax")


def test_gradients_without_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.detach().requires_grad_() for x in qkv())
    expected = torch.autograd.grad(sparse_attention(q, k, v, r=0.4).sum(), (q, k, v))
    monkeypatch.setattr(kernels.REGISTRY["cpu"], "available", lambda: False)
    monkeypatch.setattr(kernels, "attention_kernel", lambda: None)
    for create_graph in (False, True):
        o = sparse_attention(q, k, v, r=0.4)
        assert_close(torch.autograd.grad(o.sum(), (q, k, v), create_graph=create_graph), expected)


def test_empty_batches_of_three_dimensions_give_empty_results() -> None:
    q = torch.zeros(0, 5, 8, requires_grad=True)
    o = sparse_attention(q, q, q, mapping="t_softmax", t=2.0)
    assert o.shape == (0, 5, 8)
    o.sum().backward()
