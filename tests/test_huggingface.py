"""Sparse attention in models of transformers: small random ones, of every kind that is promised to work."""

import copy
import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import transformers as hf
from packaging.version import Version
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import Dataset
from typer.testing import CliRunner

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.cli.application import app
from rsoftmax.huggingface import (
    SparsitySchedule,
    attention_weights,
    layers,
    parameter_groups,
    rates,
    set_attention,
    set_rate,
    sparsity,
)
from rsoftmax.huggingface.attend import observing, register
from rsoftmax.huggingface.attention_map import attention_map
from rsoftmax.huggingface.probe import seen_dense
from rsoftmax.mappings import MAPPINGS, Mapping, sparsemax, t_softmax

hf.utils.logging.disable_progress_bar()

WORDS, LAYERS, HEADS = 60, 2, 4
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 16,
}
TEXT: dict[str, Any] = {**SIZES, "vocab_size": WORDS, "pad_token_id": 0}
SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ: dict[str, Any] = {
    "d_model": 16,
    **{f"{part}_layers": LAYERS for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": HEADS for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 16 for part in ("encoder", "decoder")},
}
ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**TEXT)),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**TEXT)),
    "distilbert": lambda: hf.DistilBertModel(
        hf.DistilBertConfig(dim=16, n_layers=LAYERS, n_heads=HEADS, hidden_dim=16, vocab_size=WORDS)
    ),
    "albert": lambda: hf.AlbertModel(hf.AlbertConfig(**TEXT, embedding_size=16)),
    "modernbert": lambda: hf.ModernBertModel(
        hf.ModernBertConfig(**TEXT, **SPECIAL, cls_token_id=1, sep_token_id=2, local_attention=4)
    ),
}
DECODERS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(n_embd=16, n_layer=LAYERS, n_head=HEADS, vocab_size=WORDS, pad_token_id=0, **SPECIAL)
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, num_key_value_heads=2)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=4)),
}
BOTH: dict[str, Callable[[], Any]] = {
    "bart": lambda: hf.BartModel(
        hf.BartConfig(**SEQ2SEQ, vocab_size=WORDS, pad_token_id=0, decoder_start_token_id=1, **SPECIAL)
    ),
    "t5": lambda: hf.T5Model(
        hf.T5Config(d_model=16, d_kv=4, num_layers=LAYERS, num_heads=HEADS, d_ff=16, vocab_size=WORDS, pad_token_id=0)
    ),
}
SINCE = {"modernbert": "5.7", "t5": "5.15"}  # the release of transformers whose AttentionInterface they ask
for table in (ENCODERS, BOTH):
    for late in [name for name in table if Version(SINCE.get(name, "5")) > Version(hf.__version__)]:
        del table[late]
TEXTS = {**ENCODERS, **DECODERS, **BOTH}
MODELS: dict[str, Callable[[], Any]] = {**TEXTS, "vit": lambda: hf.ViTModel(hf.ViTConfig(**SIZES, image_size=32))}
REFUSED: dict[str, Callable[[], Any]] = {
    "deberta": lambda: hf.DebertaV2Model(hf.DebertaV2Config(**TEXT)),
    "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(**TEXT)),
    "bloom": lambda: hf.BloomModel(hf.BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=WORDS)),
    "xlnet": lambda: hf.XLNetModel(hf.XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=16, vocab_size=WORDS)),
    "led": lambda: hf.LEDModel(hf.LEDConfig(**SEQ2SEQ, vocab_size=WORDS, attention_window=4)),
    "siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**SIZES, image_size=32, patch_size=16)),
    "resnet": lambda: hf.ResNetModel(hf.ResNetConfig(hidden_sizes=[8], depths=[1], embedding_size=8)),
}

DECODER: dict[str, Any] = {"is_decoder": True, "add_cross_attention": True}
SOUND: dict[str, Any] = {
    **SIZES,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
}
LILT = hf.LiltConfig(**{**TEXT, "hidden_size": 24}, channel_shrink_ratio=1)


def speech(encoder: Any) -> Any:
    config = hf.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(encoder, hf.BertConfig(**TEXT, **DECODER))
    return hf.SpeechEncoderDecoderModel(config)


def translator(encoder: Any) -> Any:
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, hf.BertConfig(**TEXT, **DECODER))
    return hf.EncoderDecoderModel(config)


def dual(text: Any) -> Any:
    vision = hf.ViTConfig(**SIZES, image_size=32)
    return hf.VisionTextDualEncoderModel(hf.VisionTextDualEncoderConfig.from_vision_text_configs(vision, text))


COMPOSED: dict[str, Callable[[], Any]] = {
    "speech": lambda: speech(hf.Wav2Vec2Config(**SOUND)),
    "translator": lambda: translator(hf.BertConfig(**TEXT)),
    "dual": lambda: dual(hf.BertConfig(**TEXT)),
    "clip": lambda: clip(),
}
HALF_DENSE: dict[str, tuple[Callable[[], Any], str]] = {
    "speech": (lambda: speech(hf.WavLMConfig(**SOUND)), "WavLMAttention"),
    "translator": (lambda: translator(LILT), "LiltSelfAttention"),
    "dual": (lambda: dual(LILT), "LiltSelfAttention"),
}

every_model = pytest.mark.parametrize("name", MODELS)
every_text_model = pytest.mark.parametrize("name", TEXTS)

LONG, SHORT = 9, 5


def built(name: str) -> Any:
    """The model, with weights that are large enough for attention to be far from uniform."""
    torch.manual_seed(0)
    model: Any = (MODELS | REFUSED)[name]().eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Linear, hf.pytorch_utils.Conv1D)):
                module.weight.mul_(5 if name != "t5" else 1)
    return model


def bert(**options: Any) -> Any:
    torch.manual_seed(0)
    return hf.BertForSequenceClassification(hf.BertConfig(**TEXT, **options)).eval()


def clip(**vision: Any) -> Any:
    parts = {"text_config": {**TEXT, **SPECIAL}, "vision_config": {**SIZES, "image_size": 32, **vision}}
    return hf.CLIPModel(hf.CLIPConfig.from_dict(parts)).eval()


def batch_for(name: str) -> dict[str, Tensor]:
    """Two texts, the second of them padded; or two pictures."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    ids = torch.randint(5, WORDS, (2, LONG))
    ids[1, SHORT:] = 0
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    if name in BOTH:
        batch |= {"decoder_input_ids": ids[:, :6].clamp(min=1), "decoder_attention_mask": torch.ones(2, 6).long()}
    return batch


def output(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**batch)[0]
    return found


def real(name: str, found: Tensor) -> Tensor:
    """The second text, without what stands at its padding."""
    return found if name == "vit" else found[1, :SHORT]


@every_model
def test_softmax_and_rate_zero_are_what_the_model_was(name: str) -> None:
    model, batch = built(name), batch_for(name)
    dense = real(name, output(model, batch))
    set_attention(model, "softmax")
    assert_close(real(name, output(model, batch)), dense, atol=1e-5, rtol=0)
    set_attention(model, "r_softmax", r=0.0)
    assert_close(real(name, output(model, batch)), dense, atol=1e-5, rtol=0)
    set_rate(model, 0.5)
    assert (real(name, output(model, batch)) - dense).abs().max() > 1e-3


@pytest.mark.parametrize("r", [0.0, 0.15, 0.5])
@every_text_model
def test_padding_changes_nothing(name: str, r: float) -> None:
    model, batch = built(name), batch_for(name)
    set_attention(model, "r_softmax", r=r)
    alone = {key: value[1:] if key.startswith("decoder") else value[1:, :SHORT] for key, value in batch.items()}
    assert_close(output(model, batch)[1:, :SHORT], output(model, alone)[:, :SHORT], atol=1e-5, rtol=0)


@pytest.mark.parametrize("mapping", ROW_MAPPINGS)
def test_every_mapping_is_an_implementation(mapping: str) -> None:
    model, batch = built("bert"), batch_for("bert")
    parameter = ROW_MAPPINGS[mapping].parameter
    given: dict[str, Any] = {parameter.name: parameter.example} if parameter else {}
    set_attention(model, mapping, **given)
    assert model.config._attn_implementation == mapping
    first = attention_weights(model, batch)["encoder.layer.0.attention.self"]
    assert_close(first.sum(-1), torch.ones(2, HEADS, LONG))
    assert (first[1, :, :, SHORT:] == 0).all()


@pytest.mark.parametrize("name", DECODERS)
def test_the_future_does_not_leak(name: str) -> None:
    model = built(name)
    set_attention(model, "r_softmax", r=0.4)
    ids = torch.randint(5, WORDS, (1, LONG))
    changed = torch.cat([ids[:, :6], (ids[:, 6:] + 1).clamp(max=WORDS - 1)], 1)
    for masked in ({}, {"attention_mask": torch.ones(1, LONG).long()}):
        before, after = (output(model, {"input_ids": words, **masked}) for words in (ids, changed))
        assert_close(after[:, :6], before[:, :6])
        assert (after[:, 6:] - before[:, 6:]).abs().max() > 1e-3
    for weights in attention_weights(model, {"input_ids": ids}).values():
        assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generation_with_a_cache_is_generation_without(name: str, cache: str) -> None:
    model = built(name)
    set_attention(model, "r_softmax", r=0.4)
    ids = torch.randint(5, WORDS, (2, LONG))
    ids[1, :4] = 0
    mask = (ids != 0).long()
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with_cache = model.generate(ids, attention_mask=mask, cache_implementation=cache, **options)
    without = model.generate(ids, attention_mask=mask, use_cache=False, **options)
    assert with_cache.shape == (2, LONG + 6)
    assert with_cache.tolist() == without.tolist()


@pytest.mark.parametrize("name", BOTH)
def test_generation_from_an_encoder_with_a_cache_too(name: str) -> None:
    kind: Any = {"bart": hf.BartForConditionalGeneration, "t5": hf.T5ForConditionalGeneration}[name]
    model = kind(built(name).config).eval()
    set_attention(model, "r_softmax", r=0.4)
    batch = batch_for("bert")
    options = {"max_new_tokens": 6, "decoder_start_token_id": 1, "eos_token_id": None, "forced_eos_token_id": None}
    found = [model.generate(**batch, **options, do_sample=False, use_cache=cache).tolist() for cache in (True, False)]
    assert found[0] == found[1]
    assert len(found[0][0]) == 7


def test_texts_packed_into_one_row_do_not_see_each_other() -> None:
    model = built("llama")
    set_attention(model, "r_softmax", r=0.4)
    first, second = torch.randint(5, WORDS, (1, 5)), torch.randint(5, WORDS, (1, 7))
    places = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = model(input_ids=torch.cat([first, second], 1), position_ids=places, use_cache=False).logits
    assert_close(packed[:, 5:], model(input_ids=second).logits, atol=1e-5, rtol=0)


def test_a_mask_of_huge_negative_numbers_removes() -> None:
    model, batch = built("bert"), batch_for("bert")
    set_attention(model, "r_softmax", r=0.5)
    keep = batch["attention_mask"][:, None, None].bool().expand(2, 1, LONG, LONG)
    for number in (torch.finfo(torch.float32).min, -1e9, -1e4):
        added = torch.zeros(keep.shape).masked_fill(~keep, number)
        assert_close(output(model, {**batch, "attention_mask": added}), output(model, batch))


@every_model
def test_attentions_come_with_the_output(name: str) -> None:
    model, batch = built(name), batch_for(name)
    set_attention(model, "r_softmax", r=0.3)
    found = model(**batch, output_attentions=True)
    shown = next(found[key] for key in ("encoder_attentions", "attentions") if found.get(key))
    assert len(shown) == LAYERS
    weights = attention_weights(model, batch)
    assert_close(shown[-1], list(weights.values())[min(LAYERS, len(weights)) - 1])


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_would_stay_dense_are_refused_and_left_alone(name: str) -> None:
    model = built(name)
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=r"is refused: .* (would stay dense|can be replaced)\. What works: BERT"):
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
    with pytest.raises(ValueError, match=f"{type(model).__name__} is refused: {dense} would stay dense"):
        set_attention(model, "sparsemax")
    with pytest.raises(ValueError, match=f"{dense} would stay dense"):
        model.set_attn_implementation("sparsemax")
    assert seen_dense(model) == {dense}


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
    assert seen_dense(model) == set()
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
    with pytest.raises(ValueError, match="ModuleDict wraps several models; call it for each: one, two"):
        set_attention(several, "sparsemax")


def test_rates_for_the_model_its_layers_and_its_heads() -> None:
    model = built("bert")
    table = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]
    for given, expected in (
        (0.25, torch.full((LAYERS, HEADS), 0.25)),
        ([0.0, 0.5], torch.tensor([[0.0] * HEADS, [0.5] * HEADS])),
        (torch.tensor([0.0, 0.5]), torch.tensor([[0.0] * HEADS, [0.5] * HEADS])),
        (table, torch.tensor(table)),
        (torch.tensor(table, dtype=torch.float64), torch.tensor(table)),
    ):
        set_attention(model, "r_softmax", r=given)
        assert_close(rates(model).values, expected)
        set_attention(model, "r_softmax", r=0)
        set_rate(model, given)
        assert_close(rates(model).values, expected)
    found = sparsity(model, {"input_ids": torch.randint(5, WORDS, (3, 10))})
    assert found.layers == tuple(layers(model)) == rates(model).layers
    assert_close(found.values, torch.tensor(table))


def test_layers_may_have_different_numbers_of_heads() -> None:
    model = clip(num_attention_heads=2)
    ragged: Any = [[0.1, 0.2, 0.3, 0.4], 0.5, [0.6, 0.7], 0.8]
    set_attention(model, "r_softmax", r=ragged)
    assert layers(model)[0].startswith("text_model")
    assert rates(model).values[2].tolist() == pytest.approx([0.6, 0.7, torch.nan, torch.nan], nan_ok=True)
    assert rates(model).mean() == pytest.approx((1.0 + 2.0 + 1.3 + 1.6) / 12)


@pytest.mark.parametrize("name", BOTH)
def test_encoder_and_decoder_are_named_in_order(name: str) -> None:
    names = layers(built(name))
    assert len(names) == 3 * LAYERS
    assert [part.startswith("encoder") for part in names] == [True] * LAYERS + [False] * 2 * LAYERS


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"mapping": "r_softmax", "r": [0.1] * 3}, ValueError, "2 layers x 4 heads, got 3 rows"),
        ({"mapping": "r_softmax", "r": torch.zeros(2, 3)}, ValueError, r"2 layers x 4 heads, got shape \(2, 3\)"),
        ({"mapping": "r_softmax", "r": [[0.1] * 4, [0.1] * 5]}, ValueError, "2 layers x 4 heads, got 2 rows"),
        ({"mapping": "r_softmax", "r": "much"}, TypeError, "r must be made of numbers, got 'much'"),
        ({"mapping": "r_softmax", "r": 1.5}, ValueError, r"r must be in \[0, 1\], got 1.5"),
        ({"mapping": "r_softmax", "r": [0.1, -1.0]}, ValueError, r"r must be in \[0, 1\], got -1.0"),
        ({"mapping": "r_softmax", "r": -0.1}, ValueError, r"r must be in \[0, 1\], got -0.1;"),
        ({"mapping": "r_softmax", "r": [0.1, math.nan]}, ValueError, r"r must be in \[0, 1\], got nan"),
        ({"mapping": "r_softmax"}, TypeError, "r_softmax needs r, say r=0.5"),
        ({"mapping": "r_softmax", "r": None}, TypeError, "r_softmax needs r, say r=0.5"),
        ({"mapping": "r_softmax", "t": 1.0}, TypeError, "r_softmax takes r, got t=1.0"),
        ({"mapping": "sparsemax", "r": 0.5}, TypeError, "sparsemax takes no parameter, got r=0.5"),
        ({"mapping": "sparsemax", "learn": True}, ValueError, "sparsemax has nothing to learn"),
        ({"mapping": "r_softmax", "r": 0.0, "learn": True}, ValueError, "no gradient at the edge"),
        ({"mapping": "softmaxx"}, ValueError, "no mapping 'softmaxx'; use one of softmax, "),
        ({"mapping": "weighted_softmax"}, ValueError, "no mapping 'weighted_softmax'"),
    ],
    ids=str,
)
def test_wrong_calls_are_refused_and_change_nothing(call: dict[str, Any], error: type[Exception], message: str) -> None:
    model = built("bert")
    with pytest.raises(error, match=message):
        set_attention(model, **call)
    assert model.config._attn_implementation == "sdpa"
    assert not [key for key in model.state_dict() if "rsoftmax" in key]


def test_a_wrong_rate_changes_no_layer() -> None:
    model = built("bert")
    set_attention(model, "r_softmax", r=0.2)
    with pytest.raises(ValueError, match=r"got 1.5"):
        set_rate(model, [0.3, 1.5])
    assert (rates(model).values == 0.2).all()


@pytest.mark.parametrize(
    "r",
    [
        np.full((LAYERS, HEADS), 0.25),
        np.float32(0.25),
        [torch.tensor(0.25), torch.full((HEADS,), 0.25)],
        (np.full(HEADS, 0.25), Fraction(1, 4)),
    ],
    ids=str,
)
def test_rates_of_any_kind_of_number_are_saved(r: Any, tmp_path: Path) -> None:
    model = bert()
    set_attention(model, "r_softmax", r=r)
    set_rate(model, r)
    model.save_pretrained(tmp_path)
    assert (rates(hf.AutoModelForSequenceClassification.from_pretrained(tmp_path)).values == 0.25).all()


def test_what_is_no_model_or_has_no_rate_is_said() -> None:
    with pytest.raises(TypeError, match="Linear is not a model of transformers, and wraps none"):
        set_attention(nn.Linear(2, 2), "softmax")
    model = built("bert")
    with pytest.raises(ValueError, match=r"uses 'sdpa' attention, which has no parameter; call set_attention"):
        set_rate(model, 0.1)
    with pytest.raises(ValueError, match=r"uses 'sdpa' attention, which cannot be looked into; call set_attention"):
        sparsity(model, batch_for("bert"))
    model.set_attn_implementation("r_softmax")
    with pytest.raises(ValueError, match=r"has no r: .* call set_attention\(model, 'r_softmax', r=...\)"):
        output(model, batch_for("bert"))
    capped = hf.Gemma2Model(hf.Gemma2Config(**TEXT, num_key_value_heads=2, head_dim=4))
    set_attention(capped, "sparsemax")
    with pytest.raises(ValueError, match="sparsemax attention cannot do 'softcap', which Gemma2Attention asks for"):
        output(capped, batch_for("gemma2"))


def test_zeros_are_counted_among_real_tokens_that_see_each_other() -> None:
    model = built("gpt2")
    batch = batch_for("gpt2")
    set_attention(model, "r_softmax", r=0.5)
    weights = attention_weights(model, batch)
    found = sparsity(model, batch)
    for layer, name in enumerate(found.layers):
        zeros = seen = 0
        for text, length in enumerate((LONG, SHORT)):
            for query in range(length):
                seen += query + 1
                zeros += int((weights[name][text, 2, query, : query + 1] == 0).sum())
        assert found.values[layer, 2] == pytest.approx(zeros / seen)
    assert str(found).splitlines()[0].split() == ["zeros", "mean", "0", "1", "2", "3"]
    assert not model.training


def test_zeros_of_a_decoder_leave_out_its_padding() -> None:
    model, batch = built("bart"), batch_for("bart")
    set_attention(model, "r_softmax", r=0.5)
    whole = sparsity(model, batch).values
    for key in ("decoder_input_ids", "decoder_attention_mask"):
        batch[key] = nn.functional.pad(batch[key], (0, 3))
    assert_close(sparsity(model, batch).values, whole)


def test_threads_that_look_into_one_model_at_once_see_their_own_calls_only() -> None:
    model = built("bert")
    set_attention(model, "r_softmax", r=0.3)
    batches = [{"input_ids": torch.randint(5, WORDS, (1, length))} for length in (LONG, SHORT)]
    alone = [(attention_weights(model, batch), sparsity(model, batch)) for batch in batches]
    both_are_here = threading.Barrier(2, timeout=60)

    def wait(*_: Any) -> None:
        both_are_here.wait()

    for module in model.encoder.layer:
        module.register_forward_pre_hook(wait)
    with ThreadPoolExecutor(2) as threads:
        weights = list(threads.map(lambda batch: attention_weights(model, batch), batches))
        zeros = list(threads.map(lambda batch: sparsity(model, batch), batches))
    assert_close(weights, [expected for expected, _ in alone])
    assert_close([table.values for table in zeros], [expected.values for _, expected in alone])


def test_an_observer_is_not_shown_what_another_thread_computes() -> None:
    model, other = built("bert"), built("bert")
    seen = []
    for each in (model, other):
        set_attention(each, "sparsemax")
    with observing(lambda module, weights, kept: seen.append(module)), ThreadPoolExecutor(1) as thread:
        thread.submit(output, other, batch_for("bert")).result()
        output(model, batch_for("bert"))
    assert seen == [model.get_submodule(name) for name in layers(model)]


def test_compiled_models_can_be_looked_into_and_stay_compiled() -> None:
    torch._dynamo.reset()
    model, batch = built("bert"), batch_for("bert")
    set_attention(model, "r_softmax", r=0.3)
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    compiled: Any = torch.compile(model, backend=counter, fullgraph=True)
    assert torch.equal(sparsity(compiled, batch).values, sparsity(model, batch).values)
    assert counter.frame_count == 0
    output(compiled, batch)
    assert counter.frame_count == 1
    assert_close(attention_weights(compiled, batch), attention_weights(model, batch))
    torch._dynamo.reset()


def test_looking_leaves_each_module_in_its_mode() -> None:
    model = built("bert").train()
    model.embeddings.eval()
    set_attention(model, "sparsemax")
    sparsity(model, batch_for("bert"))
    assert model.training
    assert model.encoder.layer[0].training
    assert not any(module.training for module in model.embeddings.modules())


def test_a_changing_rate_compiles_once() -> None:
    torch._dynamo.reset()
    model, batch = built("bert"), batch_for("bert")
    set_attention(model, "r_softmax", r=0.0)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(model, backend=counter, fullgraph=True)
    for step in range(20):
        set_rate(compiled, step / 20)
        assert_close(output(compiled, batch), output(model, batch), atol=1e-5, rtol=0)
    assert counter.frame_count == 1
    torch._dynamo.reset()


@every_model
def test_gradients_at_rate_zero_are_those_of_the_dense_model(name: str) -> None:
    model, batch = built(name).double(), batch_for(name)
    gradients = []
    for sparse in (False, True):
        model.zero_grad()
        if sparse:
            set_attention(model, "r_softmax", r=0.0)
        real(
            name, model(**{key: x.double() if x.is_floating_point() else x for key, x in batch.items()})[0]
        ).sin().sum().backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("name", [name for name in ("bert", "llama", "t5") if name in MODELS])
def test_gradients_with_and_without_checkpoints_agree(name: str) -> None:
    model, batch = built(name).double().train(), batch_for(name)
    set_attention(model, "r_softmax", r=0.3, learn=True)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    gradients = []
    for checkpoints in (False, True):
        model.zero_grad()
        if checkpoints:
            model.gradient_checkpointing_enable()
        model(**batch, **({} if name == "bert" else {"use_cache": False}))[0].square().sum().backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert any("rsoftmax" in key for key in gradients[0])
    assert_close(gradients[1], gradients[0])


def test_half_precision_keeps_the_rate(tmp_path: Path) -> None:
    model, batch = bert(), batch_for("bert")
    set_attention(model, "r_softmax", r=0.15)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert output(half, batch).dtype == torch.bfloat16
    assert_close(output(half, batch).float(), output(model, batch), atol=2e-2, rtol=0)
    model.save_pretrained(tmp_path)
    read = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert read.dtype == torch.bfloat16
    for other in (half, read):
        assert torch.equal(rates(other).values, rates(model).values)


@every_model
@pytest.mark.parametrize("learn", [False, True])
def test_a_saved_model_comes_back_with_its_rates(name: str, learn: bool, tmp_path: Path) -> None:
    model, batch = built(name), batch_for(name)
    set_attention(model, "r_softmax", r=0.2, learn=learn)
    given = torch.rand(rates(model).values.shape, generator=torch.Generator().manual_seed(1)) / 2 + 0.1
    set_rate(model, given)
    if learn:
        with torch.no_grad():  # as an optimizer does, without telling anybody
            for key, parameter in model.named_parameters():
                if "rsoftmax" in key:
                    parameter.add_(0.1)
    model.save_pretrained(tmp_path)
    auto: Any = hf.AutoModelForCausalLM if name in DECODERS else hf.AutoModel
    for kind in (type(model), auto):
        read, report = kind.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report.values()), report
        assert read.config._attn_implementation == "r_softmax"
        assert torch.equal(rates(read).values, rates(model).values)
        assert_close(output(read, batch), output(model, batch))
    if learn:
        assert_close(rates(model).values, torch.sigmoid(torch.logit(given) + 0.1))
    again = tmp_path / "again"
    read.save_pretrained(again)
    assert torch.equal(rates(type(model).from_pretrained(again)).values, rates(model).values)


@pytest.mark.parametrize(("learn", "tensor"), [(False, "fixed"), (True, "free")])
def test_saved_models_keep_their_format(learn: bool, tensor: str, tmp_path: Path) -> None:
    model = built("bert")
    set_attention(model, "r_softmax", r=[0.2, 0.4], learn=learn)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["attn_implementation"] == "r_softmax"
    assert config["rsoftmax"] == {"r": [0.2, 0.4], "learn": learn, "mapping": "r_softmax"}
    names = {f"encoder.layer.{layer}.attention.self.rsoftmax.mapping.{tensor}" for layer in range(LAYERS)}
    assert {name for name in load_file(tmp_path / "model.safetensors") if "rsoftmax" in name} == names


def add_to_table(row: Mapping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAPPINGS, row.name, row)


def late_sparsemax(x: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    return sparsemax(x, dim=dim, mask=mask)


WAYS: dict[str, Callable[[Any, str, Path], Any]] = {
    "set_attention": lambda model, name, folder: set_attention(model, name),
    "set_attn_implementation": lambda model, name, folder: model.set_attn_implementation(name),
    "for a part": lambda model, name, folder: model.set_attn_implementation({"": name}),
    "from_pretrained": lambda model, name, folder: type(model).from_pretrained(folder, attn_implementation=name),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_mapping_added_to_the_table_later_is_an_implementation_too(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = built("bert"), batch_for("bert")
    model.save_pretrained(tmp_path)
    name = f"late_{list(WAYS).index(way)}"
    monkeypatch.setattr(late_sparsemax, "__name__", name)
    add_to_table(replace(MAPPINGS["sparsemax"], function=late_sparsemax), monkeypatch)
    model = WAYS[way](model, name, tmp_path) or model
    late = output(model, batch)
    assert model.config._attn_implementation == name
    set_attention(model, "sparsemax")
    assert_close(late, output(model, batch))


def late_t_softmax(x: Tensor, t: Any, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    return t_softmax(x, t, dim=dim, mask=mask)


def test_a_mapping_with_a_parameter_added_later_is_saved_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(MAPPINGS["t_softmax"], function=late_t_softmax)
    add_to_table(row, monkeypatch)
    model, batch = built("bert"), batch_for("bert")
    set_attention(model, row.name, t=[1.0, 2.0])
    model.save_pretrained(tmp_path)
    read = hf.AutoModel.from_pretrained(tmp_path)
    assert_close(rates(read).values, torch.tensor([[1.0] * HEADS, [2.0] * HEADS]))
    late = output(read, batch)
    set_attention(model, "t_softmax", t=[1.0, 2.0])
    assert_close(late, output(model, batch))


def test_a_mapping_whose_name_means_something_to_transformers_is_refused() -> None:
    with pytest.raises(ValueError, match="'flashmax' cannot be an attn_implementation"):
        register("flashmax")


def test_mappings_without_a_rate_come_back_too(tmp_path: Path) -> None:
    model, batch = bert(), batch_for("bert")
    set_attention(model, "r_softmax", r=0.3)
    set_attention(model, "sparsemax")
    model.save_pretrained(tmp_path)
    read = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert read.config._attn_implementation == "sparsemax"
    assert_close(output(read, batch), output(model, batch))
    loaded = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path, attn_implementation="entmax15")
    loaded.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["attn_implementation"] == "entmax15"


def test_a_part_of_a_model_that_is_sparse_stays_so(tmp_path: Path) -> None:
    model = clip()
    set_attention(model.text_model, "r_softmax", r=[0.2, 0.4])
    model.save_pretrained(tmp_path)
    read: Any = hf.CLIPModel.from_pretrained(tmp_path)
    assert read.config.vision_config._attn_implementation == "sdpa"
    assert_close(rates(read.text_model).values, rates(model.text_model).values)
    batch = {**batch_for("bert"), **batch_for("vit")}
    assert_close(output(read, batch), output(model, batch))
    set_attention(model, "sparsemax")
    model.vision_model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    read = hf.CLIPModel.from_pretrained(tmp_path)
    assert read.config.vision_config._attn_implementation == "sdpa"
    assert read.config.text_config._attn_implementation == "sparsemax"


def test_dense_by_choice_is_dense(tmp_path: Path) -> None:
    dense, batch = bert(), batch_for("bert")
    expected = output(dense, batch)
    set_attention(dense, "r_softmax", r=0.3)
    dense.save_pretrained(tmp_path / "sparse")
    kind: Any = hf.BertForSequenceClassification
    read, report = kind.from_pretrained(tmp_path / "sparse", attn_implementation="sdpa", output_loading_info=True)
    assert not any(report.values()), report
    assert_close(output(read, batch), expected)
    read, report = kind.from_pretrained(tmp_path / "sparse", config=bert().config, output_loading_info=True)
    assert len(report["unexpected_keys"]) == LAYERS  # transformers shows a table of them
    dense.set_attn_implementation("sdpa")
    dense.save_pretrained(tmp_path / "dense")
    assert "attn_implementation" not in json.loads((tmp_path / "dense" / "config.json").read_text())
    assert_close(output(hf.BertForSequenceClassification.from_pretrained(tmp_path / "dense"), batch), expected)


def test_rates_that_the_weights_lack_are_those_of_the_configuration(tmp_path: Path) -> None:
    dense, batch = bert(), batch_for("bert")
    dense.save_pretrained(tmp_path)
    sparse = copy.deepcopy(dense)
    set_attention(sparse, "r_softmax", r=[0.2, 0.4])
    read = hf.BertForSequenceClassification.from_pretrained(tmp_path, config=sparse.config)
    assert torch.equal(rates(read).values, rates(sparse).values)
    assert_close(output(read, batch), output(sparse, batch))
    fresh = hf.AutoModelForSequenceClassification.from_config(sparse.config)
    assert torch.equal(rates(fresh).values, rates(sparse).values)


def damaged(folder: Path, entry: dict[str, Any], *, learn: bool = False, rates_in_file: bool = False) -> Path:
    """A folder with a model, and an entry of its configuration that somebody has changed; None removes a setting."""
    model = bert()
    set_attention(model, "r_softmax", r=0.3, learn=learn)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    changed = {**config["rsoftmax"], **entry}
    config["rsoftmax"] = {name: setting for name, setting in changed.items() if setting is not None}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if rates_in_file or "rsoftmax" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ({"r": 5}, ValueError, r"r must be in \[0, 1\], got 5.0"),
        ({"r": 5, "learn": True}, ValueError, r"r must be in \[0, 1\], got 5.0"),
        ({"r": math.nan}, ValueError, r"r must be in \[0, 1\], got nan"),
        (
            {"r": [0.1, 0.2, 0.3]},
            ValueError,
            "r must be .* 2 layers x 4 heads, got 3 rows.*The weights have none either",
        ),
        (
            {"r": [[0.1] * 3] * 2},
            ValueError,
            "r must be .* 2 layers x 4 heads, got 2 rows.*The weights have none either",
        ),
        ({"r": "much"}, TypeError, "r must be made of numbers, got 'much'"),
        ({"r": None}, ValueError, "r_softmax needs r, say r=0.5"),
        ({"learn": "yes"}, TypeError, "'learn' must be true or false, got 'yes'"),
    ],
    ids=str,
)
def test_a_configuration_with_wrong_rates_is_an_error_when_it_is_read(
    entry: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = damaged(tmp_path, entry)
    with pytest.raises(error, match=f"config.json, entry 'rsoftmax': {message}"):
        hf.AutoModelForSequenceClassification.from_pretrained(folder)


def test_a_configuration_with_too_many_rates_is_an_error_at_the_first_call_of_a_new_model(tmp_path: Path) -> None:
    config: Any = hf.AutoConfig.from_pretrained(damaged(tmp_path, {"r": [0.1, 0.2, 0.3]}))
    model = hf.AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(ValueError, match="2 layers x 4 heads, got 3 rows"):
        output(model, batch_for("bert"))
    set_rate(model, 0.2)
    assert output(model, batch_for("bert")).isfinite().all()


@pytest.mark.parametrize("learn", [False, True])
def test_dense_weights_take_the_rates_of_a_configuration_learned_or_not(learn: bool, tmp_path: Path) -> None:
    folder = damaged(tmp_path, {"r": [0.2, 0.4], "learn": learn}, learn=learn)
    read = hf.AutoModelForSequenceClassification.from_pretrained(folder)
    assert_close(rates(read).values, torch.tensor([[0.2] * HEADS, [0.4] * HEADS]))
    assert any("rsoftmax" in name for name, _ in read.named_parameters()) == learn
    assert output(read, batch_for("bert")).isfinite().all()


def test_rates_are_not_learned_unless_the_configuration_says_so(tmp_path: Path) -> None:
    kind: Any = hf.BertForSequenceClassification
    read, report = kind.from_pretrained(
        damaged(tmp_path, {"learn": None}, rates_in_file=True), output_loading_info=True
    )
    assert not any(report.values()), report
    assert not any("rsoftmax" in name for name, _ in read.named_parameters())


def test_learned_rates_that_a_configuration_does_not_ask_for_are_reported(tmp_path: Path) -> None:
    kind: Any = hf.BertForSequenceClassification
    folder = damaged(tmp_path, {"learn": False}, learn=True, rates_in_file=True)
    _, report = kind.from_pretrained(folder, output_loading_info=True)
    assert len(report["unexpected_keys"]) == LAYERS


@pytest.mark.parametrize("learn", [False, True])
def test_rates_that_are_no_longer_used_are_kept_and_not_saved(learn: bool, tmp_path: Path) -> None:
    model, batch = bert(), batch_for("bert")
    set_attention(model, "r_softmax", r=0.3, learn=learn)
    sparse = output(model, batch)
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    assert not [name for name in load_file(tmp_path / "model.safetensors") if "rsoftmax" in name]
    kind: Any = hf.BertForSequenceClassification
    read, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert_close(output(read, batch), output(model, batch))
    model.set_attn_implementation("r_softmax")
    assert_close(output(model, batch), sparse)


@pytest.mark.parametrize("learn", [False, True])
def test_a_rate_that_changes_between_forward_and_backward_gives_no_other_gradient(learn: bool) -> None:
    model, batch = bert(), batch_for("bert")
    set_attention(model, "r_softmax", r=0.3, learn=learn)

    def gradient(change: bool) -> Tensor:
        model.zero_grad()
        loss = model(**batch).logits.sin().sum()
        if change:
            set_rate(model, 0.7)
        loss.backward()
        found: Tensor = model.bert.embeddings.word_embeddings.weight.grad.clone()
        return found

    before = gradient(change=False)
    if learn:
        assert_close(gradient(change=True), before)
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(change=True)


def test_a_program_that_does_not_know_the_mapping_stops(tmp_path: Path) -> None:
    model = bert()
    set_attention(model, "r_softmax", r=0.3)
    model.save_pretrained(tmp_path)
    program = f"from transformers import AutoModel; AutoModel.from_pretrained({str(tmp_path)!r})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert 'Specified `attn_implementation="r_softmax"` is not supported' in found.stderr


@pytest.mark.parametrize("mapping", ["r_softmax", "sparsemax"])
def test_a_configuration_that_was_written_by_such_a_program_still_knows(mapping: str, tmp_path: Path) -> None:
    model, batch = bert(), batch_for("bert")
    rate: Any = {"r": 0.3} if mapping == "r_softmax" else {}
    set_attention(model, mapping, **rate)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["attn_implementation"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert_close(output(read, batch), output(model, batch))


def test_the_error_without_transformers_says_what_to_install() -> None:
    program = "import sys; sys.modules['transformers'] = None; import rsoftmax.huggingface"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "rsoftmax.huggingface needs transformers: pip install 'rsoftmax[hf]'" in found.stderr


class Sentences(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": (torch.arange(7) * (index + 3)) % 50 + 5, "labels": index % 2}


def trained(
    folder: Path,
    model: Any,
    callbacks: list[hf.TrainerCallback],
    resume: bool = False,
    rate_lr: float | None = None,
    **options: Any,
) -> hf.Trainer:
    arguments = hf.TrainingArguments(
        str(folder),
        **{
            "max_steps": 6,
            "per_device_train_batch_size": 2,
            "logging_steps": 1,
            "save_steps": 3,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **options,
        },
    )
    optimizer = None if rate_lr is None else torch.optim.AdamW(parameter_groups(model, 1e-5, rate_lr))
    trainer = hf.Trainer(
        model,
        arguments,
        train_dataset=Sentences(),
        eval_dataset=Sentences(),
        callbacks=callbacks,
        optimizers=(optimizer, None),
    )
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3") if resume else None)
    return trainer


def history(trainer: hf.Trainer) -> list[float]:
    return [row["rate"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize(
    ("shape", "shares"),
    [
        ("linear", [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),
        ("constant", [1] * 6),
        ("cosine", [0.06699, 0.25, 0.5, 0.75, 0.93301, 1]),
    ],
)
def test_a_schedule_reaches_its_rate_and_is_logged(shape: str, shares: list[float], tmp_path: Path) -> None:
    model = bert()
    set_attention(model, "r_softmax", r=0.0)
    trainer = trained(
        tmp_path, model, [SparsitySchedule([0.2, 0.4], shape)], gradient_accumulation_steps=2, save_strategy="no"
    )
    assert history(trainer) == pytest.approx([0.3 * share for share in shares], abs=1e-5)
    assert_close(rates(model).values, torch.tensor([[0.2] * HEADS, [0.4] * HEADS]))


def test_a_resumed_run_has_the_rates_of_an_uninterrupted_one(tmp_path: Path) -> None:
    table = torch.rand(LAYERS, HEADS, generator=torch.Generator().manual_seed(2))
    models = [bert(), bert()]
    for model in models:
        set_attention(model, "r_softmax", r=0.0)
    whole = trained(tmp_path, models[0], [SparsitySchedule(table)])
    resumed = trained(tmp_path, models[1], [SparsitySchedule(table)], resume=True)
    assert history(resumed) == history(whole)
    assert_close(rates(models[1]).values, table)
    assert_close(models[1].state_dict(), models[0].state_dict())
    read = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-3")
    assert_close(rates(read).values, table / 2)


class FirstIsBest(hf.TrainerCallback):
    def on_evaluate(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        rest["metrics"]["eval_loss"] = float(state.global_step)


def test_the_best_checkpoint_comes_back_with_its_rate(tmp_path: Path) -> None:
    model = bert()
    set_attention(model, "r_softmax", r=0.0)
    trainer = trained(
        tmp_path,
        model,
        [SparsitySchedule(0.6), FirstIsBest()],
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
    )
    best = trainer.state.best_global_step
    assert best == 2
    assert_close(rates(model).values, torch.full((LAYERS, HEADS), 0.6 * best / 6))
    assert [row["rate"] for row in trainer.state.log_history if "eval_loss" in row] == pytest.approx([0.2, 0.4, 0.6])


def test_learned_rates_learn_at_their_own_pace_and_resume(tmp_path: Path) -> None:
    models = [bert(), bert()]
    for model in models:
        set_attention(model, "r_softmax", r=0.15, learn=True)
    assert sum(len(group["params"]) for group in parameter_groups(models[0], 1e-5)) == len([*models[0].parameters()])
    trained(tmp_path, models[0], [], rate_lr=0.1)
    learned = rates(models[0]).values
    assert ((learned > 0) & (learned < 1)).all()
    assert (learned - 0.15).abs().min() > 1e-3
    assert len(learned.unique()) > LAYERS
    trained(tmp_path, models[1], [], rate_lr=0.1, resume=True)
    assert_close(rates(models[1]).values, learned)


def test_schedules_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no shape 'square'; use one of linear, cosine, constant"):
        SparsitySchedule(0.1, shape="square")
    model = bert()
    with pytest.raises(ValueError, match="the model uses 'sdpa'; call set_attention"):
        trained(tmp_path, model, [SparsitySchedule(0.1)])
    with pytest.raises(ValueError, match=re.escape("r must be in [0, 1], got 1.5")):
        SparsitySchedule(1.5)
    set_attention(model, "r_softmax", r=0.2, learn=True)
    with pytest.raises(ValueError, match="the model learns its rates"):
        trained(tmp_path, model, [SparsitySchedule(0.1)])
    set_attention(model, "r_softmax", r=0.0)
    with pytest.raises(ValueError, match="2 layers x 4 heads"):
        trained(tmp_path, model, [SparsitySchedule([0.1, 0.2, 0.3])])
    set_attention(model, "t_softmax", t=2.0)
    with pytest.raises(ValueError, match=re.escape("SparsitySchedule is for r_softmax")):
        trained(tmp_path, model, [SparsitySchedule(0.1)])
    assert (rates(model).values == 2.0).all()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a sparse model and its tokenizer."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
    hf.BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(tmp_path)
    model = bert()
    set_attention(model, "r_softmax", r=0.4)
    model.save_pretrained(tmp_path)
    return tmp_path


def test_attention_map_draws_a_saved_model(saved: Path) -> None:
    words = ["attention-map", "--model", str(saved), "--text", "The cat sat", "--out", str(saved / "a.png")]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "r_softmax, r = 0.4    encoder.layer.1.attention.self" in shown.output
    assert shown.output.count("40.0%") == HEADS
    with Image.open(saved / "a.png") as picture:
        assert picture.size[0] > 1000


def test_attention_map_marks_zeros_and_leaves_the_future_out(saved: Path) -> None:
    found = attention_map(str(saved), "the cat sat", 0, [1], "sparsemax")
    assert found.tokens == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert found.weights[1].shape == (5, 5)
    assert not found.weights[1].isnan().any()
    gpt = built("gpt2").transformer
    set_attention(gpt, "r_softmax", r=0.4)
    for weights in attention_weights(gpt, {"input_ids": torch.tensor([[5, 6, 7]])}, removed=torch.nan).values():
        assert weights.isnan().tolist() == torch.ones(1, HEADS, 3, 3).triu(1).bool().tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layer", "7"], "there is no layer 7; the model has 2, from 0 to 1"),
        (["--head", "4"], "there is no head 4; the model has 4, from 0 to 3"),
        (["--r", "1.5"], "r must be in [0, 1], got 1.5"),
        (["--mapping", "softmin"], "there is no mapping 'softmin'"),
        (["--mapping", "sparsemax", "--r", "0.1"], "sparsemax takes no parameter, got r=0.1"),
        (["--text", "cat " * 70], "a picture has room for 64 tokens, the text has 72"),
        (["--out", "map.txt"], "'map.txt' must end in .png, .svg or .pdf"),
        (["--model", "/no/such/folder"], "'/no/such/folder' is no folder or hub id with a model"),
    ],
    ids=str,
)
def test_attention_map_says_what_is_wrong(words: list[str], message: str, saved: Path) -> None:
    given = ["attention-map", "--model", str(saved), "--text", "the cat", "--out", str(saved / "a.png"), *words]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("│", " ").split())
    assert not (saved / "a.png").exists()


def test_attention_map_reads_no_pickle(saved: Path) -> None:
    weights = saved / "model.safetensors"
    torch.save(load_file(weights), saved / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ValueError, match="is no folder or hub id with a model"):
        attention_map(str(saved), "the cat sat", 0, [1], "sparsemax")
