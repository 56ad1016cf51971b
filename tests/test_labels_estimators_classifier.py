"""SparseLabelClassifier: scikit-learn's conventions, its settings, what users may pass."""

import copy
import dataclasses
import io
import subprocess
import sys
import threading
import warnings
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from rsoftmax.labels import (
    AVERAGES,
    PLAIN,
    RULES,
    HeadOptions,
    MultiLabelHead,
    SparseLabelClassifier,
    TrainingOptions,
    expected_f1_count,
)
from rsoftmax.labels.estimators.targets import Targets
from rsoftmax.labels.estimators.training import EarlyStopping, Samples

X, Y = make_multilabel_classification(300, n_features=12, n_classes=5, n_labels=2, length=60, random_state=0)
X = StandardScaler().fit_transform(X)
TRAIN, TEST = slice(0, 200), slice(200, 300)
NAMES = np.array(["air", "bee", "cat", "dog", "elm"])
LISTS = [NAMES[row == 1].tolist() for row in Y]
SOME = {"hidden_layer_sizes": (16,), "max_epochs": 4, "lr": 1e-2, "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def classifier(**settings: Any) -> SparseLabelClassifier:
    """A classifier from its arguments and the fields of its options, by name."""
    head, training = (
        {field.name: settings.pop(field.name) for field in dataclasses.fields(options) if field.name in settings}
        for options in (HeadOptions, TrainingOptions)
    )
    return SparseLabelClassifier(**settings, head=HeadOptions(**head), training=TrainingOptions(**training))


def plain(**settings: Any) -> SparseLabelClassifier:
    """One network without extras, trained for a few epochs."""
    options = vars(PLAIN["head"]) | vars(PLAIN["training"])
    arguments = {name: value for name, value in PLAIN.items() if name not in ("head", "training")}
    return classifier(**options | arguments | SOME | settings)


def ensemble(**settings: Any) -> SparseLabelClassifier:
    """The default, but small."""
    return classifier(**{"n_estimators": 2, **SOME, **settings})


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that networks are trained on."""
    sizes, loss = list[int](), MultiLabelHead.loss

    def recorded(head: MultiLabelHead, scores: Any, y: torch.Tensor, **options: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            sizes.append(len(y))
        return loss(head, scores, y, **options)

    monkeypatch.setattr(MultiLabelHead, "loss", recorded)
    return sizes


@pytest.mark.train
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [classifier(max_epochs=15, lr=2e-2, hidden_layer_sizes=(16,), n_estimators=2, early_stopping=False)],
    expected_failed_checks=lambda _: {
        f"check_sample_weight_equivalence_on_{kind}_data": "the order of rows and the folds differ"
        for kind in ("dense", "sparse")
    },
)
def test_keeps_the_conventions_of_scikit_learn(estimator: SparseLabelClassifier, check: Any) -> None:
    check(estimator)


def test_all_arguments_are_keywords_with_scikit_learn_s_words() -> None:
    with pytest.raises(TypeError):
        SparseLabelClassifier("micro")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"training must be TrainingOptions\(\.\.\.\) or None, got \{'lr': 0.1\}"):
        SparseLabelClassifier(training={"lr": 0.1}).fit(np.eye(9), np.eye(9))  # type: ignore[arg-type]
    names = set(SparseLabelClassifier().get_params())
    assert {"hidden_layer_sizes", "n_estimators", "class_weight", "warm_start", "verbose", "random_state"} <= names
    assert len(names) == 18


def test_labels_are_the_non_zero_probabilities_under_every_rule() -> None:
    rules: list[dict[str, Any]] = [{"rule": rule} for rule in RULES]
    for choices in [*rules, {"mapping": "t_softmax"}, {"mapping": "softmax"}, {"mapping": "entmax15"}]:
        model = plain(**choices).fit(X[TRAIN], Y[TRAIN])
        p, found = model.predict_distribution(X[TEST]), model.predict(X[TEST])
        assert p.shape == found.shape == (100, 5), choices
        np.testing.assert_array_equal(found == 1, p > 0, err_msg=str(choices))
        np.testing.assert_allclose(p.sum(1), found.any(1), rtol=1e-5, err_msg=str(choices))
        score = f1_score(Y[TEST], found, average="samples", zero_division=1)
        assert model.score(X[TEST], Y[TEST]) == score, choices


def test_labels_score_and_marginals_follow_the_average() -> None:
    for average in AVERAGES:
        model = ensemble(average=average).fit(X[TRAIN], Y[TRAIN])
        found, pi = model.predict(X[TEST]), model.predict_proba(X[TEST])
        assert model.score(X[TEST], Y[TEST]) == f1_score(Y[TEST], found, average=average, zero_division=1), average
        np.testing.assert_allclose(pi, 1 / (1 + np.exp(-model.decision_function(X[TEST]))), rtol=1e-5)
        np.testing.assert_array_equal(model.predict_distribution(X[TEST]) > 0, found == 1)
        assert model.evaluation_.num_samples == 200, average
        k = ensemble(average=average, min_labels=1, max_labels=2).fit(X[TRAIN], Y[TRAIN]).predict(X[TEST]).sum(1)
        assert set(k) <= {1, 2}, average


def test_the_decision_function_is_measured_from_the_threshold() -> None:
    model = plain(mapping="t_softmax").fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_array_equal(model.decision_function(X[TEST]) > 0, model.predict(X[TEST]) == 1)
    model = plain().fit(X[TRAIN], Y[TRAIN])
    output = model.estimators_[0](torch.tensor(X[TEST], dtype=torch.float32))
    no_label = output.no_label_logit - output.threshold
    k = expected_f1_count(torch.tensor(model.decision_function(X[TEST])), no_label).flatten()
    np.testing.assert_array_equal(model.predict(X[TEST]).sum(1), k)


def test_the_same_seed_gives_the_same_result_and_leaves_the_global_one_alone() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first, second, other = (ensemble(random_state=seed).fit(X, Y).decision_function(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 1e-3
    assert torch.equal(torch.get_rng_state(), state)


def test_sparse_features_and_labels_make_no_difference() -> None:
    """Of any format: CSR, CSC, COO and LIL, as array and as matrix."""
    dense = plain(early_stopping=True).fit(X[TRAIN], Y[TRAIN])
    for sparse in (sp.csr_matrix, sp.csr_array, sp.csc_array, sp.coo_array, sp.coo_matrix, sp.lil_array, sp.lil_matrix):
        model = plain(early_stopping=True).fit(sparse(X[TRAIN]), sparse(Y[TRAIN]))
        pi = model.predict_proba(sparse(X[TEST]))
        np.testing.assert_allclose(pi, dense.predict_proba(X[TEST]), atol=1e-4, err_msg=str(sparse))
        found = model.predict(sparse(X[TEST]))
        assert sp.issparse(found), sparse
        assert (found.toarray() != dense.predict(X[TEST])).mean() < 0.01, sparse  # sums in another order
        assert model.score(X[TEST], sparse(Y[TEST])) == pytest.approx(dense.score(X[TEST], Y[TEST]), abs=0.01)


def test_pipeline_grid_search_and_cross_validation() -> None:
    pipeline = make_pipeline(StandardScaler(), plain())
    assert np.isfinite(cross_val_score(pipeline, X, Y, cv=2)).all()
    heads = [HeadOptions(rule=rule) for rule in RULES]
    trainings = [TrainingOptions.plain(max_epochs=1, lr=lr) for lr in (1e-3, 1e-2)]
    grid = [{"head": heads, "training": trainings}, {"hidden_layer_sizes": [(8, 8)], "training": trainings[:1]}]
    search = GridSearchCV(plain(), grid, cv=2, error_score="raise").fit(X, Y)
    assert len(search.cv_results_["params"]) == 2 * len(RULES) + 1
    best, settings = search.best_estimator_, search.best_params_
    assert best.estimators_[0].head.rule.name in (settings.get("head", HeadOptions()).rule, "expected_f1")
    assert best.training == settings["training"]


def test_clone_and_joblib_round_trip() -> None:
    model = ensemble(early_stopping=True, patience=2).fit(X[TRAIN], Y[TRAIN])
    duplicate = clone(model)
    assert duplicate.get_params() == model.get_params()
    assert not hasattr(duplicate, "estimators_")
    stored = io.BytesIO()
    joblib.dump(model, stored)
    assert stored.tell() < 200_000  # the weights, not the data
    stored.seek(0)
    again = joblib.load(stored)
    np.testing.assert_array_equal(again.predict_proba(X[TEST]), model.predict_proba(X[TEST]))
    again.partial_fit(X[TRAIN], Y[TRAIN])
    assert np.abs(again.decision_function(X) - model.decision_function(X)).max() > 0


@pytest.mark.train
def test_early_stopping_ends_with_the_best_weights(batch_sizes: list[int]) -> None:
    model = plain(early_stopping=True, patience=3, max_epochs=200).fit(X[TRAIN], Y[TRAIN])
    losses = [epoch["valid_loss"] for epoch in model.history_]
    assert len(losses) < 200
    assert int(np.argmin(losses)) == len(losses) - 4
    assert batch_sizes[:2] == [128, 32]  # 160 samples of 200
    short = plain(max_epochs=len(losses) - 3, early_stopping=True).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_array_equal(short.decision_function(X), model.decision_function(X))
    batch_sizes.clear()
    model.partial_fit(X[TRAIN], Y[TRAIN])
    assert batch_sizes == [128, 72]


def test_partial_fit_continues() -> None:
    model = plain()
    for _ in range(5):
        model.partial_fit(X[TRAIN], Y[TRAIN])
    losses = [epoch["train_loss"] for epoch in model.history_]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match=r"y must be \[samples, 5\] of 0 and 1, .* got shape \[200, 4\]"):
        model.partial_fit(X[TRAIN], Y[TRAIN][:, :4])


def test_with_1d_targets_every_row_gets_one_class() -> None:
    y = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = plain().fit(X[TRAIN], y[TRAIN])
    p = model.predict_proba(X[TEST])
    assert list(model.classes_) == ["high", "low", "middle"]
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.predict(X[TEST]), model.classes_[p.argmax(1)])
    assert model.score(X[TEST], y[TEST]) == np.mean(model.predict(X[TEST]) == y[TEST])
    late = plain().partial_fit(X[:5], y[:5], classes=["high", "low", "middle"])
    assert late.predict_proba(X).shape == (300, 3)
    with pytest.raises(ValueError, match=r"'tall'.* not among classes"):
        late.partial_fit(X[:1], ["tall"])
    with pytest.raises(ValueError, match=r"classes=\['high', 'tall'\] differ from those of the targets"):
        late.partial_fit(X[:1], ["high"], classes=["high", "tall"])
    for wrong in (7, NAMES[:4]):
        with pytest.raises(ValueError, match=r"classes=.* differ from those"):
            plain().partial_fit(X, Y, classes=wrong)
    weighted = plain(class_weight={"high": 50.0}).fit(X, y)
    assert (weighted.predict(X) == "high").sum() > (plain().fit(X, y).predict(X) == "high").sum()


def test_rows_without_a_label_have_a_distribution_of_zeros() -> None:
    labels = Y[TRAIN].copy()
    labels[:150], labels[:, 4] = 0, 0
    model = plain().fit(X[TRAIN], labels)
    empty = model.predict(X).sum(1) == 0
    assert empty.any()
    assert not model.predict_distribution(X)[empty].any()


def test_a_progress_bar_when_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    plain(max_epochs=3).fit(X, Y)
    assert capsys.readouterr() == ("", "")
    plain(max_epochs=3, verbose=1, early_stopping=True).fit(X, Y)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "valid_loss" in shown
    plain(max_epochs=3, n_estimators=2, verbose=1).fit(X, Y)
    assert "6/6" in capsys.readouterr().err
    model = plain(max_epochs=200, early_stopping=True, patience=1, verbose=1).fit(X, Y)
    epochs = len(model.history_)
    assert epochs < 200
    assert f"100%|██████████| {epochs}/{epochs}" in capsys.readouterr().err


def test_a_long_fit_shows_progress_unless_verbose_is_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rsoftmax.labels.estimators.training.DELAY", 1e-9)
    plain(max_epochs=3).fit(X, Y)
    assert "epoch" in capsys.readouterr().err
    plain(max_epochs=3, verbose=0).fit(X, Y)
    assert capsys.readouterr() == ("", "")


@pytest.mark.train
def test_many_labels_have_fewer_networks_and_epochs_and_calibrate_on_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse labels are never made dense as a whole."""
    for name, value in (("WORK", 10**6), ("CALIBRATED", 500)):
        monkeypatch.setattr(f"rsoftmax.labels.estimators.classifier.{name}", value)
    monkeypatch.setattr("rsoftmax.labels.estimators.classifier.Samples.labels", _few_labels(Samples.labels))
    model = SparseLabelClassifier(hidden_layer_sizes=(8,), random_state=0).fit(X, sp.csr_array(Y))
    assert len(model.estimators_) < 5
    assert len(model.history_) < 150
    assert model.evaluation_.num_samples == 100 * len(model.estimators_)
    assert sp.issparse(model.predict(X))


def _few_labels(labels: Any) -> Any:
    def checked(self: Samples) -> Any:
        assert len(self) <= 100
        return labels(self)

    return checked


def test_an_interrupt_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rsoftmax.labels.MultiLabelHead.loss", interrupted)
    for early_stopping in (False, True):
        with pytest.raises(KeyboardInterrupt):
            plain(early_stopping=early_stopping).fit(X, Y)


def test_wrong_settings_say_what_would_do() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mapping": "hardmax"}, "does not work with mapping='hardmax'"),
        ({"mapping": "r_softmax", "rule": "zero"}, "rule='zero' does not work with mapping='r_softmax'"),
        ({"max_epochs": 0}, "max_epochs must be a positive integer or 'auto', got 0"),
        ({"patience": 0}, "patience must be a positive integer, got 0"),
        ({"hidden_layer_sizes": 16}, r"hidden_layer_sizes must be a sequence .* such as \(128,\), got 16"),
        ({"hidden_layer_sizes": (16, 0)}, r"hidden_layer_sizes must be .* positive integers .*, got \(16, 0\)"),
        ({"batch_size": 0.5}, r"batch_size must be a positive integer or 'auto', got 0\.5"),
        ({"batch_size": "big"}, "batch_size must be a positive integer or 'auto', got 'big'"),
        ({"n_estimators": 0}, "n_estimators must be a positive integer or 'auto', got 0"),
        ({"lr": 0}, "lr must be positive, got 0"),
        ({"lr": "1"}, "lr must be positive, got '1'"),
        ({"weight_decay": -1.0}, r"weight_decay must be non-negative, got -1\.0"),
        ({"validation_fraction": 1.0}, r"validation_fraction must be in \(0, 1\), got 1\.0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1\.0"),
        ({"preprocessing": "scaled"}, "preprocessing must be 'auto' or None, got 'scaled'"),
        ({"calibration": "isotonic"}, "calibration must be 'platt' or None, got 'isotonic'"),
        ({"average": "weighted"}, "average must be one of .* got 'weighted'"),
        ({"rule": "rate", "min_labels": 1}, "min_labels=1 needs rule='expected_f1', got rule='rate'"),
        ({"class_weight": {"cow": 2}}, "class_weight must be None, 'balanced' or a dict .* got {'cow': 2}"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            plain(**options).fit(X, Y)


def test_targets_that_are_not_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="Unknown label type"):
        plain().fit(X, X)
    for labels in (
        Y + 3,
        sp.csr_array(Y + 3),
        sp.lil_matrix(Y + 3),
        Y + np.arange(300)[:, None] % 2,
        np.where(Y, "yes", "no"),
    ):
        model = plain()
        with pytest.raises(ValueError, match=r"y must hold 0 or 1, got (3|4|2|'yes')"):
            model.fit(X, labels)
        assert not hasattr(model, "estimators_")


def test_training_that_diverges_raises_and_one_that_did_not_converge_warns() -> None:
    with pytest.raises(ValueError, match="the weights are not finite; scale the features or lower lr=inf"):
        plain(lr=np.inf).fit(X, Y)
    with pytest.warns(ConvergenceWarning, match="still fell after max_epochs=2; increase max_epochs or lr=0.01"):
        ensemble(max_epochs=2).fit(X, Y)


def test_training_that_only_becomes_surer_has_converged() -> None:
    """On separable data the loss falls for ever, and more epochs would change nothing."""
    for losses, falls in (([1.0], True), ([1.0, 0.9, 0.8, 0.7], True), ([1.0, 0.1, 0.004, 0.003, 0.002, 0.001], False)):
        stopping = EarlyStopping([], patience=3)
        for loss in losses:
            assert not stopping.update(loss)
        assert stopping.still_falls() == falls, losses


def test_rows_with_negative_strides_are_accepted() -> None:
    backwards = plain().fit(X.astype(np.float32)[::-1], Y[::-1]).predict(X[::-1])
    np.testing.assert_array_equal(backwards, plain().fit(X[::-1].copy(), Y[::-1].copy()).predict(X[::-1]))


def test_other_defaults_of_torch_for_type_and_device_are_accepted() -> None:
    expected = plain(early_stopping=True).fit(sp.csr_array(X), Y).predict_proba(X)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        found = plain(early_stopping=True).fit(sp.csr_array(X), Y).predict_proba(X)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert found.dtype == np.float32
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_labels_by_name_are_answered_by_name() -> None:
    matrix = plain().fit(X[TRAIN], Y[TRAIN])
    expected = [NAMES[row == 1].tolist() for row in matrix.predict(X[TEST])]
    assert matrix.predict_labels(X[TEST]) == [np.flatnonzero(row).tolist() for row in matrix.predict(X[TEST])]
    lists = plain().fit(X[TRAIN], LISTS[TRAIN])
    assert lists.classes_.tolist() == NAMES.tolist()
    assert lists.predict(X[TEST]) == lists.predict_labels(X[TEST]) == expected
    assert lists.score(X[TEST], LISTS[TEST]) == matrix.score(X[TEST], Y[TEST])
    sets = plain().fit(X[TRAIN], [set(row) for row in LISTS[TRAIN]])
    assert sets.predict(X[TEST]) == [set(row) for row in expected]
    joined = plain(label_separator=";").fit(X[TRAIN], ["; ".join(row) for row in LISTS[TRAIN]])
    assert joined.predict_labels(X[TEST]) == expected
    assert joined.predict(X[TEST]).tolist() == [";".join(row) for row in expected]
    late = plain().partial_fit(X[:50], LISTS[:50], classes=[*NAMES, "fox"])
    assert late.classes_.tolist() == [*NAMES, "fox"]
    with pytest.raises(ValueError, match="y holds 'gnu', which is not among classes"):
        late.partial_fit(X[:1], [["gnu"]])


def test_the_columns_of_a_matrix_can_be_named_also_a_single_one() -> None:
    named = plain().fit(X[TRAIN], Y[TRAIN], classes=NAMES)
    assert named.classes_.tolist() == NAMES.tolist()
    assert named.predict_labels(X[TEST]) == plain().fit(X[TRAIN], LISTS[TRAIN]).predict_labels(X[TEST])
    np.testing.assert_array_equal(named.predict(X[TEST]), plain().fit(X[TRAIN], Y[TRAIN]).predict(X[TEST]))
    gaps = np.where(np.arange(200) < 20, np.nan, Y[TRAIN, 0])[:, None]
    single = plain().fit(X[TRAIN], gaps, classes=["air"])
    assert single.predict(X[TEST]).shape == (100, 1)
    assert {tuple(names) for names in single.predict_labels(X[TEST])} == {("air",), ()}


def test_a_data_frame_gives_its_columns_and_gets_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.DataFrame(Y, columns=NAMES)
    rows = pandas.DataFrame(X, index=np.arange(300) + 1000)
    rows.columns = [f"x{i}" for i in range(12)]
    model = plain().fit(rows[TRAIN], labels[TRAIN])
    found = model.predict(rows[TEST])
    assert list(found.columns) == list(model.classes_) == NAMES.tolist()
    assert found.index.equals(rows[TEST].index)
    score = plain().fit(X[TRAIN], Y[TRAIN]).score(X[TEST], Y[TEST])
    assert model.score(rows[TEST], labels[TEST]) == model.score(rows[TEST], labels[TEST][NAMES[::-1]]) == score
    gaps = labels[TEST].astype("Int64")
    gaps.iloc[0, 0] = pandas.NA
    assert model.score(rows[TEST], gaps) == model.score(rows[TEST], gaps.astype(float))
    with pytest.raises(ValueError, match="y must have the columns"):
        model.score(rows[TEST], labels[TEST].rename(columns={NAMES[0]: "other"}))


def test_columns_of_any_type_of_pandas_hold_labels() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(Y, columns=NAMES)
    for dtype in ("bool", "boolean", "Int64", "Float64", "category", "object", "Sparse[int]"):
        labels = frame.astype(bool).astype(dtype) if dtype == "boolean" else frame.astype(dtype)
        np.testing.assert_array_equal(Targets(labels, plain()).indicator(labels), Y, dtype)
        if dtype not in ("bool", "Sparse[int]"):
            labels.iloc[3, 1] = None
            unknown = np.isnan(Targets(labels, plain()).indicator(labels))
            assert np.argwhere(unknown).tolist() == [[3, 1]], dtype
    mixed = frame.astype({NAMES[0]: "boolean", NAMES[1]: "category", NAMES[2]: "Float64"})
    np.testing.assert_array_equal(Targets(mixed, plain()).indicator(mixed), Y)
    words = frame.astype("object").replace({1: "yes", 0: "no"})
    with pytest.raises(ValueError, match=r"y must hold 0 or 1, got '(yes|no)'"):
        Targets(words, plain()).indicator(words)


def test_columns_and_names_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="y has several columns 'air'; rename them, or keep one"):
        plain().fit(X[TRAIN], Frame(Y[TRAIN, :3], ["air", "sea", "air"]))
    with pytest.raises(ValueError, match="y must hold names of one type, got int, str; use str"):
        plain().fit(X[:2], [{"air", 7}, {"air"}])
    model = plain().fit(X[TRAIN], Frame(Y[TRAIN, :2], ["air", "sea"]))
    with pytest.raises(ValueError, match=r"y must have the columns \['air' 'sea'\], got \['air' 'sea' 'air'\]"):
        model.score(X[TEST], Frame(Y[TEST, :3], ["air", "sea", "air"]))


class Frame:
    """As much of a data frame as labels need."""

    def __init__(self, values: Any, columns: Any, index: Any = None) -> None:
        self.values, self.columns, self.index = np.asarray(values), columns, index
        self.shape, self.ndim = self.values.shape, 2

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.values

    def __len__(self) -> int:
        return len(self.values)


def test_anything_with_columns_gives_its_names() -> None:
    model = plain().fit(X[TRAIN], Frame(Y[TRAIN], NAMES))
    found = model.predict(X[TEST])
    assert isinstance(found, Frame)
    assert list(found.columns) == list(model.classes_) == NAMES.tolist()


def test_several_labels_in_one_string_are_refused_with_the_remedy() -> None:
    for joined in (["air;cat", "bee"], ["air|cat", "bee"], ["air, cat", "cat"]):
        with pytest.raises(
            ValueError, match=r"y holds 'air.*', which looks like several labels .* pass label_separator="
        ):
            plain().fit(X[:10], joined * 5)
        one_class = plain(label_separator="").fit(X[:10], joined * 5)
        assert sorted(one_class.classes_) == sorted(joined)
    plain().fit(X[:10], ["Paris, France", "Rome, Italy"] * 5)


def test_unknown_labels_are_ignored() -> None:
    gaps = Y[TRAIN].astype(float)
    hidden = np.random.RandomState(0).rand(*gaps.shape) < 0.3
    by_nan, by_minus = (np.where(hidden, gap, gaps) for gap in (np.nan, -1))
    forms = (by_nan, by_minus, sp.csr_array(by_nan), sp.coo_matrix(by_minus))
    first, *others = (ensemble().fit(X[TRAIN], form).predict_proba(X[TEST]) for form in forms)
    for other in others:
        np.testing.assert_array_equal(other, first)
    assert np.abs(ensemble().fit(X[TRAIN], np.where(hidden, 0, gaps)).predict_proba(X[TEST]) - first).max() > 0.01
    model = ensemble().fit(X[TRAIN], Y[TRAIN])
    y, known = np.where(hidden[:100], np.nan, Y[TEST]), ~hidden[:100]
    expected = f1_score(Y[TEST] * known, model.predict(X[TEST]) * known, average="micro")
    assert model.score(X[TEST], y) == model.score(X[TEST], sp.csr_array(y)) == expected
    with pytest.raises(ValueError, match="loss='multilabel_r_softmax_loss' takes neither weights of single labels"):
        plain(rule="rate").fit(X, np.where(np.arange(300)[:, None] % 2, Y, -1))


def test_rows_of_weight_zero_do_not_count() -> None:
    x, y = np.concatenate([X[TRAIN], X[TRAIN]]), np.concatenate([Y[TRAIN], 1 - Y[TRAIN]])
    weight = (np.arange(400) < 200).astype(float)
    for rule in ("expected_f1", "rate"):
        model = plain(
            rule=rule, batch_size=400, max_epochs=1
        )  # one batch: an update by the gradient of the weighted loss
        gradients = []
        for rows, labels, weights in ((x, y, weight), (X[TRAIN], Y[TRAIN], None)):
            fitted = clone(model).fit(rows, labels, sample_weight=weights)
            gradients.append(fitted.estimators_[0].head.logits.weight.detach().numpy())
        np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-4, err_msg=rule)


def test_weights_of_labels_raise_their_marginals() -> None:
    usual = plain().fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST]).mean(0)
    rise = plain(class_weight={"cat": 20.0}).fit(X[TRAIN], LISTS[TRAIN]).predict_proba(X[TEST]).mean(0) - usual
    assert rise.argmax() == 2
    rare = (Y * (np.arange(300)[:, None] % 4 == 0)).astype(int)
    means = [plain(class_weight=w).fit(X[TRAIN], rare[TRAIN]).predict_proba(X).mean() for w in ("balanced", None)]
    assert means[0] > means[1]


def test_a_backbone_in_place_of_the_hidden_layers() -> None:
    backbone = torch.nn.Sequential(torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 24), torch.nn.Tanh())
    before = copy.deepcopy(backbone.state_dict())
    model = ensemble(backbone=backbone).fit(X[TRAIN], Y[TRAIN])
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())
    trained = model.estimators_[0].backbone.state_dict()
    assert any(not torch.equal(before[name], tensor) for name, tensor in trained.items())
    images = X.reshape(300, 1, 3, 4)
    convolution = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 2), torch.nn.ReLU(), torch.nn.Flatten())
    model = ensemble(backbone=convolution, preprocessing=None).fit(images[TRAIN], Y[TRAIN])
    assert model.predict(images[TEST]).shape == (100, 5)
    with pytest.raises(ValueError, match=r"backbone must return a tensor \[samples, features\], got .* \[2, 12, 1\]"):
        ensemble(backbone=torch.nn.Unflatten(1, (12, 1))).fit(X, Y)


def test_a_validation_set_takes_the_place_of_split(batch_sizes: list[int]) -> None:
    model = ensemble().fit(X[:150], Y[:150], validation=(X[150:200], Y[150:200]))
    assert len(model.estimators_) == 2
    assert sum(batch_sizes) == 150 * 2 * len(model.history_)
    assert model.evaluation_.num_samples == 50


def test_warm_start_continues() -> None:
    cold, warm = (plain(warm_start=warm).fit(X, Y) for warm in (False, True))
    assert len(cold.fit(X, Y).history_) == 4
    assert len(warm.fit(X, Y).history_) == 8
    several = ensemble(warm_start=True).fit(X, Y)
    split = several._split
    assert several.fit(X, Y)._split is split  # held-out rows stay so


def test_held_out_rows_and_their_labels_must_agree() -> None:
    model = plain().fit(X, Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.calibrate(X[:50], Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        plain().fit(X, Y, validation=(X[:50], Y))


def test_features_of_different_scale_are_warned_of_or_preprocessed() -> None:
    uneven = X * np.logspace(-3, 3, 12)
    with pytest.warns(UserWarning, match=r"the standard deviations of the features range .* use preprocessing='auto'"):
        plain().fit(uneven, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ensemble().fit(uneven, Y)
    np.testing.assert_allclose(model._preprocess(uneven.astype(np.float32)).std(0), 1, atol=1e-3)


def test_sparse_counts_are_weighted_by_tf_idf() -> None:
    counts = sp.csr_array(np.abs(X).round().astype(np.float32))
    model = ensemble().fit(counts[TRAIN], Y[TRAIN])
    rows = model._preprocess(counts[TEST]).toarray()
    np.testing.assert_allclose(np.sqrt((rows**2).mean(1)), 1, rtol=1e-5)
    model = ensemble().fit(sp.csr_array(X), Y)
    assert np.sqrt((model._preprocess(sp.csr_array(X)).toarray() ** 2).mean()) == pytest.approx(1, rel=1e-4)


def test_calibrate_gives_partial_fit_its_thresholds() -> None:
    model = ensemble(n_estimators=1)
    for _ in range(3):
        model.partial_fit(X[:150], Y[:150])
    decoder = model.estimators_[0].head.decoder
    assert decoder.threshold.item() == 0
    model.calibrate(X[150:200], Y[150:200])
    assert decoder.threshold.item() != 0
    assert model.evaluation_.num_samples == 50


@pytest.mark.train
def test_eight_fits_in_four_threads_are_those_of_one_thread() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    serial = [ensemble(random_state=seed).fit(X, Y).decision_function(X) for seed in range(8)]
    found: list[Any] = [None] * 8

    def work(seeds: range) -> None:
        for seed in seeds:
            found[seed] = ensemble(random_state=seed).fit(X, Y).decision_function(X)

    threads = [threading.Thread(target=work, args=(range(i, 8, 4),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(serial, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_learning_rate_set_between_two_calls_counts(batch_sizes: list[int]) -> None:
    model = plain().partial_fit(X, Y)
    before = model.decision_function(X)
    model.set_params(training=TrainingOptions.plain(lr=1e-12)).partial_fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), before, atol=1e-6)
    batch_sizes.clear()
    model.set_params(training=TrainingOptions.plain(lr=1e-1, batch_size=50)).partial_fit(X, Y)
    assert np.abs(model.decision_function(X) - before).max() > 0.1
    assert batch_sizes == [50] * 6


def test_nan_weights_are_an_error_and_not_the_answer_no_label() -> None:
    y = np.where(X[:, 0] > 0, "high", "low")
    for targets in (Y, y):
        model = ensemble(early_stopping=False, max_epochs=1).fit(X, targets)
        with torch.no_grad():
            next(model.estimators_[0].parameters()).fill_(torch.nan)
        for answer in (model.predict, model.predict_labels):
            with pytest.raises(ValueError, match="the scores of 100 samples contain NaN"):
                answer(X[TEST])
        assert np.isnan(model.predict_proba(X[TEST])).all()
        assert np.isnan(model.predict_distribution(X[TEST])).all()


@pytest.mark.train
def test_the_default_learns_what_can_be_learned() -> None:
    """Labels are the signs of the features: any training that works finds nearly all of them."""
    x = np.random.RandomState(0).randn(600, 6)
    model = classifier(random_state=0, lr=1e-2, n_estimators=2).fit(x[:400], x[:400] > 0)
    assert model.score(x[400:], x[400:] > 0) > 0.9


@pytest.mark.process
def test_only_the_estimators_need_scikit_learn() -> None:
    program = """
import sys
import rsoftmax.labels
sys.modules["sklearn"] = None
try:
    rsoftmax.labels.SparseLabelClassifier
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "SparseLabelClassifier needs sklearn" in done.stdout
    assert "pip install 'rsoftmax[labels]'" in done.stdout


def test_the_subpackage_does_not_hide_scikit_learn() -> None:
    assert sys.modules["sklearn"] is not sys.modules["rsoftmax.labels"]
    assert issubclass(SparseLabelClassifier, sys.modules["sklearn"].base.BaseEstimator)
