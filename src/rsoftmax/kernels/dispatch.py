"""The differentiable row functions: a compiled kernel where one is available, the reference everywhere else.

Forward by a kernel has the kernel's gradient. Second derivatives, tracing and transforms use the reference, which is
differentiable throughout.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rsoftmax._tensors import Value, clone_if_inference, in_graph
from rsoftmax.kernels import Kernel, graph_ops, kernel_for
from rsoftmax.kernels.reference import reference_backward, reference_forward


def row_function(name: str) -> Callable[..., Tensor]:
    """A function of ``kernels/reference.py`` with its kernels, as ``f(x, mask)`` or ``f(x, mask, value)``.

    Args:
        name: the operation.

    Returns:
        A function of rows [..., n], a mask of the same shape (True = keep) or None, and the further arguments of the
        operation. Its result has the dtype of ``x``.

    Example:
        >>> row_function("t_softmax")(torch.tensor([1.0, 2.0, 3.0]), None, 1.5)
        tensor([0.0000, 0.1092, 0.8908])
    """
    return partial(_run, name)


def _run(name: str, x: Tensor, mask: Tensor | None = None, value: Value | None = None, **options: Any) -> Tensor:
    if in_graph() and graph_ops.supports(name, x):
        return graph_ops.rows(name, x, mask, value, options)
    is_recorded = torch.is_grad_enabled() and (x.requires_grad or (isinstance(value, Tensor) and value.requires_grad))
    kernel = kernel_for(name, x, value, mask, options, is_recorded)
    if kernel is None:
        return reference_forward(name, x, mask, value, options)
    if is_recorded:
        differentiable: Tensor = _OnKernel.apply(x, value, mask, kernel, name, options)  # type: ignore[no-untyped-call]
        return differentiable
    return kernel.forward(name, x, value, mask, options, keep_state=False)[0]


class _OnKernel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        value: Value | None,
        mask: Tensor | None,
        kernel: Kernel,
        name: str,
        options: dict[str, Any],
    ) -> Tensor:
        p, state = kernel.forward(name, x, value, mask, options, keep_state=True)
        tensor, ctx.number = (value, None) if isinstance(value, Tensor) else (None, value)
        ctx.save_for_backward(*(clone_if_inference(a) for a in (x, tensor, mask)), p, state)
        ctx.kernel, ctx.name, ctx.options = kernel, name, options
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, tensor, mask, p, state = ctx.saved_tensors
        value = ctx.number if tensor is None else tensor
        needed = ctx.needs_input_grad[:2]
        # A gradient that is differentiated again, or transformed, comes from the reference.
        if torch.is_grad_enabled() or not ctx.kernel.supports_call(ctx.name, g, None):
            dx, dvalue = reference_backward(ctx.name, x, mask, value, ctx.options, g, needed)
        else:
            dx, dvalue = ctx.kernel.backward(ctx.name, x, value, mask, p, state, g, ctx.options)
            dvalue = dvalue.to(value.dtype) if needed[1] else None
        return dx, dvalue, None, None, None, None
