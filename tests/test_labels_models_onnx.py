"""ONNX files of label models: ONNX Runtime predicts what torch predicts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from encoders import NAMES, TEXTS
from PIL import Image
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.testing import assert_close

from rsoftmax.labels import Average, EncoderModel, ExpectedF1Classifier, RiskControlledClassifier, TableModel
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
    with pytest.raises(ValueError, match="the marginals of ONNX Runtime differ from"):
        export(a_table_model(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features that float32 holds exactly, and three labels."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)).astype(np.float32)
    return x, (x[:, :3] + random.normal(size=(rows, 3)) > [0.5, 0.0, 1.0]).astype(int)


def check_estimator(model: Any, folder: Path) -> None:
    """The same marginals, and the same labels even where scores of a forest equal the threshold."""
    export(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    x, _ = drawn(500, 1)
    for rows in (x, x[:1]):
        marginals, labels = session.run(["marginals", "labels"], {"features": rows})
        expected = torch.from_numpy(model.predict_proba(rows)).float()
        assert_close(torch.from_numpy(marginals), expected, atol=1e-5, rtol=1e-4)  # of scores in float32
        assert (labels == model.predict(rows)).all()
    assert session.get_modelmeta().custom_metadata_map["labels"] == json.dumps(model.classes_.tolist())


ESTIMATORS = {
    "logistic regression": LogisticRegression(),
    "forest": RandomForestClassifier(5, max_depth=4, random_state=0),
    "extra trees": ExtraTreesClassifier(5, max_depth=4, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
}


@pytest.mark.compile
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_are_exported(name: str, tmp_path: Path) -> None:
    x, y = drawn(200, 0)
    average: Average = "samples" if name == "forest" else "micro"
    check_estimator(ExpectedF1Classifier(ESTIMATORS[name], average=average, cv=2, random_state=0).fit(x, y), tmp_path)
    risk_controlled = RiskControlledClassifier(ESTIMATORS[name], recall=0.8, by="label", random_state=0)
    check_estimator(risk_controlled.fit(x, y), tmp_path)


@pytest.mark.compile
def test_estimators_inside_estimators_are_exported(tmp_path: Path) -> None:
    x, y = drawn(200, 0)
    several = [MultiOutputClassifier(LogisticRegression()), ESTIMATORS["forest"]]
    check_estimator(ExpectedF1Classifier(several, average="macro", cv=2, random_state=0).fit(x, y), tmp_path)
    fitted = FrozenEstimator(ExpectedF1Classifier(ESTIMATORS["forest"], cv=2, random_state=0).fit(x, y))
    check_estimator(RiskControlledClassifier(fitted, recall=0.8).fit(*drawn(100, 2)), tmp_path)


@pytest.mark.compile
def test_one_class_of_several_is_exported(tmp_path: Path) -> None:
    x, y = drawn(200, 0)
    model = ExpectedF1Classifier(LogisticRegression(), cv=2, random_state=0).fit(x, y.sum(1))
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    marginals, labels = session.run(["marginals", "labels"], {"features": x})
    assert_close(torch.from_numpy(marginals), torch.from_numpy(model.predict_proba(x)).float(), atol=1e-5, rtol=1e-4)
    assert (model.classes_[labels.argmax(1)] == model.predict(x)).all()
    assert (labels.sum(1) == 1).all()


def test_what_cannot_be_exported_is_an_error(tmp_path: Path) -> None:
    x, y = drawn(200, 0)
    path = tmp_path / "model.onnx"
    with pytest.raises(ValueError, match="skl2onnx cannot convert ClassifierChain"):
        export(ExpectedF1Classifier(ClassifierChain(LogisticRegression()), cv=2).fit(x, y), path)
    ruled = ExpectedF1Classifier(LogisticRegression(), cv=2, implies={0: 1})
    with pytest.raises(ValueError, match="without implies and exclusive"):
        export(ruled.fit(x, y), path)
    with pytest.raises(NotFittedError, match="not fitted"):
        export(ExpectedF1Classifier(LogisticRegression()), path)
    assert not list(tmp_path.iterdir())
