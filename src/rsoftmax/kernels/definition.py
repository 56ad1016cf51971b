"""An operation by its definition: the reference on rows with a mask, and its gradient as torch finds it."""

import torch
from torch import Tensor

from rsoftmax.kernels import reference
from rsoftmax.rows import filled

Value = float | Tensor


def by_definition(name: str, x: Tensor, mask: Tensor | None, value: Value | None, options: dict[str, bool]) -> Tensor:
    """The probabilities, in the dtype of ``x``."""
    p: Tensor = getattr(reference, name)(filled(x, mask), *([] if value is None else [value]), **options)
    return p.to(x.dtype)


def gradient_by_definition(
    name: str,
    x: Tensor,
    mask: Tensor | None,
    value: Value | None,
    options: dict[str, bool],
    g: Tensor,
    needed: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in ``x`` and in ``value``, of which some are needed, by differentiating the reference."""
    with torch.enable_grad():
        p = by_definition(name, x, mask, value, options)
    wanted = [a for a, need in zip((x, value), needed, strict=True) if need and isinstance(a, Tensor)]
    # A detached threshold does not depend on r.
    how = {"create_graph": torch.is_grad_enabled(), "allow_unused": True}
    found = iter(torch.autograd.grad(p, wanted, g, **how) if p.requires_grad else (None, None))
    dx, dvalue = (next(found) if need else None for need in needed)
    return dx, dvalue
