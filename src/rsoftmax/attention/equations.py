"""What attention computes, in plain torch: scores, weights, output, on all rows or on some of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rsoftmax.attention.inputs import Inputs
from rsoftmax.attention.noise import STEPS, noise
from rsoftmax.table import Mapping


@dataclass(frozen=True)
class Call:
    """Everything that is not a tensor: what to do with the inputs."""

    mapping: Mapping
    number: float | None  # the parameter, if it is a number
    scale: float
    is_causal: bool
    dropout_p: float
    seed: int = 0  # of the dropout

    @property
    def dropped(self) -> int:
        """How many of 65536 weights are dropped."""
        return round(self.dropout_p * STEPS)


def scores_of(call: Call, x: Inputs) -> Tensor:
    """scale q k^T + bias."""
    # Heads that share keys are further rows of one product, so keys are never repeated; beta = 0 leaves the first out.
    product = torch.baddbmm(x.q.new_empty(()), matrices(x.q), matrices(x.k).mT, beta=0, alpha=call.scale)
    scores: Tensor = product.reshape(*x.q.shape[:-1], x.k.shape[-2])
    return scores if x.bias is None else scores + x.bias


def mapped(call: Call, scores: Tensor, x: Inputs, first: int) -> Tensor:
    """The weights of rows, of which the first is query number ``first``."""
    mask = x.mask
    if call.is_causal:
        query = torch.arange(first, first + scores.shape[-2], device=scores.device)
        seen = torch.arange(scores.shape[-1], device=scores.device) <= query[:, None]
        mask = seen if mask is None else mask & seen
    if call.mapping.parameter is None:
        return call.mapping.function(scores, mask=mask)
    return call.mapping.function(scores, call.number if x.parameter is None else x.parameter, mask=mask)


def weights_of(call: Call, x: Inputs, first: int = 0) -> Tensor:
    """The mapping of the scores."""
    return mapped(call, scores_of(call, x), x, first)


def output_of(p: Tensor, v: Tensor) -> Tensor:
    """p v."""
    return torch.bmm(matrices(p), matrices(v)).reshape(*p.shape[:-1], v.shape[-1])


def matrices(x: Tensor) -> Tensor:
    """[B, H, G, rows, n] as [B H, G rows, n]."""
    batch, heads, groups, rows, n = x.shape
    return x.reshape(batch * heads, groups * rows, n)


def gradients_by_definition(call: Call, x: Inputs, g: Tensor, needed: tuple[bool, ...]) -> Iterator[Tensor | None]:
    """The gradients of the output, by differentiating the equations: in a form that can be differentiated again."""
    with torch.enable_grad():
        p = weights_of(call, x.wide())
        o = output_of(p * noise(call.seed, call.dropped, p.shape, p) if call.dropped else p, x.wide().v)
    wanted = [tensor for tensor, need in zip(x, needed, strict=True) if need and tensor is not None]
    options = {"create_graph": torch.is_grad_enabled(), "materialize_grads": True}
    found = iter(torch.autograd.grad(o, wanted, g, **options))
    return (next(found) if need else None for need in needed)
