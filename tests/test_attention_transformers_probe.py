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

from rsoftmax.attention.transformers import layers, set_attention
from rsoftmax.attention.transformers.probe import dense_at_run_time


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
    assert layers(model)  # of the other part
    with pytest.raises(ValueError, match=f"{type(model).__name__} is not supported: {dense} would stay dense"):
        set_attention(model, "sparsemax")
    with pytest.raises(ValueError, match=f"{dense} would stay dense"):
        model.set_attn_implementation("sparsemax")
    assert dense_at_run_time(model) == {dense}


@pytest.mark.parametrize("name", COMPOSED)
def test_a_model_of_several_parts_is_sparse_in_all_of_them(name: str) -> None:
    model = COMPOSED[name]()
    set_attention(model, "sparsemax")
    assert {module.config._attn_implementation for module in map(model.get_submodule, layers(model))} == {"sparsemax"}


class Hand(nn.Module):
    """Attention in a class whose name does not say so, and whose code names nothing that computes weights."""

    def __init__(self) -> None:
        super().__init__()
        self.compute = [getattr(torch, "soft" + "max"), getattr(nn.functional, "scaled_dot_product_" + "attention")]

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.compute[0](x @ x.mT, -1)
        return x + weights @ x


class Fused(Hand):
    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = self.compute[1](x[:, None], x[:, None], x[:, None])
        return attended[:, 0]


class Router(Hand):
    """Softmax that is none of attention: over experts, labels, words that are pooled, a few channels of a picture."""

    def forward(self, x: Tensor) -> Tensor:
        experts, labels = self.compute[0](x[..., :6], -1), self.compute[0](x[:, :1], -1)
        pooled = self.compute[0](x[..., :1], 1) * x
        small, picture = self.compute[0](x[:, :4, :4], -1), self.compute[0](x.new_zeros(1, 3, 16, 16), 1)
        found: Tensor = x + experts.sum() + labels.sum() + pooled.sum() + small.sum() + picture.sum()
        return found


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


@pytest.mark.parametrize("kind", [Hand, Fused])
def test_attention_that_no_name_gives_away_is_seen_when_the_model_runs(kind: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} would stay dense"):
        set_attention(with_module(kind), "sparsemax")


def test_softmax_that_is_none_of_attention_is_no_reason_to_refuse() -> None:
    set_attention(with_module(Router), "sparsemax")


def test_looking_whether_a_model_would_stay_dense_leaves_no_trace() -> None:
    model = bert().train()
    calls = []
    model.register_forward_hook(lambda *_: calls.append("hook"))
    model.bert.encoder.layer[0].forward = lambda *_, **__: calls.append("wrapper")
    config, numbers = model.config.to_dict(), torch.get_rng_state()
    tensors = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    assert dense_at_run_time(model) == set()
    assert calls == []
    assert model.training
    assert model.config.to_dict() == config
    assert torch.equal(torch.get_rng_state(), numbers)
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == tensors[name][0]
        assert torch.equal(tensor, tensors[name][1])


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
    """A BERT, and attention that set_attention does not reach."""

    def __init__(self, forward: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.model = bert().bert
        self.mix = forward
        if forward is None:
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        found: Tensor = self.mix(states) if self.mix else self.attention(states, states, states)[0]
        return found


QUERY = torch.randn(3, 16)
MIXES: dict[str, Callable[[Tensor], Tensor]] = {
    "self-attention": lambda h: torch.softmax(h @ h.mT, -1) @ h,
    "scaled, masked and dropped": lambda h: nn.functional.dropout((0.1 * (h @ h.mT) + 1).softmax(-1), 0.1) @ h,
    "learned queries": lambda h: torch.softmax(QUERY @ h.mT, -1) @ h,
    "einsum": lambda h: torch.einsum("bqk,bkd->bqd", torch.einsum("bqd,bkd->bqk", h, h).softmax(-1), h),
    "by logarithms": lambda h: (h @ h.mT).log_softmax(-1).exp() @ h,
    "fused": lambda h: nn.functional.scaled_dot_product_attention(h, h, h),
}
HARMLESS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda h: h.mean(1),
    "classes": lambda h: h.mean(1).softmax(-1),
    "pooling": lambda h: (h[..., :1].softmax(1) * h).sum(1),
    "log-likelihoods": lambda h: (h @ h.mT).log_softmax(-1).sum(-1),
    "similarity": lambda h: (h[:, 0] @ h[:, 0].mT).softmax(-1),
}


@pytest.mark.parametrize("name", ["module", *MIXES])
def test_dense_attention_beside_the_model_is_refused(name: str) -> None:
    module = Beside(MIXES.get(name))
    with pytest.raises(ValueError, match=f"{'MultiheadAttention' if name == 'module' else 'Beside'} would stay dense"):
        set_attention(module, "sparsemax")
    assert module.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", HARMLESS)
def test_other_softmaxes_beside_the_model_are_accepted(name: str) -> None:
    module = Beside(HARMLESS[name])
    set_attention(module, "sparsemax")
    assert module.model.config._attn_implementation == "sparsemax"
