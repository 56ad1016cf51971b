"""Bad input gets an error that names the value and says what would do."""

import math
import re
from typing import Any

import pytest
import torch
from cases import FUNCTIONS, example_of
from torch.testing import assert_close

import rsoftmax
from rsoftmax import MAPPINGS, MappingSpec, r_softmax, sparsehourglass, t_softmax, weighted_softmax

every_mapping = pytest.mark.parametrize("mapping", FUNCTIONS.values(), ids=FUNCTIONS)

X = torch.zeros(3, 4)


@every_mapping
def test_scores_of_a_wrong_type(mapping: MappingSpec) -> None:
    with pytest.raises(TypeError, match=rf"{mapping.name}: .*torch.int64 of shape \(3, 4\); use x.float\(\)"):
        mapping.function(X.long(), *example_of(mapping, 4))
    with pytest.raises(TypeError, match="complex64"):
        mapping.function(X + 0j, *example_of(mapping, 4))
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor, got list"):
        mapping.function([1.0, 2.0], *example_of(mapping, 4))


@every_mapping
@pytest.mark.parametrize("dim", [2, -3])
def test_a_dim_that_is_not_there(mapping: MappingSpec, dim: int) -> None:
    with pytest.raises(ValueError, match=rf"dim={dim} does not exist in x of shape \(3, 4\); use -2 to 1"):
        mapping.function(X, *example_of(mapping, 4), dim=dim)


@every_mapping
def test_a_mask_that_is_none(mapping: MappingSpec) -> None:
    with pytest.raises(
        TypeError, match=r"mask must be a bool tensor, True = keep, got torch.float32 of shape \(3, 4\)"
    ):
        mapping.function(X, *example_of(mapping, 4), mask=torch.ones(3, 4))
    with pytest.raises(TypeError, match="got list"):
        mapping.function(X, *example_of(mapping, 4), mask=[True])
    with pytest.raises(
        ValueError, match=re.escape("mask of shape (3,) does not broadcast to (3, 4); use mask.unsqueeze")
    ):
        mapping.function(X, *example_of(mapping, 4), mask=torch.ones(3).bool())


@pytest.mark.parametrize("r", [-0.1, 1.5, math.nan, math.inf])
def test_a_rate_outside(r: float) -> None:
    with pytest.raises(ValueError, match=rf"r_softmax: r must be in \[0, 1\], got {r}.*fraction of each row"):
        r_softmax(X, r)


def test_a_rate_outside_in_a_tensor() -> None:
    with pytest.raises(ValueError, match=r"r must be in \[0, 1\], got 1.5 in a tensor of shape \(3, 1\)"):
        r_softmax(X, torch.tensor([[0.5], [1.5], [0.2]]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: t_softmax(X, 0.0), "t must be > 0, got 0.0"),
        (lambda: t_softmax(X, -1), "t must be > 0, got -1"),
        (lambda: t_softmax(X, torch.tensor(0.0)), "t must be > 0, got 0.0 in a tensor of shape ()"),
        (lambda: rsoftmax.sparsegen_lin(X, 1.0), "lam must be < 1 and finite, got 1.0"),
        (lambda: sparsehourglass(X, -1.0), "q must be >= 0 and finite, got -1.0"),
        (lambda: sparsehourglass(X, math.inf), "q must be >= 0 and finite, got inf"),
        (lambda: weighted_softmax(X, -torch.ones(4)), "w must be >= 0 and finite, got -1.0"),
        (lambda: r_softmax(X, torch.rand(3)), "r of shape (3,) does not broadcast to (3, 1); use r.unsqueeze(-1)"),
        (
            lambda: r_softmax(torch.zeros(2, 3, 4), torch.rand(2, 4), dim=1),
            "r of shape (2, 4) does not broadcast to (2, 1, 4); use r.unsqueeze(1)",
        ),
        (lambda: r_softmax(X, torch.rand(3, 4)), "r of shape (3, 4) does not broadcast to (3, 1)"),
        (lambda: weighted_softmax(X, torch.rand(5)), "w of shape (5,) does not broadcast to (3, 4)"),
    ],
)
def test_parameters_outside(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MAPPINGS["r_softmax"].function(X, "0.5"), "r must be a number or a tensor, got '0.5' of type str"),
        (lambda: MAPPINGS["r_softmax"].function(X, None), "r must be a number or a tensor, got None"),
        (lambda: MAPPINGS["r_softmax"].function(X, 0.5, dim=None), "dim must be an int, got None"),
        (
            lambda: r_softmax(X.to_sparse(), 0.5),
            "x must be dense, got torch.sparse_coo of shape (3, 4); use x.to_dense()",
        ),
        (lambda: r_softmax(X, torch.tensor(1)), "r must be floating point, got torch.int64"),
        (
            lambda: FUNCTIONS["weighted_softmax"].function(X, 2.0),
            "w must be a tensor that broadcasts to (3, 4), got 2.0",
        ),
    ],
)
def test_parameters_of_a_wrong_type(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


def test_where_looking_would_cost_a_bad_rate_makes_its_row_nan() -> None:
    compiled = torch.compile(r_softmax, fullgraph=True, backend="eager")
    x, r = torch.randn(3, 4), torch.tensor([[0.5], [1.5], [0.2]])
    for p in (compiled(x, r), torch.vmap(r_softmax)(x, r)):
        assert p[1].isnan().all()
        assert_close(p[[0, 2]], r_softmax(x[[0, 2]], r[[0, 2]]))


def test_a_nan_rate_is_not_an_error_but_a_nan_row() -> None:
    x = torch.randn(2, 4)
    p = r_softmax(x, torch.tensor([[math.nan], [0.5]]))
    assert p[0].isnan().all()
    assert p[1].isfinite().all()


def test_no_value_is_read_on_other_devices() -> None:
    """The meta device has no values: code that looked at one would raise."""
    x = torch.empty(3, 4, device="meta")
    for mapping in FUNCTIONS.values():
        arguments = [
            a.to("meta") if isinstance(a, torch.Tensor) else torch.tensor(a, device="meta")
            for a in example_of(mapping, 4)
        ]
        assert mapping.function(x, *arguments).shape == x.shape
