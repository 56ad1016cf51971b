"""The differentiable primitives: native kernels where they can go, the reference everywhere else.

A native call has a native gradient. Its gradient's gradient, and everything that traces or transforms a function, takes
the reference, which is differentiable throughout.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rsoftmax.kernels import native, native_chosen, reference

Value = float | Tensor


def softmax_rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """e^x / sum."""
    return _rows("softmax", x, mask)


def weighted_softmax_rows(x: Tensor, mask: Tensor | None, w: Tensor) -> Tensor:
    """w e^x / sum."""
    return reference.weighted_softmax(filled(x, mask), w)


def t_softmax_rows(x: Tensor, mask: Tensor | None, t: Value) -> Tensor:
    """[x - max + t]+ e^x / sum."""
    return _rows("t_softmax", x, mask, t)


def r_softmax_rows(x: Tensor, mask: Tensor | None, r: Value, detach_threshold: bool = False) -> Tensor:
    """[x - quantile(x, r)]+ e^x / sum."""
    return _rows("r_softmax", x, mask, r, detach_threshold=detach_threshold)


def sparsemax_rows(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """[x - tau]+, tau such that the row sums to one."""
    return _rows("sparsemax", x, mask)


def entmax15_rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """([x/2 - tau]+)^2, tau such that the row sums to one."""
    return _rows("entmax15", x, mask)


def spherical_softmax_rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """x^2 / sum."""
    return reference.spherical_softmax(filled(x, mask))


def filled(x: Tensor, mask: Tensor | None) -> Tensor:
    """Rows as the reference takes them: at least float32, removed entries ``-inf``."""
    kept = x if mask is None else x.masked_fill(~mask, -math.inf)
    return kept.to(torch.promote_types(x.dtype, torch.float32))


def _rows(name: str, x: Tensor, mask: Tensor | None, value: Value | None = None, **options: bool) -> Tensor:
    if not (native.takes(x) and (not isinstance(value, Tensor) or native.in_memory(value)) and native_chosen()):
        return _by_definition(name, x, mask, value, options)
    if torch.is_grad_enabled() and (x.requires_grad or (isinstance(value, Tensor) and value.requires_grad)):
        differentiable: Tensor = _Native.apply(x, value, mask, name, options)  # type: ignore[no-untyped-call]
        return differentiable
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    native.run(name, x, value, mask, p)
    return p


def _by_definition(name: str, x: Tensor, mask: Tensor | None, value: Value | None, options: dict[str, bool]) -> Tensor:
    p: Tensor = getattr(reference, name)(filled(x, mask), *([] if value is None else [value]), **options)
    return p.to(x.dtype)


def savable(tensor: Tensor | None) -> Tensor | None:
    """A tensor made in inference mode, a cached mask perhaps, cannot be saved for backward; its copy can."""
    return tensor.clone() if tensor is not None and tensor.is_inference() else tensor


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: Value | None, mask: Tensor | None, name: str, options: dict[str, bool]
    ) -> Tensor:
        p = torch.empty_like(x, memory_format=torch.contiguous_format)
        state = torch.empty(x.numel() // x.shape[-1], native.STATE, dtype=torch.float64, device=x.device)
        native.run(name, x, value, mask, p, state)
        tensor, ctx.number = (value, None) if isinstance(value, Tensor) else (None, value)
        ctx.save_for_backward(*(savable(a) for a in (x, tensor, mask)), p, state)
        ctx.name, ctx.options = name, options
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, tensor, mask, p, state = ctx.saved_tensors
        value = ctx.number if tensor is None else tensor
        needed = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() or not native.takes(g):  # the gradient is to be differentiated, or is transformed
            with torch.enable_grad():
                again = _by_definition(ctx.name, x, mask, value, ctx.options)
            wanted = [a for a, need in zip((x, value), needed, strict=True) if need]
            options = {"create_graph": torch.is_grad_enabled(), "allow_unused": True}  # a detached threshold has no r
            found = iter(torch.autograd.grad(again, wanted, g, **options) if again.requires_grad else (None, None))
            dx, dvalue = (next(found) if need else None for need in needed)
        else:
            p, state, g = p.contiguous(), state.contiguous(), g.contiguous()  # hooks may have stored them otherwise
            dx, dvalue = torch.empty_like(p), torch.zeros(*x.shape[:-1], 1, dtype=torch.float64, device=x.device)
            native.run(ctx.name, x, value, mask, p, state, g, dx, dvalue, **ctx.options)
            dvalue = dvalue.to(value.dtype) if needed[1] else None
        return dx, dvalue, None, None, None
