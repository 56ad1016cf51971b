"""Attention in compiled graphs: torch's checks, the numbers and the memory of eager code; transforms do without it."""

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from cases import case
from rounding import check_attention
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.testing import assert_close

from rsoftmax import use_kernels
from rsoftmax.attention import blocks, plan, sparse_attention
from rsoftmax.kernels import cpu
from rsoftmax.registry import MAPPINGS

NATIVE = [name for name in MAPPINGS if name in cpu.OPERATIONS]
compiled_kernels = pytest.mark.skipif(not cpu.LEVEL, reason="the kernels were not compiled here")
compiles = pytest.mark.compile


@pytest.fixture(autouse=True)
def reset_dynamo() -> None:
    torch._dynamo.reset()


def given(mapping: str) -> dict[str, Any]:
    parameter = MAPPINGS[mapping].parameter
    return {"mapping": mapping} | ({parameter.name: parameter.example} if parameter else {})


def qkv(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 8, generator=generator).to(dtype) for h, n in ((4, 7), (2, 9), (2, 9)))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def attend(mapping: str, **options: Any) -> Callable[..., Tensor]:
    return lambda q, k, v: sparse_attention(q, k, v, enable_gqa=True, **given(mapping), **options)


def results(f: Callable[..., Tensor], leaves: tuple[Tensor, ...], **others: Tensor) -> list[Tensor]:
    torch.manual_seed(2)
    o = f(*leaves, **others)
    g = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.dtype)
    return [o.detach(), *torch.autograd.grad(o, leaves, g)]


def assert_compiled_is_eager(mapping: str, dtype: torch.dtype, **options: float) -> None:
    torch._dynamo.reset()
    mask = torch.rand(2, 1, 1, 9) < 0.8
    f, leaves = attend(mapping, attn_mask=mask, is_causal=True, **options), qkv(dtype)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for mine, eager in zip(results(compiled, leaves), results(f, leaves), strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine, eager)


def test_a_compiled_graph_gives_the_numbers_of_eager_code() -> None:
    assert_compiled_is_eager("r_softmax", torch.float32, edge=1.0)


@compiles
def test_it_does_for_every_mapping_and_dtype() -> None:
    pairs = [("softmax", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)]
    pairs += zip(MAPPINGS, cycle([torch.bfloat16, torch.float64, torch.float32]), strict=False)
    for mapping, dtype in pairs:
        with case(mapping, dtype):
            assert_compiled_is_eager(mapping, dtype)


@compiles
def test_inductor_gives_them_too_with_a_learnable_rate_and_bias() -> None:
    options: dict[str, Any] = {"attn_mask": torch.randn(4, 7, 9), "r": torch.full((4,), 0.4)}
    check_attention(torch.compile(sparse_attention, fullgraph=True), *qkv(), mapping="r_softmax", **options)


@compiles
def test_dropout_is_drawn_at_each_run_and_is_the_same_in_backward() -> None:
    q, k, _ = qkv()
    v = torch.eye(9).expand(2, 2, 9, 9).clone().requires_grad_()
    compiled = torch.compile(attend("softmax", dropout_p=0.4), fullgraph=True, backend="aot_eager")
    first, second = compiled(q, k, v), compiled(q, k, v)
    assert not torch.equal(first == 0, second == 0)
    (dv,) = torch.autograd.grad(first.sum(), v)
    shared = first.detach().reshape(2, 2, 2, 7, 9)
    assert_close(dv, shared.sum((2, 3))[..., None].expand_as(dv))


@compiles
@compiled_kernels
def test_the_kernels_are_chosen_when_the_graph_runs_and_backward_uses_those_of_forward() -> None:
    leaves = qkv()
    f = attend("r_softmax")
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    check_attention(lambda q, k, v, **_: compiled(q, k, v), *leaves, **given("r_softmax"))
    with use_kernels("reference"):
        expected, o = results(f, leaves), compiled(*leaves)
    g = torch.randn(o.shape, generator=torch.Generator().manual_seed(1))
    for mine, theirs in zip([o, *torch.autograd.grad(o, leaves, g)], expected, strict=True):
        assert torch.equal(mine, theirs)


@compiles
@pytest.mark.parametrize("mapping", ["r_softmax", "sparsehourglass"])
def test_a_graph_never_holds_the_whole_matrix(mapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 100)
    largest = 0

    def look(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        nonlocal largest
        made = (node.meta.get("val") for node in graph.graph.nodes)
        parts = [part for value in made for part in (value if isinstance(value, (tuple, list)) else [value])]
        largest = max([largest, *(part.numel() for part in parts if isinstance(part, Tensor))])
        assert "rsoftmax.attention" in graph.code
        return make_boxed_func(graph.forward)

    q, k, v = (torch.randn(1, 2, 60, 4, requires_grad=True) for _ in range(3))
    backend = aot_autograd(fw_compiler=look, bw_compiler=look)
    torch.compile(attend(mapping), fullgraph=True, backend=backend)(q, k, v).sum().backward()
    assert 0 < largest < 60 * 60


@compiles
@pytest.mark.parametrize("mapping", NATIVE)
def test_opcheck_finds_no_fault(mapping: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, g, n, 8, generator=generator) for g, n in ((3, 5), (1, 6), (1, 6)))
    bias, keep = torch.randn(1, 2, 3, 5, 6), torch.rand(2, 1, 1, 1, 6) < 0.8
    parameter = MAPPINGS[mapping].parameter
    value = torch.full((1, 2, 3, 1, 1), parameter.example) if parameter else None
    options = [0.5] if MAPPINGS[mapping].options else []
    settings = (mapping, None, 0.3, True, 0.0, options, None)
    leaves = [x if x is None else x.requires_grad_() for x in (q, k, v, bias, value)]
    torch.library.opcheck(torch.ops.rsoftmax.attention.default, (*leaves, keep, *settings, True))
    tensors = [x if x is None else x.detach() for x in leaves]
    o, state, plan = torch.ops.rsoftmax.attention(*tensors, keep, *settings, True)
    needed = [x is not None for x in tensors]
    arguments = (torch.randn(o.shape), *tensors, keep, *settings, state, plan, needed)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.rsoftmax.attention_backward.default, arguments, test_utils=tests)


@compiles
def test_sizes_and_rates_may_change_without_a_new_graph() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def f(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        return sparse_attention(q, k, v, r=r)

    compiled, made = torch.compile(f, backend=counter, dynamic=True, fullgraph=True), []
    for queries, keys, rate in ((5, 11, 0.1), (6, 13, 0.5), (7, 20, 0.9)):
        q, k, v, r = torch.randn(2, 3, queries, 8), *torch.randn(2, 2, 3, keys, 8), torch.full((3,), rate)
        assert torch.equal(compiled(q, k, v, r), f(q, k, v, r))
        made.append(counter.frame_count)
    assert made[0] == made[-1]


@compiles
def test_a_removed_key_has_no_influence_in_a_graph() -> None:
    q, k, v = (x.detach() for x in qkv(torch.float64))
    k[..., 5:, :], v[..., 5:, :] = math.nan, math.inf
    f = attend("r_softmax", attn_mask=torch.arange(9) < 5)
    alone = results(attend("r_softmax"), (q.requires_grad_(),), k=k[..., :5, :], v=v[..., :5, :])
    found = results(torch.compile(f, fullgraph=True, backend="aot_eager"), (q,), k=k, v=v)
    assert_close(found, alone)


# --------------------------------------------------------------------------- transforms must not use the operator

TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "func.grad": lambda f, x: torch.func.grad(lambda x: f(x).square().sum())(x),
    "func.vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones(2, 4, 7, 8, dtype=x.dtype)),
    "func.jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),)),
    "func.jacfwd": lambda f, x: torch.func.jacfwd(lambda x: f(x).sum())(x),
    "func.vmap": lambda f, x: torch.func.vmap(lambda x: f(x[None]))(x),
}


@pytest.fixture
def no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*_: Any) -> Tensor:
        raise AssertionError("a transform used the operator")

    monkeypatch.setattr(plan, "graph_output", used)


@compiles
@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_no_transform_uses_the_operator(transform: str) -> None:
    q, k, v = (x.detach() for x in qkv(torch.float64))
    apply = TRANSFORMS[transform]
    for mapping in ("softmax", "r_softmax", "sparsegen_lin"):

        def f(q: Tensor, mapping: str = mapping) -> Tensor:
            return attend(mapping)(q, k[: len(q)], v[: len(q)])

        torch._dynamo.reset()
        with case(mapping):
            assert_close(torch.compile(lambda q, f=f: apply(f, q), backend="eager")(q), apply(f, q))


@compiles
def test_the_forward_derivative_of_a_compiled_function_is_that_of_the_equations() -> None:
    q, k, v = (x.detach() for x in qkv(torch.float64))
    for mapping in ("softmax", "t_softmax", "sparsegen_lin"):
        torch._dynamo.reset()
        f = attend(mapping)
        compiled = torch.compile(f, backend="eager")
        compiled(q, k, v)  # now there is a graph with the operator
        with case(mapping), torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, q.cos())
            mine, eager = (torch.autograd.forward_ad.unpack_dual(g(dual, k, v)).tangent for g in (compiled, f))
            assert mine.abs().sum() > 0
            assert_close(mine, eager)


@compiles
@pytest.mark.usefixtures("no_operator")
def test_exported_programs_do_not_contain_the_operator_and_take_any_length() -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
            return sparse_attention(q, k, v, enable_gqa=True, r=r)

    length = torch.export.Dim("length")
    q, k, v = (x.detach() for x in qkv())
    r = torch.full((4,), 0.3)
    program = torch.export.export(Attend(), (q, k, v, r), dynamic_shapes=(None, {2: length}, {2: length}, None))
    assert "rsoftmax" not in program.graph_module.code
    k, v = (torch.cat([x, x.sin()], 2) for x in (k, v))
    assert_close(program.module()(q, k, v, r + 0.2), sparse_attention(q, k, v, enable_gqa=True, r=r + 0.2))


@compiles
def test_a_rate_outside_its_domain_gives_rows_of_nan() -> None:
    q, k, v = (x.detach() for x in qkv())
    r = torch.tensor([0.5, 1.5, -0.1, math.nan])
    f = lambda q, k, v, r: sparse_attention(q, k, v, enable_gqa=True, r=r)  # noqa: E731
    o = torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v, r)
    assert_close(o[:, 0], sparse_attention(q[:, :1], k[:, :1], v[:, :1], r=0.5)[:, 0])
    assert o[:, 1:].isnan().all()
