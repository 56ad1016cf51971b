"""Any tensor as rows, the vectors along ``dim``: checks the arguments and restores the layout."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rsoftmax._tensors import FLOATS, Value, all_or_none, is_eager_cpu, shape_of
from rsoftmax.kernels import extremes


def positive(raw: Tensor) -> Tensor:
    """``exp``, clamped before it underflows or overflows: afterwards its derivative would be NaN."""
    limits = torch.finfo(raw.dtype)
    return raw.clamp(min=math.ceil(math.log(limits.tiny)), max=math.floor(math.log(limits.max))).exp()


@dataclass(frozen=True)
class Domain:
    """A set of numbers, and a smooth map from the real line onto it.

    Attributes:
        text: the set, as shown in error messages.
        remedy: what the parameter means, as explained in error messages.
        contains: membership, of a number or elementwise of a tensor.
        constrain: real line -> domain, elementwise; applied to a learnable parameter. By default onto the positive.
        unconstrain: the inverse of ``constrain``; not finite at values that ``constrain`` never reaches.
    """

    text: str
    remedy: str
    contains: Callable[[Any], Any]
    constrain: Callable[[Tensor], Tensor] = positive
    unconstrain: Callable[[Tensor], Tensor] = torch.log


@dataclass(frozen=True)
class ParamSpec:
    """The parameter of a mapping.

    Attributes:
        name: the name of the argument, the same everywhere.
        domain: the values it may take.
        example: a value that shows the effect of the mapping.
        default: the default value; None if it is required.
    """

    name: str
    domain: Domain
    example: float
    default: float | None = None

    def describe(self) -> str:
        """How to pass it and what it means, as the end of an error message."""
        return f"{self.name}, e.g. {self.name}={self.example}; it must be {self.domain.text}: {self.domain.remedy}"


def over_rows(
    name: str,
    op: Callable[..., Tensor],
    x: Tensor,
    dim: int,
    mask: Tensor | None,
    parameter: ParamSpec | None = None,
    value: Value | None = None,
    **options: Any,
) -> Tensor:
    """Check the arguments and apply a row function along ``dim`` of ``x``.

    Args:
        name: the name used in error messages.
        op: ``op(rows, mask)`` or ``op(rows, mask, value)``. It receives views with ``dim`` last: the rows, the mask
            expanded to their shape or None, and a tensor value expanded to the same shape with a last dimension of 1.
        x: logits, any shape.
        dim: the dimension of the rows.
        mask: True = keep; broadcasts to ``x``.
        parameter: describes the value, if there is one.
        value: a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1.
        options: further keyword arguments of ``op``.

    Returns:
        The result of ``op``, in the shape and dtype of ``x``.
    """
    check_input(name, x, dim)
    if x.dim() == 0:
        return over_rows(name, op, x[None], 0, mask if mask is None else mask[None], parameter, value, **options)[0]
    arguments: list[Any] = [None if mask is None else _check_mask(name, mask, x)]
    if parameter is not None:
        arguments.append(check_value(name, parameter, value, x, dim))
    if x.numel() == 0:
        return torch.softmax(x, dim)  # empty, with the right shape, dtype and gradient
    if dim == -1 or dim == x.dim() - 1:
        p = op(x, *arguments, **options)
    else:
        arguments = [a.movedim(dim, -1) if isinstance(a, Tensor) else a for a in arguments]
        p = op(x.movedim(dim, -1), *arguments, **options).movedim(-1, dim)
    return p if p.dtype == x.dtype else p.to(x.dtype)


def check_input(name: str, x: Tensor, dim: int, argument: str = "x") -> None:
    """Raise unless ``x``, the value of an argument, is a dense floating-point tensor with a dimension ``dim``."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}: {argument} must be a torch.Tensor, got {type(x).__name__}; use torch.tensor({argument})"
        )
    if x.layout != torch.strided:
        raise TypeError(
            f"{name}: {argument} must be dense, got {x.layout} of shape {shape_of(x)}; use {argument}.to_dense()"
        )
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{name}: {argument} must be float64, float32, float16 or bfloat16,"
            f" got {x.dtype} of shape {shape_of(x)}; use {argument}.float()"
        )
    if not isinstance(dim, int):
        raise TypeError(f"{name}: dim must be an int, got {dim!r}")
    last = max(x.dim(), 1) - 1
    if not -last - 1 <= dim <= last:
        raise ValueError(
            f"{name}: dim={dim} does not exist in {argument} of shape {shape_of(x)}; use {-last - 1} to {last}"
        )


def _check_mask(name: str, mask: Tensor, x: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = f"{mask.dtype} of shape {shape_of(mask)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: mask must be a bool tensor, True = keep, got {got}; use mask.bool()")
    return broadcast(name, "mask", mask.to(x.device), x.shape)


def check_value(name: str, parameter: ParamSpec, value: Any, x: Tensor, dim: int) -> Value:
    """The parameter as a float, or as a tensor on the device of ``x``, expanded to its rows."""
    if type(value) is float and parameter.domain.contains(value):  # first: the check is as long as a small row
        return value
    inside = inside_domain(name, parameter, value.to(x.device) if isinstance(value, Tensor) else value)
    if not isinstance(inside, Tensor):
        return inside
    shape = list(x.shape)
    shape[dim] = 1
    return broadcast(name, parameter.name, inside, torch.Size(shape), dim)


def check_option(name: str, option: ParamSpec, value: Any) -> float:
    """An option of a mapping as a float, if it is a number inside its domain."""
    if type(value) is float and option.domain.contains(value):
        return value
    if isinstance(value, Tensor):
        raise TypeError(f"{name}: {option.name} must be a number, got a tensor of shape {shape_of(value)}")
    return float(inside_domain(name, option, value))


def inside_domain(name: str, parameter: ParamSpec, value: Any) -> Value:
    """The value, if inside the domain. Other values raise, or become NaN where reading them is expensive."""
    contains = parameter.domain.contains
    if not isinstance(value, Tensor):
        if not isinstance(value, (float, Real)):  # the concrete type first: the check is faster
            raise TypeError(
                f"{name}: {parameter.name} must be a number or a tensor, got {value!r} of type {type(value).__name__}"
            )
        if not contains(value):
            raise ValueError(_outside(name, parameter, repr(value)))
        return float(value)
    if value.dtype not in FLOATS:
        raise TypeError(
            f"{name}: {parameter.name} must be floating point, got {value.dtype} of shape {shape_of(value)};"
            f" use {parameter.name}.float()"
        )
    if value.numel() and is_eager_cpu(value):
        low, high = extremes(value)  # a domain is an interval: the ends are enough
        if contains(low) and contains(high):
            return value
    inside = contains(value)
    if all_or_none(inside) is None:
        return torch.where(inside, value, math.nan)
    outside = value[~inside & ~value.isnan()]
    if outside.numel():
        raise ValueError(_outside(name, parameter, f"{outside[0].item()!r} in a tensor of shape {shape_of(value)}"))
    return value


def _outside(name: str, parameter: ParamSpec, got: str) -> str:
    return f"{name}: {parameter.name} must be {parameter.domain.text}, got {got}; {parameter.domain.remedy}"


def broadcast(name: str, what: str, tensor: Tensor, shape: torch.Size, dim: int = -1) -> Tensor:
    """The tensor expanded to a shape, or an error that explains how to make it fit."""
    try:
        return tensor if tensor.shape == shape else tensor.expand(shape)  # expand costs as much as a small softmax
    except RuntimeError:
        without_row = shape[:dim] + shape[dim:][1:]
        hint = f"use {what}.unsqueeze({dim})" if tensor.shape == without_row else f"reshape {what}"
        raise ValueError(
            f"{name}: {what} of shape {shape_of(tensor)} does not broadcast to {tuple(shape)}; {hint}"
        ) from None
