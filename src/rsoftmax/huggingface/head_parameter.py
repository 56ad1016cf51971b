"""The parameter of a mapping for each head of an attention module, and how it is given for all modules of a model."""

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor, nn

from rsoftmax.mappings import MAPPINGS
from rsoftmax.modules import ParametricModule, module_of
from rsoftmax.rows import Parameter, inside_domain

HeadValues = float | Sequence[float] | Sequence[Sequence[float]] | Tensor
"""A number for the whole model, one for each layer, or one for each head of each layer."""

ATTRIBUTE = "rsoftmax"
"""The submodule of an attention module that is its :class:`HeadParameter`; part of the names in saved weights."""


class DoesNotFitError(ValueError):
    """There are not as many values as layers and heads."""


class HeadParameter(nn.Module):
    """The parameter of a mapping, a value for each head of one attention module: a buffer, or learned.

    It stays in float32 whatever the model is cast to: half precision cannot tell r = 0.15 from its neighbours.

    Args:
        name: the mapping's.
        values: ``[heads]``.
        learn: whether to train them.
    """

    def __init__(self, name: str, values: Tensor, learn: bool) -> None:
        super().__init__()
        kind: Any = module_of(MAPPINGS[name])  # with a parameter: there are values for it
        self.mapping: ParametricModule = kind(values, learnable=learn)
        self.initial = self.stored.detach().clone()
        self.problem: str | None = None  # why the configuration has no values for it
        self.is_read = False  # whether it is part of a model that is being read from files

    @property
    def name(self) -> str:
        """The mapping's name."""
        return self.mapping.mapping.name

    @property
    def parameter(self) -> Parameter:
        """The parameter of the mapping: its letter and its domain."""
        parameter = self.mapping.mapping.parameter
        assert parameter is not None
        return parameter

    @property
    def stored(self) -> Tensor:
        """The tensor that is saved: the values, or, if learned, what they are computed from."""
        stored = self.mapping.fixed if self.mapping.free is None else self.mapping.free
        assert isinstance(stored, Tensor)
        return stored

    @property
    def learned(self) -> bool:
        """Whether the values are trained."""
        return self.mapping.free is not None

    @property
    def values(self) -> Tensor:
        """The values, ``[heads]``."""
        values = self.mapping.value
        assert isinstance(values, Tensor)
        return values

    @values.setter
    def values(self, values: Tensor) -> None:
        self.mapping.value = values

    def checked_values(self) -> Tensor:
        """The values; an error if neither the configuration nor the weights had any."""
        if self.problem is not None and self.stored.isnan().any():
            raise ValueError(self.problem)
        return self.values

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def moved(tensor: Tensor) -> Tensor:
            there = fn(tensor)
            return there if there.dtype == tensor.dtype else tensor.to(there.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self


def held_by(module: nn.Module) -> HeadParameter | None:
    """The parameter of an attention module, if it has one."""
    held = getattr(module, ATTRIBUTE, None)
    return held if isinstance(held, HeadParameter) else None


def attach(module: nn.Module, held: HeadParameter | None) -> None:
    """Give an attention module its parameter, or take the one away that it has."""
    if held is not None:
        setattr(module, ATTRIBUTE, held.to(next(module.parameters()).device))
    elif hasattr(module, ATTRIBUTE):
        delattr(module, ATTRIBUTE)


def spread(
    value: HeadValues, parameter: Parameter, heads: Sequence[int], caller: str = "set_attention"
) -> list[Tensor]:
    """The value of each head, a row for each layer; ``heads`` is how many heads each layer has."""
    rows = _rows(value, parameter, len(heads), caller)
    if len(rows) == len(heads) and all(row.shape in ((), (size,)) for row, size in zip(rows, heads, strict=True)):
        return [row.expand(size).clone() for row, size in zip(rows, heads, strict=True)]
    letter, count, sizes = parameter.name, len(heads), " or ".join(map(str, sorted(set(heads))))
    found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{len(rows)} rows, {value!r}"
    raise DoesNotFitError(
        f"{caller}: {letter} must be a number, {count} numbers (one for each layer) or a table of {count} layers x"
        f" {sizes} heads, got {found}; layers(model) names the layers in their order"
    )


def plain(value: Any) -> Any:
    """The same numbers in the types that JSON has."""
    if hasattr(value, "tolist"):  # tensors, and what is NumPy's
        return value.tolist()
    return float(value) if isinstance(value, Real) else [plain(item) for item in value]


def _rows(value: HeadValues, parameter: Parameter, count: int, caller: str) -> list[Tensor]:
    """What was given, a tensor for each layer, checked to be numbers inside the domain."""
    single = isinstance(value, Real) or (isinstance(value, Tensor) and value.dim() == 0)
    try:
        items: list[Any] = [value] * count if single else list(value)  # type: ignore[arg-type]
        rows = [torch.as_tensor(item, dtype=torch.float32, device="cpu").detach() for item in items]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{caller}: {parameter.name} must be made of numbers, got {value!r}") from None
    for row in filter(Tensor.numel, rows):
        for end in row.aminmax():
            inside_domain(caller, parameter, float(f"{end:.7g}"))  # as it was typed, not as float32 has it
    return rows
