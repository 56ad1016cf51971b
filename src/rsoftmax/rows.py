"""Any tensor as rows: dim, mask and parameter on the way in, and the same way back; errors that repair the call."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rsoftmax.domains import Domain
from rsoftmax.tensors import FLOATS, at_least_float32, everywhere, in_memory, shape_of


@dataclass(frozen=True)
class Parameter:
    """The parameter of a mapping.

    Attributes:
        name: its letter, the same everywhere.
        domain: where it may lie.
        example: a value that shows what the mapping does.
        per_row: one value serves a whole row (a rate); otherwise one belongs to each entry (a weight).
        default: the value if none is given; None: one must be given.
    """

    name: str
    domain: Domain
    example: float
    per_row: bool = True
    default: float | None = None

    def explained(self) -> str:
        """How to give it, and what it means: the end of an error message."""
        return f"{self.name}, say {self.name}={self.example}; it must be {self.domain.text}: {self.domain.remedy}"


def over_rows(
    name: str,
    op: Callable[..., Tensor],
    x: Tensor,
    dim: int,
    mask: Tensor | None,
    parameter: Parameter | None = None,
    value: float | Tensor | None = None,
    **options: bool,
) -> Tensor:
    """Apply a row function along ``dim`` of ``x``, after checking everything.

    Args:
        name: what error messages call it.
        op: ``op(rows, mask)`` or ``op(rows, mask, value)``. It gets views with ``dim`` last: the rows as they are, the
            mask expanded to their shape or None, and a tensor value expanded to it as well, but for a last dimension of
            1 where one value serves a row.
        x: scores, any shape.
        dim: the dimension that a row runs along.
        mask: True = keep; broadcasts to ``x``.
        parameter: what the value is, if there is one.
        value: a number, or a tensor that broadcasts against ``x``.
        options: further keywords of ``op``.

    Returns:
        What ``op`` returns, in the shape and dtype of ``x``.
    """
    check_input(name, x, dim)
    if x.dim() == 0:
        return over_rows(name, op, x[None], 0, mask if mask is None else mask[None], parameter, value, **options)[0]
    arguments: list[Any] = [None if mask is None else _checked_mask(name, mask, x)]
    if parameter is not None:
        if mask is not None and not parameter.per_row and isinstance(value, Tensor):
            value = torch.where(arguments[0], broadcast(name, parameter.name, value, x.shape), 0)  # removed: no weight
        arguments.append(checked_value(name, parameter, value, x, dim))
    if x.numel() == 0:
        return torch.softmax(x, dim)  # nothing to compute; right in shape, dtype and gradient
    if dim == -1 or dim == x.dim() - 1:
        p = op(x, *arguments, **options)
    else:
        arguments = [a.movedim(dim, -1) if isinstance(a, Tensor) else a for a in arguments]
        p = op(x.movedim(dim, -1), *arguments, **options).movedim(-1, dim)
    return p if p.dtype == x.dtype else p.to(x.dtype)


def check_input(name: str, x: Tensor, dim: int) -> None:
    """Raise unless ``x`` is a tensor of floats that has ``dim``."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x must be a torch.Tensor, got {type(x).__name__}; use torch.tensor(x)")
    if x.layout != torch.strided:
        raise TypeError(f"{name}: x must be dense, got {x.layout} of shape {shape_of(x)}; use x.to_dense()")
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{name}: x must be float64, float32, float16 or bfloat16,"
            f" got {x.dtype} of shape {shape_of(x)}; use x.float()"
        )
    if not isinstance(dim, int):
        raise TypeError(f"{name}: dim must be an int, got {dim!r}")
    last = max(x.dim(), 1) - 1
    if not -last - 1 <= dim <= last:
        raise ValueError(f"{name}: dim={dim} does not exist in x of shape {shape_of(x)}; use {-last - 1} to {last}")


def _checked_mask(name: str, mask: Tensor, x: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = f"{mask.dtype} of shape {shape_of(mask)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: mask must be a bool tensor, True = keep, got {found}; use mask.bool()")
    return broadcast(name, "mask", mask.to(x.device), x.shape)


def checked_value(name: str, parameter: Parameter, value: Any, x: Tensor, dim: int) -> float | Tensor:
    """The parameter as a float, or as a tensor on the device of ``x``, expanded to its rows."""
    if isinstance(value, Tensor):
        if value.dtype not in FLOATS:
            raise TypeError(
                f"{name}: {parameter.name} must be floating point, got {value.dtype} of shape {shape_of(value)};"
                f" use {parameter.name}.float()"
            )
        shape = list(x.shape)
        if parameter.per_row:
            shape[dim] = 1
        value = inside_domain(name, parameter, value.to(x.device))
        assert isinstance(value, Tensor)
        return broadcast(name, parameter.name, value, torch.Size(shape), dim)
    if not parameter.per_row:
        raise TypeError(f"{name}: {parameter.name} must be a tensor that broadcasts to {shape_of(x)}, got {value!r}")
    return inside_domain(name, parameter, value)


def inside_domain(name: str, parameter: Parameter, value: Any) -> float | Tensor:
    """The value, if inside its domain; what lies outside raises, or becomes NaN where looking is not free."""
    contains = parameter.domain.contains
    if not isinstance(value, Tensor):
        if not isinstance(value, (float, Real)):  # the concrete type first: it is found faster
            raise TypeError(
                f"{name}: {parameter.name} must be a number or a tensor, got {value!r} of type {type(value).__name__}"
            )
        if not contains(value):
            raise ValueError(_outside(name, parameter, repr(value)))
        return float(value)
    if value.numel() and in_memory(value):
        ends = (float(end) for end in value.detach().aminmax())  # a domain is an interval: most calls pay no more
        if all(contains(end) for end in ends):
            return value
    inside = contains(value)
    if everywhere(inside) is None:
        return torch.where(inside, value, math.nan)
    outside = value[~inside & ~value.isnan()]
    if outside.numel():
        raise ValueError(_outside(name, parameter, f"{outside[0].item()!r} in a tensor of shape {shape_of(value)}"))
    return value


def _outside(name: str, parameter: Parameter, found: str) -> str:
    return f"{name}: {parameter.name} must be {parameter.domain.text}, got {found}; {parameter.domain.remedy}"


def broadcast(name: str, what: str, tensor: Tensor, shape: torch.Size, dim: int = -1) -> Tensor:
    """The tensor expanded to a shape, or an error that says how it would fit."""
    try:
        return tensor if tensor.shape == shape else tensor.expand(shape)  # which costs as much as a small softmax
    except RuntimeError:
        lacks = shape[:dim] + shape[dim:][1:]  # without the dimension of the row
        hint = f"use {what}.unsqueeze({dim})" if tensor.shape == lacks else f"reshape {what}"
        raise ValueError(
            f"{name}: {what} of shape {shape_of(tensor)} does not broadcast to {tuple(shape)}; {hint}"
        ) from None


# --------------------------------------------------------------------------- rows in which -inf means "removed"


def filled(x: Tensor, mask: Tensor | None) -> Tensor:
    """Rows as the reference takes them: at least float32, removed entries ``-inf``."""
    kept = x if mask is None else x.masked_fill(~mask, -math.inf)
    return kept.to(at_least_float32(x.dtype))


def on_kept(x: Tensor, g: Callable[[Tensor], Tensor]) -> Tensor:
    """``g`` of a row, in which removed entries read 0 and are ``-inf`` again afterwards."""
    kept = x != -math.inf
    return torch.where(kept, g(torch.where(kept, x, 0)), -math.inf)


def row_max(x: Tensor) -> Tensor:
    """The largest entry, such that ``x - max`` is ``-inf`` in a row with nothing kept, and NaN in a row with +inf."""
    m = x.amax(-1, keepdim=True)
    return m.masked_fill(m == -math.inf, 0).masked_fill(m == math.inf, math.nan)
