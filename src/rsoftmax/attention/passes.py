"""Attention forward and backward: one kernel for all of it where that can go, block by block everywhere else.

What no gradient follows may go to FlexAttention on a GPU; with one, both passes go by blocks and see the same zeros.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax import kernels
from rsoftmax.attention import blocks, flex
from rsoftmax.attention.equations import Call, gradients_by_definition
from rsoftmax.attention.inputs import Inputs
from rsoftmax.kernels import Operands, Options, chosen, use_kernels
from rsoftmax.tensors import ordinary, recorded, savable, without_autocast


class How(NamedTuple):
    """What depends on the state of the process, which may be another one when backward runs."""

    kernel: Any  # that computes all of it; None: block by block
    block: int  # how many scores a block may have
    rows: str  # which kernels compute the rows of a block


def how_for(call: Call, x: Inputs) -> How:
    """How the process computes such a call now."""
    kernel = kernels.attention_kernel()
    if kernel is not None and not kernel.takes(call.mapping.name, _operands(call, x)):
        kernel = None
    return How(kernel, blocks.size_for(x), chosen())


def forward(call: Call, x: Inputs, how: How, keep_state: bool) -> tuple[Tensor, Tensor | None]:
    """The output, at least float32, and what the backward pass of a kernel needs besides."""
    if how.kernel is None:
        by_flex = not keep_state and how.rows != "reference" and flex.takes(call, x)
        return flex.forward(call, x) if by_flex else blocks.forward(call, x, how.block), None
    output: tuple[Tensor, Tensor] = how.kernel.forward(
        call.mapping.name, _operands(call, x), _options(call), keep_state=keep_state
    )
    return output


def backward(
    call: Call, x: Inputs, how: How, state: Tensor | None, g: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients that are needed."""
    if how.kernel is None:
        with use_kernels(how.rows):
            return blocks.backward(call, x, g, needed, how.block)
    found = how.kernel.backward(call.mapping.name, _operands(call, x), _options(call), state, g, bias_too=needed[3])
    return tuple(d if need else None for d, need in zip((*found, None), needed, strict=True))


def _operands(call: Call, x: Inputs) -> Operands:
    return Operands(x.q, x.k, x.v, x.bias, call.number if x.parameter is None else x.parameter, x.mask)


def _options(call: Call) -> Options:
    return Options(call.scale, call.is_causal, call.dropped, call.seed)


class Attention(torch.autograd.Function):
    """The output as a function of the inputs, for eager code."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor | None) -> Tensor:
        """Keep the inputs and the state of rows, and nothing that has an entry for each weight."""
        x = Inputs(*tensors)  # type: ignore[arg-type]
        ctx.call, ctx.how = call, how_for(call, x)
        o, state = forward(call, x, ctx.how, keep_state=any(ctx.needs_input_grad))
        ctx.save_for_backward(*(savable(tensor) for tensor in x), state)
        return o

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """As forward did, or by the definition if the gradient is to be differentiated or is transformed."""
        *tensors, state = ctx.saved_tensors
        x, needed = Inputs(*tensors), ctx.needs_input_grad[1:]
        with without_autocast(g):
            if not torch.is_grad_enabled() and ordinary(g):
                return None, *backward(ctx.call, x, ctx.how, state, g, needed)
            with use_kernels(ctx.how.rows):
                return None, *gradients_by_definition(ctx.call, x, g, needed)


def output(call: Call, x: Inputs) -> Tensor:
    """The output, for eager code; autograd is asked only if it records."""
    if recorded(*x):
        return Attention.apply(call, *x)  # type: ignore[no-any-return, no-untyped-call]
    return forward(call, x, how_for(call, x), keep_state=False)[0]
