"""Estimators in files without pickle: the same predictions, and nothing is loaded that is not trusted."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import skops.io
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from rsoftmax.labels import ExpectedF1Classifier, MultilabelStratifiedKFold, RiskControlledClassifier

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(120, 4))
Y = (X[:, :3] + RANDOM.normal(size=(120, 3)) > 0.3).astype(int)
FOREST = RandomForestClassifier(5, random_state=0)
PIPELINE = make_pipeline(StandardScaler(), LogisticRegression())


def saved(model: Any, path: Path) -> Any:
    """The model, saved and loaded; its predictions are the same."""
    model.save(path)
    loaded = type(model).load(path)
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.predict_labels(X) == model.predict_labels(X)
    assert isinstance(loaded.predict(X), type(model.predict(X)))
    return loaded


def test_a_loaded_estimator_predicts_the_same(tmp_path: Path) -> None:
    names = [{"abc"[k] for k in np.flatnonzero(y)} for y in Y]
    for model, y in (
        (ExpectedF1Classifier(FOREST, cv=2, average="macro", implies={0: 1}), Y),
        (ExpectedF1Classifier(PIPELINE, cv=MultilabelStratifiedKFold(2), average="samples"), pd.DataFrame(Y)),
        (ExpectedF1Classifier([PIPELINE, ExtraTreesClassifier(5)], cv=2), names),
        (ExpectedF1Classifier(PIPELINE, cv=2), Y.sum(1)),
        (RiskControlledClassifier(ExpectedF1Classifier(FOREST, cv=2), recall=0.8), Y),
    ):
        loaded = saved(model.fit(X, y), tmp_path / "model.skops")
        assert loaded.get_params().keys() == model.get_params().keys()
    assert [path.name for path in tmp_path.iterdir()] == ["model.skops"]


def test_a_loaded_estimator_has_its_evaluation_and_can_be_fitted_again(tmp_path: Path) -> None:
    model = ExpectedF1Classifier(FOREST, cv=2, random_state=0).fit(X, Y)
    loaded = saved(model, tmp_path / "model.skops")
    assert str(loaded.evaluation_) == str(model.evaluation_)
    assert model.evaluation_ is not None
    assert loaded.evaluation_.curve.error == model.evaluation_.curve.error
    assert np.array_equal(loaded.fit(X, Y).predict(X), model.predict(X))


class Foreign(LogisticRegression):  # type: ignore[misc]
    """A type that is not trusted."""


def test_what_is_not_trusted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.skops"
    model = ExpectedF1Classifier(Foreign(), cv=2).fit(X, Y)
    model.save(path)
    with pytest.raises(ValueError, match=r"not trusted; if you trust them, pass trusted=\['test_labels_.*Foreign'\]"):
        ExpectedF1Classifier.load(path)
    name = f"{__name__}.Foreign"
    assert np.array_equal(ExpectedF1Classifier.load(path, trusted=[name]).predict(X), model.predict(X))
    skops.io.dump(FunctionTransformer(eval), path)
    with pytest.raises(ValueError, match=r"builtins\.eval"):
        ExpectedF1Classifier.load(path)
    skops.io.dump(LogisticRegression(), path)
    with pytest.raises(ValueError, match="holds a LogisticRegression, not a RiskControlledClassifier"):
        RiskControlledClassifier.load(path)
    path.write_bytes(b"PK, but not a file of skops")
    with pytest.raises(ValueError, match="is damaged"):
        ExpectedF1Classifier.load(path)


def test_what_cannot_be_saved_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "model.skops"
    with pytest.raises(NotFittedError):
        ExpectedF1Classifier(FOREST).save(path)
    double = make_pipeline(FunctionTransformer(lambda x: 2 * x), LogisticRegression())
    with pytest.raises(ValueError, match="ExpectedF1Classifier contains what skops cannot save"):
        ExpectedF1Classifier(double, cv=2).fit(X, Y).save(path)
    assert not list(tmp_path.iterdir())
