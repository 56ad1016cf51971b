"""The arguments of one call of attention, checked and in one layout: what its kernels take."""

from typing import Any, NamedTuple

from torch import Tensor

from rsoftmax._tensors import Value, at_least_float32
from rsoftmax.kernels.key_shadow import KeyShadow

STEPS = 1 << 16  # dropout draws 16 bits for each weight: its probability is a multiple of 1 / 65536
TENSORS = 6


class AttentionArgs(NamedTuple):
    """Everything that attention depends on: six tensors, then settings.

    Dimensions are batch B, key heads H, query heads for each key head G, queries Q, keys L, features D and Dv. Bias,
    parameter and mask have size 1 where they broadcast.
    """

    q: Tensor  # [B, H, G, Q, D]
    k: Tensor  # [B, H, 1, L, D]
    v: Tensor  # [B, H, 1, L, Dv]
    bias: Tensor | None  # [B, H, G, Q, L]
    parameter: Tensor | None  # [B, H, G, Q, 1]
    mask: Tensor | None  # [B, H, G, Q, L]

    mapping: str
    number: float | None  # the parameter, if it is a number
    scale: float
    is_causal: bool
    dropout_p: float
    options: tuple[float, ...]  # of the mapping, in the order of its MappingSpec
    seed: int | None = None  # of dropout; None: torch draws
    shadow: KeyShadow | None = None  # of the keys; it changes no result

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The six tensors."""
        return self.q, self.k, self.v, self.bias, self.parameter, self.mask

    @property
    def settings(self) -> tuple[Any, ...]:
        """Everything but the tensors."""
        return self[TENSORS:]

    @property
    def value(self) -> Value | None:
        """The parameter of the mapping, a number or a tensor."""
        return self.number if self.parameter is None else self.parameter

    @property
    def dropped(self) -> int:
        """How many of 65536 weights are dropped."""
        return round(self.dropout_p * STEPS)

    def wide(self) -> "AttentionArgs":
        """The same with queries, keys and values in the dtype to compute in."""
        q, k, v = (x.to(at_least_float32(x.dtype)) for x in self[:3])
        return self._replace(q=q, k=k, v=v)
