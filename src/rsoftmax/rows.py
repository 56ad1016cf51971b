"""Any tensor as rows: dim, mask, dtype and parameter on the way in, and the same way back."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rsoftmax.domains import Domain

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Parameter:
    """The parameter of a mapping.

    Attributes:
        name: its letter, the same everywhere.
        domain: where it may lie.
        example: a value that shows what the mapping does.
        per_row: one value serves a whole row (a rate); otherwise one belongs to each entry (a weight).
    """

    name: str
    domain: Domain
    example: float
    per_row: bool = True


def over_rows(
    name: str,
    op: Callable[..., Tensor],
    x: Tensor,
    dim: int,
    mask: Tensor | None,
    parameter: Parameter | None = None,
    value: float | Tensor | None = None,
) -> Tensor:
    """Apply the row function ``op(rows)`` or ``op(rows, value)`` along ``dim`` of ``x``."""
    check_input(name, x, dim)
    if mask is not None:
        mask = _checked_mask(name, mask, x)
    arguments = [] if parameter is None else [_checked_value(name, parameter, value, x, dim)]
    if x.numel() == 0:
        return torch.softmax(x, dim)  # nothing to compute; right in shape, dtype and gradient
    if x.dim() == 0:
        return over_rows(name, op, x[None], 0, mask if mask is None else mask[None], parameter, value)[0]
    rows = x if mask is None else x.masked_fill(~mask, -math.inf)
    rows = rows.movedim(dim, -1).to(torch.promote_types(x.dtype, torch.float32))
    p = op(rows, *(a.movedim(dim, -1) if isinstance(a, Tensor) and a.dim() else a for a in arguments))
    return p.to(x.dtype).movedim(-1, dim)


def check_input(name: str, x: Tensor, dim: int) -> None:
    """Raise unless ``x`` is a tensor of floats that has ``dim``."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x must be a torch.Tensor, got {type(x).__name__}; use torch.tensor(x)")
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{name}: x must be float64, float32, float16 or bfloat16,"
            f" got {x.dtype} of shape {shape_of(x)}; use x.float()"
        )
    last = max(x.dim(), 1) - 1
    if not -last - 1 <= dim <= last:
        raise ValueError(f"{name}: dim={dim} does not exist in x of shape {shape_of(x)}; use {-last - 1} to {last}")


def _checked_mask(name: str, mask: Tensor, x: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = f"{mask.dtype} of shape {shape_of(mask)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: mask must be a bool tensor, True = keep, got {found}; use mask.bool()")
    return _broadcast(name, "mask", mask, x.shape)


def _checked_value(name: str, parameter: Parameter, value: Any, x: Tensor, dim: int) -> float | Tensor:
    if isinstance(value, Tensor):
        if not value.dtype.is_floating_point:
            raise TypeError(
                f"{name}: {parameter.name} must be floating point, got {value.dtype} of shape {shape_of(value)};"
                f" use {parameter.name}.float()"
            )
        shape = list(x.shape)
        if parameter.per_row and shape:
            shape[dim] = 1
        value = _inside_domain(name, parameter, value.to(x.device))
        return _broadcast(name, parameter.name, value, torch.Size(shape))
    if not isinstance(value, Real):
        raise TypeError(
            f"{name}: {parameter.name} must be a number or a tensor, got {value!r} of type {type(value).__name__}"
        )
    if not parameter.per_row:
        raise TypeError(f"{name}: {parameter.name} must be a tensor that broadcasts to {shape_of(x)}, got {value!r}")
    if not parameter.domain.contains(value):
        raise ValueError(_outside(name, parameter, repr(value)))
    return float(value)


def _inside_domain(name: str, parameter: Parameter, value: Tensor) -> Tensor:
    """Raise for a value outside where looking is free; elsewhere it becomes NaN, and so does its row."""
    inside = parameter.domain.contains(value)
    bad = ~(inside | value.isnan())
    if seen(bad):
        found = f"{value[bad].flatten()[0].item()!r} in a tensor of shape {shape_of(value)}"
        raise ValueError(_outside(name, parameter, found))
    return torch.where(inside, value, math.nan)


def seen(bad: Tensor) -> bool:
    """Whether anything is bad, as far as looking is free: in eager code, on the CPU.

    Reading a value on another device would wait for that device, and a traced or batched tensor has none to read.
    """
    if bad.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return bool(bad.any())
    except RuntimeError:  # under vmap and in fake tensors
        return False


def _outside(name: str, parameter: Parameter, found: str) -> str:
    return f"{name}: {parameter.name} must be {parameter.domain.text}, got {found}; {parameter.domain.remedy}"


def _broadcast(name: str, what: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    try:
        return tensor.expand(shape)
    except RuntimeError:
        hint = f"use {what}.unsqueeze(-1)" if tensor.dim() + 1 == len(shape) else f"reshape {what}"
        raise ValueError(
            f"{name}: {what} of shape {shape_of(tensor)} does not broadcast to {tuple(shape)}; {hint}"
        ) from None


def shape_of(x: Tensor) -> tuple[int, ...]:
    """The shape as an error message shows it."""
    return tuple(x.shape)
