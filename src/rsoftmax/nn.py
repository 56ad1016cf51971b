"""The mappings as modules, like :class:`torch.nn.Softmax`: one for each row of the table.

A parameter is given to the module, passed at each call, or learned:

>>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
>>> RSoftmax(r=0.5)(x)
tensor([0.0000, 0.0000, 0.1092, 0.8908])
>>> RSoftmax()(x, 0.75)
tensor([0., 0., 0., 1.])
>>> per_head = RSoftmax(r=torch.full((12, 1, 1), 0.2), learnable=True)
>>> per_head(torch.randn(2, 12, 5, 5)).shape, per_head.r.shape
(torch.Size([2, 12, 5, 5]), torch.Size([12, 1, 1]))

``learnable=True`` trains the parameter from the given value (a tensor may hold one for each head) or from the table's
example. The trained number is unconstrained and mapped into the parameter's domain, so it can never leave it. It is
used in at least float32: half precision cannot separate neighbouring rates. A tensor that is not learned is a buffer:
it is moved and saved with the module, and a schedule can change it (``module.r = 0.3``) without recompiling. Changing a
number causes one recompilation, because torch treats it as a constant at first.

The classes below are written out for type checkers, editors and arguments that only one of them has. A mapping without
one, registered elsewhere, gets a generated class: ``MODULES`` has them all.
"""

import math
from collections.abc import Callable, Iterator
from collections.abc import Mapping as AbstractMapping
from functools import cache
from types import new_class
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rsoftmax._rows import ParamSpec, inside_domain
from rsoftmax._tensors import Value, at_least_float32, is_eager_cpu
from rsoftmax.mappings import MAPPINGS, MappingSpec

__all__ = [
    "MODULES",
    "Entmax",
    "Entmax15",
    "KSoftmax",
    "MappingModule",
    "RSoftmax",
    "Softmax",
    "SparsegenExp",
    "SparsegenLin",
    "Sparsehourglass",
    "Sparsemax",
    "SphericalSoftmax",
    "TSoftmax",
]


class MappingModule(nn.Module):
    """The base class: a mapping of the table, applied along ``dim``."""

    mapping: ClassVar[MappingSpec]

    def __init_subclass__(cls, mapping: str = "") -> None:
        super().__init_subclass__()
        if mapping:
            cls.mapping = MAPPINGS[mapping]

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        """The arguments shown by ``repr``."""
        return f"dim={self.dim}"


class PlainModule(MappingModule):
    """A mapping without a parameter."""

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities."""
        return self.mapping.function(x, dim=self.dim, mask=mask)


def _forward(letter: str) -> Callable[..., Tensor]:
    forward = _function(f"forward(self, x, {letter}=None, *, mask=None)", f"return self._map(x, {letter}, mask)")
    forward.__doc__ = f"Map ``x`` to probabilities, with the ``{letter}`` of the call or else of the module."
    return forward


def _function(head: str, body: str) -> Callable[..., Any]:
    """Compile a function with an argument named by the mapping's letter, as ``dataclasses`` does."""
    made: dict[str, Any] = {}
    exec(f"def {head}:\n    {body}", globals(), made)
    function: Callable[..., Any] = made.popitem()[1]
    return function


def _shown(value: Value | None) -> str:
    if isinstance(value, Tensor):
        value = value.detach()
        if value.dim() or not is_eager_cpu(value):
            return f"tensor{tuple(value.shape)}"
    return "None" if value is None else f"{float(value):.4g}"


class Letter:
    """The parameter of a module under its letter, to read and to set: ``module.r``."""

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
        options: further keyword arguments of the function.
    """

    forward: Callable[..., Tensor]

    def __init_subclass__(cls, mapping: str = "") -> None:
        super().__init_subclass__(mapping)
        if mapping:
            cls.forward = _forward(cls._parameter().name)

    def __init__(self, value: Value | None, dim: int, learnable: bool, **options: Any) -> None:
        super().__init__(dim)
        self.options = options | self.mapping.bind_options(type(self).__name__, options)
        self.register_parameter("free", None)  # the trained number, on the real line
        self.register_buffer("fixed", None)  # a tensor that is not learnable
        self.number: float | None = None
        if isinstance(value, nn.Parameter):
            raise TypeError(f"{self._name} creates its own nn.Parameter; pass a tensor and learnable=True")
        if learnable:
            self.free = nn.Parameter(self._unconstrained(self._parameter().example if value is None else value))
        elif value is not None:
            self.value = value

    @property
    def value(self) -> Value | None:
        """The current value of the parameter."""
        if self.free is not None:
            return self._parameter().domain.constrain(self.free.to(at_least_float32(self.free.dtype)))
        return self.number if self.fixed is None else self.fixed

    @value.setter
    def value(self, value: Value) -> None:
        value = inside_domain(self._name, self._parameter(), value)
        if self.free is not None:
            with torch.no_grad():
                self.free.copy_(self._unconstrained(value))
        elif self.fixed is not None:
            self.fixed.copy_(value if isinstance(value, Tensor) else torch.tensor(value))
        elif isinstance(value, Tensor):
            self.fixed, self.number = value.detach().clone(), None
        else:
            self.number = value

    def extra_repr(self) -> str:
        """The arguments shown by ``repr``."""
        items = {
            self._parameter().name: _shown(self.value),
            "learnable": self.free is not None,
            "dim": self.dim,
            **self.options,
        }
        return ", ".join(f"{key}={item}" for key, item in items.items())

    def _map(self, x: Tensor, value: Value | None, mask: Tensor | None) -> Tensor:
        value = self.value if value is None else value
        if value is None:
            letter = self._parameter().name
            raise ValueError(
                f"{self._name} has no {letter}: pass it to the module, {self._name}({letter}=...), or to the call"
            )
        return self.mapping.function(x, value, dim=self.dim, mask=mask, **self.options)

    def _unconstrained(self, value: Value) -> Tensor:
        inside = inside_domain(self._name, self._parameter(), value)
        start = inside.detach() if isinstance(inside, Tensor) else torch.tensor(inside, dtype=torch.get_default_dtype())
        free = self._parameter().domain.unconstrain(start)
        if is_eager_cpu(free) and not free.isfinite().all():
            letter = self._parameter().name
            raise ValueError(
                f"{self._name}: a learnable {letter} has no gradient at the edge of its domain, got {value}"
            )
        return free

    @property
    def _name(self) -> str:
        return type(self).__name__

    @classmethod
    def _parameter(cls) -> ParamSpec:
        assert cls.mapping.parameter is not None
        return cls.mapping.parameter


class Softmax(PlainModule, mapping="softmax"):
    """:func:`rsoftmax.softmax` as a module."""


class TSoftmax(ParametricModule, mapping="t_softmax"):
    """:func:`rsoftmax.t_softmax` as a module; ``t`` given, passed or learned like ``r`` of :class:`RSoftmax`."""

    t = Letter()

    def __init__(
        self, t: Value | None = None, dim: int = -1, learnable: bool = False, *, edge: float = math.inf
    ) -> None:
        super().__init__(t, dim, learnable, edge=edge)


class KSoftmax(ParametricModule, mapping="k_softmax"):
    """:func:`rsoftmax.k_softmax` as a module; ``k`` given, passed or learned like ``r`` of :class:`RSoftmax`."""

    k = Letter()

    def __init__(
        self, k: Value | None = None, dim: int = -1, learnable: bool = False, *, edge: float = math.inf
    ) -> None:
        super().__init__(k, dim, learnable, edge=edge)


class RSoftmax(ParametricModule, mapping="r_softmax"):
    """:func:`rsoftmax.r_softmax` as a module.

    Args:
        r: the rate, in [0, 1]; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1. None: pass
            it at each call.
        dim: the dimension that sums to one.
        learnable: train ``r`` from the given value, default 0.5; it stays above 0 and below 1.
        edge: the distance above the threshold over which weights rise.
        detach_threshold: treat the quantile as a constant in the backward pass.

    Example:
        >>> RSoftmax(r=0.5)(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([0.0000, 0.0000, 0.1092, 0.8908])
        >>> RSoftmax(r=torch.full((12, 1, 1), 0.2), learnable=True)
        RSoftmax(r=tensor(12, 1, 1), learnable=True, dim=-1, edge=inf, detach_threshold=False)
    """

    r = Letter()

    def __init__(
        self,
        r: Value | None = None,
        dim: int = -1,
        learnable: bool = False,
        *,
        edge: float = math.inf,
        detach_threshold: bool = False,
    ) -> None:
        super().__init__(r, dim, learnable, edge=edge, detach_threshold=detach_threshold)


class Sparsemax(PlainModule, mapping="sparsemax"):
    """:func:`rsoftmax.sparsemax` as a module."""


class SparsegenLin(ParametricModule, mapping="sparsegen_lin"):
    """:func:`rsoftmax.sparsegen_lin` as a module; ``lam`` given, passed or learned like ``r`` of :class:`RSoftmax`."""

    lam = Letter()

    def __init__(self, lam: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(lam, dim, learnable)


class SparsegenExp(ParametricModule, mapping="sparsegen_exp"):
    """:func:`rsoftmax.sparsegen_exp` as a module; ``lam`` given, passed or learned like ``r`` of :class:`RSoftmax`."""

    lam = Letter()

    def __init__(self, lam: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(lam, dim, learnable)


class Sparsehourglass(ParametricModule, mapping="sparsehourglass"):
    """:func:`rsoftmax.sparsehourglass` as a module; ``q`` given, passed or learned like ``r`` of :class:`RSoftmax`."""

    q = Letter()

    def __init__(self, q: Value | None = 10.0, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(q, dim, learnable)


class SphericalSoftmax(PlainModule, mapping="spherical_softmax"):
    """:func:`rsoftmax.spherical_softmax` as a module."""


class Entmax15(PlainModule, mapping="entmax15"):
    """:func:`rsoftmax.entmax15` as a module."""


class Entmax(ParametricModule, mapping="entmax"):
    """:func:`rsoftmax.entmax` as a module; ``alpha`` given, passed or learned like ``r`` of :class:`RSoftmax`."""

    alpha = Letter()

    def __init__(self, alpha: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(alpha, dim, learnable)


def module_of(mapping: MappingSpec) -> type[PlainModule | ParametricModule]:
    """The class of a mapping: the one written out above, or a generated one.

    Example:
        >>> module_of(MAPPINGS["r_softmax"])
        <class 'rsoftmax.nn.RSoftmax'>
    """
    written: Any = globals().get(_class_name(mapping.name))
    kind: type[PlainModule | ParametricModule]
    kind = written if getattr(written, "mapping", None) is mapping else _generated(mapping)
    return kind


class _Modules(AbstractMapping[str, type[PlainModule | ParametricModule]]):
    """A live view of the classes of all mappings, by class name."""

    def __getitem__(self, name: str) -> type[PlainModule | ParametricModule]:
        return module_of({_class_name(row.name): row for row in MAPPINGS.values()}[name])

    def __iter__(self) -> Iterator[str]:
        return map(_class_name, MAPPINGS)

    def __len__(self) -> int:
        return len(MAPPINGS)


MODULES = _Modules()


def __getattr__(name: str) -> Any:
    if name in MODULES:  # pickle looks generated classes up here
        return MODULES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@cache
def _generated(mapping: MappingSpec) -> Any:
    parts: dict[str, Any] = {"__module__": __name__, "__doc__": f":func:`{mapping.name}` as a module."}
    base: type[MappingModule] = PlainModule
    if mapping.parameter is not None:
        base = ParametricModule
        parts |= {mapping.parameter.name: Letter(), "__init__": _init(mapping)}
    return new_class(_class_name(mapping.name), (base,), {"mapping": mapping.name}, lambda body: body.update(parts))


def _init(mapping: MappingSpec) -> Callable[..., None]:
    assert mapping.parameter is not None
    letter, options = mapping.parameter.name, ", **options" if mapping.options else ""
    head = f"__init__(self, {letter}={mapping.parameter.default!r}, dim=-1, learnable=False{options})"
    return _function(head, f"ParametricModule.__init__(self, {letter}, dim, learnable{options})")
