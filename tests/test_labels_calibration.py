"""Platt scaling: the minimum is reached, whatever the scale of the scores; as good as scikit-learn's."""

import warnings

import numpy as np
import pytest
import torch
from cases import draw_labels
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from torch import Tensor
from torch.testing import assert_close

from rsoftmax.labels import PlattScaling

Array = NDArray[np.float64]


def test_the_lines_are_those_that_the_labels_were_drawn_from() -> None:
    u, y = draw_labels(20_000, 3)
    slope, offset = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([-1.0, 0.0, 1.0])
    for scale in (1e-6, 1.0, 1e6):
        scores = scale * (u - offset) / slope
        scaling = PlattScaling(3).fit(scores, y)
        assert_close(scaling.slope * scale, slope, rtol=0.1, atol=0, msg=str(scale))
        assert_close(scaling(scores), u, rtol=0.1, atol=0.15, msg=str(scale))


def log_loss(odds: Array, y: Array) -> float:
    return float(np.mean(np.logaddexp(0, odds) - y * odds))


class Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator whose scores are its features."""

    def fit(self, X: Array, y: Array) -> "Scores":
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X: Array) -> Array:
        return X[:, 0]

    def predict(self, X: Array) -> NDArray[np.bool_]:
        return X[:, 0] > 0


def scikit_learn_log_odds(u: Array, y: Array) -> Array:
    fitted = CalibratedClassifierCV(
        FrozenEstimator(Scores().fit(u[:, None], y.astype(int))), method="sigmoid", cv=2, ensemble=False
    )
    line = fitted.fit(u[:, None], y.astype(int)).calibrated_classifiers_[0].calibrators[0]
    return np.asarray(-(line.a_ * u + line.b_))


def random_problem(random: np.random.Generator) -> tuple[Array, Array]:
    """Scores of any scale and offset, often with heavy tails or an outlier, and labels of any rarity."""
    rows = int(random.integers(12, 300))
    x = random.normal(size=rows) if random.random() < 0.6 else random.standard_t(1.5, size=rows)
    odds = np.clip(random.uniform(0, 4) * x + 2 * random.normal(), -30, 30)
    y = (random.random(rows) < 1 / (1 + np.exp(-odds))).astype(float)
    y[:4] = [0, 1, 0, 1]
    x[0] = random.choice([x[0], 1000.0, -1000.0], p=[0.7, 0.15, 0.15])
    return 10 ** random.uniform(-4, 5) * (x + 3 * random.normal()), y


def compare_with_scikit_learn(problems: int) -> None:
    random = np.random.default_rng(0)
    for problem in range(problems):
        u, y = random_problem(random)
        scaling = PlattScaling(1).double().fit(torch.tensor(u)[:, None], torch.tensor(y)[:, None])
        ours, theirs = (
            log_loss(scaling(torch.tensor(u)[:, None]).numpy()[:, 0], y),
            log_loss(scikit_learn_log_odds(u, y), y),
        )
        rises = np.cov(u, y)[0, 1] > 0  # scikit-learn may turn the order of scores round, which is not allowed here
        assert not rises or ours <= 1.01 * theirs, (problem, ours, theirs)


def test_the_log_loss_is_that_of_scikit_learn() -> None:
    compare_with_scikit_learn(50)


@pytest.mark.train
def test_the_log_loss_is_that_of_scikit_learn_on_hundreds_of_problems() -> None:
    compare_with_scikit_learn(300)


def test_no_line_close_to_the_result_has_a_lower_loss() -> None:
    """The minimum is reached for scores of any scale: nudging a slope or an offset never lowers the penalised loss."""
    u, y = draw_labels(60, 4)
    for scale in (1e-3, 1.0, 1e4):
        scaling = PlattScaling(4, shrinkage=1e-6).double().fit(scale * u, y)
        lines = torch.stack([scaling.slope, scaling.offset])

        def loss(lines: Tensor, scale: float = scale) -> Tensor:
            odds = lines[0] * scale * u + lines[1]
            return torch.nn.functional.binary_cross_entropy_with_logits(odds, y, reduction="none").sum(0)

        for nudge in ([1.01, 1], [0.99, 1], [1, 1.01], [1, 0.99]):
            assert (loss(lines) <= loss(lines * torch.tensor(nudge)[:, None]) + 1e-4).all(), (scale, nudge)


def test_a_single_outlier_does_not_spoil_the_fit() -> None:
    u, y = draw_labels(50, 1)
    plain = PlattScaling(1).double().fit(u[1:], y[1:])(u)
    for outlier in (1e3, 1e6, 1e12):
        v = u.clone()
        v[0], label = outlier, y.clone()
        label[0] = 1
        found = PlattScaling(1).double().fit(v, label)(v)
        assert_close(found[1:].sigmoid(), plain[1:].sigmoid(), atol=0.1, rtol=0, msg=str(outlier))


def test_a_fit_that_does_not_converge_warns_and_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsoftmax.labels.calibration.STEPS", 20)
    for scale, message in ((1.0, "for 3 labels, which use the line of all"), (1e-9, "for all labels together")):
        u, y = draw_labels(50, 3)
        u = scale * u
        u[0] = torch.tensor([1.7e308, -1.7e308, 1.7e308], dtype=torch.float64)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scaling = PlattScaling(3).fit(u, y)
        assert any(f"the fit did not converge {message}" in str(warning.message) for warning in caught), scale
        assert scaling.slope.isfinite().all(), scale
        assert (scaling.slope >= 0).all(), scale
        assert scaling.offset.isfinite().all(), scale


def test_labels_that_never_or_always_occur_get_finite_and_clear_log_odds() -> None:
    u, y = draw_labels(300, 4)
    y[:, 0], y[:, 1] = 0, 1
    scaling = PlattScaling(4).fit(u, y)
    assert scaling.slope.isfinite().all()
    pi = scaling(u).sigmoid()
    assert pi[:, 0].mean() < 0.05
    assert pi[:, 1].mean() > 0.95
    for constant in (0.0, 1.0):
        pi = PlattScaling(4).fit(u, torch.full_like(u, constant))(u).sigmoid()
        assert ((pi - constant).abs() < 0.05).all(), constant


def test_scores_that_are_all_equal_give_the_base_rate() -> None:
    y = (torch.arange(100) < 30).double()[:, None].expand(100, 2)
    for value in (0.0, -7.0, 1e6):
        pi = PlattScaling(2).fit(torch.full((100, 2), value), y)(torch.full((1, 2), value)).sigmoid()
        assert_close(pi, torch.full((1, 2), 0.3), atol=0.02, rtol=0, msg=str(value))


def test_the_order_of_rows_within_a_label_never_turns_round() -> None:
    u, y = draw_labels(200, 3)
    for sign in (-torch.ones(3), torch.tensor([1.0, -1.0, 1.0])):
        assert (PlattScaling(3).fit(sign * u, y).slope >= 0).all(), sign


def test_unknown_labels_are_ignored() -> None:
    u, y = draw_labels(200, 3)
    scaling = PlattScaling(3).fit(u[:100], y[:100])
    y[100:] = torch.nan
    for gaps in (PlattScaling(3).fit(u, y), PlattScaling(3).fit(u, y.nan_to_num(), (~y.isnan()).double())):
        for name, value in scaling.state_dict().items():
            assert_close(gaps.state_dict()[name], value)


def test_labels_in_chunks_are_fitted_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    u, y = draw_labels(64, 10, shift=-3)
    weight = torch.rand(64, 10, generator=torch.Generator().manual_seed(0)).double()
    whole = PlattScaling(10).fit(u, y, weight)
    monkeypatch.setattr("rsoftmax.labels.calibration.CHUNK", 3 * 64)
    parts = PlattScaling(10).fit(u, y, weight)
    assert_close(parts.slope, whole.slope)
    assert_close(parts.offset, whole.offset)


def test_what_cannot_be_fitted_is_refused() -> None:
    u, y = draw_labels(20, 3)
    with pytest.raises(ValueError, match=r"scores and y must be \[samples, 4\], got shapes \[20, 3\] and \[20, 3\]"):
        PlattScaling(4).fit(u, y)
    with pytest.raises(ValueError, match="scores contain inf; clip probabilities"):
        PlattScaling(3).fit(u / 0, y)
    with pytest.raises(ValueError, match="shrinkage must be positive, got 0"):
        PlattScaling(3, shrinkage=0)


def test_nothing_known_leaves_scores_finite() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (0, 5):
            scaling = PlattScaling(2).fit(torch.zeros(rows, 2), torch.full((rows, 2), torch.nan))
            assert scaling(torch.ones(1, 2)).isfinite().all(), rows


def test_a_hundred_thousand_labels() -> None:
    u, y = draw_labels(5, 100_000, shift=-4)
    assert PlattScaling(100_000).fit(u.float(), y)(u).isfinite().all()
