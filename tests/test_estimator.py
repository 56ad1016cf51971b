"""The scikit-learn classifier."""

import io
import subprocess
import sys
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import rsoftmax.estimator
from rsoftmax.multilabel import RULES, expected_f1_count
from rsoftmax.sklearn import PLAIN, SparseLabelClassifier

X, Y = make_multilabel_classification(300, n_features=12, n_classes=5, n_labels=2, length=60, random_state=0)
X = StandardScaler().fit_transform(X)
TRAIN, TEST = slice(0, 200), slice(200, 300)
few_epochs = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def small(*choices: Any, **options: Any) -> SparseLabelClassifier:
    """One plain network."""
    settings = PLAIN | {"hidden": (16,), "epochs": 10, "lr": 1e-2, "random_state": 0, **options}
    return SparseLabelClassifier(*choices, **settings)


def quick(**options: Any) -> SparseLabelClassifier:
    """As a user gets it, but small."""
    settings = {"hidden": (16,), "nets": 3, "epochs": 60, "lr": 1e-2, "random_state": 0, **options}
    return SparseLabelClassifier(**settings)


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [SparseLabelClassifier(epochs=15, lr=2e-2, hidden=(16,), nets=2, dropout=0.1, early_stopping=False)],
    expected_failed_checks=lambda _: {
        f"check_sample_weight_equivalence_on_{kind}_data": "the order of rows and the folds differ, as in any training"
        for kind in ("dense", "sparse")
    },
)
def test_keeps_the_conventions_of_scikit_learn(estimator: SparseLabelClassifier, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "choices",
    [{"rate": rate} for rate in RULES if rate != "fixed"]
    + [{"r": 0.6}, {"mapping": "t_softmax"}, {"mapping": "softmax"}, {"mapping": "entmax15"}],
    ids=str,
)
def test_labels_are_the_non_zero_probabilities(choices: dict[str, Any]) -> None:
    model = small(**choices).fit(X[TRAIN], Y[TRAIN])
    p, found = model.predict_distribution(X[TEST]), model.predict(X[TEST])
    assert p.shape == found.shape == (100, 5)
    assert set(np.unique(found)) <= {0, 1}
    np.testing.assert_array_equal(found == 1, p > 0)
    np.testing.assert_allclose(p.sum(1), found.any(1), rtol=1e-5)
    assert model.score(X[TEST], Y[TEST]) == f1_score(Y[TEST], found, average="samples", zero_division=1) > 0.4


def test_the_decision_function_is_measured_from_the_threshold() -> None:
    model = small("t_softmax").fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_array_equal(model.decision_function(X[TEST]) > 0, model.predict(X[TEST]) == 1)
    model = small().fit(X[TRAIN], Y[TRAIN])
    output = model.net_.module_(torch.tensor(X[TEST], dtype=torch.float32))
    k = expected_f1_count(torch.tensor(model.decision_function(X[TEST])), output.none - output.theta).flatten()
    np.testing.assert_array_equal(model.predict(X[TEST]).sum(1), k)


def test_the_same_seed_gives_the_same_result_and_leaves_the_global_one_alone() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first, second, other = (small(random_state=seed).fit(X, Y).decision_function(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 1e-3
    assert torch.equal(torch.get_rng_state(), state)


@few_epochs
@pytest.mark.parametrize("sparse", [sp.csr_matrix, sp.csr_array, sp.csc_array])
def test_sparse_features_and_labels_make_no_difference(sparse: Any) -> None:
    dense = small(early_stopping=True).fit(X[TRAIN], Y[TRAIN])
    model = small(early_stopping=True).fit(sparse(X[TRAIN]), sparse(Y[TRAIN]))
    np.testing.assert_allclose(model.predict_proba(sparse(X[TEST])), dense.predict_proba(X[TEST]), atol=1e-4)
    found = model.predict(sparse(X[TEST]))
    assert sp.issparse(found)
    assert (found.toarray() != dense.predict(X[TEST])).mean() < 0.01  # sums in another order
    assert model.score(X[TEST], sparse(Y[TEST])) == pytest.approx(dense.score(X[TEST], Y[TEST]), abs=0.01)


def test_pipeline_grid_search_and_cross_validation() -> None:
    pipeline = make_pipeline(StandardScaler(), small())
    assert np.mean(cross_val_score(pipeline, X, Y, cv=3)) > 0.5
    grid = {"sparselabelclassifier__rate": ["count", "expected_f1"], "sparselabelclassifier__hidden": [(8,), (8, 8)]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, Y)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_.predict(X).shape == Y.shape


def test_a_grid_search_over_the_rate_needs_no_mapping() -> None:
    rates = [rate for rate in RULES if rate != "fixed"]
    grid = [{"rate": rates}, {"rate": ["fixed"], "r": [0.4, 0.6]}]
    search = GridSearchCV(small(), grid, cv=2, error_score="raise").fit(X, Y)
    assert [found["rate"] for found in search.cv_results_["params"]] == [*rates, "fixed", "fixed"]
    assert (search.cv_results_["mean_test_score"] > 0.4).all()
    assert search.best_estimator_.net_.module_.head.rate == search.best_params_["rate"]


@few_epochs
def test_clone_and_joblib_round_trip() -> None:
    model = small(early_stopping=True, patience=2).fit(X[TRAIN], Y[TRAIN])
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "net_")
    stored = io.BytesIO()
    joblib.dump(model, stored)
    assert stored.tell() < 200_000  # the weights, not the data
    stored.seek(0)
    again = joblib.load(stored)
    np.testing.assert_array_equal(again.predict_proba(X[TEST]), model.predict_proba(X[TEST]))
    again.partial_fit(X[TRAIN], Y[TRAIN])
    assert np.abs(again.decision_function(X) - model.decision_function(X)).max() > 0


@few_epochs
def test_early_stopping_ends_with_the_best_weights() -> None:
    model = small(early_stopping=True, patience=3, epochs=200).fit(X[TRAIN], Y[TRAIN])
    losses = model.net_.history[:, "valid_loss"]
    assert len(losses) < 200
    assert int(np.argmin(losses)) == len(losses) - 4
    assert model.net_.history[-1, "batches", :, "train_batch_size"] == [128, 32]  # 160 rows of 200
    short = small(epochs=len(losses) - 3, early_stopping=True).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_array_equal(short.decision_function(X), model.decision_function(X))
    assert model.partial_fit(X[TRAIN], Y[TRAIN]).net_.history[-1, "batches", :, "train_batch_size"] == [128, 72]


def test_partial_fit_continues() -> None:
    model = small()
    for _ in range(10):
        model.partial_fit(X[TRAIN], Y[TRAIN])
    assert len(model.net_.history) == 10
    assert model.score(X[TEST], Y[TEST]) > 0.5
    with pytest.raises(ValueError, match=r"y must be \[rows, 5\] of 0 and 1, as at the first call"):
        model.partial_fit(X[TRAIN], Y[TRAIN][:, :4])


def test_with_1d_targets_every_row_gets_one_class() -> None:
    y = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = small(epochs=40).fit(X[TRAIN], y[TRAIN])
    p = model.predict_proba(X[TEST])
    assert list(model.classes_) == ["high", "low", "middle"]
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.predict(X[TEST]), model.classes_[p.argmax(1)])
    assert model.score(X[TEST], y[TEST]) == np.mean(model.predict(X[TEST]) == y[TEST]) > 0.7
    late = small().partial_fit(X[:5], y[:5], classes=["high", "low", "middle"])
    assert late.predict_proba(X).shape == (300, 3)
    with pytest.raises(ValueError, match=r"'tall'.* not among classes"):
        late.partial_fit(X[:1], ["tall"])
    with pytest.raises(ValueError, match=r"classes=\['high', 'tall'\] are not those of the targets"):
        late.partial_fit(X[:1], ["high"], classes=["high", "tall"])
    with pytest.raises(ValueError, match=r"classes=7 are not those"):
        small().partial_fit(X, Y, classes=7)


def test_rows_without_a_label_and_labels_without_a_row() -> None:
    labels = Y[TRAIN].copy()
    labels[:150], labels[:, 4] = 0, 0
    model = small(epochs=40).fit(X[TRAIN], labels)
    found = model.predict(X[:150])
    assert (found.sum(1) == 0).mean() > 0.5
    assert not model.predict_distribution(X[:150])[found.sum(1) == 0].any()


@few_epochs
def test_a_progress_bar_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    small(epochs=3).fit(X, Y)
    assert capsys.readouterr() == ("", "")
    small(epochs=3, progress=True, early_stopping=True).fit(X, Y)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "valid_loss" in shown


def test_an_interrupt_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rsoftmax.multilabel.MultiLabelHead.loss", interrupted)
    for early_stopping in (False, True):
        with pytest.raises(KeyboardInterrupt):
            small(early_stopping=early_stopping).fit(X, Y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mapping": "hardmax"}, "no mapping is called 'hardmax'"),
        ({"mapping": "r_softmax", "rate": "zero"}, "rate='zero' does not go with mapping='r_softmax'"),
        ({"epochs": 0}, "epochs must be a whole number from 1, got 0"),
        ({"hidden": 16}, r"hidden must be sizes of layers, say \(128,\), got 16"),
        ({"hidden": (16, 0)}, r"hidden\[1\] must be a whole number from 1, got 0"),
        ({"batch_size": 0.5}, r"batch_size must be a whole number from 1, got 0\.5"),
        ({"lr": 0}, "lr must be above 0, got 0"),
        ({"weight_decay": -1.0}, r"weight_decay must be 0 or above, got -1\.0"),
        ({"validation_share": 1.0}, r"validation_share must be between 0 and 1, got 1\.0"),
    ],
)
def test_wrong_settings_say_what_would_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options).fit(X, Y)


def test_targets_that_are_not_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="Unknown label type"):
        small().fit(X, X)
    for labels in (Y + 3, sp.csr_array(Y + 3), Y + np.arange(300)[:, None] % 2, np.where(Y, "yes", "no")):
        model = small()
        with pytest.raises(ValueError, match=r"y must hold 0 or 1, got (3|4|2|'yes')"):
            model.fit(X, labels)
        assert not hasattr(model, "net_")


def test_training_that_diverges_raises() -> None:
    with pytest.raises(ValueError, match="the weights are no longer finite; scale the features or lower lr=inf"):
        small(lr=np.inf).fit(X, Y)


def test_rows_with_negative_strides_are_accepted() -> None:
    backwards = small().fit(X.astype(np.float32)[::-1], Y[::-1])
    np.testing.assert_array_equal(
        backwards.predict(X[::-1]), small().fit(X[::-1].copy(), Y[::-1].copy()).predict(X[::-1])
    )


@few_epochs
def test_other_defaults_of_torch_for_type_and_device_are_accepted() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        model = small(early_stopping=True).fit(sp.csr_array(X), Y)
        assert model.score(X, Y) > 0.5
        assert model.predict_proba(X).dtype == np.float32
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_both_paths_lead_to_the_same_class() -> None:
    assert rsoftmax.estimator.SparseLabelClassifier is SparseLabelClassifier
    assert rsoftmax.estimator.__all__ == rsoftmax.sklearn.__all__


def test_only_the_classifier_needs_scikit_learn() -> None:
    program = """
import sys
import rsoftmax.multilabel
for missing, path in (("skorch", "sklearn"), ("skorch", "estimator"), ("sklearn", "sklearn")):
    sys.modules[missing] = None
    try:
        __import__(f"rsoftmax.{path}")
    except ImportError as error:
        print(error)
    del sys.modules[missing]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    advice = "rsoftmax.sklearn needs {}: pip install 'rsoftmax[sklearn]'"
    assert done.stdout.splitlines() == [advice.format(missing) for missing in ("skorch", "skorch", "sklearn")]


def test_the_subpackage_does_not_hide_scikit_learn() -> None:
    assert sys.modules["sklearn"] is not sys.modules["rsoftmax.sklearn"]
    assert issubclass(SparseLabelClassifier, sys.modules["sklearn"].base.BaseEstimator)
