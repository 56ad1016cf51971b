"""Attention as an operator of torch, ``rsoftmax::attention``, for compiled graphs: they never hold the whole matrix.

See :mod:`rsoftmax.kernels.graph_ops`: a graph calls the operator, which chooses its kernel when the graph runs. Eager
code, exports, transforms and forward-mode differentiation do not use it.
"""

from typing import Any

import torch
from torch import Tensor

from rsoftmax._tensors import at_least_float32, is_recorded
from rsoftmax.attention import reference
from rsoftmax.attention.plan import Plan, backward, forward, plan
from rsoftmax.kernels import CHOICES, attention
from rsoftmax.kernels.attention_args import TENSORS, AttentionArgs
from rsoftmax.kernels.graph_ops import GraphOp

_CHOICES = list(CHOICES)


def supports(device: torch.device) -> bool:
    """Whether the operator is implemented for a device; evaluated while a graph is traced."""
    return device.type in ("cpu", "cuda")


def output(args: AttentionArgs) -> Tensor:
    """The output, at least float32, by the operator."""
    seed = torch.randint(1 << 62, ()) if args.dropped else None
    o: Tensor = torch.ops.rsoftmax.attention(*args[:-1], seed, is_recorded(*args.tensors))[0]
    return o


def _args(*fields: Any) -> AttentionArgs:
    *others, options, seed = fields
    return AttentionArgs(*others, tuple(options), None if seed is None else int(seed))  # type: ignore[call-arg]


def _forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the state, and the plan: an operator returns tensors only."""
    *fields, keep_state = inputs
    args = _args(*fields)
    fused, block, choice = chosen = plan(args)
    o, state = forward(args, chosen, keep_state)
    state = attention.new_state(args.q, keep_state).zero_() if state is None else state
    return o, state, torch.tensor([fused, block, _CHOICES.index(choice)])


def _backward(g: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *fields, state, numbers, needed = inputs
    fused, block, choice = numbers.tolist()
    d = backward(_args(*fields), Plan(bool(fused), block, _CHOICES[choice]), state, g, (*needed, False))
    return tuple(g.new_empty(0) if x is None else x.contiguous() for x in d[:-1])


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, groups, queries, _ = q.shape
    o = q.new_empty((batch, queries, heads, groups, v.shape[-1]), dtype=at_least_float32(q.dtype))
    return o.permute(0, 2, 3, 1, 4), attention.new_state(q, rest[-1]), torch.empty(3, dtype=torch.int64)


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
    forward=_forward,
    backward=_backward,
    fake_forward=_fake_forward,
    fake_backward=_fake_backward,
    reference_forward=lambda *inputs: (
        reference.output(_args(*inputs[:-1])),
        attention.new_state(inputs[0], False),
        torch.zeros(3, dtype=torch.int64),
    ),
).register()
