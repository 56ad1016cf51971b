"""ForestModel: trees for the rows of a table, in one folder without pickle, with rules, guarantees and ONNX."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import skops.io
import torch
from sklearn.ensemble import ExtraTreesClassifier
from torch.testing import assert_close

from rsoftmax.labels import ExpectedF1Classifier, ForestModel
from rsoftmax.labels.models.folders import load
from rsoftmax.labels.models.onnx import export

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 2)).astype(np.float32)
PLACES = RANDOM.choice(["sea", "hill"], 300)
ROWS = [[*map(float, x), place] for x, place in zip(X, PLACES, strict=True)]
Y = [["warm"] * int(x[0] > 0) + ["wet"] * int(x[1] + 2 * (p == "sea") > 1) for x, p in zip(X, PLACES, strict=True)]


@pytest.fixture(scope="module")
def model() -> ForestModel:
    return ForestModel(["u", "v", "place"]).fit(ROWS, Y)


def test_it_predicts_what_the_estimator_predicts(model: ForestModel) -> None:
    x = np.column_stack([X, PLACES == "hill", PLACES == "sea"]).astype(np.float32)
    y = np.array([["warm" in names, "wet" in names] for names in Y]).astype(int)
    trees = ExpectedF1Classifier(ExtraTreesClassifier(random_state=0), random_state=0).fit(x, y)
    output = model.outputs(ROWS)
    assert_close(output.marginals, torch.from_numpy(trees.predict_proba(x)).float())
    assert np.array_equal(output.labels.numpy(), trees.predict(x))
    assert trees.evaluation_ is not None
    assert model.evaluation["micro"] == trees.evaluation_.micro > 0.9


def test_it_is_saved_without_pickle_and_predicts_the_same(model: ForestModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"README.md", "config.json", "model.skops"}
    again = load(tmp_path / "model")
    assert isinstance(again, ForestModel)
    assert again.predict(ROWS) == model.predict(ROWS)
    assert "ForestModel" in (tmp_path / "model" / "README.md").read_text()
    skops.io.dump(ExtraTreesClassifier(), tmp_path / "model" / "model.skops")
    with pytest.raises(ValueError, match=r"model is damaged: .* holds a ExtraTreesClassifier"):
        ForestModel.load(tmp_path / "model")
    (tmp_path / "model" / "model.skops").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model\.skops"):
        load(tmp_path / "model")


def test_it_keeps_rules_bounds_and_guarantees(tmp_path: Path) -> None:
    model = ForestModel(["u", "v", "place"], implies={"wet": "warm"}, min_labels=1).fit(ROWS, Y)
    for labels in model.predict_labels(ROWS):
        assert "warm" in labels
    model = ForestModel(["u", "v", "place"]).fit(
        ROWS, Y, guarantee={"recall": 0.8, "by": "label"}, review={"accept": 0.6, "reject": 0.8}
    )
    model.save(tmp_path / "model")
    again = ForestModel.load(tmp_path / "model")
    assert again.predict(ROWS) == model.predict(ROWS)
    assert again.evaluation["guarantee"] == "recall of every label at least 0.8, in expectation"
    assert [item.asked for item in again.review(ROWS)] == [item.asked for item in model.review(ROWS)]


@pytest.mark.compile
def test_it_is_exported(model: ForestModel, tmp_path: Path) -> None:
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    x = model.embed(ROWS)
    marginals, labels = session.run(["marginals", "labels"], {"features": x})
    output = model.outputs(ROWS)
    assert_close(torch.from_numpy(marginals), output.marginals, atol=1e-5, rtol=1e-4)
    assert np.array_equal(labels, output.labels.numpy())
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == ["warm", "wet"]
    assert json.loads(metadata["features"]) == ["u", "v", "place=hill", "place=sea"]


def test_bad_rows_are_refused(model: ForestModel) -> None:
    with pytest.raises(ValueError, match="ForestModel: expected 3 features per row"):
        model.predict([[1.0]])
    with pytest.raises(ValueError, match="no row has a label"):
        ForestModel(["u"], ["a"]).fit([[0.0], [1.0]], [[], []])
    with pytest.raises(ValueError, match="not trained yet"):
        ForestModel(["u"]).save("nowhere")
