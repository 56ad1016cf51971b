"""Attention as an operator of torch, ``rsoftmax::attention``, for compiled graphs: they never hold the whole matrix.

What :mod:`rsoftmax.operators` says of row functions holds here too: a graph calls the operator, which chooses its
kernel when the graph runs; eager code, exports and whatever transforms or differentiates forwards do without it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake

from rsoftmax.attention.equations import Call, output_of, weights_of
from rsoftmax.attention.inputs import Inputs
from rsoftmax.attention.noise import noise
from rsoftmax.attention.passes import How, backward, forward, how_for
from rsoftmax.kernels import CHOICES, attention
from rsoftmax.operators import library
from rsoftmax.table import ROW_MAPPINGS
from rsoftmax.tensors import at_least_float32, below_autograd, in_forward_mode, recorded

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? parameter, Tensor? mask, "
_CALL = "str mapping, float? number, float scale, bool is_causal, float dropout_p, Tensor? seed"
library.define(
    f"attention({_INPUTS}{_CALL}, bool keep_state) -> (Tensor o, Tensor state, Tensor how)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
library.define(
    f"attention_backward(Tensor g, {_INPUTS}{_CALL}, Tensor state, Tensor how, bool[] needed)"
    " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dparameter)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_NUMBER_OF_INPUTS = len(Inputs._fields)
_CHOICE_NAMES = tuple(CHOICES)


def takes(x: Inputs) -> bool:
    """Whether there is an implementation of the operator; asked while a graph is made."""
    return x.q.device.type in ("cpu", "cuda")


def output(call: Call, x: Inputs) -> Tensor:
    """The output, at least float32, by the operator."""
    seed = torch.randint(1 << 62, ()) if call.dropped else None
    numbers = (call.mapping.name, call.number, call.scale, call.is_causal, call.dropout_p, seed)
    o: Tensor = torch.ops.rsoftmax.attention(*x, *numbers, recorded(*x))[0]
    return o


def _call(
    mapping: str, number: float | None, scale: float, is_causal: bool, dropout_p: float, seed: Tensor | None
) -> Call:
    return Call(ROW_MAPPINGS[mapping], number, scale, is_causal, dropout_p, 0 if seed is None else int(seed))


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    tensors, numbers, keep_state = arguments[:_NUMBER_OF_INPUTS], arguments[_NUMBER_OF_INPUTS:-1], arguments[-1]
    x, call = Inputs(*tensors), _call(*numbers)
    how = how_for(call, x)
    o, state = forward(call, x, how, keep_state)
    return o, _new_state(x.q, keep_state).zero_() if state is None else state, _as_tensor(how)


def _backward(g: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    tensors, (*numbers, state, how, needed) = arguments[:_NUMBER_OF_INPUTS], arguments[_NUMBER_OF_INPUTS:]
    d = backward(_call(*numbers), Inputs(*tensors), _as_how(how), state, g, tuple(needed))
    return tuple(g.new_empty(0) if found is None else found.contiguous() for found in d[:-1])


def _as_tensor(how: How) -> Tensor:
    return torch.tensor([how.kernel is not None, how.block, _CHOICE_NAMES.index(how.rows)])


def _as_how(numbers: Tensor) -> How:
    by_kernel, block, rows = numbers.tolist()
    return How(attention if by_kernel else None, block, _CHOICE_NAMES[rows])


def _new_state(q: Tensor, keep_state: bool) -> Tensor:
    return attention.new_state(q, keep_state)


for device in ("CPU", "CUDA"):
    library.impl("attention", _forward, device)
    library.impl("attention_backward", _backward, device)


@register_fake("rsoftmax::attention", lib=library)  # type: ignore[untyped-decorator]
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, groups, rows, _ = q.shape
    o = q.new_empty((batch, rows, heads, groups, v.shape[-1]), dtype=at_least_float32(q.dtype))
    how = torch.empty(3, dtype=torch.int64)
    return o.permute(0, 2, 3, 1, 4), _new_state(q, rest[-1]), how


@register_fake("rsoftmax::attention_backward", lib=library)  # type: ignore[untyped-decorator]
def _(g: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    tensors, needed = arguments[:_NUMBER_OF_INPUTS], arguments[-1]
    like = zip(tensors[:-1], needed[:-1], strict=True)
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) if need else g.new_empty(0) for x, need in like
    )


def _unrecorded(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    with below_autograd():
        return torch.ops.rsoftmax.attention.default(*arguments)  # type: ignore[no-any-return]


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        made = _unrecorded(*arguments)
        *ctx.numbers, seed, _ = arguments[_NUMBER_OF_INPUTS:]
        ctx.save_for_backward(*arguments[:_NUMBER_OF_INPUTS], seed, *made[1:])
        ctx.mark_non_differentiable(*made[1:])
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g is None:
            return (None,) * len(ctx.needs_input_grad)
        *tensors, seed, state, how = ctx.saved_tensors
        needed = list(ctx.needs_input_grad[:_NUMBER_OF_INPUTS])
        found = torch.ops.rsoftmax.attention_backward(g, *tensors, *ctx.numbers, seed, state, how, needed)
        gradients = (d if need else None for d, need in zip(found, needed[:-1], strict=True))
        return *gradients, *(None for _ in ctx.needs_input_grad[_NUMBER_OF_INPUTS - 1 :])


def _with_gradient(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    if not in_forward_mode():
        operator = _Differentiable.apply if recorded(*arguments[:_NUMBER_OF_INPUTS]) else _unrecorded
        return operator(*arguments)
    # A graph that was made before, met by tensors with tangents: the equations carry them on.
    x, call = Inputs(*arguments[:_NUMBER_OF_INPUTS]).wide(), _call(*arguments[_NUMBER_OF_INPUTS:-1])
    p = weights_of(call, x)
    o = output_of(p * noise(call.seed, call.dropped, p.shape, p) if call.dropped else p, x.v)
    return o, _new_state(x.q, False), torch.zeros(3, dtype=torch.int64)


library.impl("attention", _with_gradient, "Autograd")
