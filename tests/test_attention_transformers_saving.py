"""Sparse models are saved and loaded."""

import copy
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close
from transformers_models import (
    COMPOSITE,
    DECODERS,
    HEADS,
    LAYERS,
    batch_for,
    batch_for_composite,
    bert,
    built,
    clip,
    every_model,
    output,
)

from rsoftmax.attention.transformers import (
    adapter,
    head_parameters,
    parameter_groups,
    set_attention,
    set_head_parameters,
)
from rsoftmax.attention.transformers.attend import register
from rsoftmax.attention.transformers.parameters import head_counts
from rsoftmax.mappings import MAPPINGS, MappingSpec, sparsemax, t_softmax

pytestmark = pytest.mark.usefixtures("in_float64")


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
    set_head_parameters(model, r)
    model.save_pretrained(tmp_path)
    assert (head_parameters(hf.AutoModelForSequenceClassification.from_pretrained(tmp_path)).values == 0.25).all()


def test_half_precision_keeps_the_rate(tmp_path: Path) -> None:
    model, batch = bert(), batch_for("bert")
    set_attention(model, "r_softmax", r=0.15)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert output(half, batch).dtype == torch.bfloat16
    assert_close(output(half, batch).double(), output(model, batch), atol=2e-2, rtol=0)
    model.save_pretrained(tmp_path)
    read = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert read.dtype == torch.bfloat16
    for other in (half, read):
        assert torch.equal(head_parameters(other).values, head_parameters(model).values)


@every_model
@pytest.mark.parametrize("learnable", [False, True])
def test_a_saved_model_comes_back_with_its_rates(name: str, learnable: bool, tmp_path: Path) -> None:
    model, batch = built(name), batch_for(name)
    set_attention(model, "r_softmax", r=0.2, learnable=learnable)
    given = torch.rand(head_parameters(model).values.shape, generator=torch.Generator().manual_seed(1)) / 2 + 0.1
    set_head_parameters(model, given)
    if learnable:
        with torch.no_grad():  # as an optimizer does, without telling anybody
            for key, parameter in model.named_parameters():
                if "rsoftmax" in key:
                    parameter.add_(0.1)
    model.save_pretrained(tmp_path)
    auto: Any = hf.AutoModelForCausalLM if name in DECODERS else hf.AutoModel
    kind = auto if learnable else type(model)
    read, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert read.config._attn_implementation == "r_softmax"
    assert torch.equal(head_parameters(read).values, head_parameters(model).values)
    assert_close(output(read, batch), output(model, batch))
    if learnable:
        assert_close(head_parameters(model).values, torch.sigmoid(torch.logit(given) + 0.1), check_dtype=False)
    again = tmp_path / "again"
    read.save_pretrained(again)
    assert torch.equal(head_parameters(type(model).from_pretrained(again)).values, head_parameters(model).values)


@pytest.mark.parametrize(("learnable", "tensor"), [(False, "value"), (True, "raw_value")])
def test_saved_models_keep_their_format(learnable: bool, tensor: str, tmp_path: Path) -> None:
    model = built("bert")
    set_attention(model, "r_softmax", r=[0.2, 0.4], learnable=learnable)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["attn_implementation"] == "r_softmax"
    assert config["rsoftmax"] == {"r": [0.2, 0.4], "learnable": learnable, "mapping": "r_softmax"}
    names = {f"encoder.layer.{layer}.attention.self.rsoftmax.mapping.{tensor}" for layer in range(LAYERS)}
    assert {name for name in load_file(tmp_path / "model.safetensors") if "rsoftmax" in name} == names


def add_to_table(row: MappingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
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
    row = replace(MAPPINGS["t_softmax"], function=late_t_softmax, options=())
    add_to_table(row, monkeypatch)
    model, batch = built("bert"), batch_for("bert")
    set_attention(model, row.name, t=[1.0, 2.0])
    model.save_pretrained(tmp_path)
    read = hf.AutoModel.from_pretrained(tmp_path)
    assert_close(head_parameters(read).values, torch.tensor([[1.0] * HEADS, [2.0] * HEADS]), check_dtype=False)
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
    assert_close(head_parameters(read.text_model).values, head_parameters(model.text_model).values)
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
    assert torch.equal(head_parameters(read).values, head_parameters(sparse).values)
    assert_close(output(read, batch), output(sparse, batch))
    fresh = hf.AutoModelForSequenceClassification.from_config(sparse.config)
    assert torch.equal(head_parameters(fresh).values, head_parameters(sparse).values)


def damaged(folder: Path, entry: dict[str, Any], *, learnable: bool = False, rates_in_file: bool = False) -> Path:
    """A folder with a model, and an entry of its configuration that somebody has changed; None removes a setting."""
    model = bert()
    set_attention(model, "r_softmax", r=0.3, learnable=learnable)
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
        ({"r": 5, "learnable": True}, ValueError, r"r must be in \[0, 1\], got 5.0"),
        ({"r": math.nan}, ValueError, r"r must be in \[0, 1\], got nan"),
        (
            {"r": [0.1, 0.2, 0.3]},
            ValueError,
            "r must be .* 2 layers x 4 heads, got 3 rows.*The checkpoint has no values either",
        ),
        (
            {"r": [[0.1] * 3] * 2},
            ValueError,
            "r must be .* 2 layers x 4 heads, got 2 rows.*The checkpoint has no values either",
        ),
        ({"r": "much"}, TypeError, "r must consist of numbers, got 'much'"),
        ({"r": None}, ValueError, "r_softmax needs r, e.g. r=0.5"),
        ({"learnable": "yes"}, TypeError, "'learnable' must be true or false, got 'yes'"),
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
    set_head_parameters(model, 0.2)
    assert output(model, batch_for("bert")).isfinite().all()


@pytest.mark.parametrize("learnable", [False, True])
def test_dense_weights_take_the_rates_of_a_configuration_learned_or_not(learnable: bool, tmp_path: Path) -> None:
    folder = damaged(tmp_path, {"r": [0.2, 0.4], "learnable": learnable}, learnable=learnable)
    read = hf.AutoModelForSequenceClassification.from_pretrained(folder)
    assert_close(head_parameters(read).values, torch.tensor([[0.2] * HEADS, [0.4] * HEADS]), check_dtype=False)
    assert any("rsoftmax" in name for name, _ in read.named_parameters()) == learnable
    assert output(read, batch_for("bert")).isfinite().all()


def test_rates_are_not_learned_unless_the_configuration_says_so(tmp_path: Path) -> None:
    kind: Any = hf.BertForSequenceClassification
    read, report = kind.from_pretrained(
        damaged(tmp_path, {"learnable": None}, rates_in_file=True), output_loading_info=True
    )
    assert not any(report.values()), report
    assert not any("rsoftmax" in name for name, _ in read.named_parameters())


def test_learned_rates_that_a_configuration_does_not_ask_for_are_reported(tmp_path: Path) -> None:
    kind: Any = hf.BertForSequenceClassification
    folder = damaged(tmp_path, {"learnable": False}, learnable=True, rates_in_file=True)
    _, report = kind.from_pretrained(folder, output_loading_info=True)
    assert len(report["unexpected_keys"]) == LAYERS


@pytest.mark.parametrize("learnable", [False, True])
def test_rates_that_are_no_longer_used_are_kept_and_not_saved(learnable: bool, tmp_path: Path) -> None:
    model, batch = bert(), batch_for("bert")
    set_attention(model, "r_softmax", r=0.3, learnable=learnable)
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


PARAMETRIC = [name for name, row in MAPPINGS.items() if row.parameter is not None]


def tables(counts: list[int], example: float) -> list[Any]:
    """The same number for all heads, one number per layer, and a different one for each head."""
    by_layer = [example * (1 + 0.01 * layer) for layer in range(len(counts))]
    by_head = [[value * (1 + 0.001 * head) for head in range(n)] for value, n in zip(by_layer, counts, strict=True)]
    return [example, by_layer, by_head]


@pytest.mark.parametrize("name", COMPOSITE)
def test_a_composite_model_comes_back_with_every_mapping(name: str, tmp_path: Path) -> None:
    model, batch = COMPOSITE[name](), batch_for_composite(name)
    counts = head_counts(adapter.attention_modules(model))
    first = list(COMPOSITE).index(name)  # over all models, every mapping is learnable and is not
    for number, mapping in enumerate(PARAMETRIC, first):
        parameter, learnable = MAPPINGS[mapping].parameter, number % 2 == 1
        assert parameter is not None
        value = tables(counts, parameter.example)[number % 3]
        case = f"{mapping}, learnable={learnable}, {value}"
        set_attention(model, mapping, learnable=learnable, **{parameter.name: value})
        model.save_pretrained(tmp_path)
        read, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report.values()), (case, report)
        assert torch.equal(head_parameters(read).values.nan_to_num(), head_parameters(model).values.nan_to_num()), case
        assert any("rsoftmax" in key for key, _ in read.named_parameters()) == learnable, case
        assert_close(output(read, batch), output(model, batch), msg=case)


def test_a_part_of_a_saved_composite_model_is_sparse_too(tmp_path: Path) -> None:
    model = clip()
    values: list[Any] = [0.3, [0.1, 0.2, 0.3, 0.4]]
    for learnable, value in itertools.product((False, True), values):
        set_attention(model, "r_softmax", r=value, learnable=learnable)
        model.save_pretrained(tmp_path)
        text: Any = hf.CLIPTextModel.from_pretrained(tmp_path)
        assert_close(head_parameters(text).values, head_parameters(model).values[:LAYERS])


def test_a_part_with_its_own_settings_keeps_them(tmp_path: Path) -> None:
    model = clip()
    set_attention(model, "r_softmax", r=0.5)
    set_attention(model.text_model, "r_softmax", r=0.7, learnable=True)
    model.save_pretrained(tmp_path)
    read: Any = hf.CLIPModel.from_pretrained(tmp_path)
    assert_close(head_parameters(read).values, head_parameters(model).values)
    assert_close(
        head_parameters(read).values, torch.tensor([0.7, 0.7, 0.5, 0.5])[:, None].expand(-1, HEADS), check_dtype=False
    )
    learned = [key for key, _ in read.named_parameters() if "rsoftmax" in key]
    assert len(learned) == LAYERS
    assert all("text_model" in key for key in learned)


@pytest.mark.parametrize(("mapping", "parameter"), [("r_softmax", {"r": 0.0}), ("softmax", {}), ("sparsemax", {})])
def test_the_scale_log_n_is_learned_saved_and_loaded(mapping: str, parameter: dict[str, Any], tmp_path: Path) -> None:
    config = hf.BertConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=8, vocab_size=50
    )
    model, tokens = hf.BertModel(config).eval(), torch.arange(64)[None] % 50
    set_attention(model, mapping, **parameter)
    usual = model(tokens).last_hidden_state
    set_attention(model, mapping, log_n_scale=True, **parameter)
    assert_close(model(tokens).last_hidden_state, usual)  # the usual scale at 64 keys
    assert not torch.allclose(model(tokens[:, :5]).last_hidden_state, usual[:, :5])
    names = [name for name in model.state_dict() if name.endswith("rsoftmax.log_scale")]
    assert len(names) == 2
    assert len(parameter_groups(model, 1e-5)[1]["params"]) == 2
    with torch.no_grad():
        model.get_parameter(names[0]).fill_(0.5)
    model.save_pretrained(tmp_path)
    kind: Any = hf.BertModel
    loaded, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(loaded.get_parameter(names[0]), model.get_parameter(names[0]))
    assert_close(loaded(tokens).last_hidden_state, model(tokens).last_hidden_state)
    loaded(tokens).last_hidden_state.square().sum().backward()
    assert all(loaded.get_parameter(name).grad is not None for name in names)
    set_attention(model, mapping, **parameter)
    assert not [name for name in model.state_dict() if name.endswith("log_scale")]


def test_factors_of_log_n_that_the_weights_lack_start_at_the_usual_scale(tmp_path: Path) -> None:
    dense, batch = bert(), batch_for("bert")
    dense.save_pretrained(tmp_path)
    sparse = copy.deepcopy(dense)
    set_attention(sparse, "softmax", log_n_scale=True)
    read = hf.BertForSequenceClassification.from_pretrained(tmp_path, config=sparse.config)
    assert_close(output(read, batch), output(sparse, batch))
    assert_close(output(hf.BertForSequenceClassification.from_pretrained(tmp_path), batch), output(dense, batch))


UNTOUCHED = """
import transformers as hf
kinds = (hf.PreTrainedConfig, hf.PreTrainedModel)
before = [dict(vars(kind)) for kind in kinds]
import rsoftmax.attention.transformers
from rsoftmax.attention import register_attention
assert [dict(vars(kind)) for kind in kinds] == before, "importing changed transformers"
assert "r_softmax" not in hf.AttentionInterface().valid_keys()
try:
    hf.AutoModel.from_pretrained(FOLDER)
except ValueError as error:
    assert 'Specified `attn_implementation="r_softmax"` is not supported' in str(error), error
else:
    raise AssertionError("loaded without register_attention")
register_attention()
methods = [dict(vars(kind)) for kind in kinds]
register_attention()
assert [dict(vars(kind)) for kind in kinds] == methods, "installed twice"
from rsoftmax.attention import head_parameters
assert head_parameters(hf.AutoModel.from_pretrained(FOLDER)).values.unique().tolist() == [0.25]
"""


@pytest.mark.process
def test_importing_changes_nothing_and_a_saved_model_needs_register_attention(tmp_path: Path) -> None:
    model = bert()
    set_attention(model, "r_softmax", r=0.25)
    model.save_pretrained(tmp_path)
    program = f"FOLDER = {str(tmp_path)!r}\n{UNTOUCHED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
