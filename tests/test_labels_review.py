"""Accept, reject or ask: both guarantees hold together, models save their thresholds, and gains are expected errors."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_labels_risk_control import BYS, U, Y, draw
from torch import Tensor
from torch.testing import assert_close

from rsoftmax.labels import SparseLabelClassifier, TableModel, TrainingOptions, review_thresholds
from rsoftmax.labels.review import ReviewThresholds
from rsoftmax.labels.risk_control import By

FAST = TrainingOptions(lr=1e-2, max_epochs=20)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def levels(thresholds: ReviewThresholds, by: By) -> tuple[Tensor, Tensor]:
    """The precision of what is accepted and the recall after review of new rows; the lowest of all labels."""
    accepted, y = thresholds.accepted(U), Y.bool()
    dims: dict[By, tuple[int, ...]] = {"samples": (1,), "micro": (0, 1), "label": (0,)}
    found = accepted | thresholds.asked(U)
    precision = (accepted & y).sum(dims[by]) / accepted.sum(dims[by])
    recall = (found & y).sum(dims[by]) / y.sum(dims[by])
    if by == "samples":
        return precision.nanmean(), recall.nanmean()
    return precision.nan_to_num(1).min(), recall.min()


@pytest.mark.train
def test_precision_and_recall_are_kept_together_with_confidence() -> None:
    """In at most a tenth of 40 draws one of both is below: 9 of 40 are below in one of a hundred such tests."""
    for by in BYS:
        below, helped = 0, 0
        for seed in range(40):
            thresholds = review_thresholds(*draw(600, seed), accept=0.7, reject=0.8, by=by, confidence=0.9)
            precision, recall = levels(thresholds, by)
            below += int(precision < 0.7 or recall < 0.8)
            helped += int(thresholds.asked(U).double().mean() < 0.9)
        assert below <= 8, by
        assert helped == 40, by


def test_nothing_is_accepted_or_rejected_where_the_samples_do_not_suffice() -> None:
    scores, y = draw(20, 0)
    with pytest.warns(UserWarning, match=r"no label is accepted: a precision of 0\.99 cannot be guaranteed"):
        thresholds = review_thresholds(scores, y, accept=0.99, reject=0.2)
    assert thresholds.accept == math.inf
    assert not thresholds.accepted(scores).any()
    with pytest.warns(UserWarning, match="is accepted"), pytest.warns(UserWarning, match="no label is rejected"):
        thresholds = review_thresholds(scores, y, accept=0.99, reject=0.99)
    assert thresholds.asked(scores).all()
    with pytest.raises(ValueError, match=r"must be in \(0, 1\), got 1.5"):
        review_thresholds(scores, y, accept=1.5)


def test_nobody_is_asked_where_accepting_and_rejecting_meet() -> None:
    y = (torch.rand(500, 3, generator=torch.Generator().manual_seed(0)) < 0.4).double()
    scores = y + torch.rand(500, 3, generator=torch.Generator().manual_seed(1)) / 2
    thresholds = review_thresholds(scores, y)
    assert not thresholds.asked(scores).any()
    assert (thresholds.reject <= thresholds.accept).all()


def rows(count: int) -> tuple[list[list[float]], list[list[str]]]:
    """Two labels, of which the first feature tells one, and nothing the other."""
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(0)).round()
    told = [["a"] * int(first) + ["b"] * (i % 3 == 0) for i, (first, _) in enumerate(x.tolist())]
    return x.tolist(), told


def test_a_model_decides_what_is_certain_and_asks_for_the_rest(tmp_path: Path) -> None:
    x, y = rows(1200)
    model = TableModel(["u", "v"], ["a", "b"], "macro")
    with pytest.raises(ValueError, match="review: no thresholds"):
        model.fit(x, y, n_estimators=1, training=FAST).review(x)
    model.fit(x, y, n_estimators=1, training=FAST, review={"accept": 0.9, "reject": 0.9})
    model.save(tmp_path / "model")
    model = TableModel.load(tmp_path / "model")
    assert (model.config.review or {})["levels"] == {"accept": 0.9, "reject": 0.9, "by": "samples", "confidence": 0.95}
    output, first = model.outputs(x), model.review(x)[:50]
    assert all(set(item.asked) == {"b"} for item in first)
    assert [("a" in item.labels) for item in first] == [bool(u) for u, _ in x[:50]]
    wrong = torch.where(output.labels, 1 - output.marginals, output.marginals)[:50, 1]
    assert_close(torch.tensor([item.corrections for item in first]), wrong)
    f1 = model.expected_f1(output)
    pi, labels = output.marginals, output.labels
    some = labels.any(1)
    ratio = 2 * (pi * labels).sum(1) / (labels.sum(1) + pi.sum(1))
    assert_close(f1[some], ratio[some])
    assert ((f1 >= 0) & (f1 <= 1)).all()


def test_added_rows_are_trained_on_and_never_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(400)
    trained: list[Any] = []
    fit = SparseLabelClassifier.fit

    def spy(self: SparseLabelClassifier, X: object, *words: object, **options: object) -> SparseLabelClassifier:
        trained.append(X)
        return fit(self, X, *words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SparseLabelClassifier, "fit", spy)
    model = TableModel(["u", "v"], ["a", "b"])
    added = [[7.0, 7.0]] * 5, [["a", "b"]] * 5
    model.fit(x, y, added=added, review={"accept": 0.5, "reject": 0.5}, n_estimators=1, training=FAST)
    assert len(trained[0]) == 320 + 5
    assert (trained[0][-5:] == 7).all()
    assert (model.config.review or {})["num_samples"] == 80
    with pytest.raises(ValueError, match="envy"):
        model.fit(x, y, added=([[0.0, 0.0]], [["envy"]]))
