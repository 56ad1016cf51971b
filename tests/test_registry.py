"""A mapping declared outside the package is found by everything that goes by the table, and gone with its entry."""

import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import BertConfig, BertModel

import rsoftmax
from rsoftmax import MAPPINGS, MODULES, MappingSpec
from rsoftmax._rows import ParamSpec, over_rows
from rsoftmax._tensors import mask_to_neg_inf
from rsoftmax.attention import sparse_attention
from rsoftmax.attention.transformers import head_parameters, set_attention
from rsoftmax.labels import MultiLabelHead
from rsoftmax.nn import MappingModule
from rsoftmax.registry import POSITIVE, describe_parameters, register_mapping

B = ParamSpec("b", POSITIVE, example=2.0, default=1.0)
X = torch.tensor([1.0, 2.0, 3.0, 0.5])


def cool_softmax(x: Tensor, b: float | Tensor = 1.0, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """Softmax of b x."""

    def rows(x: Tensor, mask: Tensor | None, b: float | Tensor) -> Tensor:
        return mask_to_neg_inf(b * x, mask).softmax(-1)

    return over_rows("cool_softmax", rows, x, dim, mask, B, b)


def declare() -> None:
    register_mapping(formula="e^(b x) / sum", parameter=B, zeros="none", source="these tests")(cool_softmax)


@pytest.fixture
def cool() -> Iterator[MappingSpec]:
    declare()
    yield MAPPINGS["cool_softmax"]
    del MAPPINGS["cool_softmax"]


def tiny_model() -> BertModel:
    size: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertModel(BertConfig(**size, vocab_size=20))
    model.eval()
    return model


@pytest.mark.usefixtures("cool")
def test_a_module_with_the_parameter_given_passed_and_learned() -> None:
    module: Any = MODULES["CoolSoftmax"]
    expected = cool_softmax(X, 3.0)
    assert_close(module(b=3.0)(X), expected)
    with pytest.raises(TypeError, match="unexpected keyword argument 'q'"):
        module(q=1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'q'"):
        module()(X, q=1.0)
    assert module.__doc__ == ":func:`cool_softmax` as a module."
    assert_close(module(3.0)(X), expected)
    assert_close(module()(X, 3.0), expected)
    assert_close(module()(X, b=3.0), expected)
    assert_close(module()(X), cool_softmax(X))
    layer = module(torch.tensor(3.0), learnable=True)
    layer(X)[0].backward()
    assert layer.raw_value is not None
    assert layer.raw_value.grad is not None
    assert layer.raw_value.grad != 0
    assert_close(layer.b.detach(), torch.tensor([3.0]))
    layer.b = 4.0
    assert "b=4" in repr(layer)
    assert_close(pickle.loads(pickle.dumps(layer))(X), cool_softmax(X, 4.0))


@pytest.mark.usefixtures("cool")
def test_a_mapping_without_a_parameter_gets_a_module_too() -> None:
    @register_mapping(formula="e^x / sum", zeros="none", source="these tests")
    def warm(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return rsoftmax.softmax(x, dim=dim, mask=mask)

    try:
        module: Any = MODULES["Warm"]
        assert_close(module(dim=0)(X), rsoftmax.softmax(X))
        assert issubclass(module, MappingModule)
        assert rsoftmax.Warm is module  # type: ignore[attr-defined]
    finally:
        del MAPPINGS["warm"]
    assert not hasattr(rsoftmax, "Warm")


@pytest.mark.usefixtures("cool")
def test_attention() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    softmax = sparse_attention(q, k, v, mapping="softmax", scale=0.6)
    assert_close(sparse_attention(q, k, v, mapping="cool_softmax", b=2.0, scale=0.3), softmax)
    assert_close(sparse_attention(q, k, v, mapping="cool_softmax", b=torch.full((4,), 2.0), scale=0.3), softmax)
    assert_close(sparse_attention(q, k, v, mapping="cool_softmax", scale=0.6), softmax)
    with pytest.raises(TypeError, match=r"sparse_attention: cool_softmax takes b, got r=0\.5"):
        sparse_attention(q, k, v, mapping="cool_softmax", r=0.5)


@pytest.mark.usefixtures("cool")
def test_a_multi_label_head() -> None:
    head = MultiLabelHead(4, num_labels=3, mapping="cool_softmax", rule=None)
    output = head(torch.randn(2, 4))
    assert_close(output.probs, cool_softmax(output.logits, B.example))
    head.loss(output, torch.tensor([[1, 0, 0], [0, 1, 1]])).backward()


@pytest.mark.usefixtures("cool")
def test_a_hugging_face_model_that_was_imported_before() -> None:
    model, tokens = tiny_model(), {"input_ids": torch.arange(6)[None]}
    dense = model(**tokens).last_hidden_state
    set_attention(model, "cool_softmax", b=1.0)
    assert_close(model(**tokens).last_hidden_state, dense)
    set_attention(model, "cool_softmax", b=[1.0, 3.0], learnable=True)
    assert_close(head_parameters(model).values, torch.tensor([[1.0, 1.0], [3.0, 3.0]]))
    model(**tokens).last_hidden_state[0, 0, 0].backward()
    learned = [p.grad for name, p in model.named_parameters() if name.endswith("raw_value")]
    assert len(learned) == 2
    assert all(gradient is not None and gradient.count_nonzero() for gradient in learned)
    with pytest.raises(TypeError, match=r"set_attention: cool_softmax takes b, got r=0\.5"):
        set_attention(model, "cool_softmax", r=0.5)


@pytest.mark.process
def test_a_hugging_face_model_that_is_imported_afterwards() -> None:
    program = """
import sys
import torch
from rsoftmax import softmax
from rsoftmax.registry import register_mapping

@register_mapping(formula="e^x / sum", zeros="none", source="these tests")
def warm(x, dim=-1, *, mask=None):
    return softmax(x, dim=dim, mask=mask)

assert "transformers" not in sys.modules
from transformers import BertConfig, BertModel
import rsoftmax.attention
rsoftmax.attention.register_attention()
size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
model = BertModel(BertConfig(**size, vocab_size=20, attn_implementation="warm")).eval()
before = model(input_ids=torch.arange(6)[None]).last_hidden_state
rsoftmax.attention.set_attention(model, "softmax")
after = model(input_ids=torch.arange(6)[None]).last_hidden_state  # by another kernel
print(torch.allclose(before, after, rtol=0, atol=1e-6))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.usefixtures("cool")
def test_the_command_line(tmp_path: Path) -> None:
    assert "e^(b x) / sum" in commands.rsoftmax("list")
    assert "cool_softmax, b = 2" in commands.rsoftmax("plot", "--out", str(tmp_path / "mappings.png"))
    assert describe_parameters()["b"] == "b of cool_softmax, > 0"


def test_it_is_gone_with_its_entry() -> None:
    declare()
    assert "cool_softmax" in MAPPINGS
    assert "CoolSoftmax" in MODULES
    assert len(MODULES) == len(MAPPINGS)
    del MAPPINGS["cool_softmax"]
    assert "cool_softmax" not in MAPPINGS
    assert "CoolSoftmax" not in MODULES
    assert "b" not in describe_parameters()
    with pytest.raises(ValueError, match=r"mapping must be one of softmax, .*got 'cool_softmax'"):
        sparse_attention(X, X, X, mapping="cool_softmax")


def test_a_name_that_is_taken_is_refused_and_the_same_function_is_not(cool: MappingSpec) -> None:
    spec = {"formula": "x", "zeros": "none", "source": "these tests"}
    declare()
    assert MAPPINGS["cool_softmax"] == cool

    def r_softmax(x: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return x

    with pytest.raises(ValueError, match=r"'r_softmax' is already registered by rsoftmax\.mappings; choose another"):
        register_mapping(**spec)(r_softmax)  # type: ignore[arg-type]
    assert MAPPINGS["r_softmax"].function is rsoftmax.r_softmax


@pytest.mark.process
def test_the_name_of_a_built_in_mapping_is_taken_before_it_is_imported() -> None:
    program = """
from rsoftmax.registry import MAPPINGS, register_mapping
try:
    @register_mapping(formula="x", zeros="none", source="these tests")
    def softmax(x, dim=-1, *, mask=None):
        return x
except ValueError as error:
    print(error, MAPPINGS["softmax"].formula)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = "register_mapping: 'softmax' is already registered by rsoftmax.mappings; choose another name e^x / sum\n"
    assert done.stdout == expected, done.stderr


def test_a_function_that_lacks_an_argument_is_refused_at_once() -> None:
    spec: dict[str, Any] = {"formula": "x", "zeros": "none", "source": "these tests"}
    for function, missing, parameter in (
        (lambda x, dim=-1: x, "mask", None),
        (lambda x, *, mask=None: x, "dim", None),
        (lambda x, c, dim=-1, *, mask=None: x, "b", B),
    ):
        with pytest.raises(TypeError, match=f"no argument '{missing}'; write f\\(x, <parameter>, dim=-1"):
            register_mapping(**spec, parameter=parameter)(function)
    assert "<lambda>" not in MAPPINGS


@pytest.mark.parametrize("spec", MAPPINGS.values(), ids=MAPPINGS)
def test_a_spec_has_the_default_of_its_function(spec: MappingSpec) -> None:
    if spec.parameter is None:
        assert spec.bind("test", {"r": None}) is None
        return
    argument = inspect.signature(spec.function).parameters[spec.parameter.name]
    assert spec.parameter.default == (None if argument.default is argument.empty else argument.default)
    assert spec.bind("test", {spec.parameter.name: 0.25}) == 0.25
    if spec.parameter.default is not None:
        assert spec.bind("test", {}) == spec.parameter.default
    else:
        with pytest.raises(
            TypeError, match=f"test: {spec.name} needs {spec.parameter.name}, e.g. {spec.parameter.name}="
        ):
            spec.bind("test", {})


def test_every_parameter_is_described_once() -> None:
    assert describe_parameters() == {
        "t": "t of t_softmax, > 0",
        "r": "r of r_softmax, in [0, 1]",
        "k": "k of k_softmax, >= 1; k of budget and lapsum, >= 0",
        "lam": "lam of sparsegen_lin and sparsegen_exp, < 1 and finite",
        "q": "q of sparsehourglass, >= 0 and finite",
        "alpha": "alpha of entmax, in [1, 4]; alpha of normmax, > 1 and finite",
        "sink": "sink of sink_softmax, < inf",
    }
