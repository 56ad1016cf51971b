"""From marginals to labels: expected F-measures, counts and thresholds, bounds, the decoder."""

import copy
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from cases import draw_labels
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor

from rsoftmax.labels import (
    AVERAGES,
    Average,
    Decoder,
    MultiLabelHead,
    best_labels,
    expected_f1,
    expected_f1_count,
    expected_f1_threshold,
)

log_odds = st.floats(-8, 8)
betas = st.sampled_from([0.5, 1.0, 2.0])


def expected_f(pi: NDArray[np.float64], chosen: NDArray[np.bool_], beta: float) -> float:
    """The ratio of expectations, straight from its definition."""
    return float((1 + beta**2) * pi[chosen].sum() / (chosen.sum() + beta**2 * pi.sum()))


@given(st.lists(log_odds, min_size=1, max_size=12), betas)
@settings(max_examples=200, deadline=None)
def test_no_cut_has_a_higher_expected_f_than_the_expected_f1_threshold(entries: list[float], beta: float) -> None:
    u = np.array(entries)
    pi = 1 / (1 + np.exp(-u))
    cut = expected_f1_threshold(torch.tensor(u)[None], "micro", beta=beta).item()
    best = max(expected_f(pi, u > c, beta) for c in [*u, -np.inf])
    assert expected_f(pi, u > cut, beta) == pytest.approx(best, rel=1e-12)
    assert 1 / (1 + np.exp(-cut)) == pytest.approx(best / (1 + beta**2), rel=1e-9)


@given(st.lists(log_odds, min_size=1, max_size=8), betas, st.integers(0, 8), st.integers(0, 8), st.sampled_from([0, 1]))
@settings(max_examples=200, deadline=None)
def test_no_allowed_set_has_a_higher_expected_f_than_the_expected_f1_count(
    row: list[float], beta: float, low: int, high: int, zero_division: float
) -> None:
    u = np.array(row)
    low, high = sorted((min(low, len(u)), min(high, len(u))))
    pi = 1 / (1 + np.exp(-u))

    def of(chosen: tuple[int, ...]) -> float:
        return expected_f(pi, np.isin(np.arange(len(u)), chosen), beta) if chosen else zero_division * np.prod(1 - pi)

    k = int(expected_f1_count(torch.tensor(u), beta=beta, min_labels=low, max_labels=high, zero_division=zero_division))
    assert low <= k <= high
    best = max(of(chosen) for size in range(low, high + 1) for chosen in combinations(range(len(u)), size))
    assert of(tuple(np.argsort(-u, kind="stable")[:k])) == pytest.approx(best, rel=1e-12)


def test_the_expected_f1_count_in_easy_cases() -> None:
    u = torch.tensor([[9.0, 9.0, -9.0, -9.0], [-9.0] * 4, [9.0] * 4, [-30.0, -40.0, -50.0, 0.1]])
    assert expected_f1_count(u).flatten().tolist() == [2, 0, 4, 1]
    assert expected_f1_count(u.half()).flatten().tolist() == [2, 0, 4, 1]
    assert expected_f1_count(torch.full((1, 100_000), -20.0)).item() == 0


def test_log_odds_of_no_label_replace_the_assumption_of_independence() -> None:
    u = torch.full((2, 4), -2.0)  # independent labels: none with probability 0.6
    assert expected_f1_count(u).flatten().tolist() == [0, 0]
    assert expected_f1_count(u, torch.tensor([[-9.0], [9.0]])).flatten().tolist() == [4, 0]


def test_macro_is_micro_of_each_column_and_samples_micro_of_each_row() -> None:
    u, _ = draw_labels(20, 5)
    columns, rows = (torch.cat([expected_f1_threshold(part) for part in u.split(1, dim)], dim) for dim in (1, 0))
    torch.testing.assert_close(expected_f1_threshold(u, "macro"), columns)
    torch.testing.assert_close(expected_f1_threshold(u, "samples"), rows)
    never_empty = expected_f1_count(u, torch.full((20, 1), -torch.inf))
    assert torch.equal((u > expected_f1_threshold(u, "samples")).sum(1, keepdim=True), never_empty)


def test_a_cut_from_marginals_is_as_good_as_the_best_one_in_hindsight() -> None:
    u, y = draw_labels(4000, 5)
    found = [float(2 * (y * (u > c)).sum() / (y.sum() + (u > c).sum())) for c in np.linspace(-4, 4, 161)]
    above = u > expected_f1_threshold(u)
    assert 2 * (y * above).sum() / (y.sum() + above.sum()) > max(found) - 0.003


def test_integer_weights_repeat_rows() -> None:
    u, _ = draw_labels(9, 3)
    times = torch.arange(9)[:, None]
    for average in ("micro", "macro"):
        repeated = expected_f1_threshold(u.repeat_interleave(times[:, 0], 0), average)
        torch.testing.assert_close(expected_f1_threshold(u, average, weight=times), repeated, msg=average)


def test_the_cut_is_right_where_marginals_underflow() -> None:
    """With marginals close to 0 the ratio is the mean marginal of the prediction: the highest entries are the best."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for shift in (-20.0, -200.0, -2000.0, -20_000.0):
            u = (torch.tensor([[-3.0, 0.0, -1.0], [0.0, -2.0, -500.0]]) + shift).to(dtype)
            top = u == u.max()
            for average in AVERAGES:
                dims = {"micro": (0, 1), "macro": (0,), "samples": (1,)}[average]
                best = (u == u.amax(dims, keepdim=True)) if average != "micro" else top
                assert torch.equal(u > expected_f1_threshold(u, average), best), (dtype, shift, average)
    mixed = torch.tensor([[2.0, -300.0], [-1.0, -310.0]])
    assert (mixed > expected_f1_threshold(mixed, "macro")).tolist() == [[True, True], [False, False]]
    assert (mixed > expected_f1_threshold(mixed)).tolist() == [[True, False], [False, False]]


def test_where_nothing_is_possible_nothing_lies_above_the_threshold() -> None:
    u = torch.full((4, 3), -torch.inf)
    for average in AVERAGES:
        assert not (u > expected_f1_threshold(u, average)).any(), average
    assert expected_f1_threshold(torch.zeros(4, 3), "macro", weight=torch.zeros(4, 3)).tolist() == [[0, 0, 0]]


def test_nan_has_no_threshold() -> None:
    with pytest.raises(ValueError, match=r"log-odds of shape \[1, 2\] contain NaN"):
        expected_f1_threshold(torch.tensor([[0.0, torch.nan]]))


def test_best_labels_are_exactly_k_in_spite_of_ties() -> None:
    k = torch.arange(5)[:, None]
    assert torch.equal(best_labels(torch.zeros(5, 4), k).sum(1, keepdim=True), k)


def f1(y: Tensor, found: Tensor, average: Average) -> float:
    dims = {"micro": (0, 1), "macro": (0,), "samples": (1,)}[average]
    size = y.sum(dims) + found.sum(dims)
    return float(torch.where(size > 0, 2 * (y * found).sum(dims) / size, 1).mean())


def test_a_calibrated_head_has_the_marginals_that_labels_were_drawn_from() -> None:
    for average in AVERAGES:
        torch.manual_seed(0)
        head = MultiLabelHead(6, 6, average=average).double()
        u, y = draw_labels(4000, 6)
        weights = {name: torch.zeros_like(w) for name, w in head.named_parameters()}
        weights["logits.weight"][:6] = torch.eye(6) * 3  # scores that are three times too large
        head.load_state_dict(weights, strict=False)
        before = f1(y, head(u).labels, average)
        head.calibrate(head.scores(u[:2000]), y[:2000])
        assert (head(u).marginals - u.sigmoid()).abs().max() < 0.1, average
        assert f1(y[2000:], head(u[2000:]).labels, average) > before, average


def test_each_average_is_best_at_its_own_f1() -> None:
    u = draw_labels(6000, 6)[0] + torch.linspace(-3, 1, 6)
    y = (torch.rand(u.shape, generator=torch.Generator().manual_seed(1)) < u.sigmoid()).double()
    found = {name: Decoder(6, name).fit(u, y, calibrate=False)(u).labels for name in AVERAGES}
    for average in AVERAGES:
        scores = {name: f1(y, labels, average) for name, labels in found.items()}
        assert max(scores, key=scores.__getitem__) == average, scores


def test_bounds_hold_in_every_row() -> None:
    u, y = draw_labels(200, 8, shift=-2)
    for average in AVERAGES:
        found = Decoder(8, average, min_labels=1, max_labels=2).fit(u, y)(u)
        assert set(found.k.flatten().tolist()) == {1, 2}, average
        assert torch.equal(found.labels.sum(-1, keepdim=True), found.k), average
        top = MultiLabelHead(5, 8, average=average, min_labels=4, max_labels=4)
        assert (top(torch.randn(50, 5)).labels.sum(-1) == 4).all(), average


def test_bounds_that_no_number_of_labels_meets_are_refused() -> None:
    u = torch.randn(2, 3)
    for low, high in ((2, 1), (4, None), (-1, None), (0, 4)):
        message = f"min_labels <= max_labels <= 3 .* got min_labels={low}, max_labels={high}"
        with pytest.raises(ValueError, match=message):
            expected_f1_count(u, min_labels=low, max_labels=high)
        with pytest.raises(ValueError, match=message):
            Decoder(3, min_labels=low, max_labels=high)


def test_rows_without_a_label_are_worth_what_the_user_says() -> None:
    """With 0, scikit-learn's default, a row gets a label even where it most likely has none."""
    u, y = draw_labels(300, 4, shift=-2)
    one, zero = (Decoder(4, "samples", zero_division=worth).fit(u, y)(u).labels for worth in (1, 0))
    assert (one.sum(1) == 0).float().mean() > 0.2
    assert (zero.sum(1) > 0).all()
    for worth, best, other in ((1, one, zero), (0, zero, one)):
        assert f1_score(y, best, average="samples", zero_division=worth) > 0.02 + f1_score(
            y, other, average="samples", zero_division=worth
        )
    pi = u.sigmoid()
    nothing = torch.zeros_like(one)
    assert expected_f1(pi, nothing, "samples") == pytest.approx(float((1 - pi).prod(1).mean()))
    assert expected_f1(pi, nothing, "samples", zero_division=0) == 0
    with pytest.raises(ValueError, match="zero_division must be 0 or 1, got 'warn'"):
        Decoder(4, "samples", zero_division="warn")  # type: ignore[arg-type]


def test_negative_weights_are_refused() -> None:
    u, y = draw_labels(20, 3)
    weight = torch.ones(20, 1)
    weight[3] = -2
    for average in AVERAGES:
        with pytest.raises(ValueError, match="weight must not be negative or NaN, got -2"):
            Decoder(3, average).fit(u, y, weight=weight)
    with pytest.raises(ValueError, match="weight must not be negative or NaN, got -2"):
        expected_f1_threshold(u, weight=weight)


def test_a_larger_beta_predicts_more_labels() -> None:
    u, y = draw_labels(500, 6)
    for average in AVERAGES:
        sizes = [Decoder(6, average, beta).fit(u, y)(u).k.sum() for beta in (0.5, 1.0, 2.0)]
        assert all(fewer < more for fewer, more in pairwise(sizes)), average


def test_calibration_is_saved_with_the_head() -> None:
    for average in AVERAGES:
        head, again = (MultiLabelHead(5, 4, average=average) for _ in range(2))
        h, y = torch.randn(100, 5), torch.rand(100, 4) < 0.3
        head.calibrate(head(h), y)
        again.load_state_dict(copy.deepcopy(head.state_dict()))
        assert torch.equal(again(h).marginals, head(h).marginals), average
        assert torch.equal(again(h).probs, head(h).probs), average


def test_rows_without_a_label_are_learned_from_labels_even_if_scores_say_nothing_of_them() -> None:
    u, _ = draw_labels(500, 5, shift=-4)
    y = torch.zeros_like(u)
    y.scatter_(1, u.argmax(1, keepdim=True), 1)  # never empty, though independent labels would often be
    assert (Decoder(5, "samples").fit(u, y)(u).k >= 1).all()


def test_labels_above_the_threshold_of_the_fitted_rows_are_predicted() -> None:
    u, y = draw_labels(40, 4)
    weight = torch.rand(40, 1) + 0.1
    average: Average
    for average, columns in (("micro", 1), ("macro", 4)):
        decoder = Decoder(4, average, beta=2.0).fit(u, y, weight=weight, calibrate=False)
        threshold = expected_f1_threshold(u, average, beta=2.0, weight=weight)[0].float()
        torch.testing.assert_close(decoder.threshold, threshold, msg=average)
        found = decoder.decide(threshold.expand(4) + torch.tensor([[0.0, 1.0, -1.0, 0.5]]))
        assert found.labels.tolist() == [[False, True, False, True]], average  # none at the threshold itself
        torch.testing.assert_close(found.margins, torch.tensor([[0.0, 1.0, -1.0, 0.5]]), msg=average)
        decoder.fit(3 * u, y).reset()
        fresh = Decoder(4, average).state_dict()
        assert all(torch.equal(value, fresh[name]) for name, value in decoder.state_dict().items()), average
        assert decoder.threshold.shape == (columns,)


def test_rows_whose_labels_are_unknown_say_nothing_about_rows_without_a_label() -> None:
    u, labels = draw_labels(60, 3, shift=-1)
    y = labels.double()
    y[:30][y[:30] == 0] = torch.nan  # a single known label is enough: that row is not empty
    known = ~y.isnan().all(-1)
    assert not known.all()
    found, expected = (Decoder(3, "samples").fit(u[rows], y[rows]).state_dict() for rows in (slice(None), known))
    torch.testing.assert_close(found, expected)
