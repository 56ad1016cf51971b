"""Attention, against torch's own and against one row at a time."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from rsoftmax import MAPPINGS, Mapping, sparse_attention, use_kernels
from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.attention import blocks as attention_blocks

every_mapping = pytest.mark.parametrize("mapping", ROW_MAPPINGS.values(), ids=ROW_MAPPINGS)
RATE = 0.37  # no share of a short row, so gradients have no kink there


def qkv(
    batch: tuple[int, ...] = (2,), heads: int = 4, shared: int = 1, rows: int = 7, length: int = 9, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, as leaves; ``shared`` heads of queries for each head of keys."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, rows, 6), (heads // shared, length, 6), (heads // shared, length, 5))
    q, k, v = (torch.randn(*batch, *s, generator=generator, dtype=torch.float64).to(**options) for s in shapes)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def given(mapping: Mapping) -> dict[str, Any]:
    return {mapping.parameter.name: mapping.parameter.example} if mapping.parameter else {}


def one_at_a_time(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, parameter: Tensor | None) -> Tensor:
    """Every query alone with the keys that it sees; ``bias`` and ``parameter`` as large as they get."""
    rows = []
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        seen = bias[b, h, i] > -math.inf
        shared = h * k.shape[1] // q.shape[1]
        scores = k[b, shared, seen] @ q[b, h, i] / math.sqrt(q.shape[-1]) + bias[b, h, i, seen]
        p = mapping.function(scores, *([] if parameter is None else [parameter[b, h, i]]))
        rows.append(p @ v[b, shared, seen])
    return torch.stack(rows).reshape(*q.shape[:3], -1)


@pytest.fixture(params=[attention_blocks.BLOCK, 50, 1], ids=["one block", "blocks", "rows"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_blocks, "BLOCK", request.param)


@pytest.fixture(params=["mask", "bias", "causal", "padding", "both", "none"])
def masking(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Tensor]:
    """Arguments, and the same as a bias [2, 4, 7, 9]."""
    generator = torch.Generator().manual_seed(1)
    bias = torch.randn(2, 4, 7, 9, generator=generator, dtype=torch.float64)
    keep = torch.rand(2, 4, 7, 9, generator=generator) < 0.6
    padding = torch.arange(9) < torch.tensor([5, 9])[:, None, None, None]
    causal = torch.ones(7, 9, dtype=torch.bool).tril()
    arguments: dict[str, dict[str, Any]] = {
        "mask": {"mask": keep},
        "bias": {"mask": bias.masked_fill(~keep, -math.inf)},
        "causal": {"is_causal": True},
        "padding": {"mask": padding},
        "both": {"mask": padding, "is_causal": True},
        "none": {},
    }
    seen = {"mask": keep, "bias": keep, "causal": causal, "padding": padding, "both": padding & causal}
    whole = bias if request.param == "bias" else torch.zeros(2, 4, 7, 9, dtype=torch.float64)
    return arguments[request.param], whole.masked_fill(~seen.get(request.param, torch.tensor(True)), -math.inf)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("way", [{"mapping": "softmax"}, {"r": 0.0}, {"r": torch.zeros(4)}], ids=str)
def test_softmax_is_torch_attention(way: dict[str, Any], shared: int, masking: tuple[dict[str, Any], Tensor]) -> None:
    arguments, bias = masking
    inputs = qkv(shared=shared, dtype=torch.float32)
    arguments = {name: a.float() if name == "mask" and a.is_floating_point() else a for name, a in arguments.items()}
    ours = sparse_attention(*inputs, **way, **arguments)  # type: ignore[call-overload]
    theirs = F.scaled_dot_product_attention(*inputs, attn_mask=bias.float(), enable_gqa=True)
    g = torch.randn_like(ours)
    assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for found, expected in zip(*(torch.autograd.grad(o, inputs, g) for o in (ours, theirs)), strict=True):
        assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("blocks")
@every_mapping
def test_it_is_the_mapping_of_each_row_alone(mapping: Mapping, masking: tuple[dict[str, Any], Tensor]) -> None:
    arguments, bias = masking
    inputs = qkv(shared=2)
    value = None
    if mapping.parameter:
        free = torch.randn(2, 4, 7, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        value = mapping.parameter.domain.constrain(free).requires_grad_()
    parameter: dict[str, Any] = {mapping.parameter.name: value} if mapping.parameter else {}
    ours = sparse_attention(*inputs, mapping.name, **arguments, **parameter)  # type: ignore[call-overload]
    alone = one_at_a_time(mapping, *inputs, bias, value)
    assert_close(ours, alone)
    wanted = inputs if value is None else [*inputs, value]
    for found, expected in zip(*(torch.autograd.grad(o.sin().sum(), wanted) for o in (ours, alone)), strict=True):
        assert_close(found, expected)
    output, weights = sparse_attention(*inputs, mapping.name, **arguments, return_weights=True, **parameter)  # type: ignore[call-overload]
    assert_close(output, ours)
    assert_close(weights @ inputs[2].repeat_interleave(2, 1), ours)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("shape", [(4,), (4, 1, 1), (2, 1, 1, 1), (2, 1, 3, 1), (1,), ()], ids=str)
def test_gradients_are_true(shape: tuple[int, ...], kernels: str) -> None:
    inputs = qkv(rows=3, length=5, shared=2)
    r = 0.2 + 0.25 * torch.rand(shape, dtype=torch.float64) ** 2
    bias = torch.randn(4, 3, 5, dtype=torch.float64)
    wanted = [x.requires_grad_() for x in (*inputs, r, bias)]
    with use_kernels(kernels):
        assert gradcheck(
            lambda q, k, v, r, bias: sparse_attention(q, k, v, r=r, mask=bias), wanted, fast_mode=True, atol=1e-4
        )


@every_mapping
def test_second_derivatives_are_true(mapping: Mapping) -> None:
    inputs = qkv((), heads=2, rows=2, length=4)
    call = {"mapping": mapping.name, "scale": 0.3, **given(mapping)}
    if "r" in call:
        call["r"] = RATE
    assert gradgradcheck(lambda q, k, v: sparse_attention(q, k, v, **call), inputs, fast_mode=True, atol=1e-3)


@pytest.mark.usefixtures("blocks")
@every_mapping
def test_padding_changes_nothing(mapping: Mapping) -> None:
    q, k, v = qkv()
    alone = sparse_attention(q, k[..., :5, :], v[..., :5, :], mapping.name, **given(mapping))
    with torch.no_grad():
        k[..., 5:, :], v[..., 5:, :] = 1e6, -1e6
    keep = torch.arange(9) < 5
    for mask in (keep, keep.expand(2, 1, 1, 9), torch.zeros(9).double().masked_fill(~keep, -math.inf)):
        assert_close(sparse_attention(q, k, v, mapping.name, mask=mask, **given(mapping)), alone)


@pytest.mark.usefixtures("blocks")
@every_mapping
def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient(mapping: Mapping) -> None:
    inputs = qkv()
    keep = torch.ones(7, 9, dtype=torch.bool)
    keep[2] = False
    for mask in (keep, torch.zeros(7, 9).masked_fill(~keep, -math.inf)):
        o = sparse_attention(*inputs, mapping.name, mask=mask, **given(mapping))
        assert o[..., 2, :].count_nonzero() == 0
        blind = torch.autograd.grad(o[..., 2, :].sum(), inputs, retain_graph=True)
        assert all(found.count_nonzero() == 0 for found in blind)
        assert all(found.isfinite().all() for found in torch.autograd.grad(o.sum(), inputs))


def test_each_head_has_its_rate() -> None:
    q, k, v = qkv(heads=4, rows=3, length=8)
    _, weights = sparse_attention(q, k, v, r=torch.tensor([0.0, 0.25, 0.5, 0.75]), return_weights=True)
    assert [(weights[:, h] == 0).sum(-1).unique().tolist() for h in range(4)] == [[0], [2], [4], [6]]
    r = torch.full((4,), RATE, requires_grad=True)
    (found,) = torch.autograd.grad(sparse_attention(q, k, v, r=r)[:, 1].square().sum(), r)
    assert found[1] != 0
    assert found[[0, 2, 3]].count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    inputs = qkv(dtype=dtype)
    o = sparse_attention(*inputs, r=0.5)
    assert o.dtype == dtype
    q, k, v = (x.float() for x in inputs)
    assert_close(o, sparse_attention(q, k, v, r=0.5).to(dtype))
    assert all(found.dtype == dtype for found in torch.autograd.grad(o.sum(), inputs))


def test_autocast_does_what_it_does_to_torch_attention() -> None:
    inputs = qkv(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        o = sparse_attention(*inputs, r=0.5)
        assert o.dtype == F.scaled_dot_product_attention(*inputs).dtype == torch.bfloat16
    o.sum().backward()
    q, k, v = (x.bfloat16() for x in inputs)
    assert_close(o, sparse_attention(q, k, v, r=0.5))


def test_any_number_of_leading_dimensions() -> None:
    q, k, v = qkv((2, 3))
    mask = torch.rand(3, 1, 7, 9) < 0.7
    o = sparse_attention(q, k, v, r=0.4, mask=mask)
    for i in range(2):
        assert_close(o[i], sparse_attention(q[i], k[i], v[i], r=0.4, mask=mask))
        assert_close(o[i, 1], sparse_attention(q[i, 1], k[i, 1], v[i, 1], r=0.4, mask=mask[1]))


@pytest.mark.parametrize("shape", [{"rows": 0}, {"length": 0}, {"batch": (0,)}], ids=str)
def test_nothing_in_nothing_out(shape: dict[str, Any]) -> None:
    inputs = qkv(**shape)
    o = sparse_attention(*inputs, r=torch.full((4,), 0.5, requires_grad=True))
    assert o.count_nonzero() == 0
    assert o.shape == (*inputs[0].shape[:-1], 5)
    assert all(found.count_nonzero() == 0 for found in torch.autograd.grad(o.sum(), inputs))


@pytest.mark.usefixtures("blocks")
def test_dropout_drops_the_same_in_backward_and_leaves_the_mean() -> None:
    inputs = qkv(heads=2, rows=3, length=5)

    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(3)
        return sparse_attention(q, k, v, r=RATE, dropout_p=0.4)

    assert gradcheck(dropped, inputs, fast_mode=True)
    assert gradgradcheck(dropped, inputs, fast_mode=True, atol=1e-3)
    q, k, v = (x.detach() for x in inputs)
    many = torch.stack([sparse_attention(q, k, v, r=RATE, dropout_p=0.4) for _ in range(400)])
    assert not torch.equal(many[0], many[1])
    assert_close(many.mean(0), sparse_attention(q, k, v, r=RATE), rtol=0, atol=0.3)
    assert sparse_attention(q, k, v, r=RATE, dropout_p=1.0).count_nonzero() == 0


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@every_mapping
def test_the_whole_matrix_is_never_held(mapping: Mapping) -> None:
    inputs = qkv(heads=2, rows=700, length=700)
    keep = torch.rand(2, 1, 1, 700) < 0.9
    with Largest() as largest:  # type: ignore[no-untyped-call]
        o = sparse_attention(*inputs, mapping.name, mask=keep, **given(mapping))
        o.sum().backward()
    assert largest.elements <= attention_blocks.BLOCK < 2 * 2 * 700 * 700 / 5


@pytest.fixture
def forget_what_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("forget_what_was_compiled")
@pytest.mark.parametrize("is_causal", [False, True])
def test_compiles_once_for_all_rates(is_causal: bool) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    inputs = qkv(shared=2)
    mask = torch.rand(2, 1, 1, 9) < 0.8

    def attend(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        return sparse_attention(q, k, v, r=r, mask=mask, is_causal=is_causal)

    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for rate in (0.0, 0.1, 0.3, 0.8):
        r = torch.full((4,), rate, dtype=torch.float64)
        found, expected = compiled(*inputs, r), attend(*inputs, r)
        assert_close(found, expected)
        for mine, theirs in zip(*(torch.autograd.grad(o.sum(), inputs) for o in (found, expected)), strict=True):
            assert_close(mine, theirs)
    assert counter.frame_count == 1


def test_exports_with_the_rate_as_an_input_and_any_length() -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
            return sparse_attention(q, k, v, r=r)

    length = torch.export.Dim("length")
    q, k, v = qkv()
    r = torch.full((4,), 0.3)
    sizes = (None, {2: length}, {2: length}, None)
    program = torch.export.export(Attend(), (q, k, v, r), dynamic_shapes=sizes)
    q, k, v = qkv(length=13)
    assert_close(program.module()(q, k, v, r + 0.2), sparse_attention(q, k, v, r=r + 0.2))


@every_mapping
def test_works_under_torch_func(mapping: Mapping) -> None:
    q, k, v = qkv()

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = sparse_attention(q, k, v, mapping.name, **given(mapping))
        return o.sin().sum()

    expected = torch.autograd.grad(loss(q, k, v), q)[0]
    assert_close(vmap(grad(loss))(q.detach(), k, v), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mapping": "softmin"}, ValueError, "mapping must be one of softmax, t_softmax, r_softmax"),
        ({"mapping": "weighted_softmax"}, ValueError, "got 'weighted_softmax'"),
        (
            {},
            TypeError,
            "r_softmax needs r, say r=0.5; it must be in [0, 1]: it is the share of each row",
        ),
        (
            {"mapping": "t_softmax"},
            TypeError,
            "t_softmax needs t, say t=2.0; it must be > 0: entries at least",
        ),
        ({"r": 0.5, "t": 1.0}, TypeError, "r_softmax takes r, got t=1.0"),
        ({"t": torch.ones(4)}, TypeError, "r_softmax takes r, got t=a tensor of shape (4,)"),
        ({"mapping": "sparsemax", "r": 0.5}, TypeError, "sparsemax takes no parameter, got r=0.5"),
        ({"r": 1.5}, ValueError, "r must be in [0, 1], got 1.5"),
        ({"r": torch.tensor([0.1, 0.2, -0.5, 0.1])}, ValueError, "got -0.5 in a tensor of shape (4,)"),
        ({"r": torch.tensor([0.1, 0.2, 0.3])}, ValueError, "r of shape (3,) does not broadcast to (2, 4, 7, 1)"),
        ({"r": torch.tensor(1)}, TypeError, "r must be floating point, got torch.int64; use r.float()"),
        ({"r": "half"}, TypeError, "r must be a number or a tensor, got 'half'"),
        ({"r": 0.5, "mask": torch.ones(8) > 0}, ValueError, "mask of shape (8,) does not broadcast to (2, 4, 7, 9)"),
        ({"r": 0.5, "mask": torch.ones(9, dtype=torch.int64)}, TypeError, "mask must be bool, True = keep, or float"),
        ({"r": 0.5, "dropout_p": 1.5}, ValueError, "dropout_p must be in [0, 1], got 1.5"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_with_a_remedy(arguments: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error) as raised:
        sparse_attention(*qkv(), **arguments)
    assert message in str(raised.value)
    assert str(raised.value).startswith("sparse_attention: ")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda q, k, v: (q[0, 0], k[0, 0], v[0, 0]), ValueError, "must be [..., heads, length, features]"),
        (lambda q, k, v: (q, k[:1], v[:1]), ValueError, "key (1, 4, 9, 6), value (1, 4, 9, 5) do not fit"),
        (lambda q, k, v: (q, k, v[..., :3, :]), ValueError, "do not fit"),
        (lambda q, k, v: (q[..., :3], k, v), ValueError, "do not fit"),
        (lambda q, k, v: (q, k[:, :3], v[:, :3]), ValueError, "must be a multiple of those of key"),
        (lambda q, k, v: (q, k, v.float()), TypeError, "must have one dtype, got torch.float64, "),
        (lambda q, k, v: (q.long(), k, v), TypeError, "query must be a tensor of floats, got torch.int64"),
        (lambda q, k, v: (q, k, v.tolist()), TypeError, "value must be a tensor of floats, got list"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(change: Any, error: type, message: str) -> None:
    q, k, v = change(*qkv())
    with pytest.raises(error) as raised:
        sparse_attention(q, k, v, r=0.5)
    assert message in str(raised.value)


def test_every_mapping_but_the_weighted_one_is_offered() -> None:
    assert set(MAPPINGS) - set(ROW_MAPPINGS) == {"weighted_softmax"}


def test_backward_within_autocast() -> None:
    x = torch.randn(1, 2, 5, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(sparse_attention(query=x, key=x, value=x, r=0.4).float().sum(), x)
        o = sparse_attention(x, x, x, r=0.4)
    assert_close(inside, torch.autograd.grad(o.float().sum(), x))


# ------------------------------------------------------------------------------------- backward sees what forward saw


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


@pytest.mark.parametrize("twice", [False, True], ids=["first derivative", "second derivative"])
@pytest.mark.parametrize("state", STATES)
def test_the_state_of_the_process_in_backward_is_that_of_forward(
    state: str, twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores with many ties: reference and native kernels pass the gradient of these on to different entries."""
    monkeypatch.setattr(attention_blocks, "BLOCK", 50)
    forward, other = STATES[state]
    q, k, v = (x.detach().round().float().requires_grad_() for x in qkv(rows=5))
    r = torch.full((4,), 0.5, requires_grad=True)
    wanted, found = (q, k, v, r), []
    for backward in (forward, other):
        torch.manual_seed(5)
        with forward():
            o = sparse_attention(q, k, v, r=r, dropout_p=0.4).float()
        with backward():
            gradients = torch.autograd.grad(o.sin().sum(), wanted, create_graph=twice)
        if twice:
            gradients = torch.autograd.grad([g.square().sum() for g in gradients], wanted)
        found.append(gradients)
    for mine, expected in zip(*found, strict=True):
        assert_close(mine, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changed", ["r", "mask", "bias", "key"])
def test_an_input_that_is_changed_in_place_before_backward_is_an_error(changed: str) -> None:
    q, k, v = (x.detach() for x in qkv())
    q.requires_grad_()
    tensors = {"r": torch.full((4,), 0.3), "mask": torch.ones(7, 9) > 0, "bias": torch.zeros(7, 9).double(), "key": k}
    mask = tensors["bias"] if changed == "bias" else tensors["mask"]
    o = sparse_attention(q, k, v, r=tensors["r"], mask=mask)
    tensors[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


# ------------------------------------------------------------------------------------------------- the meta device


OPTIONS: dict[str, dict[str, Any]] = {
    "a rate for each head": {"r": torch.full((4,), 0.5)},
    "dropout": {"r": 0.5, "dropout_p": 0.3},
    "causal": {"r": 0.5, "is_causal": True},
    "mask": {"r": 0.5, "mask": torch.ones(2, 1, 7, 9) > 0},
    "bias": {"r": 0.5, "mask": torch.zeros(7, 9)},
    "all": {"r": torch.full((4,), 0.5), "mask": torch.zeros(7, 9), "dropout_p": 0.3, "is_causal": True},
    **{name: {"mapping": name, **given(row)} for name, row in ROW_MAPPINGS.items()},
}


def on(device: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: a.to(device) if isinstance(a, Tensor) else a for name, a in arguments.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("return_weights", [False, True], ids=["output", "weights too"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_on_the_meta_device_shapes_and_dtypes_are_those_of_the_cpu(
    options: dict[str, Any], return_weights: bool, dtype: torch.dtype
) -> None:
    found = []
    for device, given in (("cpu", options), ("meta", options), ("meta", on("meta", options))):
        inputs = [x.detach().to(device).requires_grad_() for x in qkv(shared=2, dtype=dtype)]
        results = sparse_attention(*inputs, return_weights=return_weights, **given)  # type: ignore[call-overload]
        tensors = [*results] if return_weights else [results]
        tensors += torch.autograd.grad(tensors[0].sum(), inputs)
        assert {tensor.device.type for tensor in tensors} == {device}
        found.append([(tensor.shape, tensor.dtype) for tensor in tensors])
    assert found[0] == found[1] == found[2]


def test_autocast_leaves_the_meta_device_alone_as_in_torch_attention() -> None:
    q, k, v = (x.detach().to("meta") for x in qkv(dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse_attention(q, k, v, r=0.5).dtype == F.scaled_dot_product_attention(q, k, v).dtype
