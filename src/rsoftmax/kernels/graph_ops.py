"""Operators of torch for compiled graphs: :class:`GraphOp`, and the row functions as ``rsoftmax::rows``.

A graph of ``torch.compile`` cannot trace into a kernel. It calls an operator whose result has a known shape, whose
gradient is another operator, and which chooses its kernel when the graph runs. Eager code calls kernels directly: an
operator costs microseconds. Transforms, exports and forward-mode differentiation must not use an operator (a forward
derivative through one would silently be zero): :func:`rsoftmax._tensors.in_graph` keeps them apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import Library, register_fake

from rsoftmax._tensors import Value, below_autograd, exact, in_forward_mode, is_recorded
from rsoftmax.kernels import Kernel, kernel_for, kernel_on
from rsoftmax.kernels.reference import OPERATIONS, reference_backward, reference_forward

library = Library("rsoftmax", "DEF")


@dataclass(frozen=True)
class GraphOp:
    """An operator ``name(inputs, bool keep_state) -> outputs`` and its gradient ``name_backward``.

    Attributes:
        name: its name in ``torch.ops.rsoftmax``.
        inputs: the schema of the inputs.
        outputs: the schema of the outputs; the first one is differentiable.
        differentiable: the inputs that have a gradient, by name.
        saved: the outputs that backward needs, by name.
        forward: the implementation, ``forward(*inputs, keep_state) -> outputs``.
        backward: that of the gradient, ``backward(g, *inputs, *saved, needed) -> gradients``.
        fake_forward: empty outputs of the right shapes.
        fake_backward: empty gradients of the right shapes.
        reference_forward: the outputs by differentiable torch operations.
    """

    name: str
    inputs: str
    outputs: str
    differentiable: tuple[str, ...]
    saved: tuple[str, ...]
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    fake_forward: Callable[..., Any]
    fake_backward: Callable[..., Any]
    reference_forward: Callable[..., Any]

    def register(self) -> None:
        """Define both operators, for CPU and CUDA tensors, with autograd."""
        tags = (torch.Tag.pt2_compliant_tag,)
        extra = ", ".join(f"Tensor {name}" for name in self.saved)
        gradients = ", ".join(f"Tensor d{name}" for name in self.differentiable)
        library.define(f"{self.name}({self.inputs}, bool keep_state) -> ({self.outputs})", tags=tags)
        library.define(
            f"{self.name}_backward(Tensor g, {self.inputs}, {extra}, bool[] needed) -> ({gradients})", tags=tags
        )
        for device in ("CPU", "CUDA"):
            library.impl(self.name, self.forward, device)
            library.impl(f"{self.name}_backward", self.backward, device)
        register_fake(f"rsoftmax::{self.name}", self.fake_forward, lib=library)
        register_fake(f"rsoftmax::{self.name}_backward", self.fake_backward, lib=library)
        library.impl(self.name, self._with_gradient, "Autograd")

    def _with_gradient(self, *arguments: Any) -> Any:
        if in_forward_mode():  # a graph that was compiled before, called with dual tensors
            return self.reference_forward(*arguments)
        if is_recorded(*(arguments[i] for i in self.positions)):
            return _Recorded.apply(self, *arguments)  # type: ignore[no-untyped-call]
        return self.run(*arguments)

    @property
    def positions(self) -> list[int]:
        """The positions of the differentiable inputs."""
        names = _names(self.inputs)
        return [names.index(name) for name in self.differentiable]

    def run(self, *arguments: Any) -> Any:
        """Call the operator without recording it."""
        with below_autograd():
            return getattr(torch.ops.rsoftmax, self.name).default(*arguments)

    def save(self, outputs: tuple[Tensor, ...]) -> list[Tensor]:
        """The outputs that backward needs."""
        return [outputs[_names(self.outputs).index(name)] for name in self.saved]


def _names(schema: str) -> list[str]:
    return [part.split()[-1] for part in schema.split(",")]


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: GraphOp, *arguments: Any) -> Any:
        outputs = op.run(*arguments)
        inputs = arguments[:-1]
        ctx.op, ctx.others = op, [None if isinstance(a, Tensor) else a for a in inputs]
        ctx.save_for_backward(*(a if isinstance(a, Tensor) else None for a in inputs), *op.save(outputs))
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = [None] * (len(ctx.others) + 1)
        needed = [ctx.needs_input_grad[1 + i] for i in ctx.op.positions]
        if g is not None:
            tensors, saved = ctx.saved_tensors[: len(ctx.others)], ctx.saved_tensors[len(ctx.others) :]
            inputs = [other if tensor is None else tensor for tensor, other in zip(tensors, ctx.others, strict=True)]
            ds = getattr(torch.ops.rsoftmax, f"{ctx.op.name}_backward")(g, *inputs, *saved, needed)
            for i, need, d in zip(ctx.op.positions, needed, ds, strict=True):
                gradients[i] = d.to(inputs[i].dtype) if need else None
        return None, *gradients


# --------------------------------------------------------------------------- rows


class _Args(NamedTuple):
    """The inputs of the operator ``rsoftmax::rows``."""

    x: Tensor
    mask: Tensor | None
    value: Tensor | None
    name: str
    edge: float
    detach_threshold: bool

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of the operation."""
        options = {"edge": self.edge, "detach_threshold": self.detach_threshold}
        return {name: options[name] for name in signature(OPERATIONS[self.name]).parameters.keys() & options.keys()}

    @property
    def kernel(self) -> Kernel:
        """The kernel for the device."""
        kernel = kernel_on(self.x.device.type)
        if kernel is None:
            raise NotImplementedError(f"rsoftmax::rows has no kernel on {self.x.device.type}")
        return kernel

    def reference_forward(self) -> Tensor:
        """The probabilities by differentiable torch operations."""
        return reference_forward(self.name, self.x, self.mask, self.value, self.options)


def supports(name: str, x: Tensor) -> bool:
    """Whether there is a kernel behind the operator for these rows; evaluated while a graph is traced."""
    kernel = kernel_on(x.device.type)
    return kernel is not None and kernel.supports(name, x.dtype)


def rows(name: str, x: Tensor, mask: Tensor | None, value: Value | None, options: dict[str, Any]) -> Tensor:
    """The probabilities of rows, by the operator."""
    if isinstance(value, float):
        # A number would be a constant of the graph, and every new one would recompile it. torch.compile turns a sum
        # with a tensor into a graph with the number as an input.
        value = (torch.zeros((), dtype=exact(x), device=x.device) + value).expand(*x.shape[:-1], 1)
    edge, detach = options.get("edge", math.inf), options.get("detach_threshold", False)
    p: Tensor = torch.ops.rsoftmax.rows(x, mask, value, name, edge, detach, is_recorded(x, value))[0]
    return p


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    args, keep_state = _Args(*arguments[:-1]), arguments[-1]
    x, mask, value, name = args[:4]
    kernel = kernel_for(name, x, value, mask, args.options, keep_state)
    by_kernel = torch.tensor(kernel is not None, device="cpu")  # backward reads it without a synchronisation
    if kernel is None:
        return args.reference_forward().contiguous(), args.kernel.new_state(name, x, keep_state).zero_(), by_kernel
    p, state_or_none = kernel.forward(name, x, value, mask, args.options, keep_state)
    state = kernel.new_state(name, x, False) if state_or_none is None else state_or_none
    return p, state, by_kernel


def _backward(g: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *inputs, p, state, by_kernel, _ = arguments
    args = _Args(*inputs)
    x, mask, value, name = args[:4]
    dx: Any
    if by_kernel:  # as forward did
        dx, dvalue = args.kernel.backward(name, x, value, mask, p, state if state.numel() else None, g, args.options)
    else:
        leaf = x.detach().requires_grad_()
        value = None if value is None else value.detach().requires_grad_()
        dx, dvalue = reference_backward(name, leaf, mask, value, args.options, g, (True, value is not None))
    if dvalue is None:
        dvalue = x.new_zeros((*x.shape[:-1], 1), dtype=torch.float64)
    return dx.contiguous(), dvalue.to(torch.float64).contiguous()


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    args, keep_state = _Args(*arguments[:-1]), arguments[-1]
    p = torch.empty_like(args.x, memory_format=torch.contiguous_format)
    by_kernel = torch.empty((), dtype=torch.bool, device="cpu")
    return p, args.kernel.new_state(args.name, args.x, keep_state), by_kernel


def _fake_backward(g: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, x.new_empty((*x.shape[:-1], 1), dtype=torch.float64)


def _reference_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    args = _Args(*arguments[:-1])
    return (
        args.reference_forward(),
        args.kernel.new_state(args.name, args.x, False),
        torch.tensor(False, device="cpu"),
    )


GraphOp(
    "rows",
    inputs="Tensor x, Tensor? mask, Tensor? value, str name, float edge, bool detach_threshold",
    outputs="Tensor p, Tensor state, Tensor by_kernel",
    differentiable=("x", "value"),
    saved=("p", "state", "by_kernel"),
    forward=_forward,
    backward=_backward,
    fake_forward=_fake_forward,
    fake_backward=_fake_backward,
    reference_forward=_reference_forward,
).register()
