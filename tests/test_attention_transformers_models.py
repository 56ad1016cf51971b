"""Sparse attention in small random Transformers models of every supported kind."""

import itertools
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import transformers as hf
from torch import Tensor, nn
from torch.testing import assert_close
from transformers_models import (
    BOTH,
    DECODERS,
    HEADS,
    LAYERS,
    LONG,
    SHORT,
    TEXT,
    WORDS,
    batch_for,
    bert,
    built,
    every_model,
    every_text_model,
    output,
    real,
)

from rsoftmax.attention.functional import sparse_attention
from rsoftmax.attention.transformers import (
    attend,
    attention_layers,
    attention_maps,
    head_parameters,
    set_attention,
    set_head_parameters,
    sparsity,
)
from rsoftmax.registry import MAPPINGS


@every_model
def test_softmax_and_rate_zero_are_what_the_model_was(name: str) -> None:
    model, batch = built(name).double(), batch_for(name)
    dense = real(name, output(model, batch))
    set_attention(model, "softmax")
    assert_close(real(name, output(model, batch)), dense)
    set_attention(model, "r_softmax", r=0.0)
    assert_close(real(name, output(model, batch)), dense)
    set_head_parameters(model, 0.5)
    assert (real(name, output(model, batch)) - dense).abs().max() > 1e-3


@pytest.mark.parametrize("r", [0.0, 0.15, 0.5])
@every_text_model
def test_padding_changes_nothing(name: str, r: float) -> None:
    model, batch = built(name).double(), batch_for(name)
    set_attention(model, "r_softmax", r=r)
    alone = {key: value[1:] if key.startswith("decoder") else value[1:, :SHORT] for key, value in batch.items()}
    assert_close(output(model, batch)[1:, :SHORT], output(model, alone)[:, :SHORT])


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_every_mapping_is_an_implementation(mapping: str) -> None:
    model, batch = built("bert"), batch_for("bert")
    spec = MAPPINGS[mapping]
    given: dict[str, Any] = {spec.parameter.name: spec.parameter.example} if spec.parameter else {}
    set_attention(model, mapping, **given)
    assert model.config._attn_implementation == mapping
    first = attention_maps(model, batch)["encoder.layer.0.attention.self"]
    if spec.sums_to_one:
        assert_close(first.sum(-1), torch.ones(2, HEADS, LONG))
    assert (first[1, :, :, SHORT:] == 0).all()


@pytest.mark.parametrize("name", DECODERS)
def test_the_future_does_not_leak(name: str) -> None:
    model = built(name).double()
    set_attention(model, "r_softmax", r=0.4)
    ids = torch.randint(5, WORDS, (1, LONG))
    changed = torch.cat([ids[:, :6], (ids[:, 6:] + 1).clamp(max=WORDS - 1)], 1)
    for masked in ({}, {"attention_mask": torch.ones(1, LONG).long()}):
        before, after = (output(model, {"input_ids": words, **masked}) for words in (ids, changed))
        assert_close(after[:, :6], before[:, :6])
        assert (after[:, 6:] - before[:, 6:]).abs().max() > 1e-3
    for weights in attention_maps(model, {"input_ids": ids}).values():
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


def thresholds(dtype: torch.dtype) -> Any:
    """A Llama with another threshold for each head, cut off hard, as a calibrated model has them."""
    model = built("llama").to(dtype)
    set_attention(model, "t_softmax", t=1 + torch.rand(LAYERS, HEADS), edge=0.0)
    return model


def generated(model: Any, cache: str) -> list[list[int]]:
    """A text and a shorter one, padded on the left, continued by six words."""
    ids = torch.randint(5, WORDS, (2, LONG), generator=torch.Generator().manual_seed(0))
    ids[1, :4] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    made: list[list[int]] = model.generate(
        ids, attention_mask=(ids != 0).long(), cache_implementation=cache, **options
    ).tolist()
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_thresholds_generate_the_same_text_with_every_cache(dtype: torch.dtype) -> None:
    model = thresholds(dtype)
    assert generated(model, "dynamic") == generated(model, "static")


@pytest.mark.compile
def test_thresholds_generate_the_same_text_when_compiled() -> None:
    torch._dynamo.reset()
    model = thresholds(torch.float32)
    eager = generated(model, "static")
    model.forward = torch.compile(model.forward, backend="aot_eager")
    assert generated(model, "static") == eager
    torch._dynamo.reset()


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
    model = built("llama").double()
    set_attention(model, "r_softmax", r=0.4)
    first, second = torch.randint(5, WORDS, (1, 5)), torch.randint(5, WORDS, (1, 7))
    places = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = model(input_ids=torch.cat([first, second], 1), position_ids=places, use_cache=False).logits
    assert_close(packed[:, 5:], model(input_ids=second).logits)


def test_a_mask_of_huge_negative_numbers_removes() -> None:
    model, batch = built("bert").double(), batch_for("bert")
    set_attention(model, "r_softmax", r=0.5)
    keep = batch["attention_mask"][:, None, None].bool().expand(2, 1, LONG, LONG)
    for number in (torch.finfo(torch.float32).min, -1e9, -1e4):
        added = torch.zeros(keep.shape).masked_fill(~keep, number)
        assert_close(output(model, {**batch, "attention_mask": added}), output(model, batch))


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
        assert_close(head_parameters(model).values, expected)
        set_attention(model, "r_softmax", r=0)
        set_head_parameters(model, given)
        assert_close(head_parameters(model).values, expected)
    found = sparsity(model, {"input_ids": torch.randint(5, WORDS, (3, 10))})
    assert found.layers == tuple(attention_layers(model)) == head_parameters(model).layers
    assert_close(found.values, torch.tensor(table))


@pytest.mark.parametrize("name", BOTH)
def test_encoder_and_decoder_are_named_in_order(name: str) -> None:
    names = attention_layers(built(name))
    assert len(names) == 3 * LAYERS
    assert [part.startswith("encoder") for part in names] == [True] * LAYERS + [False] * 2 * LAYERS


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"mapping": "r_softmax", "r": [0.1] * 3}, ValueError, "2 layers x 4 heads, got 3 rows"),
        ({"mapping": "r_softmax", "r": torch.zeros(2, 3)}, ValueError, r"2 layers x 4 heads, got shape \(2, 3\)"),
        ({"mapping": "r_softmax", "r": [[0.1] * 4, [0.1] * 5]}, ValueError, "2 layers x 4 heads, got 2 rows"),
        ({"mapping": "r_softmax", "r": "much"}, TypeError, "r must consist of numbers, got 'much'"),
        ({"mapping": "r_softmax", "r": 1.5}, ValueError, r"r must be in \[0, 1\], got 1.5"),
        ({"mapping": "r_softmax", "r": [0.1, -1.0]}, ValueError, r"r must be in \[0, 1\], got -1.0"),
        ({"mapping": "r_softmax", "r": -0.1}, ValueError, r"r must be in \[0, 1\], got -0.1;"),
        ({"mapping": "r_softmax", "r": [0.1, math.nan]}, ValueError, r"r must be in \[0, 1\], got nan"),
        ({"mapping": "r_softmax"}, TypeError, "r_softmax needs r, e.g. r=0.5"),
        ({"mapping": "r_softmax", "r": None}, TypeError, "r_softmax needs r, e.g. r=0.5"),
        ({"mapping": "r_softmax", "t": 1.0}, TypeError, "r_softmax takes r and edge, got t=1.0"),
        ({"mapping": "sparsemax", "r": 0.5}, TypeError, "sparsemax takes no parameter, got r=0.5"),
        ({"mapping": "sparsemax", "learnable": True}, ValueError, "sparsemax has no parameter to learn"),
        ({"mapping": "r_softmax", "r": 0.0, "learnable": True}, ValueError, "no gradient at the edge"),
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
        set_head_parameters(model, [0.3, 1.5])
    assert (head_parameters(model).values == 0.2).all()
    set_attention(model, "r_softmax", r=0.5, learnable=True)
    with pytest.raises(ValueError, match="no gradient at the edge"):
        set_head_parameters(model, [0.6, 0.0])
    assert (head_parameters(model).values == 0.5).all()


def test_what_is_no_model_or_has_no_rate_is_said() -> None:
    with pytest.raises(TypeError, match="Linear neither is nor contains a Transformers model"):
        set_attention(nn.Linear(2, 2), "softmax")
    model = built("bert")
    with pytest.raises(ValueError, match=r"uses 'sdpa' attention, which has no parameter; call set_attention"):
        set_head_parameters(model, 0.1)
    with pytest.raises(ValueError, match=r"'sdpa' attention cannot be measured; call set_attention"):
        sparsity(model, batch_for("bert"))
    model.set_attn_implementation("r_softmax")
    with pytest.raises(ValueError, match=r"has no r: .* call set_attention\(model, 'r_softmax', r=...\)"):
        output(model, batch_for("bert"))
    capped = hf.Gemma2Model(hf.Gemma2Config(**TEXT, num_key_value_heads=2, head_dim=4))
    set_attention(capped, "sparsemax")
    with pytest.raises(ValueError, match="sparsemax attention does not support 'softcap', which Gemma2Attention"):
        output(capped, batch_for("gemma2"))


@pytest.mark.compile
def test_a_changing_rate_compiles_once() -> None:
    torch._dynamo.reset()
    model, batch = built("bert").double(), batch_for("bert")
    set_attention(model, "r_softmax", r=0.0)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(model, backend=counter, fullgraph=True)
    for step in range(20):
        set_head_parameters(compiled, step / 20)
        assert_close(output(compiled, batch), output(model, batch))
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


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_gradients_with_and_without_checkpoints_agree(name: str) -> None:
    model, batch = built(name).double().train(), batch_for(name)
    set_attention(model, "r_softmax", r=0.3, learnable=True)
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


@pytest.mark.parametrize(
    ("r", "learnable", "refused"), [(0.3, True, False), (0.3, False, False), ([[0.2, 0.3, 0.3, 0.3]] * 2, False, True)]
)
def test_a_rate_that_changes_between_forward_and_backward_gives_no_other_gradient(
    r: Any, learnable: bool, refused: bool
) -> None:
    model, batch = bert(), batch_for("bert")
    set_attention(model, "r_softmax", r=r, learnable=learnable)

    def gradient(change: bool) -> Tensor:
        model.zero_grad()
        loss = model(**batch).logits.sin().sum()
        if change:
            set_head_parameters(model, 0.7)
        loss.backward()
        found: Tensor = model.bert.embeddings.word_embeddings.weight.grad.clone()
        return found

    before = gradient(change=False)
    if refused:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(change=True)
    else:
        assert torch.equal(gradient(change=True), before)


@pytest.mark.process
def test_the_error_without_transformers_says_what_to_install() -> None:
    program = "import sys; sys.modules['transformers'] = None; from rsoftmax.attention import sparsity"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "rsoftmax.attention.sparsity needs transformers: pip install 'rsoftmax[attention]'" in found.stderr


def windowed() -> Any:
    return hf.MistralForCausalLM(hf.MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=3)).eval()


def test_masks_of_every_structure_are_those_of_sdpa() -> None:
    texts = torch.randint(5, WORDS, (2, LONG))
    left, right = torch.ones(2, LONG).long(), torch.ones(2, LONG).long()
    left[1, :4], right[1, SHORT:] = 0, 0
    places = torch.cat([torch.arange(4), torch.arange(LONG - 4)]).expand(2, -1)
    inputs: dict[str, dict[str, Any]] = {
        "causal": {},
        "no padding": {"attention_mask": torch.ones(2, LONG).long()},
        "left padding": {"attention_mask": left},
        "right padding": {"attention_mask": right},
        "packed": {"position_ids": places, "use_cache": False},
    }
    models = {**{name: built(name).double() for name in ("llama", "gpt2", "bert")}, "window": windowed().double()}
    for (name, model), (case, given) in itertools.product(models.items(), inputs.items()):
        if name == "bert" and case == "packed":
            continue
        model.set_attn_implementation("sdpa")
        dense = model(input_ids=texts, **given)[0]
        set_attention(model, "softmax")
        real_tokens = given.get("attention_mask", torch.ones(2, LONG)).bool()
        assert_close(
            model(input_ids=texts, **given)[0][real_tokens],
            dense[real_tokens],
            msg=f"{name}, {case}",
        )


def test_unmasked_calls_reach_the_kernel_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[tuple[Any, bool]] = []
    original = sparse_attention

    def watched(q: Tensor, k: Tensor, v: Tensor, mask: Any, dropout: float, causal: bool, **options: Any) -> Tensor:
        masks.append((mask, causal))
        return original(q, k, v, mask, dropout, causal, **options)

    monkeypatch.setattr(attend, "sparse_attention", watched)
    ids = torch.randint(5, WORDS, (1, LONG))
    for name, causal in {"llama": True, "gpt2": True, "bert": False}.items():
        model = built(name)
        set_attention(model, "t_softmax", t=6.0)
        output(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        assert masks == [(None, causal)] * LAYERS, name
        masks.clear()
    model = built("llama")
    set_attention(model, "t_softmax", t=6.0)
    model.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert [mask for mask, _ in masks] == [None] * 3 * LAYERS
    assert [causal for _, causal in masks] == [True] * LAYERS + [False] * 2 * LAYERS
