"""Which code runs a call, forward and backward: one kernel if it supports the call, otherwise block by block.

Eager code calls :func:`output`. Compiled graphs call :func:`graph_output`, an operator of torch which plans when the
graph runs (see :mod:`rsoftmax.kernels.graph_ops`), so that they never hold the whole matrix either. Exports, transforms
and forward-mode differentiation use neither.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax import kernels
from rsoftmax._tensors import at_least_float32, clone_if_inference, is_plain, is_recorded, without_autocast
from rsoftmax.attention import blocks, reference
from rsoftmax.kernels import CHOICES, as_chosen, get_kernels
from rsoftmax.kernels.attention_args import TENSORS, AttentionArgs
from rsoftmax.kernels.graph_ops import GraphOp

_CHOICES = list(CHOICES)


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


# --------------------------------------------------------------------------- the operator rsoftmax::attention


def has_graph_op(device: torch.device) -> bool:
    """Whether the operator is implemented for a device; evaluated while a graph is traced."""
    return device.type in ("cpu", "cuda")


def graph_output(args: AttentionArgs) -> Tensor:
    """The output, at least float32, by the operator."""
    seed = torch.randint(1 << 62, ()) if args.dropped else None
    o: Tensor = torch.ops.rsoftmax.attention(*args[:-2], seed, is_recorded(*args.tensors))[0]
    return o


def _args(*fields: Any) -> AttentionArgs:
    *others, options, seed = fields
    return AttentionArgs(*others, tuple(options), None if seed is None else int(seed))  # type: ignore[call-arg]


def _graph_forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the state, and the plan: an operator returns tensors only."""
    *fields, keep_state = inputs
    args = _args(*fields)
    fused, block, choice = chosen = plan(args)
    o, state = forward(args, chosen, keep_state)
    state = kernels.attention.new_state(args.q, keep_state).zero_() if state is None else state
    return o, state, torch.tensor([fused, block, _CHOICES.index(choice)])


def _graph_backward(g: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *fields, state, numbers, needed = inputs
    fused, block, choice = numbers.tolist()
    d = backward(_args(*fields), Plan(bool(fused), block, _CHOICES[choice]), state, g, (*needed, False))
    return tuple(g.new_empty(0) if x is None else x.contiguous() for x in d[:-1])


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, groups, queries, _ = q.shape
    o = q.new_empty((batch, queries, heads, groups, v.shape[-1]), dtype=at_least_float32(q.dtype))
    return o.permute(0, 2, 3, 1, 4), kernels.attention.new_state(q, rest[-1]), torch.empty(3, dtype=torch.int64)


def _fake_backward(g: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    like = zip(inputs[: TENSORS - 1], inputs[-1], strict=True)
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) if need else g.new_empty(0) for x, need in like
    )


GraphOp(
    "attention",
    inputs="Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? parameter, Tensor? mask,"
    " str mapping, float? number, float scale, bool is_causal, float dropout_p, float[] options, Tensor? seed",
    outputs="Tensor o, Tensor state, Tensor plan",
    differentiable=("q", "k", "v", "bias", "parameter"),
    saved=("state", "plan"),
    forward=_graph_forward,
    backward=_graph_backward,
    fake_forward=_fake_forward,
    fake_backward=_fake_backward,
    reference_forward=lambda *inputs: (
        reference.output(_args(*inputs[:-1])),
        kernels.attention.new_state(inputs[0], False),
        torch.zeros(3, dtype=torch.int64),
    ),
).register()
