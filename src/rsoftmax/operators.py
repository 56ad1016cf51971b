"""The row functions as operators of torch, ``rsoftmax::rows`` and ``rsoftmax::rows_backward``, for compiled graphs.

A graph of ``torch.compile`` cannot look into a kernel. It calls an operator, whose result has a known shape and whose
gradient is another operator, and which chooses its kernel when the graph runs. Eager code calls kernels directly,
because an operator costs microseconds. Nothing that transforms, exports or differentiates forwards may meet an operator
(a forward derivative through one would silently be zero): :func:`rsoftmax.tensors.in_graph` keeps them apart.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from rsoftmax.kernels import Kernel, kernel_for, kernel_on
from rsoftmax.kernels.definition import by_definition, gradient_by_definition
from rsoftmax.tensors import below_autograd, exact, in_forward_mode, recorded

Value = float | Tensor

library = Library("rsoftmax", "DEF")
library.define(
    "rows(Tensor x, Tensor? mask, Tensor? value, float? number, str name, bool detach_threshold, bool keep_state)"
    " -> (Tensor p, Tensor state, Tensor by_kernel)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
library.define(
    "rows_backward(Tensor g, Tensor x, Tensor? mask, Tensor? value, float? number, Tensor p, Tensor state,"
    " Tensor by_kernel, str name, bool detach_threshold) -> (Tensor dx, Tensor dvalue)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def takes(name: str, x: Tensor) -> bool:
    """Whether there is a kernel behind the operator for rows like these; asked while a graph is made."""
    kernel = kernel_on(x.device.type)
    return kernel is not None and kernel.has(name, x.dtype)


def rows(name: str, x: Tensor, mask: Tensor | None, value: Value | None, options: dict[str, bool]) -> Tensor:
    """The probabilities of rows, by the operator."""
    if isinstance(value, float):
        # As a number it would be a part of the graph, and every new one would compile anew. A sum with a tensor is what
        # torch.compile turns into a graph with the number as an input.
        value = (torch.zeros((), dtype=exact(x), device=x.device) + value).expand(*x.shape[:-1], 1)
    detach = options.get("detach_threshold", False)
    p: Tensor = torch.ops.rsoftmax.rows(x, mask, value, None, name, detach, recorded(x, value))[0]
    return p


def _forward(
    x: Tensor,
    mask: Tensor | None,
    value: Tensor | None,
    number: float | None,
    name: str,
    detach_threshold: bool,
    keep_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    given = number if value is None else value
    kernel = kernel_for(name, x, given)
    if kernel is not None:
        p, state = kernel.forward(name, x, given, mask, keep_state)
        state = kernel.new_state(name, x, False) if state is None else state
        return p, state, x.new_ones((), dtype=torch.bool)
    p = by_definition(name, x, mask, given, _options(name, detach_threshold)).contiguous()
    return p, _new_state(name, x, keep_state).zero_(), x.new_zeros((), dtype=torch.bool)


def _backward(
    g: Tensor,
    x: Tensor,
    mask: Tensor | None,
    value: Tensor | None,
    number: float | None,
    p: Tensor,
    state: Tensor,
    by_kernel: Tensor,
    name: str,
    detach_threshold: bool,
) -> tuple[Tensor, Tensor]:
    given, options = number if value is None else value, _options(name, detach_threshold)
    dx: Any
    if by_kernel:  # as forward did
        kernel = _kernel(x)
        dx, dvalue = kernel.backward(name, x, given, mask, p, state if state.numel() else None, g, options)
    else:
        leaf = x.detach().requires_grad_()
        given = number if value is None else value.detach().requires_grad_()
        dx, dvalue = gradient_by_definition(name, leaf, mask, given, options, g, (True, value is not None))
    dvalue = x.new_zeros((*x.shape[:-1], 1)) if dvalue is None else dvalue
    return dx.contiguous(), dvalue.to(torch.float64).contiguous()


def _options(name: str, detach_threshold: bool) -> dict[str, bool]:
    return {"detach_threshold": detach_threshold} if name == "r_softmax" else {}


def _kernel(x: Tensor) -> Kernel:
    kernel = kernel_on(x.device.type)
    if kernel is None:
        raise NotImplementedError(f"rsoftmax::rows has no kernel on {x.device.type}")
    return kernel


def _new_state(name: str, x: Tensor, keep_state: bool) -> Tensor:
    return _kernel(x).new_state(name, x, keep_state)


for device in ("CPU", "CUDA"):
    library.impl("rows", _forward, device)
    library.impl("rows_backward", _backward, device)


@register_fake("rsoftmax::rows", lib=library)  # type: ignore[untyped-decorator]
def _(
    x: Tensor,
    mask: Tensor | None,
    value: Tensor | None,
    number: float | None,
    name: str,
    detach_threshold: bool,
    keep_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    return p, _new_state(name, x, keep_state), x.new_empty((), dtype=torch.bool)


@register_fake("rsoftmax::rows_backward", lib=library)  # type: ignore[untyped-decorator]
def _(g: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, x.new_empty((*x.shape[:-1], 1), dtype=torch.float64)


def _unrecorded(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    with below_autograd():
        return torch.ops.rsoftmax.rows.default(*inputs)  # type: ignore[no-any-return]


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = _unrecorded(*inputs)
        x, mask, value, ctx.number, ctx.name, ctx.detach_threshold, _ = inputs
        ctx.save_for_backward(x, mask, value, *output)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * 7
        x, mask, value, p, state, by_kernel = ctx.saved_tensors
        dx, dvalue = torch.ops.rsoftmax.rows_backward(
            g, x, mask, value, ctx.number, p, state, by_kernel, ctx.name, ctx.detach_threshold
        )
        needed = ctx.needs_input_grad
        return dx if needed[0] else None, None, dvalue.to(value.dtype) if needed[2] else None, None, None, None, None


def _with_gradient(
    x: Tensor,
    mask: Tensor | None,
    value: Tensor | None,
    number: float | None,
    name: str,
    detach_threshold: bool,
    keep_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if in_forward_mode():
        # A graph that was made before, met by tensors with tangents: the reference carries them on.
        p = by_definition(name, x, mask, number if value is None else value, _options(name, detach_threshold))
        return p, _new_state(name, x, keep_state), x.new_zeros((), dtype=torch.bool)
    operator = _Differentiable.apply if recorded(x, value) else _unrecorded
    return operator(x, mask, value, number, name, detach_threshold, keep_state)


library.impl("rows", _with_gradient, "Autograd")
