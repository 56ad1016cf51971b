"""ONNX files of label models: ONNX Runtime predicts what torch predicts."""

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from encoders import NAMES, TEXTS
from PIL import Image
from torch.testing import assert_close

from rsoftmax.labels import Average, EncoderModel, TableModel
from rsoftmax.labels.models import onnx
from rsoftmax.labels.models.onnx import export
from rsoftmax.labels.models.table import TableConfig


def check_export(model: Any, tensors: dict[str, torch.Tensor], items: list[Any], folder: Path) -> None:
    export(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == model.names
    marginals, labels = session.run(["marginals", "labels"], {name: part.numpy() for name, part in tensors.items()})
    output = model.outputs(items)
    assert_close(torch.from_numpy(marginals), output.marginals, atol=1e-4, rtol=1e-4)
    assert (labels == (output.probs > 0).numpy()).all()
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]


def randomised(model: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_()
    return model.eval()


def a_table_model() -> TableModel:
    model = TableModel.from_config(
        TableConfig(["u", "v"], ["a", "b"], quantiles=3, hidden=4, head={"average": "samples"})
    )
    model.preprocessing.get_buffer("quantiles").copy_(torch.tensor([[0.0, 0.5, 1.0]] * 2))
    randomised(model)
    return model


@pytest.mark.compile
def test_a_table_model_is_exported(tmp_path: Path) -> None:
    rows = torch.tensor([[0.3, 0.7], [0.0, 1.0], [2.0, 0.5]])
    check_export(a_table_model(), {"features": rows}, rows.tolist(), tmp_path)


@pytest.mark.compile
def test_text_models_are_exported_for_every_average(text_encoder: Path, tmp_path: Path) -> None:
    averages: tuple[Average, ...] = ("micro", "macro", "samples")
    for average in averages:
        model = randomised(EncoderModel.from_encoder(text_encoder, NAMES, average))
        (tmp_path / average).mkdir()
        check_export(model, model.inputs.batch(TEXTS), TEXTS, tmp_path / average)


@pytest.mark.compile
def test_image_models_are_exported(image_encoder: Path, tmp_path: Path) -> None:
    model = randomised(EncoderModel.from_encoder(image_encoder, ["blue", "red"]))
    images = [Image.new("RGB", (20 + i, 30), (40 * i, 0, 90)) for i in range(3)]
    check_export(model, model.inputs.batch(images), images, tmp_path)


@pytest.mark.compile
def test_a_file_that_predicts_something_else_does_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="the marginals of ONNX Runtime differ from torch's by"):
        export(a_table_model(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
