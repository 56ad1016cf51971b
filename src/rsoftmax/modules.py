"""The mappings as modules, one for each row of the table: ``r_softmax`` becomes ``RSoftmax`` and so on."""

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rsoftmax.mappings import MAPPINGS, Mapping


class MappingModule(nn.Module):
    """A mapping as a module, like :class:`torch.nn.Softmax`.

    Args:
        <parameter>: the mapping's parameter under its own letter, as the function takes it. A tensor is kept as a
            buffer, so it moves and saves with the module. May be left out and passed at each call.
        dim: the dimension that sums to one.
        learnable: train the parameter, starting at the given value (a tensor gives one for each head, say) or at the
            table's example. It is held on the real line and bent into its domain, which it can therefore never leave.
        <options>: whatever keywords the function takes beside ``dim`` and ``mask``.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> RSoftmax(r=0.5)(x)
        tensor([0.0000, 0.0000, 0.1092, 0.8908])
        >>> RSoftmax()(x, 0.75)
        tensor([0., 0., 0., 1.])
        >>> per_head = RSoftmax(r=torch.full((12, 1, 1), 0.2), learnable=True)
        >>> per_head(torch.randn(2, 12, 5, 5)).shape, per_head.r.shape
        (torch.Size([2, 12, 5, 5]), torch.Size([12, 1, 1]))
    """

    mapping: ClassVar[Mapping]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        bound = inspect.signature(type(self)).bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        self.dim: int = given.pop("dim")
        parameter = self.mapping.parameter
        self.free: nn.Parameter | None = None
        self.fixed: float | Tensor | None = None
        if parameter is not None:
            value, learnable = given.pop(parameter.name), given.pop("learnable")
            if learnable:
                self.free = nn.Parameter(self._unbent(parameter.example if value is None else value))
            elif isinstance(value, Tensor):
                del self.fixed
                self.register_buffer("fixed", value)
            else:
                self.fixed = value
        self.options = given

    @property
    def value(self) -> float | Tensor | None:
        """The parameter as it stands; also under its own letter, ``module.r``."""
        if self.free is None or self.mapping.parameter is None:
            return self.fixed
        return self.mapping.parameter.domain.bend(self.free)

    def forward(self, x: Tensor, value: float | Tensor | None = None, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x``, with the parameter given here or else the module's own."""
        me = type(self).__name__
        if self.mapping.parameter is None:
            if value is not None:
                raise TypeError(f"{me} takes no parameter, got {value!r}")
            return self.mapping.function(x, dim=self.dim, mask=mask)
        value = self.value if value is None else value
        if value is None:
            letter = self.mapping.parameter.name
            raise ValueError(
                f"{me} has no {letter}: give it to the module, {me}({letter}=...), or here, {me}()(x, ...)"
            )
        return self.mapping.function(x, value, dim=self.dim, mask=mask, **self.options)

    def extra_repr(self) -> str:
        """What ``repr`` shows: the parameter, dim and options."""
        shown = {"dim": self.dim, **self.options}
        if self.mapping.parameter is not None:
            shown = {self.mapping.parameter.name: _shown(self.value), "learnable": self.free is not None} | shown
        return ", ".join(f"{key}={value}" for key, value in shown.items())

    def _unbent(self, value: float | Tensor) -> Tensor:
        assert self.mapping.parameter is not None
        letter, domain = self.mapping.parameter.name, self.mapping.parameter.domain
        start = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.get_default_dtype())
        free = domain.unbend(start.detach().clone())
        if not (domain.contains(start) & free.isfinite()).all():
            raise ValueError(f"a learnable {letter} must start inside its domain ({letter} {domain.text}), got {value}")
        return free


def _shown(value: float | Tensor | None) -> str:
    if isinstance(value, Tensor) and value.dim():
        return f"tensor of shape {tuple(value.shape)}"
    return f"{value:.4g}" if value is not None else "None"


def _module(mapping: Mapping) -> type[MappingModule]:
    name = "".join(word.capitalize() for word in mapping.name.split("_"))
    space: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": f":func:`rsoftmax.{mapping.name}` as a module; see :class:`MappingModule`.",
        "__signature__": _signature(mapping),
        "mapping": mapping,
    }
    if mapping.parameter is not None:
        space[mapping.parameter.name] = property(lambda self: self.value)
    return type(name, (MappingModule,), space)


def _signature(mapping: Mapping) -> inspect.Signature:
    """``(r=None, dim=-1, learnable=False, *, detach_threshold=False)``, read off the function."""
    function = inspect.signature(mapping.function).parameters
    shown = [inspect.Parameter("dim", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=-1)]
    if mapping.parameter is not None:
        default = function[mapping.parameter.name].default
        given = function[mapping.parameter.name].replace(
            default=None if default is inspect.Parameter.empty else default
        )
        learnable = inspect.Parameter("learnable", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False)
        shown = [given, *shown, learnable]
    options = [p for name, p in function.items() if p.kind is p.KEYWORD_ONLY and name not in ("dim", "mask")]
    return inspect.Signature([*shown, *options])


MODULES = {module.__name__: module for module in map(_module, MAPPINGS.values())}
globals().update(MODULES)

if TYPE_CHECKING:  # the names that the table makes

    def __getattr__(name: str) -> type[MappingModule]: ...
