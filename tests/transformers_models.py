"""Small random Transformers models of every kind, and batches for them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import transformers as hf
from torch import Tensor, nn

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
    """The first output; pictures in the dtype of the model."""
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        found: Tensor = model(**{key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()})[0]
    return found


def real(name: str, found: Tensor) -> Tensor:
    """The second text, without what stands at its padding."""
    return found if name == "vit" else found[1, :SHORT]


def vision_encoder_decoder() -> Any:
    vision, text = hf.ViTConfig(**SIZES, image_size=32), hf.BertConfig(**TEXT, **DECODER)
    return hf.VisionEncoderDecoderModel(hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)).eval()


def llava() -> Any:
    vision = hf.CLIPVisionConfig(**{**SIZES, "num_attention_heads": 2}, image_size=32, patch_size=16)
    text = hf.LlamaConfig(**TEXT, num_key_value_heads=2)
    options: dict[str, Any] = {"image_token_index": 3, "image_token_id": 3, "vision_feature_layer": -1}
    return hf.LlavaForConditionalGeneration(hf.LlavaConfig(vision_config=vision, text_config=text, **options)).eval()


COMPOSITE: dict[str, Callable[[], Any]] = {
    "clip": lambda: clip(num_attention_heads=2),
    "encoder and decoder": lambda: translator(hf.BertConfig(**TEXT)).eval(),
    "vision encoder and decoder": vision_encoder_decoder,
    "llava": llava,
    "vision and text": lambda: dual(hf.BertConfig(**TEXT)).eval(),
}
"""Models that consist of other models with their own configurations."""


def batch_for_composite(name: str) -> dict[str, Tensor]:
    """Inputs for all parts of a composite model."""
    ids, pixels = torch.randint(5, WORDS, (1, LONG)), torch.randn(1, 3, 32, 32)
    if name == "llava":
        ids[0, :4] = 3  # an image has four patches
    batch = {"input_ids": ids, "pixel_values": pixels, "decoder_input_ids": ids}
    taken = {
        "encoder and decoder": ("input_ids", "decoder_input_ids"),
        "vision encoder and decoder": ("pixel_values", "decoder_input_ids"),
    }
    return {key: batch[key] for key in taken.get(name, ("input_ids", "pixel_values"))}
