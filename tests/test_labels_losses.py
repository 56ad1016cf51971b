"""Losses against sums written pair by pair."""

import subprocess
import sys
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from cases import spread_apart
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from rsoftmax.labels import losses

Row = np.ndarray


def pairs(z: Row, y: Row, margin: float) -> float:
    positive, negative = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    return sum((max(0.0, margin - (z[i] - z[j])) for i, j in product(positive, negative)), 0.0)


def spread(z: Row, y: Row) -> float:
    return sum((abs(z[i] - z[j]) for i, j in combinations(np.flatnonzero(y == 1), 2)), 0.0)


def eta_of(y: Row) -> Row:
    return y / max(y.sum(), 1)


def multilabel_r_softmax_loss(z: Row, y: Row) -> float:
    return float((y * (oracle.r_softmax(z, 0.4) - eta_of(y)) ** 2).sum() + pairs(z, y, eta_of(y).max()))


def softmax_cross_entropy(z: Row, y: Row) -> float:
    return float(-(eta_of(y) * np.log(oracle.softmax(z))).sum())


def sparsemax_huber_loss(z: Row, y: Row) -> float:
    if not y.any():
        return 0.0
    p, eta = oracle.sparsemax(z), eta_of(y)
    tau = (z[p > 0].sum() - 1) / (p > 0).sum()
    return float(-eta @ z + (z[p > 0] ** 2 - tau**2).sum() / 2 + (eta**2).sum() / 2)


def budget_loss(z: Row, y: Row) -> float:
    p = oracle.budget(z, y.sum())
    return float(y @ y / 2 - y @ z - (p @ p / 2 - p @ z))


def sparsemax_hinge_loss(z: Row, y: Row) -> float:
    return spread(z, y) + pairs(z, y, eta_of(y).max())


def sparsehourglass_hinge_loss(z: Row, y: Row) -> float:
    a = (1 + len(z) * 10) / (abs(z.sum()) + len(z) * 10)
    return spread(z, y) + pairs(z, y, eta_of(y).max() / a)


def sigmoid_binary_cross_entropy(z: Row, y: Row) -> float:
    p = 1 / (1 + np.exp(-z))
    return float(-(y * np.log(p) + (1 - y) * np.log(1 - p)).sum())


def multilabel_t_softmax_loss(z: Row, y: Row) -> float:
    p = oracle.t_softmax(z, z.max() - 0.3) if z.max() > 0.3 else np.zeros_like(z)
    return float((y * (p - eta_of(y)) ** 2).sum() + sigmoid_binary_cross_entropy(z - 0.3, y))


def zlpr_loss(z: Row, y: Row) -> float:
    return float(np.log(1 + np.exp(z[y == 0]).sum()) + np.log(1 + np.exp(-z[y == 1]).sum()))


BY_HAND: dict[str, Callable[[Row, Row], float]] = {
    f.__name__: f
    for f in (
        multilabel_r_softmax_loss, softmax_cross_entropy, sparsemax_huber_loss, budget_loss,
        sparsemax_hinge_loss, sparsehourglass_hinge_loss, sigmoid_binary_cross_entropy,
        multilabel_t_softmax_loss, zlpr_loss,
    )
}  # fmt: skip

every_loss = pytest.mark.parametrize("name", BY_HAND)


def loss(name: str, z: Tensor, y: Tensor, **options: Any) -> Tensor:
    parameter = {"multilabel_r_softmax_loss": [0.4], "multilabel_t_softmax_loss": [0.3]}.get(name, [])
    result: Tensor = getattr(losses, name)(z, y, *parameter, **options)
    return result


def test_every_loss_is_tested() -> None:
    assert {*BY_HAND, "label_count_loss", "label_rate_loss"} == set(losses.__all__)


@every_loss
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_equals_the_sum_pair_by_pair(name: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    score = st.sampled_from([0.0, 1.0, -0.5]) | st.floats(-8, 8)
    z = np.array(data.draw(st.lists(score, min_size=n, max_size=n)))
    y = np.array(data.draw(st.lists(st.sampled_from([0, 1]), min_size=n, max_size=n)))
    found = loss(name, torch.from_numpy(z), torch.from_numpy(y))
    assert_close(found.item(), BY_HAND[name](z, y), rtol=1e-7, atol=1e-9)


@every_loss
def test_reductions_rows_and_labels_of_any_type(name: str) -> None:
    z = spread_apart((2, 3, 6))
    y = torch.rand(2, 3, 6, generator=torch.Generator().manual_seed(0)) < 0.4
    y[0, 0], y[0, 1] = False, True  # no label, every label
    rows = loss(name, z, y, reduction="none")
    assert rows.shape == (2, 3)
    assert rows.isfinite().all()
    assert_close(loss(name, z, y), rows.mean())
    assert_close(loss(name, z, y, reduction="sum"), rows.sum())
    for dtype in (torch.int64, torch.float32, torch.float64, torch.uint8):
        assert_close(loss(name, z, y.to(dtype), reduction="none"), rows)
    half = loss(name, z.half(), y)
    assert half.dtype == torch.float32
    assert_close(half.double(), loss(name, z.half().double(), y), rtol=1e-5, atol=1e-6)


@every_loss
def test_derivatives(name: str) -> None:
    z = spread_apart((5, 6)).requires_grad_()
    y = (torch.rand(5, 6, generator=torch.Generator().manual_seed(1)) < 0.4).double()
    y[0], y[1] = 0, 1
    assert gradcheck(lambda z: loss(name, z, y, reduction="none"), (z,))
    assert gradgradcheck(lambda z: loss(name, z, y, reduction="none"), (z,))


@every_loss
@pytest.mark.parametrize("far", [-3e4, -1e9, -1e30, -np.inf])
def test_a_negative_label_far_below_is_as_good_as_removed(name: str, far: float) -> None:
    if name == "sparsehourglass_hinge_loss":
        return  # its margin depends on the sum of all logits
    z = torch.randn(4, 20)
    y = (torch.arange(20) < 5).expand(4, 20)
    moved = torch.cat([z, torch.full((4, 1), far)], -1).requires_grad_()
    found = loss(name, moved, torch.cat([y, torch.zeros(4, 1, dtype=torch.bool)], -1))
    if name != "multilabel_r_softmax_loss":  # the rate counts labels
        assert_close(found, loss(name, z, y))
    found.backward()
    assert moved.grad is not None
    assert moved.grad.isfinite().all()
    assert (moved.grad[:, -1] == 0).all()


@pytest.mark.parametrize("name", ["sparsemax_hinge_loss", "sparsehourglass_hinge_loss", "multilabel_r_softmax_loss"])
def test_the_order_of_tied_labels_does_not_matter(name: str) -> None:
    z = torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.0, 0.0, 1.0, 0.5]])
    y = torch.tensor([[1, 1, 0, 1, 0, 1, 0, 0]])
    turn = torch.tensor([3, 7, 5, 0, 6, 2, 4, 1])
    here, there = z.clone().requires_grad_(), z[:, turn].requires_grad_()
    loss(name, here, y).backward()
    loss(name, there, y[:, turn]).backward()
    assert here.grad is not None
    assert_close(here.grad[:, turn], there.grad)


def test_a_head_that_starts_at_zero_is_pulled_evenly() -> None:
    z = torch.zeros(1, 8, requires_grad=True)
    losses.sparsemax_hinge_loss(z, torch.ones(1, 8)).backward()
    assert z.grad is not None
    assert (z.grad == 0).all()


def test_nan_is_not_hidden() -> None:
    z = torch.tensor([[np.nan, 1.0]])
    for name in BY_HAND:
        assert loss(name, z, torch.tensor([[0, 1]])).isnan(), name
    assert losses.sparsemax_huber_loss(z, torch.tensor([[0, 0]])).isnan()


def test_the_rate_receives_a_gradient() -> None:
    z = spread_apart((3, 6))
    r = torch.full((3, 1), 0.45, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1, 1, 1, 0, 0, 0]] * 3)
    assert gradcheck(lambda r: losses.multilabel_r_softmax_loss(z, y, r, reduction="none"), (r,))


def test_the_threshold_receives_a_gradient() -> None:
    z = spread_apart((3, 6))
    theta = torch.tensor([[0.31], [-0.2], [5.0]], dtype=torch.float64, requires_grad=True)  # the last above all scores
    y = torch.tensor([[1, 1, 1, 0, 0, 0]] * 3)
    assert gradcheck(lambda theta: losses.multilabel_t_softmax_loss(z, y, theta, reduction="none"), (theta,))


def test_huber_gradient_is_p_minus_eta() -> None:
    z = spread_apart((4, 6)).requires_grad_()
    y = torch.tensor([[1.0, 0, 1, 0, 0, 0]] * 4).double()
    losses.sparsemax_huber_loss(z, y, reduction="sum").backward()
    assert_close(z.grad, torch.from_numpy(np.stack([oracle.sparsemax(row) for row in z.detach().numpy()])) - y / 2)


def test_label_count_loss_is_cross_entropy_of_the_count() -> None:
    c = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 2, (4, 3, 5), generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.cross_entropy(c.flatten(0, 1), y.sum(-1).flatten(), reduction="none")
    assert_close(losses.label_count_loss(c, y, reduction="none"), expected.reshape(4, 3))
    assert_close(losses.label_count_loss(c, y), expected.mean())


def test_label_rate_loss_is_cross_entropy_of_the_share_of_zeros() -> None:
    c = torch.randn(4, 3, 1, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 2, (4, 3, 5), generator=torch.Generator().manual_seed(1))
    r, rate = c.sigmoid()[..., 0], (y == 0).float().mean(-1)
    expected = -rate * r.log() - (1 - rate) * (1 - r).log()
    assert_close(losses.label_rate_loss(c, y, reduction="none"), expected)
    assert_close(losses.label_rate_loss(c, y), expected.mean())
    assert losses.label_rate_loss(torch.tensor([[1000.0], [-1000.0]]), torch.tensor([[0, 0], [1, 1]])) == 0


@every_loss
def test_bad_input(name: str) -> None:
    z, y = torch.zeros(2, 3), torch.tensor([[1, 0, 2], [0, 0, 1]])
    with pytest.raises(ValueError, match=rf"{name}: labels of shape \(2, 3\) must be 0 or 1, got 2"):
        loss(name, z, y)
    with pytest.raises(ValueError, match=r"must both be \[..., K\], got \(2,\) and \(2, 3\)"):
        loss(name, z, y[:, 0])
    with pytest.raises(TypeError, match=r"got torch\.int64"):
        loss(name, z.long(), y.clamp(max=1))
    with pytest.raises(TypeError, match=r"labels must be a torch\.Tensor, got list; use torch\.tensor"):
        loss(name, z, [[1, 0, 1]] * 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"labels \[..., K\] with K >= 1, got shape \(2, 0\)"):
        loss(name, z[:, :0], y[:, :0])
    with pytest.raises(ValueError, match="reduction must be 'batchmean', 'sum' or 'none', got 'max'"):
        loss(name, z, y.clamp(max=1), reduction="max")


def test_a_wrong_q() -> None:
    z, y = torch.zeros(3, 3), torch.ones(3, 3)
    with pytest.raises(ValueError, match=r"sparsehourglass_hinge_loss: q must be >= 0 and finite, got -1\.0"):
        losses.sparsehourglass_hinge_loss(z, y, -1.0)
    with pytest.raises(ValueError, match=r"q of shape \(3,\) does not broadcast to \(3, 1\); use q.unsqueeze\(-1\)"):
        losses.sparsehourglass_hinge_loss(z, y, torch.ones(3))


def test_label_count_loss_with_a_wrong_number_of_logits() -> None:
    with pytest.raises(
        ValueError, match=r"count_logits of shape \(2, 3\) must be \[..., K \+ 1\] for labels \[..., K\] of"
    ):
        losses.label_count_loss(torch.zeros(2, 3), torch.zeros(2, 3))


def test_label_rate_loss_takes_one_logit_for_each_row() -> None:
    with pytest.raises(ValueError, match=r"rate_logit of shape \(2, 3\) must be \[..., 1\] for labels \[..., K\] of"):
        losses.label_rate_loss(torch.zeros(2, 3), torch.zeros(2, 3))


@pytest.mark.process
@pytest.mark.parametrize("name", ["multilabel_r_softmax_loss", "sparsemax_hinge_loss", "sparsehourglass_hinge_loss"])
def test_a_hundred_thousand_labels_fit_in_a_gigabyte(name: str) -> None:
    """Peak memory of a process of its own, above what importing torch takes; K x K in float32 would be 40 GB a row."""
    program = f"""
import resource, torch
from rsoftmax.labels import losses
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
z = torch.randn(16, 100_000, requires_grad=True)
y = torch.rand(16, 100_000) < 0.01
losses.{name}(z, y{", 0.99" if name == "multilabel_r_softmax_loss" else ""}).backward()
assert z.grad.isfinite().all() and z.grad.abs().sum() > 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, kilobytes elsewhere
    assert int(done.stdout) * unit < 2**30
