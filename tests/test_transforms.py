"""What the rest of torch does to a function: torch.func, compile, export, ONNX, autocast."""

from typing import Any

import onnxruntime
import pytest
import torch
import torch._dynamo.testing
from cases import FUNCTIONS, parameter_of, spread_apart
from torch import Tensor, nn
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

from rsoftmax import MODULES, MappingSpec, RSoftmax, r_softmax

every_mapping = pytest.mark.parametrize("mapping", FUNCTIONS.values(), ids=FUNCTIONS)


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    torch._dynamo.reset()


class EveryMapping(nn.Module):
    """All mappings of the same scores, parameters and mask as inputs: the exporter reads its tables once for all."""

    def forward(self, x: Tensor, mask: Tensor, parameters: dict[str, list[Tensor]]) -> dict[str, Tensor]:
        return {name: FUNCTIONS[name].function(x, *given, mask=mask) for name, given in parameters.items()}


def inputs(mapping: MappingSpec, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    x = spread_apart((4, 6)).to(dtype)
    return x, *parameter_of(mapping, x)


@every_mapping
def test_vmap_is_a_loop(mapping: MappingSpec) -> None:
    args = inputs(mapping)
    looped = torch.stack([mapping.function(*row) for row in zip(*args, strict=True)])
    assert_close(vmap(mapping.function)(*args), looped)
    assert_close(vmap(lambda x: mapping.function(x, *(a[0] for a in args[1:])))(args[0])[0], looped[0])


@every_mapping
def test_jacobians_agree(mapping: MappingSpec) -> None:
    x, *arguments = (a[0] for a in inputs(mapping))
    for i in range(1 + len(arguments)):
        reverse = jacrev(mapping.function, argnums=i)(x, *arguments)
        assert_close(jacfwd(mapping.function, argnums=i)(x, *arguments), reverse)
    _, tangent = jvp(  # type: ignore[misc]  # three with has_aux=True only
        lambda x: mapping.function(x, *arguments), (x,), (torch.ones_like(x),)
    )
    assert_close(tangent, jacrev(mapping.function)(x, *arguments) @ torch.ones_like(x))


@every_mapping
def test_per_sample_gradients(mapping: MappingSpec) -> None:
    args = inputs(mapping)

    def loss(*row: Tensor) -> Tensor:
        return mapping.function(*row).square().sum()

    per_sample = vmap(grad(loss))(*args)
    x = args[0].clone().requires_grad_()
    loss(x, *args[1:]).backward()
    assert_close(per_sample, x.grad)
    hessian = vmap(jacfwd(jacrev(loss)))(*args)
    assert hessian.shape == (4, 6, 6)
    assert_close(hessian, hessian.mT)


@pytest.mark.compile
@every_mapping
def test_compiles_into_one_graph_for_all_parameters(mapping: MappingSpec) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(mapping.function, fullgraph=True, backend=counter)
    x, *arguments = inputs(mapping)
    x.requires_grad_()
    for seed in range(5):
        arguments = parameter_of(mapping, x.detach(), seed=seed)
        expected = mapping.function(x, *arguments)
        found = compiled(x, *arguments)
        assert_close(found, expected)
        weights = torch.arange(6.0)
        assert_close(*(torch.autograd.grad((p * weights).sum(), x) for p in (found, expected)))
    assert counter.frame_count == 1


@pytest.mark.compile
def test_a_number_that_changes_compiles_too() -> None:
    compiled = torch.compile(r_softmax, fullgraph=True, backend="aot_eager")
    x = spread_apart((4, 7))
    for r in (0.0, 0.1, 0.5, 0.9):
        assert_close(compiled(x, r), r_softmax(x, r))


@pytest.mark.compile
def test_exports_rows_of_any_length_at_a_fixed_rate() -> None:
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("n")}
    program = torch.export.export(RSoftmax(0.4), (torch.randn(4, 7),), dynamic_shapes=(sizes,))
    x = torch.randn(3, 19)
    assert_close(program.module()(x), r_softmax(x, 0.4))


def inputs_of_all(rows: int) -> tuple[Tensor, Tensor, dict[str, list[Tensor]]]:
    """Scores, a mask of which one row keeps nothing, and parameters."""
    x = spread_apart((rows, 6)).float()
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(rows)) < 0.8
    mask[1] = False
    return x, mask, {name: parameter_of(mapping, x) for name, mapping in FUNCTIONS.items()}


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_every_mapping_exports_for_any_number_of_rows_and_runs_in_onnxruntime() -> None:
    module, given, more = EveryMapping(), inputs_of_all(4), inputs_of_all(9)
    expected = module(*more)
    free = {0: torch.export.Dim("batch")}
    shapes = (free, free, {name: [free] * len(arguments) for name, arguments in given[2].items()})
    program = torch.export.export(module, given, dynamic_shapes=shapes)
    assert_close(program.module()(*more), expected)
    onnx = torch.onnx.export(program, dynamo=True, verbose=False)
    assert onnx is not None
    session = onnxruntime.InferenceSession(onnx.model_proto.SerializeToString())
    values: list[Tensor] = torch.utils._pytree.tree_leaves(more)
    feed: dict[str, Any] = {node.name: value.numpy() for node, value in zip(session.get_inputs(), values, strict=True)}
    found = map(torch.from_numpy, session.run(None, feed))
    assert_close(dict(zip(expected, found, strict=True)), expected)


@every_mapping
def test_autocast_keeps_the_dtype_of_the_scores(mapping: MappingSpec) -> None:
    x, *arguments = inputs(mapping, dtype=torch.float32)
    expected = mapping.function(x, *arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(mapping.function(x, *arguments), expected)
        assert mapping.function(x.bfloat16() @ torch.eye(6), *arguments).dtype == torch.bfloat16


@pytest.mark.compile
@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_modules_compile_into_one_graph(module: Any) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    x = spread_apart((4, 6))
    arguments = parameter_of(module.mapping, x)
    made = module(*arguments)
    assert_close(torch.compile(made, fullgraph=True, backend=counter)(x), made(x))  # type: ignore[no-untyped-call]
    assert counter.frame_count == 1


@pytest.mark.compile
def test_a_learnable_rate_trains_under_compile() -> None:
    layer = RSoftmax(r=0.5, learnable=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    compiled(x).square().sum().backward()
    assert layer.raw_value is not None
    assert layer.raw_value.grad is not None
    assert layer.raw_value.grad.abs() > 0
