"""Row functions in compiled graphs: torch's checks and the numbers of eager code; transforms do without operators."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from cases import FUNCTIONS, case, example_of
from rounding import check_mapping
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MAPPINGS, MODULES, entmax, k_softmax, r_softmax, t_softmax, use_kernels
from rsoftmax.kernels import cpu, graph_ops

pytestmark = pytest.mark.skipif(not cpu.LEVEL, reason="the kernels were not compiled here")
VALUES = {"r_softmax": 0.4, "t_softmax": 1.5, "k_softmax": 2.5, "entmax": 1.25}
EDGE = 0.5
NATIVE = [name for name in MAPPINGS if name in cpu.OPERATIONS]


compiles = pytest.mark.compile


@pytest.fixture(autouse=True)
def reset_dynamo() -> None:
    torch._dynamo.reset()


def call(name: str, **options: Any) -> Callable[[Tensor], Tensor]:
    mapping = FUNCTIONS[name]
    return lambda x: mapping.function(x, *example_of(mapping, 5), **options)


def layouts() -> dict[str, Tensor]:
    x = torch.randn(3, 4, 7)
    return {
        "contiguous": x,
        "permuted": x.permute(1, 0, 2),
        "transposed": x.transpose(1, 2),
        "strided": torch.randn(3, 4, 14)[..., ::2],
        "slices": torch.randn(3, 9, 7)[:, 1:5],
    }


@compiles
@pytest.mark.parametrize("name", NATIVE)
def test_opcheck_finds_no_fault(name: str) -> None:
    for i, (layout, x) in enumerate(layouts().items()):
        x.requires_grad_()
        mask = (torch.randn(x.shape[-1]) > -1).expand(x.shape) if i % 2 else None
        number = VALUES.get(name)
        shape = (*x.shape[:-1], 1)
        value = None if number is None else torch.full(shape, number, dtype=torch.float64, requires_grad=True)
        with case(layout):
            torch.library.opcheck(torch.ops.rsoftmax.rows.default, (x, mask, value, name, EDGE, False, True))
    value = None if value is None else value.detach()
    p, state, by_kernel = torch.ops.rsoftmax.rows(x.detach(), mask, value, name, EDGE, False, True)
    needed = [True, value is not None]
    arguments = (torch.randn(x.shape), x.detach(), mask, value, name, EDGE, False, p, state, by_kernel, needed)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.rsoftmax.rows_backward.default, arguments, test_utils=tests)


def gradients(f: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    p = f(*leaves)
    g = torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).to(p.dtype)
    return [p.detach(), *torch.autograd.grad(p, leaves, g)]


def assert_compiled_is_eager(name: str, dtype: torch.dtype, backend: str) -> None:
    torch._dynamo.reset()
    x, mask = torch.randn(5, 9).to(dtype), torch.rand(9) > 0.3
    f = call(name, mask=mask)
    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for mine, eager in zip(gradients(compiled, x), gradients(f, x), strict=True):
        assert torch.equal(mine, eager)


def test_a_compiled_graph_gives_the_numbers_of_eager_code() -> None:
    assert_compiled_is_eager("r_softmax", torch.float32, "aot_eager")


@compiles
def test_it_does_for_every_mapping_and_dtype() -> None:
    """Inductor sees one opaque operator, whatever its mapping: the dtypes are enough for it."""
    for name in NATIVE:
        with case(name):
            assert_compiled_is_eager(name, torch.float32, "aot_eager")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        with case(dtype):
            assert_compiled_is_eager("r_softmax", dtype, "inductor")


@compiles
def test_a_parameter_for_each_row_has_its_gradient() -> None:
    edged = [partial(f, edge=EDGE) for f in (r_softmax, t_softmax)]
    functions: list[tuple[Any, float]] = [(r_softmax, 0.3), (t_softmax, 1.2), (k_softmax, 2.5), (entmax, 1.3)]
    for function, value in [*functions, *zip(edged, (0.3, 1.2), strict=True)]:
        x, values = torch.randn(4, 3, 8), torch.full((3, 1), value, dtype=torch.float64)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for mine, eager in zip(gradients(compiled, x, values), gradients(function, x, values), strict=True):
            with case(function):
                assert_close(mine, eager, rtol=1e-12, atol=0)


@compiles
def test_a_detached_threshold_stays_detached() -> None:
    x, r = torch.randn(4, 8), torch.tensor(0.3)
    f = lambda x, r: r_softmax(x, r, detach_threshold=True)  # noqa: E731
    for mine, eager in zip(gradients(torch.compile(f, fullgraph=True), x, r), gradients(f, x, r), strict=True):
        assert torch.equal(mine, eager)


@compiles
def test_sizes_and_rates_may_change_without_a_new_graph() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(r_softmax, backend=counter, dynamic=True, fullgraph=True)
    for rows, n, rate in ((3, 8, 0.1), (5, 9, 0.5), (7, 20, 0.9)):
        x, r = torch.randn(rows, n), torch.full((rows, 1), rate)
        assert torch.equal(compiled(x, r), r_softmax(x, r))
    assert counter.frame_count == 1


@compiles
@pytest.mark.parametrize("name", [name for name in NATIVE if MAPPINGS[name].parameter])
def test_a_number_that_keeps_changing_recompiles_once(name: str) -> None:
    parameter = MAPPINGS[name].parameter
    assert parameter is not None
    x = torch.randn(4, 9)
    kind: Any = MODULES["".join(map(str.capitalize, name.split("_")))]
    module = kind(parameter.example)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(module, backend=counter, fullgraph=True)
    for value in parameter.domain.constrain(torch.linspace(-1, 1, 6, dtype=torch.float64)).tolist():
        module.current_value = value  # what a schedule does
        assert torch.equal(compiled(x), MAPPINGS[name].function(x, value))
    assert counter.frame_count <= 2


@compiles
@pytest.mark.parametrize("name", [name for name in NATIVE if MAPPINGS[name].parameter])
def test_a_tensor_that_keeps_changing_compiles_once(name: str) -> None:
    parameter = MAPPINGS[name].parameter
    assert parameter is not None
    x, counter = torch.randn(4, 9), torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(MAPPINGS[name].function, backend=counter, fullgraph=True)
    for value in parameter.domain.constrain(torch.linspace(-1, 1, 6)):
        assert torch.equal(compiled(x, value), MAPPINGS[name].function(x, value))
    assert counter.frame_count == 1


@compiles
def test_the_kernels_are_chosen_when_the_graph_runs_and_backward_uses_those_of_forward() -> None:
    x = torch.randn(6, 33)
    compiled = torch.compile(lambda x: r_softmax(x, 0.4), fullgraph=True)
    check_mapping("r_softmax", x, 0.4, function=lambda x, *_, **__: compiled(x))
    leaf = x.clone().requires_grad_()
    with use_kernels("reference"):
        p = compiled(leaf)
        expected = gradients(lambda x: r_softmax(x, 0.4), x)
    assert torch.equal(p, expected[0])
    g = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    (dx,) = torch.autograd.grad(p, leaf, g)  # outside of the block: the reference all the same
    assert torch.equal(dx, expected[1])


@compiles
def test_values_outside_their_domain_give_rows_of_nan() -> None:
    x, r = torch.randn(3, 6), torch.tensor([[0.5], [1.5], [-0.1]])
    p = torch.compile(r_softmax, fullgraph=True)(x, r)
    assert torch.equal(p[0], r_softmax(x[0], 0.5))
    assert p[1:].isnan().all()


@compiles
def test_a_graph_contains_the_operator() -> None:
    seen: list[torch.fx.GraphModule] = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        seen.append(graph)
        return graph

    x, mask = torch.randn(64, 8), torch.rand(8) > 0.3
    torch.compile(lambda x: r_softmax(x, 0.5, mask=mask), backend=look, fullgraph=True)(x)
    assert "rsoftmax.rows" in seen[0].code


# --------------------------------------------------------------------------- transforms must not use an operator

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
    def used(*_: Any) -> Tensor:
        raise AssertionError("a transform used the operator")

    monkeypatch.setattr(graph_ops, "rows", used)


@compiles
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # by torch.func.linearize
@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_no_transform_uses_the_operator(transform: str) -> None:
    """Each transform with a mapping without a parameter, with a number, and of the reference alone."""
    x, apply = torch.randn(2, 5, dtype=torch.float64), TRANSFORMS[transform]
    for name in ("sparsemax", "r_softmax", "sparsegen_lin"):
        torch._dynamo.reset()
        f = call(name)
        expected = apply(f, x)
        with case(name):
            assert_close(torch.compile(lambda x, f=f: apply(f, x), backend="eager")(x), expected)


@compiles
@pytest.mark.usefixtures("no_operator")
def test_no_mapping_uses_the_operator_in_a_transform() -> None:
    x, apply = torch.randn(2, 5, dtype=torch.float64), TRANSFORMS["vmap of jvp"]
    for name in FUNCTIONS:
        torch._dynamo.reset()
        f = call(name)
        with case(name):
            assert_close(torch.compile(lambda x, f=f: apply(f, x), backend="eager")(x), apply(f, x))


@compiles
def test_the_forward_derivative_of_a_compiled_function_is_that_of_the_reference() -> None:
    x, t = torch.randn(2, 2, 5, dtype=torch.float64)
    for name in FUNCTIONS:
        torch._dynamo.reset()
        f = call(name)
        compiled = torch.compile(f, backend="eager")
        compiled(x)  # now there is a graph with the operator
        with case(name), torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, t)
            mine, eager = (torch.autograd.forward_ad.unpack_dual(g(dual)).tangent for g in (compiled, f))
            assert mine.abs().sum() > 0
            assert_close(mine, eager)


@compiles
@pytest.mark.usefixtures("no_operator")
def test_exported_programs_do_not_contain_the_operator() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {name: call(name)(x) for name in NATIVE}

    program = torch.export.export(Module(), (torch.randn(3, 6),))
    assert "rsoftmax" not in program.graph_module.code
