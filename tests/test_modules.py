"""Modules: the parameter given, passed or learned."""

import copy
import inspect
import io
import pickle
import re
from typing import Any

import pytest
import torch
from cases import PARAMETRIC, parameter_of
from torch.testing import assert_close

import rsoftmax
from rsoftmax import MAPPINGS, MODULES, Mapping, MappingModule, RSoftmax, Sparsehourglass, Sparsemax, TSoftmax

every_parametric = pytest.mark.parametrize("mapping", PARAMETRIC, ids=lambda m: m.name)


def module_of(mapping: Mapping) -> Any:
    (found,) = [module for module in MODULES.values() if module.mapping is mapping]
    return found


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_a_module_is_its_function(mapping: Mapping) -> None:
    x = torch.randn(3, 5, 4)
    mask = torch.rand(3, 5, 4) < 0.8
    arguments = parameter_of(mapping, x, 1)
    expected = mapping.function(x, *arguments, dim=1, mask=mask)
    module = module_of(mapping)
    assert torch.equal(module(*arguments, dim=1)(x, mask=mask), expected)
    assert torch.equal(module(dim=1)(x, *arguments, mask=mask), expected)


def test_the_names() -> None:
    assert [module.__name__ for module in MODULES.values()] == [
        "Softmax", "WeightedSoftmax", "TSoftmax", "RSoftmax", "Sparsemax", "SparsegenLin", "SparsegenExp",
        "Sparsehourglass", "SphericalSoftmax", "Entmax15",
    ]  # fmt: skip
    for name, module in MODULES.items():
        assert getattr(rsoftmax, name) is module, f"add {name} to rsoftmax/__init__.py"
    for name, mapping in MAPPINGS.items():
        assert getattr(rsoftmax, name) is mapping.function, f"add {name} to rsoftmax/__init__.py"


def test_signature_and_repr_show_the_parameter() -> None:
    assert str(inspect.signature(RSoftmax)).startswith(
        "(r: float | torch.Tensor = None, dim=-1, learnable=False, *, detach"
    )
    assert repr(RSoftmax(r=0.5)) == "RSoftmax(r=0.5, learnable=False, dim=-1, detach_threshold=False)"
    assert repr(Sparsemax(dim=1)) == "Sparsemax(dim=1)"
    assert repr(Sparsehourglass()) == "Sparsehourglass(q=10, learnable=False, dim=-1)"
    assert "r=tensor of shape (4, 1)" in repr(RSoftmax(r=torch.rand(4, 1)))
    assert "t=None" in repr(TSoftmax())


def test_wrong_calls() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'q'"):
        RSoftmax(q=1)
    with pytest.raises(
        ValueError, match=re.escape("RSoftmax has no r: give it to the module, RSoftmax(r=...), or here")
    ):
        RSoftmax()(torch.randn(3))
    with pytest.raises(TypeError, match=r"Sparsemax takes no parameter, got 0\.5"):
        Sparsemax()(torch.randn(3), 0.5)
    with pytest.raises(ValueError, match="r must be in"):
        RSoftmax(r=2.0)(torch.randn(3))


@every_parametric
def test_a_learnable_parameter_starts_where_told_and_never_leaves(mapping: Mapping) -> None:
    x = torch.randn(2, 3, 4, 5)
    assert mapping.parameter is not None
    start = mapping.parameter.domain.bend(torch.randn(3, 1, 1))
    layer = module_of(mapping)(start, learnable=True)
    assert_close(layer.value, start)
    assert layer(x).shape == x.shape
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for extreme in (-1e4, -90.0, 0.0, 90.0, 1e4):
            with torch.no_grad():
                layer.to(dtype).free.fill_(extreme)
            assert mapping.parameter.domain.contains(layer.value).all(), (dtype, extreme, layer.value)
            assert layer(x).isfinite().all()


@every_parametric
def test_a_learnable_parameter_trains_and_survives_a_round_trip(mapping: Mapping) -> None:
    x = torch.randn(6, 5) / 3
    assert mapping.parameter is not None
    start = torch.full((1 if mapping.parameter.per_row else 5,), mapping.parameter.example)
    layer = module_of(mapping)(start, learnable=True)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    (layer(x) * torch.arange(5.0)).sum().backward()
    optimiser.step()
    assert not torch.equal(layer.value, start)
    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    stored.seek(0)
    again = module_of(mapping)(start, learnable=True)
    again.load_state_dict(torch.load(stored, weights_only=True))
    for other in (again, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(other(x), layer(x), rtol=0, atol=0)


def test_a_fixed_tensor_is_a_buffer() -> None:
    layer = RSoftmax(r=torch.tensor([[0.2], [0.6]]))
    assert set(layer.state_dict()) == {"fixed"}
    assert not list(layer.parameters())
    other = RSoftmax(r=torch.zeros(2, 1))
    other.load_state_dict(layer.state_dict())
    assert isinstance(other.value, torch.Tensor)
    assert torch.equal(other.value, torch.tensor([[0.2], [0.6]]))
    assert isinstance(layer.value, torch.Tensor)
    layer.value.fill_(0.0)  # what a schedule does
    x = torch.randn(2, 7)
    assert_close(layer(x), torch.softmax(x, -1))


def test_an_edge_is_no_place_to_learn_from() -> None:
    with pytest.raises(ValueError, match=r"a learnable r must start inside its domain \(r in \[0, 1\]\), got 0.0"):
        RSoftmax(r=0.0, learnable=True)
    with pytest.raises(ValueError, match=r"got 1\.7"):
        RSoftmax(r=1.7, learnable=True)


def test_modules_are_ordinary_classes() -> None:
    assert issubclass(RSoftmax, MappingModule)
    assert RSoftmax.__module__ == "rsoftmax.modules"
    assert RSoftmax.__doc__
    assert ":func:`rsoftmax.r_softmax`" in RSoftmax.__doc__
    assert RSoftmax(r=0.25, detach_threshold=True).options == {"detach_threshold": True}
