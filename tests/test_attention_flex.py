"""t-softmax attention by FlexAttention, here on the CPU, against the equations."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MAPPINGS
from rsoftmax.attention import flex
from rsoftmax.attention.equations import Call, output_of, weights_of
from rsoftmax.attention.inputs import checked_sizes, inputs

pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
HEADS, ROWS, LENGTH = 4, 7, 9
PER_HEAD = torch.tensor([0.3, 1.0, 2.5, math.inf])


def both(
    t: float | Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    shared: int = 1,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """The output by FlexAttention and by the equations."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((HEADS, ROWS), (HEADS // shared, LENGTH), (HEADS // shared, LENGTH))
    q, k, v = (torch.randn(2, *shape, 16, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)
    mapping = MAPPINGS["t_softmax"]
    call = Call(mapping, None if isinstance(t, Tensor) else t, 0.75, causal, 0.0)
    x = inputs(checked_sizes(q, k, v), q, k, v, mask, mapping, t)
    return flex.forward(call, x), output_of(weights_of(call, x.wide()), x.wide().v)


CASES: dict[str, dict[str, Any]] = {
    "a number": {"t": 1.5},
    "softmax": {"t": math.inf},
    "a tiny t": {"t": 1e-30},
    "a t for each head": {"t": PER_HEAD},
    "a t for each row": {"t": torch.linspace(0.1, 4, ROWS)[:, None]},
    "causal": {"t": PER_HEAD, "causal": True},
    "keys removed": {"t": PER_HEAD, "mask": torch.arange(LENGTH) % 3 > 0},
    "causal and keys removed": {"t": PER_HEAD, "mask": torch.arange(LENGTH) % 3 > 0, "causal": True},
    "a bias": {"t": PER_HEAD, "mask": torch.linspace(-2, 2, ROWS * LENGTH).reshape(ROWS, LENGTH)},
    "a bias that removes": {"t": 1.5, "mask": torch.zeros(ROWS, LENGTH).tril().log()},
    "heads that share keys": {"t": PER_HEAD, "shared": 2, "causal": True},
}


@pytest.mark.parametrize("case", CASES)
def test_two_passes_give_the_output_of_the_equations(case: str) -> None:
    mine, expected = both(**CASES[case])
    assert_close(mine, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_they_do_so_in_float32(dtype: torch.dtype) -> None:
    mine, expected = both(PER_HEAD, causal=True, dtype=dtype)
    assert mine.dtype == torch.float32
    assert_close(mine, expected, rtol=1e-5, atol=1e-5)


def test_a_query_with_nothing_kept_gets_zeros() -> None:
    kept = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    kept[2] = False
    for mask in (kept, kept.float().log()):
        mine, expected = both(1.5, mask)
        assert (mine[..., 2, :] == 0).all()
        assert_close(mine, expected, rtol=1e-12, atol=1e-12)


def test_a_key_with_weight_zero_has_no_influence() -> None:
    score, value = torch.tensor([4.0, 3.0, 1.0]), torch.tensor([1.0, 2.0, 1e30])
    q, k = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 3, 16)
    q[..., 0], k[..., 0] = 1, score
    v = value[:, None].expand(1, 1, 3, 16)
    mapping = MAPPINGS["t_softmax"]
    call = Call(mapping, 2.0, 1.0, False, 0.0)
    x = inputs(checked_sizes(q, k, v), q, k, v, None, mapping, 2.0)
    assert (flex.forward(call, x) < 2).all()


def test_the_cpu_does_without_it() -> None:
    q = torch.randn(1, 2, 3, 16)
    mapping = MAPPINGS["t_softmax"]
    x = inputs(checked_sizes(q, q, q), q, q, q, None, mapping, 1.5)
    assert not flex.takes(Call(mapping, 1.5, 1.0, False, 0.0), x)
