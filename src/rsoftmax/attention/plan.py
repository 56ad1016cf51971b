"""Forward and backward in eager code: by one kernel if it supports the call, otherwise block by block."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax import kernels
from rsoftmax._tensors import clone_if_inference, is_plain, is_recorded, without_autocast
from rsoftmax.attention import blocks
from rsoftmax.attention.arguments import TENSORS, Call
from rsoftmax.attention.reference import reference_gradients
from rsoftmax.kernels import get_kernels, use_kernels


class How(NamedTuple):
    """How a call is computed. It depends on the state of the process, which may have changed when backward runs."""

    kernel: Any  # computes the whole call; None: block by block
    block: int  # how many scores a block may have
    rows: str  # which kernels compute the rows of a block


def how_for(call: Call) -> How:
    """How the process computes a call now."""
    kernel = kernels.attention_kernel()
    return How(kernel if kernel is not None and kernel.takes(call) else None, blocks.block_size(call), get_kernels())


def forward(call: Call, how: How, keep_state: bool) -> tuple[Tensor, Tensor | None]:
    """The output, at least float32, and the state that a kernel keeps for backward."""
    if how.kernel is None:
        return blocks.forward(call, how.block), None
    output: tuple[Tensor, Tensor | None] = how.kernel.forward(call, keep_state)
    return output


def backward(
    call: Call, how: How, state: Tensor | None, g: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients that are needed."""
    if how.kernel is None:
        with use_kernels(how.rows):
            return blocks.backward(call, g, needed, how.block)
    found = how.kernel.backward(call, state, g, needed)
    return tuple(d if need else None for d, need in zip((*found, None), needed, strict=True))


class _Attention(torch.autograd.Function):
    """The output as a function of the tensors of a call."""

    @staticmethod
    def forward(ctx: Any, *call: Any) -> Tensor:
        """Save the tensors and the state of each row, nothing of the size of the weights."""
        x = Call(*call)
        ctx.settings, ctx.how = x.settings, how_for(x)
        o, state = forward(x, ctx.how, keep_state=any(ctx.needs_input_grad))
        ctx.save_for_backward(*(clone_if_inference(tensor) for tensor in x.tensors), state)
        return o

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """As forward was computed; by the equations if the gradient is differentiated again or transformed."""
        *tensors, state = ctx.saved_tensors
        call, needed = Call(*tensors, *ctx.settings), ctx.needs_input_grad[:TENSORS]
        others = (None,) * len(ctx.settings)
        with without_autocast(g):
            if not torch.is_grad_enabled() and is_plain(g):
                return *backward(call, ctx.how, state, g, needed), *others
            with use_kernels(ctx.how.rows):
                return *reference_gradients(call, g, needed), *others


def output(call: Call) -> Tensor:
    """The output in eager code; autograd is involved only if it records."""
    if call.dropped:  # backward draws the same weights from this number of torch's generator
        call = call._replace(seed=int(torch.randint(1 << 62, (), device="cpu")))
    if is_recorded(*call.tensors):
        return _Attention.apply(*call)  # type: ignore[no-any-return, no-untyped-call]
    return forward(call, how_for(call), keep_state=False)[0]
