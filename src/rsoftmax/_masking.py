"""Rows in which ``-inf`` means "removed"."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rsoftmax._tensors import at_least_float32


def filled(x: Tensor, mask: Tensor | None) -> Tensor:
    """Rows as the reference expects them: at least float32, with ``-inf`` in place of masked entries."""
    kept = x if mask is None else x.masked_fill(~mask, -math.inf)
    return kept.to(at_least_float32(x.dtype))


def on_kept(x: Tensor, g: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``g`` to the kept entries: removed ones are 0 while ``g`` runs, and ``-inf`` again in the result."""
    kept = x != -math.inf
    return torch.where(kept, g(torch.where(kept, x, 0)), -math.inf)


def row_max(x: Tensor) -> Tensor:
    """The maximum, such that ``x - max`` is ``-inf`` in a row with nothing kept, and NaN in a row with +inf."""
    m = x.amax(-1, keepdim=True)
    return m.masked_fill(m == -math.inf, 0).masked_fill(m == math.inf, math.nan)
