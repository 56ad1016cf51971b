"""Thresholds calibrated to an error, certified on held-out batches."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.testing import assert_close
from transformers_models import HEADS, LAYERS, LONG, TEXT, WORDS, built, output

from rsoftmax.huggingface import calibrate, parameters, set_attention, sparsity, sweep
from rsoftmax.huggingface.attention.calibrate import BINS, TOP, moved_mass


def texts(rows: int = 8, length: int = 24) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    batches = [{"input_ids": torch.randint(5, WORDS, (rows, length), generator=generator)} for _ in range(4)]
    for batch in batches:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["attention_mask"][0, : length // 2] = 0
    return batches


def classifier() -> Any:
    torch.manual_seed(0)
    options: dict[str, Any] = {**TEXT, "num_labels": 5}
    return hf.BertForSequenceClassification(hf.BertConfig(**options)).eval()


def measure(model: Any, batches: list[dict[str, Tensor]]) -> float:
    """KL per token of a language model against softmax, computed in another way than calibrate does."""
    errors = []
    for batch in batches:
        sparse = model(**batch).logits.detach().double()
        before = parameters(model).values.clone()
        for module in model.modules():
            if hasattr(module, "rsoftmax"):
                module.rsoftmax.values = torch.full((HEADS,), math.inf)
        dense = model(**batch).logits.detach().double()
        for row, name in enumerate(parameters(model).layers):
            model.get_submodule(name).rsoftmax.values = before[row]
        divergence = nn.functional.kl_div(
            sparse.log_softmax(-1), dense.log_softmax(-1), log_target=True, reduction="none"
        )
        errors.append(divergence.sum(-1)[batch["attention_mask"].bool()])
    return float(torch.cat(errors).mean())


@pytest.mark.parametrize("per_head", [False, True])
def test_the_measured_error_of_a_language_model_is_within_the_requested_one(per_head: bool) -> None:
    model, batches = built("llama"), texts()
    found = calibrate(model, batches[:2], error=0.01, held_out=batches[2:], per_head=per_head)
    assert sum(found.measured) <= 0.01
    assert measure(model, batches[2:]) == pytest.approx(found.measured[0], rel=1e-3)
    assert found.max_length == 24
    assert sum(row[-1] for row in found.by_length) == sum(int(batch["attention_mask"].sum()) for batch in batches[2:])
    assert parameters(model).values.shape == (LAYERS, HEADS)
    assert model.config._attn_implementation == "t_softmax"
    assert "zeros" in str(found)


def test_encoders_and_classifiers_have_their_own_errors() -> None:
    for model, metric in ((built("bert"), "cosine"), (classifier(), "KL")):
        found = calibrate(model, texts(rows=20), error=0.01)
        assert metric in found.metric
        assert sum(found.measured) <= 0.01
        assert found.by_length[0][-1] == 40


def test_a_larger_error_has_more_zeros_and_zeros_are_counted() -> None:
    zeros = []
    for error in (1e-4, 1e-2):
        model, batches = built("gpt2"), texts()
        found = calibrate(model, batches[:2], error=error, held_out=batches[2:3])
        assert_close(found.zeros.values, sparsity(model, batches[2]).values)
        zeros.append(found.zeros.mean())
    assert zeros[1] > zeros[0] > 0


def test_a_calibrated_model_is_saved_and_warns_beyond_its_length(tmp_path: Path) -> None:
    model, batches = built("llama"), texts()
    found = calibrate(model, batches, error=0.01, edge=0.5)
    model.save_pretrained(tmp_path)
    read: Any = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert read.config.rsoftmax["calibration"]["max_length"] == 24
    assert read.config.rsoftmax["edge"] == 0.5
    assert torch.equal(parameters(read).values, parameters(model).values)
    assert_close(output(read, batches[0]), output(model, batches[0]))
    with pytest.warns(UserWarning, match="25 keys, but the thresholds were calibrated for at most 24"):
        output(read, {"input_ids": torch.randint(5, WORDS, (1, 25))})
    assert found.edge == 0.5


def test_bad_input_is_an_error_and_leaves_the_model_as_it_was() -> None:
    model, batches = built("llama"), texts()
    set_attention(model, "r_softmax", r=0.3)
    before = output(model, batches[0])
    short = [{"input_ids": torch.randint(5, WORDS, (1, LONG))} for _ in range(2)]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "no batches"),
        (batches, {"held_out": []}, "no held-out batches"),
        (batches, {"error": 0.0}, "error must be positive"),
        (batches, {"edge": -1.0}, "edge must be at least 0"),
        (short, {}, "9 held-out samples of 1 texts are too few"),
    ]
    for given, options, message in cases:
        with pytest.raises(ValueError, match=message):
            calibrate(model, given, **options)
        assert model.config._attn_implementation == "r_softmax", message
        assert torch.equal(output(model, batches[0]), before), message
    with pytest.raises(TypeError, match="must map the model's argument names"):
        calibrate(model, [torch.ones(1, 2)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="would stay dense"):
        calibrate(built("mpnet"), batches)


def test_sweep_shows_the_trade_and_leaves_the_model_as_it_was() -> None:
    model, batches = built("llama"), texts()[:2]
    rows = sweep(model, batches, t=[0.2, 0.8, 30.0])
    assert [row.t for row in rows] == [0.2, 0.8, 30.0]
    assert rows[0].zeros > rows[1].zeros > rows[2].zeros >= 0
    assert rows[0].error > rows[1].error > rows[2].error
    assert all(row.time > 0 for row in rows)
    assert model.config._attn_implementation == "sdpa"
    assert not [key for key in model.state_dict() if "rsoftmax" in key]


def test_moved_mass_is_the_total_variation_distance() -> None:
    gap = (torch.arange(BINS) + 0.5) * (TOP / BINS)
    mass = (-gap).exp()[None] / (-gap).exp().sum()
    assert_close(moved_mass(mass, 2.0, 0.0), mass[:, gap >= 2].sum(-1))
    assert_close(moved_mass(mass, math.inf, 0.0), torch.zeros(1))
    assert moved_mass(mass, 2.0, 1.0) > moved_mass(mass, 2.0, 0.0)
