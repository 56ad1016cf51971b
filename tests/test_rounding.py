"""The helper that judges results by float64: it refuses small faults, and accepts what float32 cannot avoid."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from rounding import Truth, check_attention, check_mapping, check_weights
from rounding import attention as truth_of_attention
from torch import Tensor

from rsoftmax import MAPPINGS, r_softmax
from rsoftmax.attention import sparse_attention

attention: Callable[..., Tensor] = sparse_attention  # called with dictionaries of arguments
every_mapping = pytest.mark.parametrize("name", MAPPINGS)


def example(name: str) -> dict[str, Any]:
    parameter = MAPPINGS[name].parameter
    return {parameter.name: torch.full((4, 1, 1), parameter.example)} if parameter else {}


def qkv(values: int = 8, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 9, 16), (2, 2, 40, 16), (2, 2, 40, values)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


class Wrong(torch.autograd.Function):
    """The identity, apart from a relative error in the largest number of the result or of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, of_result: float, of_gradient: float) -> Tensor:
        ctx.of_gradient = of_gradient
        return off(x, of_result)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return off(g, ctx.of_gradient), None, None


def off(x: Tensor, error: float) -> Tensor:
    largest = (torch.arange(x.numel()) == int(x.abs().argmax())).reshape(x.shape)
    return x * (1 + error * largest)


@every_mapping
def test_ordinary_results_are_inside_of_the_bound(name: str) -> None:
    bias = torch.randn(4, 9, 40, generator=torch.Generator().manual_seed(1))
    maskings: list[dict[str, Any]] = [{}, {"is_causal": True}, {"attn_mask": bias > 0}, {"attn_mask": bias}]
    for masking in maskings:
        assert check_attention(attention, *qkv(), mapping=name, **masking, **example(name)) <= 1
    for dtype in (torch.float16, torch.bfloat16):
        assert check_attention(attention, *qkv(dtype=dtype), mapping=name, **example(name)) <= 1
    x, value = torch.randn(2, 4, 9, 40), next(iter(example(name).values()), None)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert check_mapping(name, x.to(dtype), value, mask=bias > 0) <= 1
    assert check_weights(name, MAPPINGS[name].function(x, *([] if value is None else [value])), x, value) <= 1


@pytest.mark.parametrize("number", ["o", "dq", "dk", "dv"])
def test_a_small_error_in_one_number_is_refused(number: str) -> None:
    q, k, v = qkv()
    v = torch.eye(40).expand(2, 2, 40, 40) if number == "o" else v  # the output is the weights

    def attend(*inputs: Tensor, error: float, **options: Any) -> Tensor:
        passed = [Wrong.apply(x, 0, error * (number == d)) for d, x in zip(("dq", "dk", "dv"), inputs, strict=True)]  # type: ignore[no-untyped-call]
        return Wrong.apply(attention(*passed, **options), error * (number == "o"), 0)  # type: ignore[no-untyped-call, no-any-return]

    check_attention(partial(attend, error=1e-7), q, k, v, mapping="r_softmax", r=0.4)
    with pytest.raises(AssertionError, match=rf"{number}\[.*times the bound"):
        check_attention(partial(attend, error=1e-5), q, k, v, mapping="r_softmax", r=0.4)


ALL_BUT_ONE = torch.arange(9 * 40).reshape(9, 40) != 7
FAULTS: dict[str, Callable[..., Tensor]] = {
    "the output is scaled": lambda *inputs, **options: attention(*inputs, **options) * (1 + 1e-5),
    "one weight is missing": lambda *inputs, **options: attention(*inputs, **options, attn_mask=ALL_BUT_ONE),
    "one zero too many": lambda *inputs, r, **options: attention(*inputs, r=r + 1 / 39, **options),
    "the threshold is a little higher": lambda *inputs, r, **options: attention(*inputs, r=r + 1e-5, **options),
    "the scale is a little larger": lambda *inputs, **options: attention(*inputs, scale=0.25 + 1e-5, **options),
    "keys of another head": lambda q, k, v, **options: attention(q, k.flip(1), v, **options),
    "a gradient is missing": lambda q, k, v, **options: attention(q, k.detach() + 0 * k, v, **options),
    "an edge": lambda *inputs, **options: attention(*inputs, edge=3.0, **options),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused(fault: str) -> None:
    q, k, v = qkv()
    with pytest.raises(AssertionError, match="times the bound"):
        check_attention(FAULTS[fault], q, k, v, mapping="r_softmax", r=0.4)


def test_scores_within_rounding_of_the_threshold_are_recognised() -> None:
    """The key that decides is there twice, the second time with another rounding; without it the row is judged."""
    q, k, v = (x[:1, :1] for x in qkv())
    order = (q[:, :, :1] @ k.mT).argsort().flatten()
    for apart, undecided in ((1e-7, True), (1e-3, False)):
        near = torch.cat([k, k[:, :, order[20:21]] * (1 + apart)], 2)
        g, truths = truth_of_attention(
            q[:, :, :1], near, torch.cat([v, v[:, :, :1]], 2), torch.ones(1, 1, 1, 8), None, False, False,
            mapping="k_softmax", k=20.0,
        )  # fmt: skip
        assert bool((g == 0).all()) == bool(truths["o"].rounding.isinf().all()) == undecided
    x = torch.tensor([[0.0, 1.0, 1.0 + 1e-7, 3.0]])
    assert check_mapping("t_softmax", x, 2.0) < 1  # 1 is at the threshold up to rounding
    with pytest.raises(AssertionError, match="the error is inf"):
        check_weights("k_softmax", torch.tensor([[0.0, 0.0, 0.0, 1.0]]), x, 2.0)  # comparisons are exact


def test_a_wrong_zero_is_refused() -> None:
    x = torch.randn(3, 50)
    p = r_softmax(x, 0.5)
    check_weights("r_softmax", p, x, 0.5)
    for wrong in (p.masked_fill(p == p[p > 0].min(), 0), p.masked_fill(p == 0, 1e-30)):
        with pytest.raises(AssertionError, match="the error is inf"):
            check_weights("r_softmax", wrong, x, 0.5)


def test_the_error_is_in_units_of_the_bound() -> None:
    truth = Truth(torch.tensor([1.0, 0.0]).double(), torch.full((2,), 1e-6).double())
    bound = truth.bound(torch.float32)
    assert truth.check("x", (truth.exact + 0.5 * bound).float()) == pytest.approx(0.5, abs=0.1)
    with pytest.raises(
        AssertionError, match=r"x\[1\] is 1.2.*e-05, in float64 0: the error is 3 times the bound of 4e-06; 1"
    ):
        truth.check("x", (truth.exact + torch.tensor([0, 3]) * bound).float())
    assert truth.errors(torch.tensor([math.nan, 0.0])).tolist() == [math.inf, 0]
