"""RiskControlledClassifier: guarantees on recall and precision behind any classifier."""

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ShuffleSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from rsoftmax.labels import ExpectedF1Classifier, RiskControlledClassifier

X, Y = make_multilabel_classification(900, n_features=12, n_classes=5, n_labels=2, length=60, random_state=0)
TRAIN, TEST = slice(0, 500), slice(500, 900)
LOGISTIC = LogisticRegression(C=0.1)


def controlled(estimator: Any = LOGISTIC, **settings: Any) -> RiskControlledClassifier:
    return RiskControlledClassifier(estimator, **{"random_state": 0, "cv": 0.4, **settings})


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [RiskControlledClassifier(LogisticRegression(), recall=0.5, cv=2)],
    expected_failed_checks=lambda _: {
        f"check_sample_weight_equivalence_on_{kind}_data": "held-out rows count equally" for kind in ("dense", "sparse")
    },
)
def test_keeps_the_conventions_of_scikit_learn(estimator: RiskControlledClassifier, check: Any) -> None:
    check(estimator)


def recall(y: Any, found: Any) -> float:
    some = y.any(1)
    return float(((found * y).sum(1)[some] / y.sum(1)[some]).mean())


@pytest.mark.train
def test_recall_is_kept_on_average_over_resplits_behind_any_classifier() -> None:
    random = np.random.RandomState(0)
    for estimator in (
        LOGISTIC,
        LinearSVC(),
        RandomForestClassifier(10, max_depth=5),
        ExpectedF1Classifier(LOGISTIC, cv=2),
    ):
        found = []
        for seed in range(12):
            order = random.permutation(900)
            train, test = order[:500], order[500:]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                model = controlled(estimator, recall=0.85, random_state=seed).fit(X[train], Y[train])
            found.append(recall(Y[test], model.predict(X[test])))
        assert np.mean(found) > 0.85 - 0.02, (estimator, np.mean(found))
        assert np.mean(found) < 0.93, (estimator, np.mean(found))


def test_every_kind_of_guarantee_can_be_asked_for() -> None:
    for settings in (
        {"recall": 0.8, "by": "micro"},
        {"recall": 0.8, "by": "label"},
        {"recall": 0.8, "by": "samples", "confidence": 0.9},
        {"recall": 0.8, "by": "micro", "confidence": 0.9},
        {"recall": 0.8, "by": "label", "confidence": 0.9},
        {"precision": 0.6, "by": "samples", "confidence": 0.8},
        {"precision": 0.6, "by": "micro", "confidence": 0.8},
    ):
        model = controlled(**settings).fit(X[TRAIN], Y[TRAIN])
        found = model.predict(X[TEST])
        assert model.thresholds_.shape == ((5,) if settings["by"] == "label" else (1,)), settings
        np.testing.assert_array_equal(found, model.decision_function(X[TEST]) >= model.thresholds_)
        assert found.any(), settings
    lower, higher = (controlled(recall=level).fit(X[TRAIN], Y[TRAIN]).predict(X[TEST]).sum() for level in (0.7, 0.95))
    assert lower < higher


def test_labels_with_too_few_rows_are_named() -> None:
    rare = np.column_stack([Y, np.arange(900) % 100 == 0]).astype(int)
    with pytest.warns(
        UserWarning, match="1 of 6 labels have too few held-out samples for a guarantee .* all labels: 5"
    ):
        model = controlled(recall=0.9, by="label").fit(X[TRAIN], rare[TRAIN])
    assert model.uncontrolled_.tolist() == [5]
    assert np.isfinite(model.thresholds_).all()


def test_a_fitted_estimator_is_not_fitted_again() -> None:
    fitted = OneVsRestClassifier(LOGISTIC).fit(X[:300], Y[:300])
    model = controlled(FrozenEstimator(fitted), recall=0.9).fit(X[300:500], Y[300:500])
    np.testing.assert_allclose(model.predict_proba(X[TEST]), fitted.predict_proba(X[TEST]), rtol=1e-6)
    assert recall(Y[TEST], model.predict(X[TEST])) > 0.8


def test_names_and_unknown_labels() -> None:
    names = np.array(["a", "b", "c", "d", "e"])
    sets = controlled(recall=0.8).fit(X[TRAIN], [set(names[row == 1]) for row in Y[TRAIN]])
    plain = controlled(recall=0.8).fit(X[TRAIN], Y[TRAIN])
    assert sets.predict_labels(X[TEST]) == [list(names[row == 1]) for row in plain.predict(X[TEST])]
    gaps = np.where(np.random.RandomState(0).rand(900, 5) < 0.05, np.nan, Y)
    assert controlled(recall=0.8).fit(X[TRAIN], gaps[TRAIN]).predict(X[TEST]).any()


def test_impossible_requests_say_what_works() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "pass either recall or precision, got recall=None, precision=None"),
        ({"recall": 0.9, "precision": 0.9}, "pass either recall or precision"),
        ({"precision": 0.9}, "not monotone in the threshold; pass confidence=0.95"),
        ({"recall": 1.2}, r"the level must be in \(0, 1\), got 1\.2"),
        (
            {"recall": 0.999},
            r"a recall of 0\.999 cannot be guaranteed with \d+ held-out samples: it takes at least 999",
        ),
        ({"recall": 0.9, "cv": ShuffleSplit(3)}, "cv must hold out one part of at least two samples"),
        ({"recall": 0.9, "estimator": [LOGISTIC, LOGISTIC]}, "needs one estimator, got a list"),
    ]
    for settings, message in cases:
        with pytest.raises(ValueError, match=message):
            controlled(**settings).fit(X[TRAIN], Y[TRAIN])


def test_labels_that_held_out_rows_lack_can_be_predicted_by_a_fitted_estimator() -> None:
    frozen = FrozenEstimator(OneVsRestClassifier(LOGISTIC).fit(X[TRAIN], Y[TRAIN]))
    few = Y[TEST].copy()
    few[:, 0] = 0
    model = controlled(frozen, recall=0.9).fit(X[TEST], few)
    assert model.predict(X[TRAIN])[:, 0].any()


def test_classes_have_guaranteed_sets_and_one_prediction() -> None:
    y = Y[:, 0]
    model = controlled(recall=0.95).fit(X[TRAIN], y[TRAIN])
    sets, one = model.predict_labels(X[TEST]), model.predict(X[TEST])
    assert np.mean([truth in found for truth, found in zip(y[TEST], sets, strict=True)]) > 0.9
    assert set(one) <= {0, 1}
    best = ExpectedF1Classifier(LOGISTIC).fit(X[TRAIN], y[TRAIN])
    assert best.predict_labels(X[TEST]) == [[k] for k in best.predict(X[TEST]).tolist()]
