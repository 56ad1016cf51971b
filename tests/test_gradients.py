"""First and second derivatives, in the logits and in the parameter."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from cases import ADVERSARIAL, FUNCTIONS, case, parameter_of, spread_apart
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from rsoftmax import MAPPINGS, MappingSpec, r_softmax, sparsegen_exp, sparsegen_lin, t_softmax

pytestmark = pytest.mark.usefixtures("both_kernels")

every_mapping = pytest.mark.parametrize("mapping", FUNCTIONS.values(), ids=FUNCTIONS)
without_and_with_a_mask = pytest.mark.parametrize("masked", [False, True], ids=["all kept", "masked"])


def around(mapping: MappingSpec, dim: int, masked: bool) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """The mapping along ``dim`` as a function of tensors, and these: four rows of five, a masked one without any."""
    shape = [2, 2, 2]
    shape[dim] = 5
    x = spread_apart(tuple(shape), seed=dim + 1)
    mask = None
    if masked:
        mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.7
        mask.movedim(dim, -1)[0, 1] = False

    def f(x: Tensor, *arguments: Tensor) -> Tensor:
        return mapping.function(x, *arguments, dim=dim, mask=mask)

    return f, tuple(a.requires_grad_() for a in (x, *parameter_of(mapping, x, dim)))


@every_mapping
def test_first_derivatives_are_true(mapping: MappingSpec) -> None:
    for dim, masked in ((-1, False), (-1, True), (0, True), (1, False)):
        with case(dim, "masked" if masked else "all kept"):
            assert gradcheck(
                *around(mapping, dim, masked), check_forward_ad=True, fast_mode=(dim, masked) != (-1, True)
            )


@pytest.mark.parametrize("name", ["t_softmax", "r_softmax", "k_softmax"])
def test_derivatives_with_an_edge_are_true(name: str) -> None:
    """In x, t, r and k; the parameter lies between two entries, and no entry at the edge."""
    x = spread_apart((4, 9)).requires_grad_()
    values = {
        "t_softmax": [1.31, 2.03, 0.71, 3.37],
        "r_softmax": [0.13, 0.77, 0.41, 0.9],
        "k_softmax": [1.3, 2.6, 3.7, 5.4],
    }
    value = torch.tensor(values[name], dtype=torch.float64)[:, None].requires_grad_()
    mask = torch.arange(9) != 3
    for edge in (0.0, 0.3, 1.0, 1e3):

        def f(x: Tensor, value: Tensor, edge: float = edge) -> Tensor:
            return MAPPINGS[name].function(x, value, edge=edge, mask=mask)

        with case(edge):
            assert gradcheck(f, (x, value), check_forward_ad=True, fast_mode=edge != 0.3)
            assert gradgradcheck(f, (x, value), fast_mode=True, atol=1e-4)
            (dvalue,) = torch.autograd.grad((f(x, value) * spread_apart((4, 9), seed=2)).sum(), value)
            assert bool((dvalue != 0).any()) == (edge > 0) or edge == 0.3


@every_mapping
@without_and_with_a_mask
def test_second_derivatives_are_true(mapping: MappingSpec, masked: bool) -> None:
    assert gradgradcheck(*around(mapping, 1, masked), fast_mode=True, atol=1e-4)


@without_and_with_a_mask
def test_derivatives_with_the_threshold_detached_are_those_of_fixed_weights(masked: bool) -> None:
    x = spread_apart((4, 6)).requires_grad_()
    r = torch.full((4, 1), 0.4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True] * 5 + [False]) if masked else None
    g = spread_apart((4, 6), seed=1)
    (r_softmax(x, r, mask=mask, detach_threshold=True) * g).sum().backward()
    kept = x if mask is None else x[:, mask]
    theta = torch.quantile(kept.detach(), 0.4, -1, keepdim=True)
    again = x.detach().clone().requires_grad_()
    mass = (again - theta).relu() * again.exp() * (1 if mask is None else mask)
    (mass / mass.sum(-1, keepdim=True) * g).sum().backward()
    assert_close(x.grad, again.grad)
    assert r.grad is None or (r.grad == 0).all()


def test_the_closed_form_of_the_notes() -> None:
    """dL/dx = (p + u)(g - s), and what the threshold passes on to its order statistics and to the rate."""
    x = spread_apart((7,)).requires_grad_()
    r = torch.tensor([0.45], dtype=torch.float64, requires_grad=True)
    g = spread_apart((7,), seed=5)
    p = r_softmax(x, r)
    (p * g).sum().backward()
    with torch.no_grad():
        order = x.argsort()
        j, f = divmod(0.45 * 6, 1)
        low, high = order[int(j)], order[int(j) + 1]
        theta = (1 - f) * x[low] + f * x[high]
        w = (x - theta).relu()
        u = (w > 0) * x.exp() / (w * x.exp()).sum()
        s = (g * p).sum()
        expected = (p + u) * (g - s)
        to_theta = -(u * (g - s)).sum()
        expected[low] += (1 - f) * to_theta
        expected[high] += f * to_theta
    assert_close(x.grad, expected)
    assert_close(r.grad, (to_theta * 6 * (x[high] - x[low])).reshape(1))


@every_mapping
def test_gradients_are_finite_on_adversarial_rows(mapping: MappingSpec) -> None:
    kinds = [kind for kind in ADVERSARIAL if "NaN" not in kind and "plus" not in kind]
    if mapping.name in ("r_softmax", "k_softmax", "spherical_softmax", "softpick"):
        kinds.remove("denormal")  # the true gradient there is of the order of 1/spread, beyond the range of floats
    edges: list[dict[str, float]] = [{}, {"edge": 0.0}, {"edge": 0.5}] if mapping.options else [{}]
    for kind, dtype, options in product(kinds, (torch.float64, torch.float32), edges):
        x = torch.tensor(ADVERSARIAL[kind], dtype=dtype, requires_grad=True)
        arguments = [a.requires_grad_() for a in parameter_of(mapping, x.detach())]
        p = mapping.function(x, *arguments, **options)
        (p * torch.linspace(-1, 1, len(x), dtype=dtype)).sum().backward()
        with case(kind, dtype, options):
            for leaf in (x, *arguments):
                assert leaf.grad is not None
                assert leaf.grad.isfinite().all(), leaf.grad
            assert (x.grad[x.detach() == -math.inf] == 0).all()  # type: ignore[index]


@every_mapping
def test_nan_stays_in_its_row_of_the_gradient(mapping: MappingSpec) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    x[2, 1] = math.nan
    x.requires_grad_()
    (mapping.function(x, *parameter_of(mapping, x.detach())) * torch.arange(6)).sum(-1)[[0, 1, 3]].sum().backward()
    assert x.grad is not None
    assert x.grad[[0, 1, 3]].isfinite().all()


def test_gradients_are_precise_where_probabilities_underflow() -> None:
    """Beside a threshold of e^-80 probabilities have no digits left; their slopes have all of them."""
    row = [0.0, -80.0, -80.0 - 2.0**-13, -85.0]

    def gradient(dtype: torch.dtype) -> Tensor:
        x = torch.tensor(row, dtype=dtype, requires_grad=True)
        p = r_softmax(x, 0.5, detach_threshold=True)
        (dx,) = torch.autograd.grad(p[1], x)
        return dx

    assert_close(gradient(torch.float32)[1].double(), gradient(torch.float64)[1], rtol=1e-6, atol=0)


def test_gradients_in_lam_stay_finite_where_quotients_overflow() -> None:
    for function, row, start in (
        (sparsegen_exp, [90.0, 89.0, 0.0], 0.5),
        (sparsegen_lin, [1e30, -1e30, 0.0], 1 - 1e-6),
    ):
        lam = torch.tensor([start], requires_grad=True)
        (function(torch.tensor(row), lam) * torch.arange(3)).sum().backward()
        assert lam.grad is not None
        assert lam.grad.isfinite().all()


def test_ties_at_the_maximum_share_the_thresholds_gradient() -> None:
    x = torch.tensor([0.0, 1.0, 1.0], requires_grad=True)
    t_softmax(x, 3.0)[0].backward()
    assert x.grad is not None
    assert_close(x.grad[1], x.grad[2])
    assert_close(x.grad.sum(), torch.tensor(0.0), rtol=0, atol=1e-6)  # shift invariance


def test_a_rate_can_be_learned() -> None:
    """Gradient descent on r alone finds the rate that put the mass on the first two of six entries."""
    x = torch.tensor([2.0, 1.9, 0.5, 0.4, 0.3, 0.2])
    target = r_softmax(x, 0.65)
    free = torch.tensor(0.0, requires_grad=True)
    optimiser = torch.optim.Adam([free], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        loss = (r_softmax(x, free.sigmoid()) - target).square().sum()
        loss.backward()
        optimiser.step()
    assert abs(free.sigmoid().item() - 0.65) < 0.01
