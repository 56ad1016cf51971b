"""Models that would stay dense are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import transformers as hf
from torch import Tensor, nn
from transformers_models import COMPOSED, HALF_DENSE, HEADS, REFUSED, SIZES, bert, built

from rsoftmax.attention.transformers import attention_layers, set_attention


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_would_stay_dense_are_refused_and_left_alone(name: str) -> None:
    model = built(name)
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=r"is not supported: .* (would stay dense|can be replaced)\. Supported: BERT"):
        set_attention(model, "r_softmax", r=0.1)
    assert model.config._attn_implementation == before
    assert not [key for key in model.state_dict() if "rsoftmax" in key]


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "resnet"])
def test_they_are_refused_by_every_other_way_too(name: str, tmp_path: Path) -> None:
    model = built(name)
    with pytest.raises(ValueError, match="would stay dense"):
        model.set_attn_implementation("sparsemax")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"would stay dense|does not support"):
        type(model).from_pretrained(tmp_path, attn_implementation="sparsemax")


@pytest.mark.parametrize("name", HALF_DENSE)
def test_a_model_of_which_one_part_would_stay_dense_is_refused(name: str) -> None:
    build, dense = HALF_DENSE[name]
    model = build()
    assert attention_layers(model)  # of the other part
    with pytest.raises(ValueError, match=f"{type(model).__name__} is not supported: {dense} would stay dense"):
        set_attention(model, "sparsemax")
    with pytest.raises(ValueError, match=f"{dense} would stay dense"):
        model.set_attn_implementation("sparsemax")


@pytest.mark.parametrize("name", COMPOSED)
def test_a_model_of_several_parts_is_sparse_in_all_of_them(name: str) -> None:
    model = COMPOSED[name]()
    set_attention(model, "sparsemax")
    assert {module.config._attn_implementation for module in map(model.get_submodule, attention_layers(model))} == {
        "sparsemax"
    }


class HandAttention(nn.Module):
    """Attention that computes its own weights."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT, -1) @ x


class Fused(nn.Module):
    """Attention in a class whose name does not say so."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]


class Router(nn.Module):
    """Softmax that is not attention: over experts, labels, words that are pooled."""

    def forward(self, x: Tensor) -> Tensor:
        experts, labels = torch.softmax(x[..., :6], -1), torch.softmax(x[:, :1], -1)
        pooled = torch.softmax(x[..., :1], 1) * x
        return x + experts.sum() + labels.sum() + pooled.sum()


def with_module(kind: type[nn.Module]) -> Any:
    """BERT with a further module after its embeddings."""
    model: Any = bert()
    model.bert.embeddings = After(model.bert.embeddings, kind())
    return model


class After(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, **inputs: Any) -> Tensor:
        found: Tensor = self.second(self.first(**inputs))
        return found


@pytest.mark.parametrize("kind", [HandAttention, Fused])
def test_a_model_with_attention_of_its_own_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} would stay dense"):
        set_attention(with_module(kind), "sparsemax")


def test_softmax_that_is_not_attention_is_no_reason_to_refuse() -> None:
    set_attention(with_module(Router), "sparsemax")


def test_attention_that_looks_its_function_up_in_another_way_is_refused() -> None:
    config = {**SIZES, "num_attention_heads": HEADS}
    kosmos = hf.models.kosmos2_5
    vision = kosmos.configuration_kosmos2_5.Kosmos2_5VisionConfig(**config, head_dim=4, patch_embed_hidden_size=8)
    with pytest.raises(ValueError, match="Kosmos2_5VisionAttention would stay dense"):
        set_attention(kosmos.modeling_kosmos2_5.Kosmos2_5VisionModel(vision), "sparsemax")


def test_a_wrapper_of_several_models_is_refused() -> None:
    several = nn.ModuleDict({"one": built("bert"), "two": built("gpt2")})
    with pytest.raises(ValueError, match="ModuleDict contains several models; call it on each: one, two"):
        set_attention(several, "sparsemax")


class Beside(nn.Module):
    """A BERT, and a module that set_attention does not reach."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.model = bert().bert
        self.mix = mix

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        found: Tensor = self.mix(states)
        return found


DENSE: dict[str, Callable[[], nn.Module]] = {
    "MultiheadAttention": lambda: nn.MultiheadAttention(16, 2, batch_first=True),
    "HandAttention": HandAttention,
    "Fused": Fused,
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_attention_beside_the_model_is_refused(name: str) -> None:
    module = Beside(DENSE[name]())
    with pytest.raises(ValueError, match=f"Beside is not supported: {name} would stay dense"):
        set_attention(module, "sparsemax")
    assert module.model.config._attn_implementation == "sdpa"


def test_other_softmaxes_beside_the_model_are_accepted() -> None:
    module = Beside(Router())
    set_attention(module, "sparsemax")
    assert module.model.config._attn_implementation == "sparsemax"
