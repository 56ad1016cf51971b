"""ExpectedF1Classifier: the right labels from any scikit-learn classifier."""

import inspect
import io
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import rsoftmax.estimator
from rsoftmax.multilabel import AVERAGES
from rsoftmax.sklearn import ExpectedF1Classifier
from rsoftmax.sklearn.folds import stratified_folds

X, Y = make_multilabel_classification(300, n_features=12, n_classes=5, n_labels=2, length=60, random_state=0)
TRAIN, TEST = slice(0, 200), slice(200, 300)
LOGISTIC = LogisticRegression(C=0.1)
FOREST = RandomForestClassifier(15, max_depth=6, random_state=0)


def behind(estimator: Any = LOGISTIC, **settings: Any) -> ExpectedF1Classifier:
    return ExpectedF1Classifier(estimator, **{"cv": 3, "random_state": 0, **settings})


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [ExpectedF1Classifier(LogisticRegression(), cv=2)],
    expected_failed_checks=lambda _: {
        f"check_sample_weight_equivalence_on_{kind}_data": "a row that is there twice may be in two folds"
        for kind in ("dense", "sparse")
    },
)
def test_keeps_the_conventions_of_scikit_learn(estimator: ExpectedF1Classifier, check: Any) -> None:
    check(estimator)


def test_the_signature_is_the_documented_one() -> None:
    parameters = inspect.signature(ExpectedF1Classifier).parameters
    assert {name: parameter.default for name, parameter in parameters.items() if name != "estimator"} == {
        "average": "micro", "beta": 1.0, "calibration": "platt", "cv": 5, "at_least": 0, "at_most": None,
        "n_jobs": None, "random_state": None, "progress": False,
    }  # fmt: skip
    assert rsoftmax.estimator.ExpectedF1Classifier is ExpectedF1Classifier


@pytest.mark.parametrize(
    "estimator",
    [
        LOGISTIC,
        OneVsRestClassifier(LOGISTIC),
        MultiOutputClassifier(LOGISTIC),
        ClassifierChain(LOGISTIC),
        make_pipeline(StandardScaler(), OneVsRestClassifier(LOGISTIC)),
        FOREST,
        KNeighborsClassifier(),
        LinearSVC(),
        RidgeClassifier(),
        [LinearSVC(), FOREST],
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_stands_behind_any_classifier(estimator: Any) -> None:
    model = behind(estimator).fit(X[TRAIN], Y[TRAIN])
    pi, odds, found = (answer(X[TEST]) for answer in (model.predict_proba, model.decision_function, model.predict))
    assert pi.shape == odds.shape == found.shape == (100, 5)
    np.testing.assert_allclose(pi, 1 / (1 + np.exp(-odds)))
    assert model.cuts_ is not None
    np.testing.assert_array_equal(found, pi > model.cuts_)
    assert abs(pi.mean() - Y[TEST].mean()) < 0.06  # calibrated
    assert model.score(X[TEST], Y[TEST]) == f1_score(Y[TEST], found, average="micro") > 0.6


def test_each_average_does_better_than_one_half() -> None:
    x, y = make_multilabel_classification(600, n_features=12, n_classes=8, allow_unlabeled=False, random_state=0)
    plain = clone(FOREST).fit(x[:300], y[:300]).predict(x[300:])
    for average in AVERAGES:
        model = behind(FOREST, average=average).fit(x[:300], y[:300])
        assert model.score(x[300:], y[300:]) > 0.02 + f1_score(y[300:], plain, average=average, zero_division=1)
        assert {"micro": 1, "macro": 8}.get(average) == (None if model.cuts_ is None else len(model.cuts_))


def test_a_fitted_estimator_is_asked_and_never_fitted() -> None:
    fitted = OneVsRestClassifier(LOGISTIC).fit(X[:150], Y[:150])
    before = fitted.predict_proba(X)
    model = behind(FrozenEstimator(fitted)).fit(X[150:250], Y[150:250])
    np.testing.assert_array_equal(fitted.predict_proba(X), before)
    assert model.score(X[250:], Y[250:]) > 0.6
    forest = behind(FrozenEstimator(FOREST.fit(X[:150], Y[:150]))).fit(X[150:250], Y[150:250])
    assert forest.score(X[250:], Y[250:]) > 0.6


def test_without_calibration_log_odds_are_those_of_the_estimator() -> None:
    plain = OneVsRestClassifier(LOGISTIC).fit(X[TRAIN], Y[TRAIN])
    model = behind(FrozenEstimator(plain), calibration=None).fit(X[TEST], Y[TEST])
    np.testing.assert_allclose(model.predict_proba(X[TEST]), plain.predict_proba(X[TEST]), rtol=1e-6)


def test_bounds_hold() -> None:
    for average in AVERAGES:
        k = behind(average=average, at_least=1, at_most=2).fit(X[TRAIN], Y[TRAIN]).predict(X[TEST]).sum(1)
        assert set(k) == {1, 2}


def test_rows_and_labels_of_any_kind() -> None:
    names = np.array(["a", "b", "c", "d", "e"])
    dense = behind().fit(X[TRAIN], Y[TRAIN])
    sparse = behind().fit(sp.csr_array(X[TRAIN]), sp.csr_array(Y[TRAIN]))
    found = sparse.predict(sp.csr_array(X[TEST]))
    assert sp.issparse(found)
    assert (found.toarray() != dense.predict(X[TEST])).mean() < 0.01  # sums in another order
    sets = behind().fit(X[TRAIN], [set(names[row == 1]) for row in Y[TRAIN]])
    assert list(sets.classes_) == list(names)
    expected = [list(names[row == 1]) for row in dense.predict(X[TEST])]
    assert sets.predict_labels(X[TEST]) == expected
    assert sets.predict(X[TEST]) == [set(row) for row in expected]
    assert sets.score(X[TEST], [list(names[row == 1]) for row in Y[TEST]]) == dense.score(X[TEST], Y[TEST])


def test_texts_in_a_pipeline_behind_it() -> None:
    words = np.array(["apple", "pear", "plum", "fig"])
    labels = np.random.RandomState(0).rand(60, 4) < 0.4
    texts = [" ".join(["fruit", *words[row]]) for row in labels]
    model = behind(make_pipeline(TfidfVectorizer(), LogisticRegression(C=10))).fit(
        texts, [list(words[r]) for r in labels]
    )
    assert sorted(model.predict_labels(["plum and fig"])[0]) == ["fig", "plum"]


def test_labels_that_never_or_always_occur_or_once() -> None:
    labels = np.column_stack([Y[TRAIN], np.zeros(200), np.ones(200), np.arange(200) == 7]).astype(int)
    for estimator, average in ((LOGISTIC, "macro"), (FOREST, "samples"), (MultiOutputClassifier(LOGISTIC), "micro")):
        with pytest.warns(UserWarning, match="labels occur") as caught:
            model = behind(estimator, average=average).fit(X[TRAIN], labels)
        said = [str(warning.message) for warning in caught if warning.category is UserWarning]
        for message, found in zip(said, ("never, 5;", "in one fold only, 7;"), strict=True):
            assert f"1 of 8 labels occur {found}" in message
        pi = model.predict_proba(X[TEST])
        assert (pi[:, 5] == 0).all()
        assert (pi[:, 6] == 1).all()
        assert np.isfinite(pi).all()
        found = model.predict(X[TEST])
        assert not found[:, 5].any()
        assert found[:, 6].all()


def test_one_label_that_varies_and_none_at_all() -> None:
    one = np.column_stack([Y[TRAIN][:, 0], np.ones(200)]).astype(int)
    assert behind().fit(X[TRAIN], one).predict(X[TEST])[:, 1].all()
    none = behind().fit(X[TRAIN], np.ones((200, 2), dtype=int))
    assert none.predict(X[TEST]).all()


def test_1d_targets_get_one_class_for_each_row() -> None:
    y = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], np.quantile(X[:, 0], [0.3, 0.7]))]
    model = behind().fit(X[TRAIN], y[TRAIN])
    assert set(model.predict(X[TEST])) <= {"low", "middle", "high"}
    np.testing.assert_allclose(model.predict_proba(X[TEST]).sum(1), 1)
    assert model.score(X[TEST], y[TEST]) == np.mean(model.predict(X[TEST]) == y[TEST])


def test_pipeline_grid_search_clone_and_joblib() -> None:
    pipeline = make_pipeline(StandardScaler(), behind())
    assert np.mean(cross_val_score(pipeline, X, Y, cv=2)) > 0.6
    grid = {"average": ["micro", "macro"], "estimator__C": [0.1, 1.0]}
    assert len(GridSearchCV(behind(), grid, cv=2).fit(X, Y).cv_results_["params"]) == 4
    model = behind([LOGISTIC, FOREST]).fit(X[TRAIN], Y[TRAIN])
    assert not hasattr(clone(model), "decoder_")
    stored = io.BytesIO()
    joblib.dump(model, stored)
    stored.seek(0)
    np.testing.assert_array_equal(joblib.load(stored).predict_proba(X[TEST]), model.predict_proba(X[TEST]))


def test_many_jobs_and_another_splitter_give_the_same_kind_of_model() -> None:
    one, two = (behind(n_jobs=jobs).fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST]) for jobs in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert behind(cv=KFold(3)).fit(X[TRAIN], Y[TRAIN]).score(X[TEST], Y[TEST]) > 0.6


def test_a_bar_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    behind().fit(X, Y)
    assert capsys.readouterr().err == ""
    behind(progress=True).fit(X, Y)
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average": "weighted"}, "no average is called 'weighted'"),
        ({"calibration": "isotonic"}, r"calibration must be one of \('platt', None\), got 'isotonic'"),
        ({"cv": 1}, "needs two folds and two rows at least, got cv=1"),
        ({"at_most": 9}, "at_most <= 5"),
        ({"estimator": StandardScaler()}, "has neither predict_proba nor decision_function"),
    ],
)
def test_wrong_settings_say_what_would_do(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        behind(**settings).fit(X, Y)


@pytest.mark.parametrize(
    "estimator", [LOGISTIC, FOREST, MultiOutputClassifier(LOGISTIC), make_pipeline(StandardScaler(), LOGISTIC)], ids=str
)
def test_rows_without_weight_teach_nothing(estimator: Any) -> None:
    noise = np.random.RandomState(0).rand(200, 5) < 0.5
    x, y = np.concatenate([X[TRAIN], X[TRAIN]]), np.concatenate([Y[TRAIN], noise])
    first = np.arange(400) < 200
    model, misled = (behind(estimator).fit(x, y, sample_weight=w) for w in (first, None))
    assert model.score(X[TEST], Y[TEST]) > 0.05 + misled.score(X[TEST], Y[TEST])
    doubled = behind(estimator).fit(x, y, sample_weight=2.0 * first).predict_proba(X[TEST])
    if estimator is FOREST:  # to which the scale of weights means nothing
        np.testing.assert_allclose(doubled, model.predict_proba(X[TEST]), rtol=1e-6)


def test_weights_count_in_calibration_and_cuts_where_the_estimator_takes_none() -> None:
    scores = FrozenEstimator(OneVsRestClassifier(LOGISTIC).fit(X[TRAIN], Y[TRAIN]))
    some = Y[TEST][:, 0] == 1
    plain, weighted = (
        behind(scores).fit(X[TEST], Y[TEST], sample_weight=np.where(some, w, 1.0)).predict_proba(X[TEST])[:, 0]
        for w in (1.0, 10.0)
    )
    assert (weighted > plain).all()
    with pytest.warns(UserWarning, match="KNeighborsClassifier takes no sample_weight; the weights count in calib"):
        neighbours = behind(KNeighborsClassifier()).fit(X[TEST], Y[TEST], sample_weight=np.where(some, 10.0, 1.0))
    assert neighbours.predict_proba(X[TEST])[:, 0].mean() > some.mean()


def test_labels_that_are_not_known_are_refused() -> None:
    with pytest.raises(ValueError, match="y has labels that are not known; SparseLabelClassifier takes them"):
        behind().fit(X, np.where(Y == 1, 1, -1))


def test_an_estimator_that_answers_nan_is_not_believed() -> None:
    class Broken(DummyClassifier):  # type: ignore[misc]
        def predict_proba(self, X: Any) -> Any:
            return np.full((len(X), 5), np.nan)

    model = behind(FrozenEstimator(Broken().fit(X, Y))).fit(X, Y)
    with pytest.raises(ValueError, match="an estimator answers with NaN for 100 rows"):
        model.predict(X[TEST])


def test_folds_share_every_label() -> None:
    labels = np.random.RandomState(0).rand(503, 12) < np.linspace(0.02, 0.5, 12)
    fold = stratified_folds(labels, 5, np.random.RandomState(1))
    assert np.ptp(np.bincount(fold)) <= 12
    counts = np.stack([labels[fold == i].sum(0) for i in range(5)])
    assert (np.ptp(counts, axis=0) <= np.maximum(2, 0.1 * labels.sum(0))).all()
    np.testing.assert_array_equal(fold, stratified_folds(sp.csr_array(labels), 5, np.random.RandomState(1)))
