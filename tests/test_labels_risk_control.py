"""Thresholds with a guarantee: recall in expectation and with confidence, precision with confidence."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import t_softmax
from rsoftmax.labels import precision_threshold, recall_threshold
from rsoftmax.labels.risk_control import By, betting_p_value, binomial_cdf, guaranteed_threshold, hoeffding_bentkus

BYS: tuple[By, ...] = ("samples", "micro", "label")


def draw(rows: int, seed: int, labels: int = 5) -> tuple[Tensor, Tensor]:
    """Scores that are related to labels, but no log-odds."""
    generator = torch.Generator().manual_seed(seed)
    odds = 2 * torch.randn(rows, labels, generator=generator) + torch.linspace(-2, 0, labels)
    y = torch.rand(rows, labels, generator=generator) < odds.sigmoid()
    return 3 * odds + torch.randn(rows, labels, generator=generator), y.double()


U, Y = draw(20_000, seed=10**6)


def measure(what: str, threshold: Tensor, by: str) -> Tensor:
    """The recall or precision of new rows: of rows, of all entries, or [K] of each label."""
    found, y = threshold.nan_to_num(nan=-math.inf if what == "recall" else math.inf) <= U, Y.bool()
    of = y if what == "recall" else found
    dims = {"samples": (1,), "micro": (0, 1), "label": (0,)}[by]
    right, size = (found & y).sum(dims), of.sum(dims)
    share = torch.where(size > 0, right / size.clamp(min=1), torch.nan if what == "recall" else 1.0)
    return share.nanmean() if by == "samples" else share


def resplits(what: str, level: float, by: By, confidence: float | None, rows: int, times: int) -> Tensor:
    function = recall_threshold if what == "recall" else precision_threshold
    found = [function(*draw(rows, seed), level, by=by, confidence=confidence) for seed in range(times)]  # type: ignore[arg-type]
    return torch.stack([measure(what, threshold, by) for threshold in found])


def test_recall_is_kept_in_expectation() -> None:
    """And no more than kept: the sets are as small as the guarantee allows."""
    for by in BYS:
        for rows, times in ((60, 150), (500, 30)):
            mean = resplits("recall", 0.9, by, None, rows, times).mean(0)
            assert (mean > 0.9 - 0.008).all(), (by, rows, mean)  # 0.008: three standard errors of 150 resplits
            assert (mean < 0.9 + (2.0 if by == "micro" else 1.0) / rows**0.5).all(), (by, rows, mean)


def test_recall_and_precision_are_kept_with_confidence() -> None:
    """Below the level in at most 10 % of the resplits: 9 of 40 are below in one of a hundred such tests."""
    for what, level in (("recall", 0.8), ("precision", 0.7)):
        for by in BYS:
            found = resplits(what, level, by, 0.9, rows=600, times=40)
            below = (found < level - 0.005).any(-1) if by == "label" else found < level - 0.005
            assert int(below.sum()) <= 9, (what, by, found.mean(0))


def test_the_threshold_of_a_label_is_the_conformal_quantile() -> None:
    scores = torch.arange(1.0, 20.0)[:, None]  # 19 positive rows: the second lowest may be missed with 2 / 20
    for recall, missed in ((0.9, 2), (0.95, 1), (0.5, 10)):
        found = recall_threshold(scores, torch.ones(19, 1), recall, by="label")
        assert found.item() == missed, recall
    assert recall_threshold(scores, torch.ones(19, 1), 0.96, by="label").isnan().item()


def test_brute_force_finds_no_higher_threshold_that_keeps_the_expected_recall() -> None:
    u, y = draw(40, seed=1)
    for level in (0.7, 0.9):
        threshold = recall_threshold(u, y, level).item()
        some = y.any(1)

        def risk(c: float, some: Tensor = some) -> float:
            missed = ((u < c) & y.bool())[some].sum(1) / y[some].sum(1)
            return (float(missed.sum()) + 1) / (int(some.sum()) + 1)

        allowed = [c for c in u.flatten().tolist() if risk(c) <= 1 - level + 1e-9]
        assert threshold == pytest.approx(max(allowed)), level


def test_sets_are_supports_of_t_softmax() -> None:
    u, y = draw(200, seed=2)
    u = u.double()
    margin = u - u.amax(1, keepdim=True)
    t = -recall_threshold(margin, y, 0.9).item()
    assert_close(t_softmax(u, t + 1e-9) > 0, margin >= -t)


def test_too_few_rows_say_how_many_it_would_take() -> None:
    u, y = draw(8, seed=3)
    y[:, 0] = 1
    cases: Any = (
        (
            recall_threshold,
            0.9,
            "samples",
            None,
            r"recall of 0\.9 .* with 8 .* at least 9; hold out more",
        ),
        (recall_threshold, 0.99, "samples", None, "at least 99"),
        (recall_threshold, 0.99, "micro", None, "recall of 0.99 cannot .* at least"),
        (recall_threshold, 0.9, "samples", 0.95, "at least 29"),
        (precision_threshold, 0.9, "samples", 0.95, "precision of 0.9 cannot .* at least"),
        (precision_threshold, 0.9, "micro", 0.95, "precision of 0.9 cannot .* at least"),
    )
    for function, level, by, confidence, message in cases:
        with pytest.raises(ValueError, match=message):
            function(u, y, level, by=by, confidence=confidence)
    few: Any = [(u[:1], y[:1]), (u[:3], torch.full_like(y[:3], torch.nan))]
    asked: Any = [(recall_threshold, None), (recall_threshold, 0.9), (precision_threshold, 0.9)]
    for (some, known), by, (function, confidence) in product(few, BYS[:2], asked):
        with pytest.raises(ValueError, match=r"0\.9 cannot be guaranteed with [01] held-out .* at least"):
            function(some, known, 0.9, by=by, confidence=confidence)
    enough = torch.arange(9.0)[:, None]
    assert recall_threshold(enough, torch.ones(9, 1), 0.9).item() == 0


def test_unknown_labels_are_left_out() -> None:
    u, y = draw(300, seed=4)
    gaps = y.clone()
    gaps[200:] = torch.nan
    for by in BYS:
        assert_close(recall_threshold(u, gaps, 0.8, by=by), recall_threshold(u[:200], y[:200], 0.8, by=by), msg=by)


def test_p_values_are_valid_and_powerful() -> None:
    """Rejected in at most a tenth of the draws where the risk is at the limit; nearly always where it is half of it."""
    random = np.random.default_rng(0)
    for p_value in (betting_p_value, hoeffding_bentkus):
        at_limit, below = (
            np.mean([p_value(torch.from_numpy(random.random(300) < risk).double(), 0.2) <= 0.1 for _ in range(300)])
            for risk in (0.2, 0.1)
        )
        assert at_limit <= 0.15, p_value
        assert below >= 0.95, p_value
    assert_close(binomial_cdf(3, 0.5), torch.tensor([0.125, 0.5, 0.875, 1.0]).double())


def test_impossible_requests_say_what_works() -> None:
    u, y = draw(50, seed=5)
    wrong: Any = "rows"
    missing: Any = None
    cases: Any = (
        (
            lambda: recall_threshold(u, y[:, :2], 0.9),
            r"must both be \[samples, K\], got shapes \[50, 5\] and \[50, 2\]",
        ),
        (lambda: recall_threshold(u, y, 1.0), r"the level must be in \(0, 1\), got 1\.0"),
        (lambda: recall_threshold(u, y, 0.9, confidence=1.5), r"confidence must be in \(0, 1\), got 1\.5"),
        (
            lambda: recall_threshold(u, y, 0.9, by=wrong),
            "by must be one of 'samples', 'micro', 'label', got 'rows'",
        ),
        (lambda: recall_threshold(u * torch.nan, y, 0.9), r"scores of shape \[50, 5\] contain NaN"),
        (lambda: recall_threshold(u, 2 * y - 1, 0.9), "y must hold 0 or 1, or NaN where unknown, got -1"),
        (
            lambda: precision_threshold(u, y, 0.9, confidence=missing),
            "not monotone in the threshold; pass conf",
        ),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_the_order_of_the_rows_does_not_matter() -> None:
    """Rows of easy and of hard sources, one after the other: a guarantee for all must not come from the easy ones."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(1000, 1, generator=generator).abs() + 1
    y = (torch.rand(1000, 1, generator=generator) < torch.linspace(1.0, 0.4, 1000)[:, None]).double()
    with pytest.raises(ValueError, match=r"precision of 0\.9 cannot be guaranteed"):
        precision_threshold(u, y, 0.9, by="micro", confidence=0.95)


def test_labels_without_any_guarantee_are_always_or_never_predicted() -> None:
    u, y = draw(200, seed=5)
    y[:, 1:][y[:, 1:] == 1] = torch.nan  # no row is known completely, and only one label has enough rows
    y[::2, 0], y[1::2, 2] = torch.nan, torch.nan
    threshold, controlled = guaranteed_threshold(u, y, recall=0.8, by="label")
    assert controlled[0]
    assert not controlled[1:].any()
    assert (threshold[1:] == -math.inf).all()
