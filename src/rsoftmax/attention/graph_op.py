"""Attention as an operator of torch, ``rsoftmax::attention``, for compiled graphs: they never hold the whole matrix.

See :mod:`rsoftmax.kernels.graph_ops`: a graph calls the operator, which chooses its kernel when the graph runs. Eager
code, exports, transforms and forward-mode differentiation do not use it.
"""

from typing import Any

import torch
from torch import Tensor

from rsoftmax._tensors import at_least_float32, is_recorded
from rsoftmax.attention import plan, reference
from rsoftmax.attention.arguments import TENSORS, Call
from rsoftmax.attention.plan import How
from rsoftmax.kernels import CHOICES, attention
from rsoftmax.kernels.graph_ops import GraphOp

_CHOICE_NAMES = tuple(CHOICES)


def takes(call: Call) -> bool:
    """Whether the operator is implemented for the device; evaluated while a graph is traced."""
    return call.q.device.type in ("cpu", "cuda")


def output(call: Call) -> Tensor:
    """The output, at least float32, by the operator."""
    seed = torch.randint(1 << 62, ()) if call.dropped else None
    o: Tensor = torch.ops.rsoftmax.attention(*call[:-1], seed, is_recorded(*call.tensors))[0]
    return o


def _call(*arguments: Any) -> Call:
    options, seed = arguments[-2:]
    return Call(*arguments[:-2], tuple(options), 0 if seed is None else int(seed))  # type: ignore[call-arg]


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call, keep_state = _call(*arguments[:-1]), arguments[-1]
    how = plan.how_for(call)
    o, state = plan.forward(call, how, keep_state)
    return o, attention.new_state(call.q, keep_state).zero_() if state is None else state, _as_tensor(how)


def _backward(g: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *call, state, how, needed = arguments
    d = plan.backward(_call(*call), _as_how(how), state, g, (*needed, False))
    return tuple(g.new_empty(0) if found is None else found.contiguous() for found in d[:-1])


def _as_tensor(how: How) -> Tensor:
    return torch.tensor([how.kernel is not None, how.block, _CHOICE_NAMES.index(how.rows)])


def _as_how(numbers: Tensor) -> How:
    by_kernel, block, rows = numbers.tolist()
    return How(attention if by_kernel else None, block, _CHOICE_NAMES[rows])


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, groups, rows, _ = q.shape
    o = q.new_empty((batch, rows, heads, groups, v.shape[-1]), dtype=at_least_float32(q.dtype))
    return o.permute(0, 2, 3, 1, 4), attention.new_state(q, rest[-1]), torch.empty(3, dtype=torch.int64)


def _fake_backward(g: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    like = zip(arguments[: TENSORS - 1], arguments[-1], strict=True)
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) if need else g.new_empty(0) for x, need in like
    )


def _by_definition(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = _call(*arguments[:-1])
    return reference.output(call), attention.new_state(call.q, False), torch.zeros(3, dtype=torch.int64)


GraphOp(
    "attention",
    inputs="Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? parameter, Tensor? mask,"
    " str mapping, float? number, float scale, bool is_causal, float dropout_p, float[] options, Tensor? seed",
    outputs="Tensor o, Tensor state, Tensor how",
    differentiable=("q", "k", "v", "bias", "parameter"),
    saved=("state", "how"),
    forward=_forward,
    backward=_backward,
    fake_forward=_fake_forward,
    fake_backward=_fake_backward,
    reference_forward=_by_definition,
).register()
