"""Attention in compiled graphs: torch's checks, the numbers of eager code, its memory, and what must never meet it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.testing import assert_close

from rsoftmax import sparse_attention, use_kernels
from rsoftmax.attention import ROW_MAPPINGS, blocks, operator
from rsoftmax.kernels import cpu

NATIVE = [name for name in ROW_MAPPINGS if cpu.ATTENDS.get(name)]
every_mapping = pytest.mark.parametrize("mapping", ROW_MAPPINGS)
compiled_kernels = pytest.mark.skipif(not cpu.LEVEL, reason="the kernels were not compiled here")


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    torch._dynamo.reset()


def given(mapping: str) -> dict[str, Any]:
    parameter = ROW_MAPPINGS[mapping].parameter
    return {parameter.name: parameter.example} if parameter else {}


def qkv(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 8, generator=generator).to(dtype) for h, n in ((4, 7), (2, 9), (2, 9)))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def attend(mapping: str, **options: Any) -> Callable[..., Tensor]:
    return lambda q, k, v: sparse_attention(q, k, v, mapping, **{**given(mapping), **options})


def results(f: Callable[..., Tensor], leaves: tuple[Tensor, ...]) -> list[Tensor]:
    torch.manual_seed(2)
    o = f(*leaves)
    g = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.dtype)
    return [o.detach(), *torch.autograd.grad(o, leaves, g)]


@every_mapping
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_compiled_graph_gives_the_numbers_of_eager_code(mapping: str, dtype: torch.dtype) -> None:
    f, leaves = attend(mapping, mask=torch.rand(2, 1, 1, 9) < 0.8, is_causal=True), qkv(dtype)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for mine, eager in zip(results(compiled, leaves), results(f, leaves), strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine, eager)


def test_inductor_gives_them_too_with_a_learned_rate_and_a_learned_bias() -> None:
    leaves = (*qkv(), torch.full((4,), 0.4, requires_grad=True), torch.randn(4, 7, 9, requires_grad=True))

    def f(q: Tensor, k: Tensor, v: Tensor, r: Tensor, bias: Tensor) -> Tensor:
        return sparse_attention(q, k, v, r=r, mask=bias)

    compiled = torch.compile(f, fullgraph=True)
    for mine, eager in zip(results(compiled, leaves), results(f, leaves), strict=True):
        assert_close(mine, eager, rtol=1e-6, atol=1e-6)


def test_dropout_is_drawn_anew_at_each_run_and_is_the_same_in_backward() -> None:
    q, k, _ = qkv()
    v = torch.eye(9).expand(2, 2, 9, 9).clone().requires_grad_()
    compiled = torch.compile(attend("softmax", dropout_p=0.4), fullgraph=True, backend="aot_eager")
    first, second = compiled(q, k, v), compiled(q, k, v)
    assert not torch.equal(first == 0, second == 0)
    (dv,) = torch.autograd.grad(first.sum(), v)
    shared = first.detach().reshape(2, 2, 2, 7, 9)
    assert_close(dv, shared.sum((2, 3))[..., None].expand_as(dv))


@compiled_kernels
def test_the_kernels_are_chosen_when_the_graph_runs_and_backward_uses_what_forward_used() -> None:
    leaves = qkv()
    f = attend("r_softmax")
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    native = results(compiled, leaves)
    with use_kernels("reference"):
        expected, o = results(f, leaves), compiled(*leaves)
    g = torch.randn(o.shape, generator=torch.Generator().manual_seed(1))
    for mine, theirs in zip([o, *torch.autograd.grad(o, leaves, g)], expected, strict=True):
        assert torch.equal(mine, theirs)
    assert_close(native, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mapping", [*NATIVE, "sparsehourglass"])
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


@pytest.mark.parametrize("mapping", NATIVE)
def test_torch_finds_nothing_wrong(mapping: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, g, n, 8, generator=generator) for g, n in ((3, 5), (1, 6), (1, 6)))
    bias, keep = torch.randn(1, 2, 3, 5, 6), torch.rand(2, 1, 1, 1, 6) < 0.8
    parameter = ROW_MAPPINGS[mapping].parameter
    value = torch.full((1, 2, 3, 1, 1), parameter.example) if parameter else None
    numbers = (mapping, None, 0.3, True, 0.0, None)
    leaves = [x if x is None else x.requires_grad_() for x in (q, k, v, bias, value)]
    torch.library.opcheck(torch.ops.rsoftmax.attention.default, (*leaves, keep, *numbers, True))
    tensors = [x if x is None else x.detach() for x in leaves]
    o, state, how = torch.ops.rsoftmax.attention(*tensors, keep, *numbers, True)
    needed = [x is not None for x in (*tensors, None)]
    arguments = (torch.randn(o.shape), *tensors, keep, *numbers, state, how, needed)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.rsoftmax.attention_backward.default, arguments, test_utils=tests)


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


# ---------------------------------------------------------------------- what must never meet the operator

TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "func.grad": lambda f, x: torch.func.grad(lambda x: f(x).square().sum())(x),
    "func.vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones(2, 4, 7, 8, dtype=x.dtype)),
    "func.jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),)),
    "func.jacfwd": lambda f, x: torch.func.jacfwd(lambda x: f(x).sum())(x),
    "func.vmap": lambda f, x: torch.func.vmap(lambda x: f(x[None]))(x),
}


@pytest.fixture
def no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def met(*_: Any) -> Tensor:
        raise AssertionError("a transform met the operator")

    monkeypatch.setattr(operator, "output", met)


@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("transform", TRANSFORMS)
@every_mapping
def test_no_transform_meets_the_operator(mapping: str, transform: str) -> None:
    q, k, v = (x.detach() for x in qkv(torch.float64))

    def f(q: Tensor) -> Tensor:
        return attend(mapping)(q, k[: len(q)], v[: len(q)])

    apply = TRANSFORMS[transform]
    expected = apply(f, q)
    assert_close(torch.compile(lambda q: apply(f, q), backend="eager")(q), expected)


@every_mapping
def test_a_forward_derivative_of_a_compiled_function_is_that_of_the_equations(mapping: str) -> None:
    q, k, v = (x.detach() for x in qkv(torch.float64))
    f = attend(mapping)
    compiled = torch.compile(f, backend="eager")
    compiled(q, k, v)  # a graph with the operator is there already
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q.cos())
        mine, eager = (torch.autograd.forward_ad.unpack_dual(g(dual, k, v)).tangent for g in (compiled, f))
    assert mine.abs().sum() > 0
    assert_close(mine, eager)


@pytest.mark.usefixtures("no_operator")
@every_mapping
def test_exported_programs_do_not_know_the_operator(mapping: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(mapping)(q, k, v)

    program = torch.export.export(Module(), tuple(x.detach() for x in qkv()))
    assert "rsoftmax" not in program.graph_module.code


def test_a_rate_outside_its_domain_makes_its_rows_nan() -> None:
    q, k, v = (x.detach() for x in qkv())
    r = torch.tensor([0.5, 1.5, -0.1, math.nan])
    o = torch.compile(lambda q, k, v, r: sparse_attention(q, k, v, r=r), fullgraph=True, backend="aot_eager")(
        q, k, v, r
    )
    assert_close(o[:, 0], sparse_attention(q[:, :1], k[:, :1], v[:, :1], r=0.5)[:, 0])
    assert o[:, 1:].isnan().all()
