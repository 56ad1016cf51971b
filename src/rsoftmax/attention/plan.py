"""Forward and backward in eager code: by one kernel if it supports the call, otherwise block by block."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax import kernels
from rsoftmax._tensors import clone_if_inference, is_plain, is_recorded, without_autocast
from rsoftmax.attention import blocks, reference
from rsoftmax.kernels import as_chosen, get_kernels
from rsoftmax.kernels.attention_args import TENSORS, AttentionArgs


class Plan(NamedTuple):
    """How a call is computed. It depends on the state of the process, which may have changed when backward runs."""

    fused: bool  # the whole call by one kernel, not block by block
    block: int  # how many scores a block may have
    kernels: str  # chosen for the rows of a block


def plan(args: AttentionArgs) -> Plan:
    """How the process computes a call now."""
    kernel = kernels.attention_kernel()
    return Plan(kernel is not None and kernel.supports_call(args), blocks.block_size(args), get_kernels())


def forward(args: AttentionArgs, plan: Plan, keep_state: bool) -> tuple[Tensor, Tensor | None]:
    """The output, at least float32, and the state that a kernel keeps for backward."""
    if plan.fused:
        return kernels.attention.forward(args, keep_state)
    return blocks.forward(args, plan.block), None


def backward(
    args: AttentionArgs, plan: Plan, state: Tensor | None, g: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients that are needed."""
    if not plan.fused:
        with as_chosen(plan.kernels):
            return blocks.backward(args, g, needed, plan.block)
    assert state is not None
    d = kernels.attention.backward(args, state, g, needed)
    return tuple(x if need else None for x, need in zip((*d, None), needed, strict=True))


class _Attention(torch.autograd.Function):
    """The output as a function of the six tensors."""

    @staticmethod
    def forward(ctx: Any, *fields: Any) -> Tensor:
        """Save the tensors and the state of each query, nothing of the size of the weights."""
        args = AttentionArgs(*fields)
        ctx.settings, ctx.plan = args.settings, plan(args)
        o, state = forward(args, ctx.plan, keep_state=any(ctx.needs_input_grad))
        ctx.save_for_backward(*(clone_if_inference(tensor) for tensor in args.tensors), state)
        return o

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """By the plan of forward; by the equations if the gradient is differentiated again or transformed."""
        *tensors, state = ctx.saved_tensors
        args, needed = AttentionArgs(*tensors, *ctx.settings), ctx.needs_input_grad[:TENSORS]
        others = (None,) * len(ctx.settings)
        with without_autocast(g):
            if not torch.is_grad_enabled() and is_plain(g):
                return *backward(args, ctx.plan, state, g, needed), *others
            with as_chosen(ctx.plan.kernels):
                return *reference.gradients(args, g, needed), *others


def output(args: AttentionArgs) -> Tensor:
    """The output in eager code; autograd is involved only if it records."""
    if args.dropped:  # backward draws the same weights from this number of torch's generator
        args = args._replace(seed=int(torch.randint(1 << 62, (), device="cpu")))
    if is_recorded(*args.tensors):
        return _Attention.apply(*args)  # type: ignore[no-any-return, no-untyped-call]
    return forward(args, plan(args), keep_state=False)[0]
