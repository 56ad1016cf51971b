"""The comparison: its rules, its scores, its data and its grids."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import f1_score

from rsoftmax.labels import AVERAGES, RULES, SparseLabelClassifier
from rsoftmax_lab.comparison import (
    METHODS,
    USERS,
    Outputs,
    at_least,
    best_threshold,
    classifier,
    micro_f1,
    nonzero,
    scores,
    train_and_score,
    true_count,
    tuned,
)
from rsoftmax_lab.experiments import synthetic, tabular
from rsoftmax_lab.experiments.synthetic import Run, draw
from rsoftmax_lab.experiments.tabular import Run as TabularRun
from rsoftmax_lab.experiments.tabular import load

SMALL = Run(classes=6, labels=2, length=100, samples=200, test_samples=50, features=20, epochs=3)


def outputs(p: list[list[float]], truth: list[list[int]]) -> Outputs:
    values = np.array(p, dtype=np.float32)
    return Outputs(values, values, np.array(truth, dtype=bool))


def test_each_rule_finds_its_labels() -> None:
    some = outputs([[0.5, 0.3, 0.2, 0.0], [0.9, 0.1, 0.0, 0.0]], [[1, 1, 0, 0], [0, 0, 0, 0]])
    assert nonzero(some)(some).tolist() == [[True, True, True, False], [True, True, False, False]]
    assert at_least(0.3)(some)(some).tolist() == [[True, True, False, False], [True, False, False, False]]
    assert true_count(some)(some).tolist() == [[True, True, False, False], [False] * 4]
    other = outputs([[0.31, 0.29, 0.4, 0.0]], [[0, 0, 0, 0]])
    assert tuned("probs")(some)(other).tolist() == [[True, False, True, False]]


def test_the_best_threshold_is_the_best_of_all() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        values = random.integers(0, 8, (6, 4)) / 8
        truth = random.random((6, 4)) < values * random.random()
        best = micro_f1(truth, values >= best_threshold(values, truth))
        everything = [micro_f1(truth, values >= v) for v in np.unique(values)]
        assert best == max(everything) if truth.any() else True


def test_micro_f1_is_scikit_learns() -> None:
    random = np.random.default_rng(0)
    truth, found = random.random((30, 5)) < 0.3, random.random((30, 5)) < 0.4
    assert micro_f1(truth, found) == pytest.approx(f1_score(truth, found, average="micro"), rel=1e-12)
    nothing = np.zeros_like(truth)
    assert micro_f1(nothing, nothing) == 1
    assert scores(nothing, nothing) == {"micro": 100, "macro": 100, "samples": 100}
    assert scores(truth, nothing)["micro"] == 0


def test_the_test_rows_leave_the_papers_rows_as_they_are() -> None:
    x, y = make_multilabel_classification(200, 20, n_classes=6, n_labels=2, length=100, random_state=0)
    data = draw(SMALL)
    assert [len(rows.Y) for rows in data] == [160, 40, 50]
    np.testing.assert_array_equal(np.concatenate([data.train.Y, data.validation.Y]), y)
    mine = np.concatenate([data.train.X, data.validation.X])
    np.testing.assert_allclose(mine, (x - x[:160].mean(0)) / x[:160].std(0), rtol=1e-5, atol=1e-5)
    assert draw(replace(SMALL, method="bce", epochs=7)) is data
    assert draw(replace(SMALL, seed=1)) is not data


@pytest.mark.parametrize("method", METHODS)
def test_every_method_lowers_its_loss_and_fills_its_record(method: str) -> None:
    small = replace(SMALL, method=method, epochs=12, lr=1e-2)
    data = draw(small)
    model = classifier(small)
    for _ in range(12):
        model.partial_fit(data.train.X, data.train.Y)
    losses = [epoch["train_loss"] for epoch in model.history_]
    assert losses[-1] < losses[0]
    record = train_and_score(small, data, curves=True)
    assert record["rules"].keys() == METHODS[method].rules.keys()
    for rule in record["rules"].values():
        assert rule["epoch"] == 1 + int(np.argmax(rule["curve"]))
        assert rule["validation"]["micro"] == pytest.approx(max(rule["curve"]), abs=0.06)  # curves have one decimal
        assert all(
            0 <= rule[split][average] <= 100 for split in ("validation", "test", "test_last") for average in AVERAGES
        )


@pytest.mark.train
@pytest.mark.parametrize("method", USERS)
def test_a_classifier_as_a_user_gets_it_fills_the_same_record(method: str) -> None:
    record = synthetic.run(replace(SMALL, method=method))
    assert record["rules"].keys() == USERS[method].rules.keys()
    train, validation, test = draw(SMALL)
    model = SparseLabelClassifier(**USERS[method].head, random_state=0)
    model.fit(train.X, train.Y, validation=(validation.X, validation.Y))
    assert record["rules"]["labels"]["test"] == scores(test.Y, model.predict(test.X))
    for rule in record["rules"].values():
        assert rule["test"] == rule["test_last"]


def test_users_take_part_in_figure_2_with_three_labels_of_thirty() -> None:
    runs = synthetic.users_grid(seeds=2)
    assert {(one.classes, one.labels, one.length) for one in runs} == {(30, 3, 2000)}
    assert Counter(one.method for one in runs) == dict.fromkeys(USERS, 2)


def test_the_same_run_gives_the_same_record() -> None:
    runs = [synthetic.run(replace(SMALL, method="r_softmax_expected_f1"))["rules"] for _ in range(2)]
    assert runs[0] == runs[1]


def test_an_epoch_later_can_only_raise_the_best_on_validation() -> None:
    records = [synthetic.run(replace(SMALL, method="bce", epochs=epochs))["rules"] for epochs in (1, 2, 4, 8)]
    for rule in METHODS["bce"].rules:
        best = [record[rule]["validation"]["micro"] for record in records]
        assert best == sorted(best)
    assert records[0]["labels"]["test"] == records[0]["labels"]["test_last"]


@pytest.mark.parametrize("method", ["r_softmax_rate", "t_softmax_threshold", "r_softmax_expected_f1"])
def test_the_comparison_takes_the_losses_that_users_get(method: str) -> None:
    head = METHODS[method].head
    assert head["loss"] == RULES[head["rule"]].losses[0]


def test_the_grid_is_figure_2() -> None:
    runs = synthetic.grid(seeds=2)
    assert len(runs) == len(set(runs)) == 2 * 27 * len(METHODS)
    assert Counter((run.classes, run.length) for run in runs)[30, 2000] == 2 * 5 * len(METHODS)
    assert {run.labels for run in runs if run.classes == 20} == {2, 6, 10, 14, 18}
    assert all(run.labels == run.classes // 2 for run in runs if run.length != 2000)
    assert {(run.samples, run.features, run.epochs, run.lr) for run in runs} == {(5000, 128, 150, 1e-3)}


def test_a_real_set_keeps_its_test_rows_and_a_fifth_of_its_training_rows_is_for_validation(sets: Path) -> None:
    data = load(sets, "toys", 0.2, seed=0)
    assert [len(rows.Y) for rows in data] == [8, 2, 4]
    np.testing.assert_allclose(data.train.X[:, 0].mean(), 0, atol=1e-6)  # a numeric feature, standardised
    assert set(data.train.X[:, 1]) <= {0, 1}
    other = load(sets, "toys", 0.2, seed=1)
    assert (other.validation.Y != data.validation.Y).any() or (other.validation.X != data.validation.X).any()
    record = tabular.run(sets, TabularRun(dataset="toys", method="r_softmax_expected_f1", epochs=2))
    assert record["rules"]["labels"]["test"].keys() == set(AVERAGES)


def test_a_set_that_is_too_small_for_validation_rows_is_refused(sets: Path) -> None:
    with pytest.raises(ValueError, match=r"toys: validation_share=0\.04 of 10 training samples is 0 samples"):
        load(sets, "toys", 0.04, seed=0)


def test_a_sparse_set_gives_the_same_row_as_a_dense_one(sets: Path) -> None:
    rows = [tabular.run(sets, TabularRun(dataset=name, method="bce", epochs=2)) for name in ("thin", "thick")]
    assert rows[0]["rules"] == rows[1]["rules"]
