"""The attention map of one sentence."""

from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
import transformers as hf
from PIL import Image
from safetensors.torch import load_file
from transformers_models import HEADS, bert, built
from typer.testing import CliRunner

from rsoftmax.attention.transformers import attention_maps, set_attention
from rsoftmax.attention.transformers.measure import attention_map
from rsoftmax.cli import app


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


def test_attention_map_of_a_saved_mapping_without_a_parameter(saved: Path) -> None:
    model = hf.BertModel.from_pretrained(saved)
    set_attention(model, "sparsemax")
    model.save_pretrained(saved)
    assert attention_map(str(saved), "the cat sat", 0, [1]).title.startswith("sparsemax ")


def test_attention_map_marks_zeros_and_leaves_the_future_out(saved: Path) -> None:
    found = attention_map(str(saved), "the cat sat", 0, [1], "sparsemax")
    assert found.tokens == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert found.weights[1].shape == (5, 5)
    assert not found.weights[1].isnan().any()
    gpt = built("gpt2").transformer
    set_attention(gpt, "r_softmax", r=0.4)
    for weights in attention_maps(gpt, {"input_ids": torch.tensor([[5, 6, 7]])}, masked=torch.nan).values():
        assert weights.isnan().tolist() == torch.ones(1, HEADS, 3, 3).triu(1).bool().tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layer", "7"], "there is no layer 7; the model has 2, from 0 to 1"),
        (["--head", "4"], "there is no head 4; the model has 4, from 0 to 3"),
        (["--r", "1.5"], "r must be in [0, 1], got 1.5"),
        (["--mapping", "softmin"], "there is no mapping 'softmin'"),
        (["--mapping", "sparsemax", "--r", "0.1"], "sparsemax takes no parameter, got r=0.1"),
        (["--text", "cat " * 70], "a plot has room for 64 tokens, but the text has 72"),
        (["--text", "caf\udce9"], r"'caf\udce9' is not valid Unicode: it has a lone surrogate"),
        (["--out", "map.txt"], "'map.txt' must end in .png, .svg or .pdf"),
        (["--model", "/no/such/folder"], "'/no/such/folder' is not a folder or hub id with a model"),
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
    with pytest.raises(ValueError, match="is not a folder or hub id with a model"):
        attention_map(str(saved), "the cat sat", 0, [1], "sparsemax")
