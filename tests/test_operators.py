"""The operators that compiled graphs call: torch's checks, the numbers of eager code, and what must never meet them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MAPPINGS, MODULES, entmax, operators, r_softmax, t_softmax, use_kernels
from rsoftmax.kernels import cpu

pytestmark = pytest.mark.skipif(not cpu.LEVEL, reason="the kernels were not compiled here")
VALUES = {"r_softmax": 0.4, "t_softmax": 1.5, "entmax": 1.25}
NATIVE = [name for name in MAPPINGS if name in cpu.OPERATIONS]


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    torch._dynamo.reset()


def call(name: str, **options: Any) -> Callable[[Tensor], Tensor]:
    mapping = MAPPINGS[name]
    parameter = mapping.parameter
    given: list[float | Tensor] = []
    if parameter is not None:
        given = [parameter.example if parameter.per_row else torch.linspace(0.5, 1.5, 5, dtype=torch.float64)]
    return lambda x: mapping.function(x, *given, **options)


def layouts() -> dict[str, Tensor]:
    x = torch.randn(3, 4, 7)
    return {
        "contiguous": x,
        "permuted": x.permute(1, 0, 2),
        "transposed": x.transpose(1, 2),
        "strided": torch.randn(3, 4, 14)[..., ::2],
        "slices": torch.randn(3, 9, 7)[:, 1:5],
    }


@pytest.mark.parametrize("layout", layouts())
@pytest.mark.parametrize("name", NATIVE)
def test_torch_finds_nothing_wrong_with_rows(name: str, layout: str) -> None:
    x = layouts()[layout].requires_grad_()
    kept = torch.randn(x.shape[-1]) > -1
    number = VALUES.get(name)
    value = None if number is None else torch.full((*x.shape[:-1], 1), number, dtype=torch.float64, requires_grad=True)
    for mask in (None, kept.expand(x.shape)):
        torch.library.opcheck(torch.ops.rsoftmax.rows.default, (x, mask, None, number, name, False, True))
        if value is not None:
            torch.library.opcheck(torch.ops.rsoftmax.rows.default, (x, mask, value, None, name, False, True))


@pytest.mark.parametrize("name", NATIVE)
def test_torch_finds_nothing_wrong_with_rows_backward(name: str) -> None:
    for x in layouts().values():
        number = VALUES.get(name)
        p, state, by_kernel = torch.ops.rsoftmax.rows(x, None, None, number, name, False, True)
        arguments = (torch.randn(x.shape), x, None, None, number, p, state, by_kernel, name, False)
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(torch.ops.rsoftmax.rows_backward.default, arguments, test_utils=tests)


def gradients(f: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    p = f(*leaves)
    g = torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).to(p.dtype)
    return [p.detach(), *torch.autograd.grad(p, leaves, g)]


@pytest.mark.parametrize(  # inductor sees one opaque operator, so names and types do not meet
    ("name", "dtype"),
    [(name, torch.float32) for name in NATIVE]
    + [("r_softmax", dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)],
    ids=str,
)
def test_a_compiled_graph_gives_the_numbers_of_eager_code(name: str, dtype: torch.dtype) -> None:
    x, mask = torch.randn(5, 9).to(dtype), torch.rand(9) > 0.3
    f = call(name, mask=mask)
    for mine, eager in zip(gradients(torch.compile(f, fullgraph=True), x), gradients(f, x), strict=True):
        assert torch.equal(mine, eager)


@pytest.mark.parametrize(
    ("function", "value"), [(r_softmax, 0.3), (t_softmax, 1.2), (entmax, 1.3)], ids=["r", "t", "alpha"]
)
def test_a_parameter_for_each_row_has_its_gradient(function: Callable[..., Tensor], value: float) -> None:
    x, values = torch.randn(4, 3, 8), torch.full((3, 1), value, dtype=torch.float64)
    compiled = torch.compile(function, fullgraph=True)
    for mine, eager in zip(gradients(compiled, x, values), gradients(function, x, values), strict=True):
        assert_close(mine, eager, rtol=1e-12, atol=0)


def test_a_detached_threshold_stays_detached() -> None:
    x, r = torch.randn(4, 8), torch.tensor(0.3)
    f = lambda x, r: r_softmax(x, r, detach_threshold=True)  # noqa: E731
    for mine, eager in zip(gradients(torch.compile(f, fullgraph=True), x, r), gradients(f, x, r), strict=True):
        assert torch.equal(mine, eager)


def test_sizes_and_rates_may_change_without_a_new_graph() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(r_softmax, backend=counter, dynamic=True, fullgraph=True)
    for rows, n, rate in ((3, 8, 0.1), (5, 9, 0.5), (7, 20, 0.9)):
        x, r = torch.randn(rows, n), torch.full((rows, 1), rate)
        assert torch.equal(compiled(x, r), r_softmax(x, r))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", [name for name in NATIVE if MAPPINGS[name].parameter])
def test_a_number_that_keeps_changing_compiles_once_more_and_no_further(name: str) -> None:
    parameter = MAPPINGS[name].parameter
    assert parameter is not None
    x = torch.randn(4, 9)
    kind: Any = MODULES["".join(map(str.capitalize, name.split("_")))]
    module = kind(parameter.example)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(module, backend=counter, fullgraph=True)
    for value in parameter.domain.constrain(torch.linspace(-1, 1, 6, dtype=torch.float64)).tolist():
        module.value = value  # what a schedule does
        assert torch.equal(compiled(x), MAPPINGS[name].function(x, value))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", [name for name in NATIVE if MAPPINGS[name].parameter])
def test_a_tensor_that_keeps_changing_compiles_once(name: str) -> None:
    parameter = MAPPINGS[name].parameter
    assert parameter is not None
    x, counter = torch.randn(4, 9), torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(MAPPINGS[name].function, backend=counter, fullgraph=True)
    for value in parameter.domain.constrain(torch.linspace(-1, 1, 6)):
        assert torch.equal(compiled(x, value), MAPPINGS[name].function(x, value))
    assert counter.frame_count == 1


def test_the_kernels_are_chosen_when_the_graph_runs_and_backward_uses_what_forward_used() -> None:
    x = torch.randn(6, 33)
    compiled = torch.compile(lambda x: r_softmax(x, 0.4), fullgraph=True)
    native = gradients(compiled, x)
    leaf = x.clone().requires_grad_()
    with use_kernels("reference"):
        p = compiled(leaf)
        expected = gradients(lambda x: r_softmax(x, 0.4), x)
    assert torch.equal(p, expected[0])
    g = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    (dx,) = torch.autograd.grad(p, leaf, g)  # outside of the block: the reference all the same
    assert torch.equal(dx, expected[1])
    assert_close(native, expected, rtol=1e-5, atol=1e-6)


def test_values_outside_their_domain_make_their_rows_nan() -> None:
    x, r = torch.randn(3, 6), torch.tensor([[0.5], [1.5], [-0.1]])
    p = torch.compile(r_softmax, fullgraph=True)(x, r)
    assert torch.equal(p[0], r_softmax(x[0], 0.5))
    assert p[1:].isnan().all()


def test_a_graph_holds_the_operator_and_a_mask_is_not_written_out() -> None:
    seen: list[torch.fx.GraphModule] = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        seen.append(graph)
        return graph

    x, mask = torch.randn(64, 8), torch.rand(8) > 0.3
    torch.compile(lambda x: r_softmax(x, 0.5, mask=mask), backend=look, fullgraph=True)(x)
    assert "rsoftmax.rows" in seen[0].code


# ---------------------------------------------------------------------- what must never meet an operator

TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "func.grad": lambda f, x: torch.func.grad(lambda x: f(x).square().sum())(x),
    "func.vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(x)),
    "func.jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.linspace(0, 1, x.numel()).reshape(x.shape),)),
    "func.jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "func.jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "func.hessian": lambda f, x: torch.func.hessian(lambda x: f(x).square().sum())(x),
    "func.vmap": lambda f, x: torch.func.vmap(f)(x),
    "func.linearize": lambda f, x: torch.func.linearize(f, x)[1](torch.ones_like(x).cumsum(-1)),
    "vmap of jvp": lambda f, x: torch.func.vmap(lambda x: torch.func.jvp(f, (x,), (x.cumsum(-1),)))(x),
    "grad of jvp": lambda f, x: torch.func.grad(lambda x: torch.func.jvp(f, (x,), (x,))[1].square().sum())(x),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x).square().sum()))(x),
}


@pytest.fixture
def no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def met(*_: Any) -> Tensor:
        raise AssertionError("a transform met the operator")

    monkeypatch.setattr(operators, "rows", met)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # of torch.func.linearize itself
@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", MAPPINGS)
def test_no_transform_meets_the_operator(name: str, transform: str) -> None:
    x, f, apply = torch.randn(2, 5, dtype=torch.float64), call(name), TRANSFORMS[transform]
    expected = apply(f, x)
    assert_close(torch.compile(lambda x: apply(f, x), backend="eager")(x), expected)
    assert_close(apply(f, x), expected)


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_forward_derivative_of_a_compiled_function_is_that_of_the_reference(name: str) -> None:
    x, f = torch.randn(2, 5, dtype=torch.float64), call(name)
    compiled, t = torch.compile(f, backend="eager"), torch.randn(2, 5, dtype=torch.float64)
    compiled(x)  # a graph with the operator is there already
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        mine, eager = (torch.autograd.forward_ad.unpack_dual(g(dual)).tangent for g in (compiled, f))
    assert mine.abs().sum() > 0
    assert_close(mine, eager)


@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("name", NATIVE)
def test_exported_programs_do_not_know_the_operator(name: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return call(name)(x)

    program = torch.export.export(Module(), (torch.randn(3, 6),))
    assert "rsoftmax" not in program.graph_module.code


@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("name", NATIVE)
def test_second_derivatives_are_those_of_the_reference(name: str) -> None:
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(call(name), (x,))
