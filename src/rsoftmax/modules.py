"""The mappings as modules, like :class:`torch.nn.Softmax`: one for each row of the table.

A parameter can be given to the module, passed at each call, or learned:

>>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
>>> RSoftmax(r=0.5)(x)
tensor([0.0000, 0.0000, 0.1092, 0.8908])
>>> RSoftmax()(x, 0.75)
tensor([0., 0., 0., 1.])
>>> per_head = RSoftmax(r=torch.full((12, 1, 1), 0.2), learnable=True)
>>> per_head(torch.randn(2, 12, 5, 5)).shape, per_head.r.shape
(torch.Size([2, 12, 5, 5]), torch.Size([12, 1, 1]))

``learnable=True`` trains the parameter from the given value (a tensor gives one for each head, say) or from the table's
example. It is held on the real line and bent into its domain, which it can therefore never leave; in float32 at least,
for half precision cannot tell one rate from the next. A tensor that is not learned is kept as a buffer: it moves and
saves with the module, and a schedule can change it (``module.r = 0.3``) without recompiling anything.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rsoftmax.kernels.native import in_memory
from rsoftmax.mappings import MAPPINGS, Mapping
from rsoftmax.rows import Parameter, inside_domain

Value = float | Tensor


class MappingModule(nn.Module):
    """What all of them are: a row of the table, along ``dim``."""

    mapping: ClassVar[Mapping]

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"dim={self.dim}"


class PlainModule(MappingModule):
    """A mapping without a parameter."""

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities."""
        return self.mapping.function(x, dim=self.dim, mask=mask)


class Letter:
    """The parameter of a module under its own letter, to read and to set: ``module.r``."""

    def __get__(self, module: "ParametricModule", _: type) -> Value | None:
        return module.value

    def __set__(self, module: "ParametricModule", value: Value) -> None:
        module.value = value


class ParametricModule(MappingModule):
    """A mapping whose parameter is given, passed at the call, or learned.

    Args:
        value: the parameter, or None to pass it at each call.
        dim: the dimension that sums to one.
        learnable: whether to train it.
        options: further keywords of the function.
    """

    def __init__(self, value: Value | None, dim: int, learnable: bool, **options: Any) -> None:
        super().__init__(dim)
        self.options = options
        self.register_parameter("free", None)
        self.register_buffer("fixed", None)
        self.number: float | None = None
        if isinstance(value, nn.Parameter):
            raise TypeError(f"{self._name} makes its own parameter; pass the tensor and learnable=True")
        if learnable:
            self.free = nn.Parameter(self._unbent(self._parameter.example if value is None else value))
        elif value is not None:
            self.value = value

    @property
    def value(self) -> Value | None:
        """The parameter as it stands."""
        if self.free is not None:
            return self._parameter.domain.bend(self.free.to(torch.promote_types(self.free.dtype, torch.float32)))
        return self.number if self.fixed is None else self.fixed

    @value.setter
    def value(self, value: Value) -> None:
        value = inside_domain(self._name, self._parameter, value)
        if self.free is not None:
            with torch.no_grad():
                self.free.copy_(self._unbent(value))
        elif self.fixed is not None:
            self.fixed.copy_(torch.as_tensor(value))
        elif isinstance(value, Tensor):
            self.fixed, self.number = value.detach().clone(), None
        else:
            self.number = value

    def _map(self, x: Tensor, value: Value | None, mask: Tensor | None) -> Tensor:
        value = self.value if value is None else value
        if value is None:
            letter = self._parameter.name
            raise ValueError(
                f"{self._name} has no {letter}: give it to the module, {self._name}({letter}=...), or to the call"
            )
        return self.mapping.function(x, value, dim=self.dim, mask=mask, **self.options)

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        value = self.value
        if isinstance(value, Tensor) and not (value.dim() == 0 and in_memory(value)):
            shown = f"tensor{tuple(value.shape)}"
        else:
            shown = "None" if value is None else f"{float(value):.4g}"
        items = {self._parameter.name: shown, "learnable": self.free is not None, "dim": self.dim, **self.options}
        return ", ".join(f"{key}={item}" for key, item in items.items())

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _parameter(self) -> Parameter:
        assert self.mapping.parameter is not None
        return self.mapping.parameter

    def _unbent(self, value: Value) -> Tensor:
        start = torch.as_tensor(inside_domain(self._name, self._parameter, value))
        start = start.detach().to(start.dtype if isinstance(value, Tensor) else torch.get_default_dtype())
        free = self._parameter.domain.unbend(start)
        if in_memory(free) and not free.isfinite().all():
            letter = self._parameter.name
            raise ValueError(
                f"{self._name}: a learnable {letter} has no gradient at the edge of its domain, got {value}"
            )
        return free


class Softmax(PlainModule):
    """:func:`rsoftmax.softmax` as a module."""

    mapping = MAPPINGS["softmax"]


class WeightedSoftmax(ParametricModule):
    """:func:`rsoftmax.weighted_softmax` as a module."""

    mapping = MAPPINGS["weighted_softmax"]
    w = Letter()

    def __init__(self, w: Tensor | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(w, dim, learnable)

    def forward(self, x: Tensor, w: Tensor | None = None, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities, with the ``w`` given here or else the module's own."""
        return self._map(x, w, mask)


class TSoftmax(ParametricModule):
    """:func:`rsoftmax.t_softmax` as a module."""

    mapping = MAPPINGS["t_softmax"]
    t = Letter()

    def __init__(self, t: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(t, dim, learnable)

    def forward(self, x: Tensor, t: Value | None = None, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities, with the ``t`` given here or else the module's own."""
        return self._map(x, t, mask)


class RSoftmax(ParametricModule):
    """:func:`rsoftmax.r_softmax` as a module."""

    mapping = MAPPINGS["r_softmax"]
    r = Letter()

    def __init__(
        self, r: Value | None = None, dim: int = -1, learnable: bool = False, *, detach_threshold: bool = False
    ) -> None:
        super().__init__(r, dim, learnable, detach_threshold=detach_threshold)

    def forward(self, x: Tensor, r: Value | None = None, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities, with the ``r`` given here or else the module's own."""
        return self._map(x, r, mask)


class Sparsemax(PlainModule):
    """:func:`rsoftmax.sparsemax` as a module."""

    mapping = MAPPINGS["sparsemax"]


class SparsegenLin(ParametricModule):
    """:func:`rsoftmax.sparsegen_lin` as a module."""

    mapping = MAPPINGS["sparsegen_lin"]
    lam = Letter()

    def __init__(self, lam: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(lam, dim, learnable)

    def forward(self, x: Tensor, lam: Value | None = None, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities, with the ``lam`` given here or else the module's own."""
        return self._map(x, lam, mask)


class SparsegenExp(ParametricModule):
    """:func:`rsoftmax.sparsegen_exp` as a module."""

    mapping = MAPPINGS["sparsegen_exp"]
    lam = Letter()

    def __init__(self, lam: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(lam, dim, learnable)

    def forward(self, x: Tensor, lam: Value | None = None, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities, with the ``lam`` given here or else the module's own."""
        return self._map(x, lam, mask)


class Sparsehourglass(ParametricModule):
    """:func:`rsoftmax.sparsehourglass` as a module."""

    mapping = MAPPINGS["sparsehourglass"]
    q = Letter()

    def __init__(self, q: Value | None = 10.0, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(q, dim, learnable)

    def forward(self, x: Tensor, q: Value | None = None, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities, with the ``q`` given here or else the module's own."""
        return self._map(x, q, mask)


class SphericalSoftmax(PlainModule):
    """:func:`rsoftmax.spherical_softmax` as a module."""

    mapping = MAPPINGS["spherical_softmax"]


class Entmax15(PlainModule):
    """:func:`rsoftmax.entmax15` as a module."""

    mapping = MAPPINGS["entmax15"]


MODULES: dict[str, type[PlainModule | ParametricModule]] = {
    module.__name__: module for kind in (PlainModule, ParametricModule) for module in kind.__subclasses__()
}
