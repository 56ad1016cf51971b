"""Where a mapping's parameter may lie, how to check it, and how to learn it without ever leaving its domain."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Domain:
    """A set of numbers and a smooth map of the whole real line onto it.

    Attributes:
        text: the set, as an error message says it.
        remedy: what the parameter means, as an error message explains it.
        contains: membership; takes a number, or a tensor elementwise.
        constrain: real line -> domain, elementwise; what a learned parameter goes through.
        unconstrain: the inverse of ``constrain``; not finite at values that ``constrain`` never reaches.
    """

    text: str
    remedy: str
    contains: Callable[[Any], Any]
    constrain: Callable[[Tensor], Tensor]
    unconstrain: Callable[[Tensor], Tensor]


def _positive(free: Tensor) -> Tensor:
    # Cut before the exponential underflows or overflows: afterwards its derivative would be NaN.
    limits = torch.finfo(free.dtype)
    return free.clamp(min=math.ceil(math.log(limits.tiny)), max=math.floor(math.log(limits.max))).exp()


RATE = Domain(
    "in [0, 1]",
    "it is the share of each row to set to zero: 0 is softmax, 0.5 zeroes half of the row, 1 keeps the maximum only",
    lambda r: (r >= 0) & (r <= 1),
    torch.sigmoid,
    torch.logit,
)
POSITIVE = Domain(
    "> 0",
    "entries at least this far below the maximum become zero; math.inf gives softmax",
    lambda t: t > 0,
    _positive,
    torch.log,
)
WEIGHT = Domain(
    ">= 0 and finite",
    "a weight of 0 removes its entry",
    lambda w: (w >= 0) & (w < math.inf),
    _positive,
    torch.log,
)
BELOW_ONE = Domain(
    "< 1 and finite",
    "0 is sparsemax, towards 1 the output becomes one-hot, below 0 it becomes denser",
    lambda lam: (lam < 1) & (lam > -math.inf),
    lambda free: 1 - _positive(free).clamp(min=torch.finfo(free.dtype).eps / 2),  # the largest float below 1
    lambda lam: torch.log1p(-lam),
)
NOT_NEGATIVE = Domain(
    ">= 0 and finite",
    "0 makes the mapping invariant to scale, and the larger it is the closer to sparsemax (use that for infinity)",
    lambda q: (q >= 0) & (q < math.inf),
    _positive,
    torch.log,
)
ENTMAX = Domain(
    "in [1, 4]",
    "1 is softmax, 1.5 is entmax15, 2 is sparsemax, and the larger it is the sparser the output",
    lambda alpha: (alpha >= 1) & (alpha <= 4),
    lambda free: 1 + 3 * torch.sigmoid(free),
    lambda alpha: torch.logit((alpha - 1) / 3),
)
