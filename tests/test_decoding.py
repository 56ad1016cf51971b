"""From marginals to labels: which F1 counts, calibration, cuts, bounds."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from rsoftmax.multilabel import (
    AVERAGES,
    Average,
    Decoder,
    MultiLabelHead,
    Output,
    PlattScaling,
    best_labels,
    calibration_curve,
    expected_f1_count,
    expected_f1_cut,
)

log_odds = st.floats(-8, 8)
betas = st.sampled_from([0.5, 1.0, 2.0])


def promise(pi: NDArray[np.float64], yes: NDArray[np.bool_], beta: float) -> float:
    return float((1 + beta**2) * pi[yes].sum() / (yes.sum() + beta**2 * pi.sum()))


def drawn(rows: int, labels: int, seed: int = 0, shift: float = -1.0) -> tuple[Tensor, Tensor]:
    """Log-odds, and labels drawn with just these."""
    generator = torch.Generator().manual_seed(seed)
    u = 2 * torch.randn(rows, labels, generator=generator, dtype=torch.float64) + shift
    return u, (torch.rand(rows, labels, generator=generator, dtype=torch.float64) < u.sigmoid()).double()


@given(st.lists(log_odds, min_size=1, max_size=12), betas)
@settings(max_examples=200, deadline=None)
def test_no_cut_promises_more_than_the_expected_f1_cut(entries: list[float], beta: float) -> None:
    u = np.array(entries)
    pi = 1 / (1 + np.exp(-u))
    cut = expected_f1_cut(torch.tensor(u)[None], "micro", beta=beta).item()
    best = max(promise(pi, u > c, beta) for c in [*u, -np.inf])
    assert promise(pi, u > cut, beta) == pytest.approx(best, rel=1e-12)
    assert 1 / (1 + np.exp(-cut)) == pytest.approx(best / (1 + beta**2), rel=1e-9)


@given(st.lists(log_odds, min_size=1, max_size=8), betas, st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_no_allowed_count_promises_more_than_the_expected_f1_count(
    row: list[float], beta: float, low: int, high: int
) -> None:
    u = np.sort(row)[::-1]
    low, high = sorted((min(low, len(u)), min(high, len(u))))
    pi = 1 / (1 + np.exp(-u))
    promises = [float(np.prod(1 - pi)), *(promise(pi, np.arange(len(u)) < k, beta) for k in range(1, len(u) + 1))]
    k = int(expected_f1_count(torch.tensor(u.copy()), beta=beta, at_least=low, at_most=high))
    assert low <= k <= high
    assert promises[k] == pytest.approx(max(promises[low : high + 1]), rel=1e-12)


def test_macro_is_micro_of_each_column_and_samples_micro_of_each_row() -> None:
    u, _ = drawn(20, 5)
    assert_close(expected_f1_cut(u, "macro"), torch.cat([expected_f1_cut(column) for column in u.split(1, 1)], 1))
    assert_close(expected_f1_cut(u, "samples"), torch.cat([expected_f1_cut(row) for row in u.split(1)]))
    never_empty = expected_f1_count(u, torch.full((20, 1), -torch.inf))
    assert torch.equal((u > expected_f1_cut(u, "samples")).sum(1, keepdim=True), never_empty)


def test_a_cut_from_marginals_is_as_good_as_the_best_one_in_hindsight() -> None:
    u, y = drawn(4000, 5)
    found = [float(2 * (y * (u > c)).sum() / (y.sum() + (u > c).sum())) for c in np.linspace(-4, 4, 161)]
    above = u > expected_f1_cut(u)
    assert 2 * (y * above).sum() / (y.sum() + above.sum()) > max(found) - 0.003


def test_weights_repeat_rows() -> None:
    u, _ = drawn(9, 3)
    times = torch.arange(9)[:, None]
    for average in ("micro", "macro"):
        assert_close(
            expected_f1_cut(u, average, weight=times), expected_f1_cut(u.repeat_interleave(times[:, 0], 0), average)
        )


def test_where_nothing_is_likely_nothing_lies_above_the_cut() -> None:
    u = torch.full((4, 3), -torch.inf)
    for average in AVERAGES:
        assert not (u > expected_f1_cut(u, average)).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average": "weighted"}, "no average is called 'weighted'; there are 'micro', 'macro', 'samples'"),
        ({"beta": 0.0}, "beta must be above 0 and finite, got 0.0"),
        ({"at_least": 4}, r"needs 0 <= at_least <= at_most <= 3, the number of labels; got at_least=4, at_most=None"),
        ({"at_least": 2, "at_most": 1}, "got at_least=2, at_most=1"),
    ],
)
def test_impossible_settings_say_what_works(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoder(3, **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        MultiLabelHead(2, 3, **settings)  # type: ignore[arg-type]


def test_nan_has_no_cut() -> None:
    with pytest.raises(ValueError, match="the log-odds hold NaN"):
        expected_f1_cut(torch.tensor([[0.0, torch.nan]]))


def test_best_labels_are_exactly_k_in_spite_of_ties() -> None:
    k = torch.arange(5)[:, None]
    assert torch.equal(best_labels(torch.zeros(5, 4), k).sum(1, keepdim=True), k)


def test_platt_scaling_finds_the_line_that_the_labels_were_drawn_from() -> None:
    u, y = drawn(20_000, 3)
    slope, offset = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([-1.0, 0.0, 1.0])
    scaling = PlattScaling(3).fit((u - offset) / slope, y)
    assert_close(scaling.slope, slope, rtol=0.1, atol=0)
    assert_close(scaling((u - offset) / slope), u, rtol=0.1, atol=0.15)


def test_platt_scaling_is_at_the_minimum_of_its_penalised_loss() -> None:
    u, y = drawn(60, 4)
    scaling = PlattScaling(4, shrinkage=2.0).fit(u, y).double()
    lines = scaling.slope.requires_grad_(), scaling.offset.requires_grad_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(lines[0] * u + lines[1], y, reduction="sum")
    for line, gradient in zip(lines, torch.autograd.grad(loss, lines), strict=True):
        common = line + gradient / 2.0  # where the pull of strength 2 must come from: the same for all labels
        assert_close(common, common[:1].expand(4), rtol=0, atol=1e-3)


def test_labels_that_never_or_always_occur_get_finite_and_clear_log_odds() -> None:
    u, y = drawn(300, 4)
    y[:, 0], y[:, 1] = 0, 1
    scaling = PlattScaling(4).fit(u, y)
    assert scaling.slope.isfinite().all()
    pi = scaling(u).sigmoid()
    assert pi[:, 0].mean() < 0.05
    assert pi[:, 1].mean() > 0.95


def test_the_order_of_rows_within_a_label_never_turns_round() -> None:
    u, y = drawn(200, 3)
    scaling = PlattScaling(3).fit(-u, y)
    assert (scaling.slope >= 0).all()


def test_unknown_labels_count_nowhere() -> None:
    u, y = drawn(200, 3)
    scaling = PlattScaling(3).fit(u[:100], y[:100])
    y[100:] = torch.nan
    for gaps in (PlattScaling(3).fit(u, y), PlattScaling(3).fit(u, y.nan_to_num(), (~y.isnan()).double())):
        for name, value in scaling.state_dict().items():
            assert_close(gaps.state_dict()[name], value)


def test_platt_scaling_refuses_what_it_cannot_fit() -> None:
    u, y = drawn(20, 3)
    with pytest.raises(ValueError, match=r"needs scores and labels \[rows, 4\], got \[20, 3\] and \[20, 3\]"):
        PlattScaling(4).fit(u, y)
    with pytest.raises(ValueError, match="a score is infinite; clip marginals"):
        PlattScaling(3).fit(u / 0, y)
    with pytest.raises(ValueError, match="shrinkage must be above 0, got 0"):
        PlattScaling(3, shrinkage=0)


def test_platt_scaling_of_a_hundred_thousand_labels() -> None:
    u, y = drawn(5, 100_000, shift=-4)
    assert PlattScaling(100_000).fit(u.float(), y)(u).isfinite().all()


@pytest.mark.parametrize("average", AVERAGES)
def test_a_calibrated_head_promises_the_f1_that_it_keeps(average: Average) -> None:
    torch.manual_seed(0)
    head = MultiLabelHead(6, 6, average=average).double()
    u, y = drawn(4000, 6)
    weights = {name: torch.zeros_like(w) for name, w in head.named_parameters()}
    weights["logits.weight"][:6] = torch.eye(6) * 3  # scores three times too sure
    head.load_state_dict(weights)
    before = f1(y, head(u).labels, average)
    head.calibrate(head.scores(u[:2000]), y[:2000])
    assert (head(u).marginals - u.sigmoid()).abs().max() < 0.1
    assert f1(y[2000:], head(u[2000:]).labels, average) > before


def f1(y: Tensor, found: Tensor, average: Average) -> float:
    dims = {"micro": (0, 1), "macro": (0,), "samples": (1,)}[average]
    size = y.sum(dims) + found.sum(dims)
    return float(torch.where(size > 0, 2 * (y * found).sum(dims) / size, 1).mean())


@pytest.mark.parametrize("average", AVERAGES)
def test_each_average_is_best_at_its_own_f1(average: Average) -> None:
    u = drawn(6000, 6)[0] + torch.linspace(-3, 1, 6)
    y = (torch.rand(u.shape, generator=torch.Generator().manual_seed(1)) < u.sigmoid()).double()
    found = {name: Decoder(6, name).fit(u, y, calibrate=False)(u).labels for name in AVERAGES}
    scores = {name: f1(y, labels, average) for name, labels in found.items()}
    assert max(scores, key=scores.__getitem__) == average


@pytest.mark.parametrize("average", AVERAGES)
def test_bounds_hold_in_every_row(average: Average) -> None:
    u, y = drawn(200, 8, shift=-2)
    found = Decoder(8, average, at_least=1, at_most=2).fit(u, y)(u)
    assert set(found.k.flatten().tolist()) == {1, 2}
    assert torch.equal(found.labels.sum(-1, keepdim=True), found.k)
    top = MultiLabelHead(5, 8, average=average, at_least=4, at_most=4)
    assert (top(torch.randn(50, 5)).labels.sum(-1) == 4).all()


def test_recall_counts_more_with_a_larger_beta() -> None:
    u, y = drawn(500, 6)
    for average in AVERAGES:
        sizes = [Decoder(6, average, beta).fit(u, y)(u).k.sum() for beta in (0.5, 1.0, 2.0)]
        assert all(fewer < more for fewer, more in pairwise(sizes))


@pytest.mark.parametrize("average", AVERAGES)
def test_what_calibration_learned_is_saved_with_the_head(average: Average) -> None:
    head = MultiLabelHead(5, 4, average=average)
    h, y = torch.randn(100, 5), torch.rand(100, 4) < 0.3
    head.calibrate(head(h), y)
    again = MultiLabelHead(5, 4, average=average)
    again.load_state_dict(copy.deepcopy(head.state_dict()))
    assert torch.equal(again(h).marginals, head(h).marginals)
    assert torch.equal(again(h).p, head(h).p)


def test_a_state_from_before_there_was_a_decoder_loads() -> None:
    head = MultiLabelHead(5, 4)
    old = dict(head.named_parameters())
    again = MultiLabelHead(5, 4)
    again.load_state_dict({name: weights.detach() for name, weights in old.items()})
    h = torch.randn(3, 5)
    assert torch.equal(again(h).p, head(h).p)
    with pytest.raises(RuntimeError, match="Missing key"):
        again.load_state_dict({name: weights for name, weights in old.items() if "bias" not in name})


def test_rows_without_a_label_are_learned_from_labels_even_if_scores_say_nothing_of_them() -> None:
    u, _ = drawn(500, 5, shift=-4)
    y = torch.zeros_like(u)
    y.scatter_(1, u.argmax(1, keepdim=True), 1)  # never empty, though independent labels would often be
    assert (Decoder(5).fit(u, y)(u).k >= 1).all()


def test_weights_of_entries_leave_out_what_is_not_known() -> None:
    head = MultiLabelHead(5, 4).double()
    h, y = torch.randn(6, 5).double(), (torch.rand(6, 4) < 0.5).double()
    everything = head.loss(head(h), y)
    assert_close(head.loss(head(h), y, weight=torch.ones(6, 4).double()), everything)
    assert_close(head.loss(head(h), y, weight=torch.full((6, 1), 2.0).double()), 2 * everything)
    known = torch.ones(6, 4)
    known[:, 2] = 0
    flipped = y.clone()
    flipped[:, 2] = 1 - y[:, 2]
    assert_close(head.loss(head(h), y, weight=known), head.loss(head(h), flipped, weight=known))


def test_a_loss_that_knows_no_single_labels_refuses_their_weights() -> None:
    head = MultiLabelHead(5, 4, rate="count")
    with pytest.raises(ValueError, match="loss='r_softmax_loss' takes a weight for each row"):
        head.loss(head(torch.randn(6, 5)), torch.ones(6, 4), weight=torch.ones(6, 4))


def test_a_single_label_takes_weights_of_rows_with_any_loss() -> None:
    for rate in ("expected_f1", "count"):
        head = MultiLabelHead(5, 1, rate=rate).double()
        h, y, weight = torch.randn(6, 5).double(), (torch.rand(6, 1) < 0.5).double(), torch.rand(6, 1).double()
        rows = head.loss(head(h), y, reduction="none")
        assert_close(head.loss(head(h), y, weight=weight), (rows * weight[:, 0]).mean())


def test_other_rates_refuse_an_average() -> None:
    with pytest.raises(ValueError, match=r"average='micro', .* need rate='expected_f1', got rate='count'"):
        MultiLabelHead(5, 4, rate="count", average="micro")


@pytest.mark.parametrize("average", AVERAGES)
def test_nan_scores_are_not_a_set_of_labels(average: Average) -> None:
    head = MultiLabelHead(5, 4, average=average)
    weights = {name: w.detach().clone() for name, w in head.named_parameters()}
    weights["logits.weight"][1] = torch.nan
    head.load_state_dict(weights)
    output: Output = head(torch.randn(3, 5))
    assert output.p.isnan().all()
    assert output.marginals[:, 1].isnan().all()
    with pytest.raises(ValueError, match="3 rows have NaN scores, which is not 'no label'"):
        _ = output.labels


@pytest.mark.parametrize("average", AVERAGES)
def test_a_head_of_every_average_compiles_into_one_graph(average: Average) -> None:
    torch._dynamo.reset()  # which compiles a function anew a few times only
    head = MultiLabelHead(5, 4, average=average, at_most=2)
    h = torch.randn(4, 5)
    assert_close(torch.compile(head, fullgraph=True, backend="eager")(h).p, head(h).p)


def test_what_happens_as_said_has_no_calibration_error() -> None:
    u, y = drawn(4000, 10)
    curve = calibration_curve(u.sigmoid(), y)
    assert curve.error < 0.01
    assert_close(curve.said, curve.happened, atol=0.06, rtol=0)
    assert int(curve.entries.sum()) == y.numel()
    assert curve.brier == pytest.approx(float((u.sigmoid() - y).square().mean()))
    assert calibration_curve(u.sigmoid() ** 3, y).error > 0.1
    assert len(calibration_curve(u.sigmoid(), y, bins=4).entries) == 4


def test_the_calibration_curve_leaves_out_labels_that_are_not_known() -> None:
    pi = torch.tensor([[0.2, 0.2, 1.0, 0.7]])
    curve = calibration_curve(pi, torch.tensor([[0.0, torch.nan, 1.0, -1.0]]))
    assert_close(curve.said, torch.tensor([0.2, 1.0]).double(), atol=1e-6, rtol=0)
    assert curve.happened.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("pi", "y", "settings", "message"),
    [
        ([0.5], [[1]], {}, r"marginals \[1\] and labels \[1, 1\] must have one shape"),
        ([1.5], [1], {}, "must be from 0 to 1"),
        ([float("nan")], [1], {}, "must be from 0 to 1"),
        ([0.5], [2], {}, "labels must be 0 or 1, or NaN or -1 if not known, got 2"),
        ([0.5], [-1], {}, "no entry whose label is known"),
        ([0.5], [1], {"bins": 0}, "bins must be 1 or more, got 0"),
    ],
)
def test_what_has_no_calibration_curve_is_refused(
    pi: list[float], y: list[int], settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        calibration_curve(torch.tensor(pi), torch.tensor(y), **settings)
