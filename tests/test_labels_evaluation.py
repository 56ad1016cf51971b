"""Scores of predictions: scikit-learn's numbers, absent labels left out, calibration curves."""

import numpy as np
import pytest
import torch
from cases import draw_labels
from sklearn.metrics import brier_score_loss, f1_score, precision_score, recall_score
from torch.testing import assert_close

from rsoftmax.labels import calibration_curve, evaluate


def test_scores_are_those_of_scikit_learn() -> None:
    torch.manual_seed(1)
    marginals, y = torch.rand(50, 6), (torch.rand(50, 6) < 0.3).float()
    found = marginals > 0.6
    y[:5], found[:5], y[:, 5] = 0, False, 0
    for predicted in (False, True):  # the last label, which no row has
        found[:, 5] = predicted
        scores = evaluate(marginals, found, y, list("abcdef"))
        for average in ("micro", "samples"):
            expected = f1_score(y, found, average=average, zero_division=1.0)
            assert getattr(scores, average) == pytest.approx(expected), (average, predicted)
        assert scores.samples_zero == pytest.approx(f1_score(y, found, average="samples", zero_division=0.0))
        assert scores.headline().get("samples F1, zero_division=0", scores.samples) == scores.samples_zero
        assert (scores.samples_zero < scores.samples) != predicted
        assert scores.macro == pytest.approx(f1_score(y[:, :5], found[:, :5], average="macro"))
        assert scores.macro_with_absent == pytest.approx(f1_score(y, found, average="macro", zero_division=1.0))
        columns = [[getattr(one, name) for one in scores.labels] for name in ("precision", "recall")]
        for column, score in zip(columns, (precision_score, recall_score), strict=True):
            assert column == pytest.approx(score(y, found, average=None, zero_division=np.nan), nan_ok=True)
        assert scores.brier == pytest.approx(brier_score_loss(y.ravel(), marginals.ravel()))
        best = marginals.argmax(1)
        assert scores.precision_at[1] == pytest.approx(float(y[range(50), best].mean()))
        assert scores.curve.entries.sum() == 300


def test_a_label_without_rows_has_no_f1_and_is_named() -> None:
    marginals = torch.tensor([[0.9, 0.2], [0.1, 0.3]])
    scores = evaluate(marginals, marginals > 0.5, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), ["joy", "grief"])
    assert scores.absent == ["grief"]
    assert scores.macro == scores.labels[0].f1 == pytest.approx(2 / 3)
    assert scores.as_dict()["labels"][1] == {
        "label": "grief",
        "precision": None,
        "recall": None,
        "f1": None,
        "support": 0,
    }
    titles = scores.headline()
    assert "samples F1, zero_division=0" not in titles  # every row has a label: the same number
    assert titles["macro F1"] == scores.macro
    assert titles["macro F1, 1 absent labels counted as 1 or 0"] == pytest.approx(5 / 6)
    nothing = evaluate(marginals, marginals > 0.95, torch.zeros(2, 2), ["joy", "grief"])
    assert np.isnan(nothing.macro)
    assert nothing.as_dict()["macro"] is None


def test_unknown_labels_are_ignored() -> None:
    y = torch.tensor([[1.0, torch.nan], [0.0, 1.0]])
    marginals = torch.tensor([[0.9, 0.95], [0.1, 0.9]])
    scores = evaluate(marginals, marginals > 0.5, y, ["a", "b"])
    assert scores.micro == scores.precision_at[1] == 1
    wrong = torch.tensor([[1.0, 0.0], [torch.nan, torch.nan]])
    assert evaluate(marginals, torch.tensor([[False, True], [True, True]]), wrong, ["a", "b"]).samples == 0


def test_calibrated_marginals_have_no_calibration_error() -> None:
    u, y = draw_labels(4000, 10)
    curve = calibration_curve(u.sigmoid(), y)
    assert curve.error < 0.01
    assert_close(curve.predicted, curve.observed, atol=0.06, rtol=0)
    assert int(curve.entries.sum()) == y.numel()
    assert curve.brier == pytest.approx(float((u.sigmoid() - y).square().mean()))
    assert calibration_curve(u.sigmoid() ** 3, y).error > 0.1
    assert len(calibration_curve(u.sigmoid(), y, bins=4).entries) == 4


def test_entries_near_zero_do_not_hide_a_wrong_calibration() -> None:
    """Half of the labels predicted at .9 are there; a thousand times as many entries are at 0, where they should be."""
    pi = torch.tensor([0.9] * 10 + [0.0] * 10_000)
    y = torch.tensor([1.0] * 5 + [0.0] * 10_005)
    curve = calibration_curve(pi, y)
    assert curve.error < 0.001
    assert curve.error_of_labels == pytest.approx(0.4)
    assert evaluate(pi[:, None], pi[:, None] > 0.5, y[:, None], ["a"]).calibration_error == curve.error_of_labels
    assert calibration_curve(torch.zeros(3), torch.ones(3)).error_of_labels == 1
    assert calibration_curve(torch.zeros(3), torch.zeros(3)).error_of_labels == 0


def test_a_printed_evaluation_is_a_table() -> None:
    marginals = torch.tensor([[0.9, 0.2], [0.6, 0.7]])
    scores = evaluate(marginals, marginals > 0.5, torch.tensor([[1.0, 0], [0, 0]]), ["a", "white\nspace"])
    lines = str(scores).splitlines()
    assert [line.split() for line in lines[:2]] == [["score", "2", "rows"], ["micro", "F1", "0.500"]]
    assert lines[-2].split() == ["a", "0.500", "1.000", "0.667", "1"]
    assert lines[-1].split() == [r"white\nspace", "0.000", "-", "-", "0"]
    assert len({len(line) for line in lines[-3:]}) == 1
    assert "tensor" not in repr(scores)


def test_the_calibration_curve_leaves_out_unknown_labels() -> None:
    pi = torch.tensor([[0.2, 0.2, 1.0, 0.7]])
    curve = calibration_curve(pi, torch.tensor([[0.0, torch.nan, 1.0, -1.0]]))
    assert_close(curve.predicted, torch.tensor([0.2, 1.0]).double(), atol=1e-6, rtol=0)
    assert curve.observed.tolist() == [0, 1]


def test_what_has_no_calibration_curve_is_refused() -> None:
    for pi, y, bins, message in (
        ([0.5], [[1]], 15, r"marginals and y must have the same shape, got \[1\] and \[1, 1\]"),
        ([1.5], [1], 15, r"marginals must be in \[0, 1\]"),
        ([float("nan")], [1], 15, r"marginals must be in \[0, 1\]"),
        ([0.5], [2], 15, "y must be 0 or 1, or NaN or -1 where unknown, got 2"),
        ([0.5], [-1], 15, r"y of shape \[1\] has no known label"),
        ([0.5], [1], 0, "bins must be 1 or more, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            calibration_curve(torch.tensor(pi), torch.tensor(y), bins=bins)
