"""Modules: the parameter given, passed or learned."""

import copy
import inspect
import io
import math
import pickle
import re
from typing import Any

import pytest
import torch
from cases import PARAMETRIC, parameter_of
from torch.testing import assert_close

import rsoftmax
from rsoftmax import (
    MAPPINGS,
    MODULES,
    MappingModule,
    MappingSpec,
    Router,
    RSoftmax,
    Sparsehourglass,
    Sparsemax,
    SparsePooling,
    TSoftmax,
)

every_parametric = pytest.mark.parametrize("mapping", PARAMETRIC, ids=lambda m: m.name)


def module_of(mapping: MappingSpec) -> Any:
    (found,) = [module for module in MODULES.values() if module.mapping is mapping]
    return found


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_a_module_is_its_function(mapping: MappingSpec) -> None:
    x = torch.randn(3, 5, 4)
    mask = torch.rand(3, 5, 4) < 0.8
    arguments = parameter_of(mapping, x, 1)
    expected = mapping.function(x, *arguments, dim=1, mask=mask)
    module = module_of(mapping)
    assert torch.equal(module(*arguments, dim=1)(x, mask=mask), expected)
    assert torch.equal(module(dim=1)(x, *arguments, mask=mask), expected)


def test_the_names() -> None:
    for mapping in MAPPINGS.values():
        name = "".join(word.capitalize() for word in mapping.name.split("_"))
        assert MODULES[name].mapping is mapping, f"the module of {mapping.name} must be called {name}"
    for name, module in MODULES.items():
        assert getattr(rsoftmax, name) is module
    for name, mapping in MAPPINGS.items():
        assert getattr(rsoftmax, name) is mapping.function, f"add {name} to __all__ in rsoftmax/mappings.py"


def test_signature_and_repr_show_the_parameter() -> None:
    assert list(inspect.signature(RSoftmax).parameters) == ["r", "dim", "learnable", "edge", "detach_threshold"]
    assert repr(RSoftmax(r=0.5)) == "RSoftmax(r=0.5, learnable=False, dim=-1, edge=inf, detach_threshold=False)"
    assert repr(Sparsemax(dim=1)) == "Sparsemax(dim=1)"
    assert repr(Sparsehourglass()) == "Sparsehourglass(q=10, learnable=False, dim=-1)"
    assert "r=tensor(4, 1)" in repr(RSoftmax(r=torch.rand(4, 1)))
    assert "t=None" in repr(TSoftmax())
    assert repr(TSoftmax(2.5, learnable=True)) == "TSoftmax(t=2.5, learnable=True, dim=-1, edge=inf)"


def test_wrong_calls() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'q'"):
        RSoftmax(q=1)  # type: ignore[call-arg]
    with pytest.raises(
        ValueError, match=re.escape("RSoftmax has no r: pass it to the module, RSoftmax(r=...), or to the call")
    ):
        RSoftmax()(torch.randn(3))
    with pytest.raises(TypeError, match="positional argument"):
        Sparsemax()(torch.randn(3), 0.5)
    with pytest.raises(ValueError, match=r"RSoftmax: r must be in \[0, 1\], got 2.0"):
        RSoftmax(r=2.0)
    with pytest.raises(TypeError, match="RSoftmax: r must be a number or a tensor, got 'a'"):
        RSoftmax(r="a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"creates its own nn\.Parameter; pass a tensor and learnable=True"):
        RSoftmax(r=torch.nn.Parameter(torch.tensor(0.5)))


@every_parametric
def test_a_learnable_parameter_starts_where_told_and_never_leaves(mapping: MappingSpec) -> None:
    x = torch.randn(2, 3, 4, 5)
    assert mapping.parameter is not None
    start = mapping.parameter.domain.constrain(torch.randn(3, 1, 1))
    layer = module_of(mapping)(start, learnable=True)
    assert_close(layer.current_value, start)
    assert layer(x).shape == x.shape
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for extreme in (-1e4, -90.0, 0.0, 90.0, 1e4):
            with torch.no_grad():
                layer.to(dtype).raw_value.fill_(extreme)
            assert mapping.parameter.domain.contains(layer.current_value).all(), (dtype, extreme, layer.current_value)
            p = layer(x)
            assert p.isfinite().all()
            layer.zero_grad()
            (p * torch.arange(5)).sum().backward()
            assert layer.raw_value.grad.isfinite().all(), (dtype, extreme)


@every_parametric
def test_a_learnable_parameter_trains_and_survives_a_round_trip(mapping: MappingSpec) -> None:
    x = torch.randn(6, 5) / 3
    assert mapping.parameter is not None
    start = torch.full((1,), mapping.parameter.example)
    layer = module_of(mapping)(start, learnable=True)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    (layer(x) * torch.arange(5.0)).sum().backward()
    optimiser.step()
    assert not torch.equal(layer.current_value, start)
    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    stored.seek(0)
    again = module_of(mapping)(start, learnable=True)
    again.load_state_dict(torch.load(stored, weights_only=True))
    for other in (again, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(other(x), layer(x), rtol=0, atol=0)


def test_a_learnable_number_has_the_dimension_that_fully_shard_needs() -> None:
    layer = RSoftmax(0.8, learnable=True)
    assert all(parameter.dim() for parameter in layer.parameters())
    assert_close(layer.r, torch.tensor([0.8]))


def test_a_fixed_tensor_is_a_buffer() -> None:
    layer = RSoftmax(r=torch.tensor([[0.2], [0.6]]))
    assert set(layer.state_dict()) == {"value"}
    assert not list(layer.parameters())
    other = RSoftmax(r=torch.zeros(2, 1))
    other.load_state_dict(layer.state_dict())
    assert isinstance(other.r, torch.Tensor)
    assert torch.equal(other.r, torch.tensor([[0.2], [0.6]]))
    layer.r = 0.0  # what a schedule does
    assert set(layer.state_dict()) == {"value"}
    x = torch.randn(2, 7)
    assert_close(layer(x), torch.softmax(x, -1))


def test_an_edge_is_no_place_to_learn_from() -> None:
    with pytest.raises(ValueError, match=r"a learnable r has no gradient at the edge of its domain, got 0\.0"):
        RSoftmax(r=0.0, learnable=True)
    with pytest.raises(ValueError, match=r"got 1\.7"):
        RSoftmax(r=1.7, learnable=True)


def test_the_parameter_can_be_set_under_its_letter() -> None:
    x = torch.randn(2, 7)
    for layer in (RSoftmax(), RSoftmax(0.2), RSoftmax(torch.tensor(0.2)), RSoftmax(0.2, learnable=True)):
        layer.r = 0.6
        assert_close(layer(x), rsoftmax.r_softmax(x, 0.6))
        with pytest.raises(ValueError, match=r"RSoftmax: r must be in \[0, 1\], got 1\.5"):
            layer.r = 1.5
    assert torch.equal(RSoftmax()(x, r=0.6), rsoftmax.r_softmax(x, 0.6))


def test_a_module_keeps_its_own_copy() -> None:
    rates = torch.full((2, 1), 0.5, requires_grad=True)
    layer = RSoftmax(rates * 1)
    copy.deepcopy(layer)
    with torch.no_grad():
        rates.zero_()
    assert (layer.state_dict()["value"] == 0.5).all()


def test_half_precision_modules_keep_their_rate() -> None:
    x = torch.randn(100)
    layer = RSoftmax(0.8, learnable=True).bfloat16()
    assert isinstance(layer.r, torch.Tensor)
    assert layer.r.dtype == torch.float32
    assert layer(x).dtype == torch.float32


def test_modules_are_built_without_memory() -> None:
    with torch.device("meta"):
        layer = RSoftmax(r=0.5, learnable=True)
    assert layer.raw_value is not None
    assert layer.raw_value.is_meta
    assert "r=tensor(1,)" in repr(layer)


def test_modules_are_ordinary_classes() -> None:
    assert issubclass(RSoftmax, MappingModule)
    assert RSoftmax.__module__ == "rsoftmax.nn"
    assert RSoftmax.__doc__
    assert ":func:`rsoftmax.r_softmax`" in RSoftmax.__doc__
    assert RSoftmax(r=0.25, detach_threshold=True).options == {"edge": float("inf"), "detach_threshold": True}


def pooling_of(mapping: MappingSpec, hidden: int = 0, **options: Any) -> SparsePooling:
    """A pooling of 6 features for 3 labels, in float64."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, hidden), torch.nn.Tanh()] if hidden else []
    scorer = torch.nn.Sequential(*layers, torch.nn.Linear(hidden or 6, 3))
    options |= {mapping.parameter.name: mapping.parameter.example} if mapping.parameter else {}
    return SparsePooling(scorer, mapping.name, **options).double()


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_pooling_is_a_sum_of_instances_with_the_weights_of_the_mapping(mapping: MappingSpec) -> None:
    pooling = pooling_of(mapping, hidden=5)
    x = torch.randn(2, 7, 4, 6, dtype=torch.float64)
    features, weights = pooling(x)
    for label in range(3):
        scores = torch.stack([pooling.scorer(x[..., i, :])[..., label] for i in range(4)], -1)
        expected = pooling.mapping(scores)
        assert_close(weights[..., label, :], expected)
        assert_close(features[..., label, :], sum(expected[..., i, None] * x[..., i, :] for i in range(4)))
        assert_close(pooling.scores(x).features[..., label], (expected * scores).sum(-1))


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_masked_instances_of_a_pooling_have_no_weight_and_no_influence(mapping: MappingSpec) -> None:
    pooling, x = pooling_of(mapping), torch.randn(4, 5, 6, dtype=torch.float64)
    sizes = torch.tensor([5, 2, 1, 0])
    mask = torch.arange(5) < sizes[:, None]
    x[~mask] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e300, 0.0, 1.0]).double()
    x.requires_grad_()
    (features, weights), pooled_scores = pooling(x, mask=mask), pooling.scores(x, mask=mask).features
    assert (weights.masked_select(~mask[:, None]) == 0).all()
    for item, size in enumerate(sizes):
        if size:
            alone = pooling(x[item, :size])
            assert_close(features[item], alone.features)
            assert_close(weights[item, :, :size], alone.weights)
            assert_close(pooled_scores[item], pooling.scores(x[item, :size]).features)
    assert not features[3].any()
    assert not pooled_scores[3].any()
    (features.square().sum() + pooled_scores.sum()).backward()
    assert x.grad is not None
    assert x.grad[mask].isfinite().all()
    assert not x.grad[~mask].any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in pooling.parameters())


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_the_order_of_instances_does_not_change_a_pooling(mapping: MappingSpec) -> None:
    pooling, x, order = pooling_of(mapping), torch.randn(3, 5, 6, dtype=torch.float64), torch.randperm(5)
    pooled, permuted = pooling(x), pooling(x[:, order])
    assert_close(permuted.features, pooled.features)
    assert_close(permuted.weights, pooled.weights[..., order])


@pytest.mark.parametrize("options", [{}, {"learnable": True}, {"hidden": 4}], ids=str)
def test_the_gradients_of_a_pooling_are_its_derivatives(options: dict[str, Any]) -> None:
    pooling = pooling_of(MAPPINGS["t_softmax"], **options)
    x, mask = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True), torch.arange(4) < 3
    names, parameters = zip(*pooling.named_parameters(), strict=True)

    def pool(x: torch.Tensor, *values: torch.Tensor) -> Any:
        return torch.func.functional_call(pooling, dict(zip(names, values, strict=True)), (x,), {"mask": mask})

    assert torch.autograd.gradcheck(pool, (x, *parameters))


def test_a_pooling_learns_which_instance_carries_the_label() -> None:
    torch.manual_seed(0)
    pooling, classifier = SparsePooling(torch.nn.Linear(4, 2), "t_softmax", t=2.0), torch.nn.Linear(4, 1)
    x, carriers = torch.randn(256, 6, 4) / 4, torch.randint(6, (256, 2))
    y = torch.rand(256, 2) < 0.5
    for label in range(2):  # feature 2k marks the instance, 2k + 1 says whether the label applies
        x[torch.arange(256), carriers[:, label], 2 * label] += 3
        x[torch.arange(256), carriers[:, label], 2 * label + 1] += 3.0 * y[:, label]
    optimizer = torch.optim.Adam([*pooling.parameters(), *classifier.parameters()], lr=0.05)
    losses = []
    for _ in range(60):
        features, weights = pooling(x)
        losses.append(torch.nn.functional.binary_cross_entropy_with_logits(classifier(features).squeeze(-1), y.float()))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    assert (weights == 0).any()


def test_a_pooling_takes_the_parameters_of_its_mapping_and_no_others() -> None:
    queries = torch.nn.Linear(6, 3)
    assert repr(SparsePooling(queries, "r_softmax", r=0.5, edge=0.0).mapping).startswith("RSoftmax(r=0.5")
    assert "mapping.raw_value" in SparsePooling(queries, "r_softmax", learnable=True).state_dict()
    half = SparsePooling(queries, "r_softmax", learnable=True).bfloat16()
    assert half(torch.randn(4, 6).bfloat16()).features.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="SparsePooling: unknown mapping 'max'; choose one of softmax, "):
        SparsePooling(queries, "max")
    with pytest.raises(TypeError, match="unexpected keyword argument 'r'"):
        SparsePooling(queries, "k_softmax", r=0.5)
    with pytest.raises(TypeError, match="mask must be"):
        pooling_of(MAPPINGS["sparsemax"])(torch.randn(4, 6).double(), mask=torch.ones(4))


def router_of(mapping: MappingSpec, **options: Any) -> Router:
    torch.manual_seed(0)
    options |= {mapping.parameter.name: mapping.parameter.example} if mapping.parameter else {}
    return Router(6, 5, mapping.name, **options).double()


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_a_router_has_the_weights_of_its_mapping_and_counts_what_is_not_zero(mapping: MappingSpec) -> None:
    x, router = torch.randn(2, 7, 6, dtype=torch.float64), router_of(mapping)
    routing = router(x)
    assert_close(routing.weights, router.mapping(router.scorer(x)))
    assert_close(routing.n_experts, routing.weights.count_nonzero(-1).double())
    weights, indices = routing.selected()
    assert weights.shape[-1] == routing.weights.count_nonzero(-1).max()
    assert_close(torch.zeros_like(routing.weights).scatter(-1, indices, weights), routing.weights)
    mean = routing.n_experts.mean()
    assert_close(routing.budget_loss(0.5), (mean - 0.5).clamp(min=0))
    assert routing.budget_loss(5.0) == 0
    share = (routing.weights > 0).double().mean((0, 1)) / mean
    assert_close(routing.balance_loss(), 5 * share @ router.scorer(x).softmax(-1).mean((0, 1)))
    if mapping.parameter:  # at first every token has the same parameter
        assert_close(router_of(mapping, per_token=True)(x).weights, router_of(mapping, learnable=True)(x).weights)


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_masked_tokens_of_a_router_have_no_expert_and_no_influence(mapping: MappingSpec) -> None:
    router, x = router_of(mapping, **({"per_token": True} if mapping.parameter else {})), torch.randn(2, 4, 6).double()
    mask = torch.tensor([[True, True, False, True], [False, False, False, False]])
    x[~mask] = math.nan
    routing, alone = router(x, mask=mask), router(x[mask])
    assert not routing.weights[~mask].any()
    assert not routing.n_experts[~mask].any()
    gradients = []
    for some in (routing, alone):
        loss = some.budget_loss(0.5) + some.balance_loss() + some.weights.square().sum()
        parameters = list(router.parameters())
        gradients.append((loss, *torch.autograd.grad(loss, parameters, materialize_grads=True)))
    assert_close(*gradients)
    assert all(gradient.isfinite().all() for gradient in gradients[0])
    nobody = router(x, mask=mask & False)
    assert nobody.budget_loss(1.0) == nobody.balance_loss() == 0


@pytest.mark.parametrize(
    ("name", "of_parameter"), [("k_softmax", lambda k: k), ("r_softmax", lambda r: 5 * (1 - r)), ("budget", None)]
)
def test_the_number_of_experts_has_the_gradient_of_its_expectation(name: str, of_parameter: Any) -> None:
    spec: Any = MAPPINGS[name]
    router: Any = router_of(spec, per_token=True)
    x = torch.randn(9, 6, dtype=torch.float64)
    torch.nn.init.normal_(router.shift.weight)
    raw = router.mapping.raw_value + router.shift(x)
    value = spec.parameter.domain.constrain(raw)
    p = spec.function(router.scorer(x), value)
    expected = of_parameter(value) if of_parameter else p.sum(-1).square() / p.square().sum(-1)
    parameters = [router.mapping.raw_value, router.shift.weight]
    found = torch.autograd.grad(router(x).n_experts.sum(), parameters)
    assert_close(found, torch.autograd.grad(expected.sum(), parameters))


@pytest.mark.parametrize("name", ["k_softmax", "r_softmax", "sparsegen_lin", "t_softmax", "entmax"])
def test_the_budget_loss_alone_leads_to_the_budget(name: str) -> None:
    parameter = {"k_softmax": 20.0, "r_softmax": 0.01, "sparsegen_lin": -9.0, "t_softmax": 9.0, "entmax": 1.1}[name]
    torch.manual_seed(0)
    spec: Any = MAPPINGS[name]
    router = Router(6, 8, name, per_token=True, **{spec.parameter.name: parameter})
    x, optimizer = torch.randn(64, 6), torch.optim.Adam(router.parameters(), lr=0.1)
    assert router(x).n_experts.mean() >= 7
    for _ in range(150):
        optimizer.zero_grad()
        router(x).budget_loss(3.0).backward()
        optimizer.step()
    assert 1.5 < router(x).n_experts.mean() <= 3.3


def test_the_balance_loss_finds_experts_that_have_no_token() -> None:
    torch.manual_seed(0)
    router = Router(6, 4, "k_softmax", k=1)
    with torch.no_grad():
        router.scorer.weight[0] += 3  # the first expert takes them all
    x, optimizer = torch.rand(256, 6), torch.optim.Adam(router.parameters(), lr=0.05)
    assert router(x).balance_loss() > 3.9
    for _ in range(150):
        optimizer.zero_grad()
        router(x).balance_loss().backward()
        optimizer.step()
    assert router(x).weights.count_nonzero(0).min() > 0


def test_a_router_keeps_the_dtype_compiles_and_refuses_what_it_cannot_do() -> None:
    router, x = Router(6, 5, "r_softmax", per_token=True, r=0.5), torch.randn(4, 6)
    compiled = torch.compile(router, backend="aot_eager", fullgraph=True)
    assert_close(tuple(compiled(x)), tuple(router(x)))
    half = router.bfloat16()(x.bfloat16())
    assert [tensor.dtype for tensor in half] == [torch.bfloat16, torch.float32, torch.float32]
    assert half.balance_loss().dtype == torch.float32
    assert Router(6, 5)(x[:0]).selected()[0].shape == (0, 0)
    with pytest.raises(ValueError, match="Router: unknown mapping 'max'; choose one of softmax, "):
        Router(6, 5, "max")
    with pytest.raises(ValueError, match="Router: sparsemax has no parameter to predict for each token"):
        Router(6, 5, "sparsemax", per_token=True)
    with pytest.raises(TypeError, match="mask must be"):
        router.float()(x, mask=torch.ones(4))
