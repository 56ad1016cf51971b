"""The cache that grows in place, against transformers' own."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers_models import BOTH, DECODERS

from rsoftmax.attention import GrowingCache, set_attention
from rsoftmax.attention.transformers.cache import GrowingLayer, ShadowedStaticLayer

CHANGES: dict[str, Callable[[Any], Any]] = {
    "crop": lambda layer: layer.crop(-7),
    "crop everything": lambda layer: layer.crop(-100),
    "crop nothing": lambda layer: layer.crop(0),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 1, 0])),
    "repeat": lambda layer: layer.batch_repeat_interleave(2),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([2, 0])),
    "reset": lambda layer: layer.reset(),
    "another tensor": lambda layer: setattr(layer, "keys", -layer.keys),
    "offload": lambda layer: (layer.offload(), layer.prefetch()),
}


def fill(layer: Any, tokens: int, batch: int = 3) -> tuple[Tensor, Tensor]:
    """Append the same random tokens to every layer of that length."""
    generator = torch.Generator().manual_seed(layer.get_seq_length())
    k, v = (torch.randn(batch, 2, tokens, width, generator=generator) for width in (4, 6))
    return layer.update(k, v)  # type: ignore[no-any-return]


@pytest.mark.parametrize("change", CHANGES)
def test_the_cache_holds_what_the_dynamic_cache_holds(change: str) -> None:
    layers: tuple[Any, Any] = DynamicLayer(), GrowingLayer()
    for layer in layers:
        for tokens in (9, *[1] * 9):
            fill(layer, tokens)
        CHANGES[change](layer)
    for tokens in (1, 1, 30, 1):
        batch = len(layers[0].keys) if layers[0].get_seq_length() else 3
        for expected, actual in zip(*(fill(layer, tokens, batch) for layer in layers), strict=True):
            assert torch.equal(actual, expected)
        assert layers[0].get_seq_length() == layers[1].get_seq_length()


def test_a_step_writes_its_own_token_and_nothing_else() -> None:
    layer = GrowingLayer()
    keys, values = fill(layer, 100)
    for _ in range(20):
        more, further = fill(layer, 1)
        assert (more.data_ptr(), further.data_ptr()) == (keys.data_ptr(), values.data_ptr())


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_layer_grows_by_itself(duplicate: Callable[[Any], Any]) -> None:
    layer = GrowingLayer()
    fill(layer, 8)
    other = duplicate(layer)
    ours, theirs = torch.ones(3, 2, 1, 4), -torch.ones(3, 2, 1, 4)
    keys, _ = layer.update(ours, torch.ones(3, 2, 1, 6))
    others, _ = other.update(theirs, torch.ones(3, 2, 1, 6))
    assert torch.equal(keys[:, :, 8:], ours)
    assert torch.equal(others[:, :, 8:], theirs)
    assert torch.equal(keys[:, :, :8], others[:, :, :8])


def test_tokens_that_do_not_fit_are_refused_and_change_nothing() -> None:
    layer = GrowingLayer()
    keys, _ = fill(layer, 8)
    with pytest.raises(RuntimeError, match="must match"):
        layer.update(torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 6))
    assert layer.keys is keys


def test_another_dtype_is_promoted_as_by_the_dynamic_cache() -> None:
    layer = GrowingLayer()
    fill(layer, 8)
    tokens = [torch.full((3, 2, 1, width), 1e-300, dtype=torch.float64) for width in (4, 6)]
    assert layer.update(*tokens)[0][..., -1, :].unique().tolist() == [1e-300]


def test_gradients_reach_the_tokens_before() -> None:
    layer = GrowingLayer()
    first = torch.randn(3, 2, 8, 4, requires_grad=True)
    layer.update(first, torch.randn(3, 2, 8, 6))
    keys, _ = fill(layer, 1)
    (gradient,) = torch.autograd.grad((keys**2).sum(), first)
    assert torch.equal(gradient, 2 * first.detach())


def test_a_cache_from_inference_mode_grows_outside_of_it() -> None:
    layer = GrowingLayer()
    with torch.inference_mode():
        fill(layer, 8)
    keys, _ = fill(layer, 1)
    expected = DynamicLayer()
    fill(expected, 8)
    assert torch.equal(keys, fill(expected, 1)[0])


def test_layers_with_a_sliding_window_stay_as_they_are() -> None:
    config: Any = DECODERS["mistral"]().config
    assert {type(layer) for layer in GrowingCache(config).layers} == {DynamicSlidingWindowLayer}
    assert {type(layer) for layer in GrowingCache(DECODERS["llama"]().config).layers} == {GrowingLayer}


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_a_model_generates_the_same_texts_with_either_cache(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model: Any = DECODERS[name]().eval()
    tokens = torch.randint(3, 60, (2, 5))
    caches = hf.DynamicCache(config=model.config), GrowingCache(model.config)
    options |= {"max_new_tokens": 12, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    expected, actual = (model.generate(tokens, past_key_values=cache, **options) for cache in caches)
    assert torch.equal(expected.sequences, actual.sequences)
    assert all(map(torch.equal, expected.logits, actual.logits))


def test_prompt_lookup_crops_the_cache() -> None:
    torch.manual_seed(0)
    model: Any = DECODERS["llama"]().eval()
    tokens = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
    options: dict[str, Any] = {"prompt_lookup_num_tokens": 3, "max_new_tokens": 12, "do_sample": False}
    caches = hf.DynamicCache(config=model.config), GrowingCache(model.config)
    assert torch.equal(*(model.generate(tokens, past_key_values=cache, **options) for cache in caches))


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_generate_uses_it_after_set_attention_unless_another_cache_is_requested(name: str) -> None:
    torch.manual_seed(0)
    model: Any = DECODERS[name]() if name in DECODERS else hf.BartForConditionalGeneration(BOTH[name]().config)

    def layers(**options: Any) -> set[type]:
        options |= {"max_new_tokens": 2, "return_dict_in_generate": True}
        cache = model.generate(torch.tensor([[3, 4, 5]]), **options).past_key_values
        cache = getattr(cache, "self_attention_cache", cache)
        return {type(layer) for layer in cache.layers}

    assert layers() == {DynamicLayer}
    set_attention(model, "t_softmax", t=6.0, edge=0)
    assert layers() == {GrowingLayer}
    if name == "llama":
        assert layers(past_key_values=hf.DynamicCache()) == {DynamicLayer}
        assert layers(cache_implementation="static") == {ShadowedStaticLayer}
    model.set_attn_implementation("sdpa")
    assert layers() == {DynamicLayer}
