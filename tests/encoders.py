"""Small random encoders, as folders of transformers: of texts, with a tokenizer of a few words, and of images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer, ViTConfig, ViTImageProcessorPil, ViTModel

WORDS = [
    "i", "you", "it", "love", "hate", "fear", "rain", "sun", "so", "very", "nothing", "at", "all", "happy", "angry"
]  # fmt: skip
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
TEXTS = ["I love it", "I hate it", "nothing at all", "so happy", "so very angry", "happy I love you"]
LABELS = [["joy", "love"], ["anger"], [], ["joy"], ["anger"], ["joy", "love"]]
NAMES = ["anger", "joy", "love"]


def save_text_encoder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(WORDS) + 5, max_position_embeddings=24, initializer_range=0.5, **SIZES)
    BertModel(config).save_pretrained(folder)
    return folder


def save_image_encoder(folder: Path) -> Path:
    torch.manual_seed(0)
    ViTModel(ViTConfig(image_size=32, patch_size=8, initializer_range=0.2, **SIZES)).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text_encoder(tmp_path_factory.mktemp("encoders") / "bert")


@pytest.fixture(scope="session")
def image_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_image_encoder(tmp_path_factory.mktemp("encoders") / "vit")
