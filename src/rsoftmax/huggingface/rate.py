"""The parameter of one attention module's mapping, a value for each head."""

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor, nn

from rsoftmax.modules import MODULES, ParametricModule
from rsoftmax.rows import Parameter, inside_domain

Rates = float | Sequence[float] | Sequence[Sequence[float]] | Tensor
"""A number for the whole model, one for each layer, or one for each head of each layer."""

PARAMETRIC = {kind.mapping.name: kind for kind in MODULES.values() if issubclass(kind, ParametricModule)}


class Rate(nn.Module):
    """The parameter of a mapping for each head of one attention module: a buffer, or learned.

    It stays in float32 whatever the model is cast to, for half precision cannot tell one rate from the next.

    Args:
        name: the mapping's.
        row: the values, ``[heads]``.
        learn: whether to train them.
    """

    def __init__(self, name: str, row: Tensor, learn: bool) -> None:
        super().__init__()
        self.mapping = PARAMETRIC[name](row, learnable=learn)  # type: ignore[call-arg]
        self.start = self.stored.detach().clone()

    @property
    def stored(self) -> Tensor:
        """The tensor that holds it, and is saved."""
        stored = self.mapping.fixed if self.mapping.free is None else self.mapping.free
        assert isinstance(stored, Tensor)
        return stored

    @property
    def value(self) -> Tensor:
        """The values, ``[heads]``."""
        value = self.mapping.value
        assert isinstance(value, Tensor)
        return value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def moved(tensor: Tensor) -> Tensor:
            there = fn(tensor)
            return there if there.dtype == tensor.dtype else tensor.to(there.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self


def spread(value: Rates, parameter: Parameter, heads: Sequence[int]) -> list[Tensor]:
    """The value of each head, a row for each layer; ``heads`` is how many heads each layer has."""
    letter, count = parameter.name, len(heads)
    single = isinstance(value, Real) or (isinstance(value, Tensor) and value.dim() == 0)
    try:
        items: list[Any] = [value] * count if single else list(value)  # type: ignore[arg-type]
        rows = [torch.as_tensor(item, dtype=torch.float32, device="cpu").detach() for item in items]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"set_attention: {letter} must be made of numbers, got {value!r}") from None
    for row in filter(Tensor.numel, rows):
        for end in row.aminmax():
            inside_domain("set_attention", parameter, float(f"{end:.7g}"))  # as it was typed, not as float32 has it
    if len(rows) == count and all(row.shape in ((), (size,)) for row, size in zip(rows, heads, strict=True)):
        return [row.expand(size).clone() for row, size in zip(rows, heads, strict=True)]
    sizes = " or ".join(map(str, sorted(set(heads))))
    found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{len(rows)} rows, {value!r}"
    raise ValueError(
        f"set_attention: {letter} must be a number, {count} numbers (one for each layer) or a table of {count} layers x"
        f" {sizes} heads, got {found}; layers(model) names the layers in their order"
    )


def plain(value: Any) -> Any:
    """The same numbers in the types that JSON has."""
    if hasattr(value, "tolist"):  # tensors, and what is NumPy's
        return value.tolist()
    return float(value) if isinstance(value, Real) else [plain(item) for item in value]
