"""What a user of SparseLabelClassifier may bring: labels by name, weights, gaps, own networks, threads."""

import copy
import io
import threading
import warnings
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import f1_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import EarlyStopping, LRScheduler

from rsoftmax.multilabel import AVERAGES, Average
from rsoftmax.sklearn import PLAIN, SparseLabelClassifier
from rsoftmax.sklearn.training import Stopping

X, Y = make_multilabel_classification(300, n_features=12, n_classes=5, n_labels=2, length=60, random_state=0)
TRAIN, TEST = slice(0, 200), slice(200, 300)
NAMES = np.array(["air", "bee", "cat", "dog", "elm"])
LISTS = [NAMES[row == 1].tolist() for row in Y]
few_epochs = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def quick(**options: Any) -> SparseLabelClassifier:
    """As a user gets it, but small."""
    return SparseLabelClassifier(**{"hidden": (32,), "nets": 3, "lr": 1e-2, "random_state": 0, **options})


def plain(**options: Any) -> SparseLabelClassifier:
    return SparseLabelClassifier(**PLAIN | {"hidden": (16,), "epochs": 10, "lr": 1e-2, "random_state": 0, **options})


@pytest.mark.parametrize("average", AVERAGES)
def test_labels_score_and_marginals_follow_the_average(average: Average) -> None:
    model = quick(average=average).fit(X[TRAIN], Y[TRAIN])
    found, pi = model.predict(X[TEST]), model.predict_proba(X[TEST])
    assert model.score(X[TEST], Y[TEST]) == f1_score(Y[TEST], found, average=average, zero_division=1) > 0.6
    np.testing.assert_allclose(pi, 1 / (1 + np.exp(-model.decision_function(X[TEST]))), rtol=1e-5)
    assert abs(pi.mean() - Y[TEST].mean()) < 0.06
    assert roc_auc_score(Y[TEST], pi, average="micro") > 0.85
    distribution = model.predict_distribution(X[TEST])
    np.testing.assert_array_equal(distribution > 0, found == 1)
    np.testing.assert_allclose(distribution.sum(1), found.any(1), rtol=1e-5)


def test_several_nets_and_their_calibration_beat_one_plain_net() -> None:
    losses = [
        log_loss(Y[TEST].ravel(), np.clip(model.fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST]).ravel(), 1e-6, 1 - 1e-6))
        for model in (quick(), plain(features="auto", epochs=150))
    ]
    assert losses[0] < losses[1]


def test_a_row_may_need_labels_or_have_too_many() -> None:
    for average in AVERAGES:
        k = quick(average=average, at_least=1, at_most=2).fit(X[TRAIN], Y[TRAIN]).predict(X[TEST]).sum(1)
        assert set(k) == {1, 2}


def test_labels_by_name_are_answered_by_name() -> None:
    matrix = quick().fit(X[TRAIN], Y[TRAIN])
    expected = [NAMES[row == 1].tolist() for row in matrix.predict(X[TEST])]
    lists = quick().fit(X[TRAIN], LISTS[TRAIN])
    assert lists.classes_.tolist() == NAMES.tolist()
    assert lists.predict(X[TEST]) == lists.predict_labels(X[TEST]) == expected
    assert lists.score(X[TEST], LISTS[TEST]) == matrix.score(X[TEST], Y[TEST])
    sets = quick().fit(X[TRAIN], [set(row) for row in LISTS[TRAIN]])
    assert sets.predict(X[TEST]) == [set(row) for row in expected]
    joined = quick(label_separator=";").fit(X[TRAIN], ["; ".join(row) for row in LISTS[TRAIN]])
    assert joined.predict_labels(X[TEST]) == expected
    assert joined.predict(X[TEST]).tolist() == [";".join(row) for row in expected]
    numbers = quick().fit(X[TRAIN], Y[TRAIN])
    assert numbers.predict_labels(X[TEST]) == [np.flatnonzero(row).tolist() for row in matrix.predict(X[TEST])]


def test_a_data_frame_gives_its_columns_and_gets_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.DataFrame(Y, columns=NAMES)
    rows = pandas.DataFrame(X, index=np.arange(300) + 1000)
    rows.columns = [f"x{i}" for i in range(12)]
    model = quick().fit(rows[TRAIN], labels[TRAIN])
    found = model.predict(rows[TEST])
    assert list(found.columns) == list(model.classes_) == NAMES.tolist()
    assert found.index.equals(rows[TEST].index)
    assert model.score(rows[TEST], labels[TEST]) > 0.6


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
    model = quick().fit(X[TRAIN], Frame(Y[TRAIN], NAMES))
    found = model.predict(X[TEST])
    assert isinstance(found, Frame)
    assert list(found.columns) == list(model.classes_) == NAMES.tolist()


@pytest.mark.parametrize("joined", [["air;cat", "bee"], ["air|cat", "bee"], ["air, cat", "cat"]])
def test_several_labels_in_one_string_are_refused_with_the_remedy(joined: list[str]) -> None:
    with pytest.raises(ValueError, match=r"y holds 'air.*', which looks like several labels in one string; label_sep"):
        plain().fit(X[:10], joined * 5)
    one_class = plain(label_separator="").fit(X[:10], joined * 5)
    assert sorted(one_class.classes_) == sorted(joined)
    plain().fit(X[:10], ["Paris, France", "Rome, Italy"] * 5)


def test_a_name_that_was_not_there_at_first_is_refused() -> None:
    model = plain().partial_fit(X[:50], LISTS[:50], classes=[*NAMES, "fox"])
    assert model.classes_.tolist() == [*NAMES, "fox"]
    with pytest.raises(ValueError, match="y has 'gnu', which is not among classes"):
        model.partial_fit(X[:1], [["gnu"]])


def test_labels_that_are_not_known_count_nowhere() -> None:
    gaps = Y[TRAIN].astype(float)
    hidden = np.random.RandomState(0).rand(*gaps.shape) < 0.3
    by_nan, by_minus = (quick().fit(X[TRAIN], np.where(hidden, gap, gaps)) for gap in (np.nan, -1))
    np.testing.assert_array_equal(by_nan.predict_proba(X[TEST]), by_minus.predict_proba(X[TEST]))
    assert by_nan.score(X[TEST], Y[TEST]) > 0.6
    pi = by_nan.predict_proba(X[TEST])
    assert abs(pi.mean() - Y[TEST].mean()) < 0.08  # taken for "no", they would lower it by a third
    truth = np.where(hidden[:100], np.nan, Y[TEST])
    assert by_nan.score(X[TEST], truth) > 0.6


def test_gaps_need_a_loss_that_knows_single_labels() -> None:
    gaps = np.where(np.arange(300)[:, None] % 2, Y, -1)
    with pytest.raises(ValueError, match="loss='r_softmax_loss' takes a weight for each row"):
        plain(rate="count").fit(X, gaps)


def test_weights_of_rows_decide_which_of_two_halves_is_believed() -> None:
    x, y = np.concatenate([X[TRAIN], X[TRAIN]]), np.concatenate([Y[TRAIN], 1 - Y[TRAIN]])
    first = np.arange(400) < 200
    for rate in ("expected_f1", "count"):
        model = plain(rate=rate, features="auto", epochs=30)
        truth, wrong = (model.fit(x, y, sample_weight=w).predict(X[TEST]) for w in (first, ~first))
        assert (truth == Y[TEST]).mean() > 0.65
        assert (wrong == Y[TEST]).mean() < 0.4


def test_weights_of_labels_raise_their_marginals() -> None:
    usual = plain().fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST]).mean(0)
    named = plain(class_weight={"cat": 20.0}).fit(X[TRAIN], LISTS[TRAIN]).predict_proba(X[TEST]).mean(0)
    rise = named - usual
    assert rise[2] > 0.1 + np.delete(rise, 2).max()
    rare = (Y * (np.arange(300)[:, None] % 4 == 0)).astype(int)
    balanced = plain(class_weight="balanced", epochs=30).fit(X[TRAIN], rare[TRAIN]).predict_proba(X[TEST]).mean()
    assert balanced > 0.25 > rare.mean() + 0.1
    with pytest.raises(ValueError, match=r"class_weight must be 'balanced' or weights of labels, got {'cow': 2}"):
        plain(class_weight={"cow": 2}).fit(X, LISTS)


def test_weights_of_classes() -> None:
    y = np.where(X[:, 0] > np.quantile(X[:, 0], 0.9), "high", "low")
    assert (plain(class_weight={"high": 50.0}).fit(X, y).predict(X) == "high").mean() > 0.2


def test_an_own_network() -> None:
    backbone = torch.nn.Sequential(torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 24), torch.nn.Tanh())
    before = copy.deepcopy(backbone.state_dict())
    model = quick(backbone=backbone).fit(X[TRAIN], Y[TRAIN])
    assert model.score(X[TEST], Y[TEST]) > 0.6
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())
    pictures = X.reshape(300, 1, 3, 4)
    folded = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 2), torch.nn.ReLU(), torch.nn.Flatten())
    model = quick(backbone=folded, features="as_is").fit(pictures[TRAIN] / 5, Y[TRAIN])
    assert model.score(pictures[TEST] / 5, Y[TEST]) > 0.55
    with pytest.raises(ValueError, match=r"backbone must give a tensor \[rows, features\], got a tensor \[2, 12, 1\]"):
        quick(backbone=torch.nn.Unflatten(1, (12, 1))).fit(X, Y)


def test_a_validation_set_may_be_given() -> None:
    model = quick(nets=2).fit(X[:150], Y[:150], validation=(X[150:200], Y[150:200]))
    assert len(model.nets_) == 2
    assert sum(model.net_.history[-1, "batches", :, "train_batch_size"]) == 150
    assert model.score(X[TEST], Y[TEST]) > 0.6


def test_callbacks_of_skorch() -> None:
    model = quick(callbacks=[LRScheduler("ExponentialLR", gamma=0.5)], early_stopping=False, epochs=4).fit(X, Y)
    rates = [row["event_lr"] for row in model.net_.history]
    assert rates == [1e-2, 5e-3, 2.5e-3, 1.25e-3]
    stop = EarlyStopping(monitor="train_loss", patience=2, threshold=10.0, threshold_mode="abs")
    assert len(quick(callbacks=[stop], early_stopping=False, epochs=50).fit(X, Y).net_.history) < 6


def test_warm_start_goes_on() -> None:
    cold, warm = (plain(warm_start=warm).fit(X, Y) for warm in (False, True))
    assert len(cold.fit(X, Y).net_.history) == 10
    assert len(warm.fit(X, Y).net_.history) == 20


def test_training_that_did_not_converge_says_so() -> None:
    with pytest.warns(ConvergenceWarning, match="still fell after 2 epochs; more epochs or a higher lr=0.01"):
        quick(epochs=2).fit(X, Y)


@pytest.mark.parametrize(
    ("losses", "falls"),
    [([1.0], True), ([1.0, 0.9, 0.8, 0.7], True), ([1.0, 0.1, 0.004, 0.003, 0.002, 0.001], False)],
    ids=["one epoch", "falling", "next to nothing"],
)
def test_training_that_only_becomes_surer_has_converged(losses: list[float], falls: bool) -> None:
    """Where features tell the labels, the loss falls for ever, and more epochs would change nothing."""
    stopping = Stopping(patience=3)
    for loss in losses:
        assert not stopping.reached([], loss)
    assert stopping.still_falls() == falls


def test_features_that_differ_in_scale_are_told_of_or_prepared() -> None:
    uneven = X * np.logspace(-3, 3, 12)
    with pytest.warns(UserWarning, match=r"the spreads of features range from .* let features='auto' do it"):
        plain().fit(uneven, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = quick().fit(uneven[TRAIN], Y[TRAIN])
    assert model.score(uneven[TEST], Y[TEST]) == quick().fit(X[TRAIN], Y[TRAIN]).score(X[TEST], Y[TEST])


def test_sparse_counts_are_weighted_by_tf_idf() -> None:
    model = quick().fit(sp.csr_array(X[TRAIN]), Y[TRAIN])
    assert model.score(sp.csr_array(X[TEST]), Y[TEST]) > 0.6
    prepared = model._prepared(sp.csr_array(X[TEST].astype(np.float32)))
    np.testing.assert_allclose(np.sqrt((prepared.toarray() ** 2).mean(1)), 1, rtol=1e-5)
    assert quick().fit(sp.csr_array(X - 4), Y).score(sp.csr_array(X - 4), Y) > 0.6


def test_calibrate_gives_partial_fit_its_cuts() -> None:
    model = quick(nets=1, dropout=0.0)
    for _ in range(30):
        model.partial_fit(X[:150], Y[:150])
    before = model.score(X[TEST], Y[TEST])
    assert model.calibrate(X[150:200], Y[150:200]).score(X[TEST], Y[TEST]) > before - 0.02
    assert model.net_.module_.head.decoder.cut.item() != 0


def test_eight_fits_in_four_threads_are_those_of_one_thread() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    settings = {"epochs": 4, "early_stopping": False, "nets": 2}
    serial = [quick(random_state=seed, **settings).fit(X, Y).decision_function(X) for seed in range(8)]
    found: list[Any] = [None] * 8

    def work(seeds: range) -> None:
        for seed in seeds:
            found[seed] = quick(random_state=seed, **settings).fit(X, Y).decision_function(X)

    threads = [threading.Thread(target=work, args=(range(i, 8, 4),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(serial, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.abs(serial[0] - serial[1]).max() > 1e-3


def test_a_learning_rate_set_between_two_calls_counts() -> None:
    model = plain().partial_fit(X, Y)
    before = model.decision_function(X)
    model.set_params(lr=1e-12).partial_fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), before, atol=1e-6)
    model.set_params(lr=1e-1, batch_size=50).partial_fit(X, Y)
    assert np.abs(model.decision_function(X) - before).max() > 0.1
    assert model.net_.history[-1, "batches", :, "train_batch_size"] == [50] * 6


def test_nan_weights_are_an_error_and_not_the_answer_no_label() -> None:
    y = np.where(X[:, 0] > 4, "high", "low")
    for targets in (Y, y):
        model = quick(nets=2, early_stopping=False, epochs=1).fit(X, targets)
        with torch.no_grad():
            next(model.net_.module_.parameters()).fill_(torch.nan)
        for answer in (model.predict, model.predict_labels):
            with pytest.raises(ValueError, match="the network answers with NaN for 100 rows, which is not 'no label'"):
                answer(X[TEST])
        assert np.isnan(model.predict_proba(X[TEST])).all()
        assert np.isnan(model.predict_distribution(X[TEST])).all()


@few_epochs
def test_grid_search_and_joblib_with_the_default_settings() -> None:
    search = GridSearchCV(quick(epochs=3, nets=2), {"average": ["micro", "macro"], "dropout": [0.0, 0.5]}, cv=2)
    search.fit(X, Y)
    stored = io.BytesIO()
    joblib.dump(search.best_estimator_, stored)
    stored.seek(0)
    np.testing.assert_array_equal(joblib.load(stored).predict_proba(X), search.predict_proba(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "scaled"}, r"features must be one of \('auto', 'as_is'\), got 'scaled'"),
        ({"calibration": "isotonic"}, r"calibration must be one of \('platt', None\), got 'isotonic'"),
        ({"dropout": 1.0}, r"dropout must be 0 or above and below 1, got 1\.0"),
        ({"nets": 0}, "nets must be a whole number from 1, got 0"),
        ({"batch_size": "big"}, "batch_size must be a whole number from 1, got 'big'"),
        ({"average": "weighted"}, "no average is called 'weighted'"),
        ({"rate": "count", "at_least": 1}, "need rate='expected_f1', got rate='count'"),
    ],
)
def test_wrong_settings_say_what_would_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain(**options).fit(X, Y)
