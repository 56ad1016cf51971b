"""What a kernel of attention gets: tensors in one layout, and numbers.

The layout is [batch, head of keys, head of queries for it, row, entry], of size 1 where one value serves all.
"""

from typing import NamedTuple

from torch import Tensor

Value = float | Tensor


class Operands(NamedTuple):
    """What attention is computed from."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None  # float32
    value: Value | None  # the parameter of the mapping
    mask: Tensor | None


class Options(NamedTuple):
    """What else it depends on."""

    scale: float
    causal: bool
    dropped: int  # of 65536 weights
    seed: int
