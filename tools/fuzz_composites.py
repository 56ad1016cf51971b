"""Transformers models of one and of several parts: saved with sparse attention, they come back as they were."""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from fuzz_draw import Draw

from rsoftmax import MAPPINGS
from rsoftmax.attention.transformers import layers, parameters, set_attention, set_parameter
from rsoftmax.registry import ParamSpec

hf.utils.logging.disable_progress_bar()
hf.utils.logging.set_verbosity_error()

HEADS, LAYERS, WORDS = 2, 2, 30
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 8,
}
TEXT: dict[str, Any] = {**SIZES, "vocab_size": WORDS, "pad_token_id": 0}
IMAGE: dict[str, Any] = {**SIZES, "image_size": 16, "patch_size": 8}


def _decoder() -> Any:
    return hf.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)


def _encoder_decoder() -> Any:
    pair = hf.EncoderDecoderConfig.from_encoder_decoder_configs(hf.BertConfig(**TEXT), _decoder())
    return hf.EncoderDecoderModel(pair)


def _vision_encoder_decoder() -> Any:
    pair = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**IMAGE), _decoder())
    return hf.VisionEncoderDecoderModel(pair)


def _dual() -> Any:
    pair = hf.VisionTextDualEncoderConfig.from_vision_text_configs(hf.ViTConfig(**IMAGE), hf.BertConfig(**TEXT))
    return hf.VisionTextDualEncoderModel(pair)


def _clip() -> Any:
    return hf.CLIPModel(hf.CLIPConfig.from_dict({"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 4}))


def _llava() -> Any:
    text = hf.LlamaConfig(**TEXT, num_key_value_heads=1)
    vision = hf.CLIPVisionConfig(**IMAGE)
    return hf.LlavaForConditionalGeneration(hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=3))


MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**TEXT)),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**IMAGE)),
    "clip": _clip,
    "encoder-decoder": _encoder_decoder,
    "vision-encoder-decoder": _vision_encoder_decoder,
    "dual": _dual,
    "llava": _llava,
}


def check(draw: Draw) -> None:
    """One model, mapping and parameter: saved and loaded twice."""
    name = draw.one_of(*MODELS)
    torch.manual_seed(draw.integer(0, 1 << 30))
    model = MODELS[name]().eval()
    mapping = draw.one_of(*MAPPINGS)
    parameter = MAPPINGS[mapping].parameter
    given = {} if parameter is None else {parameter.name: _value(draw, parameter, len(layers(model)))}
    learnable = parameter is not None and draw.chance(0.5)
    set_attention(model, mapping, learnable=learnable, **given)
    if parameter is not None and draw.chance(0.5):
        set_parameter(model, _value(draw, parameter, len(layers(model))))
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            loaded = type(model).from_pretrained(folder)
        _compare(f"{name}, {mapping}, {given}, learnable={learnable}", model, loaded, parameter is not None)
        model = loaded


def _value(draw: Draw, parameter: ParamSpec, count: int) -> Any:
    """A number, one for each layer, or one for each head."""
    shape = draw.one_of((), (count,), (count, HEADS))
    return draw.inside(parameter, *shape).tolist()


def _compare(case: str, model: Any, loaded: Any, has_parameter: bool) -> None:
    assert layers(loaded) == layers(model), case
    chosen = [
        each.get_submodule(layer).config._attn_implementation for each in (model, loaded) for layer in layers(each)
    ]
    assert len(set(chosen)) == 1, (case, chosen)
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys(), (case, before.keys() ^ after.keys())
    different = [name for name in before if not torch.equal(before[name], after[name])]
    assert not different, (case, different)
    if has_parameter:
        assert torch.equal(parameters(model).values, parameters(loaded).values), case
        trained = [{name for name, p in each.named_parameters() if p.requires_grad} for each in (model, loaded)]
        assert trained[0] == trained[1], (case, trained[0] ^ trained[1])
