"""How to add a mapping: the table of mappings, :func:`register_mapping`, and everything a new mapping needs.

A mapping is a function ``f(x, <parameter>, dim=-1, *, mask=None)`` with an entry in the table ``MAPPINGS``. Modules,
attention, multi-label heads, Hugging Face models and the command line look mappings up there. Importing
:mod:`rsoftmax.mappings` registers the built-in ones.

=================  ==================================================================================================
an entry           :func:`register_mapping`, :class:`MappingSpec`
a parameter        :class:`ParamSpec`, :class:`Domain` and the domains ``RATE``, ``COUNT``, ``POSITIVE``,
                   ``DISTANCE``, ``WEIGHT``, ``BELOW_ONE``, ``NOT_NEGATIVE``, ``ENTMAX``, ``ABOVE_ONE``, ``SUM``,
                   ``LOGIT``
a function         :func:`over_rows` checks the arguments; :func:`mask_to_neg_inf`, :func:`apply_unmasked` and
                   :func:`row_max` handle masks; :func:`row_function` is a built-in row function with its kernels
=================  ==================================================================================================
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor

from rsoftmax._rows import Domain, ParamSpec, check_option, over_rows, positive
from rsoftmax._tensors import apply_unmasked, mask_to_neg_inf, row_max, shape_of
from rsoftmax.kernels.dispatch import row_function

__all__ = [
    "ABOVE_ONE",
    "BELOW_ONE",
    "COUNT",
    "DISTANCE",
    "ENTMAX",
    "LOGIT",
    "MAPPINGS",
    "NOT_NEGATIVE",
    "POSITIVE",
    "RATE",
    "SUM",
    "WEIGHT",
    "Domain",
    "MappingSpec",
    "ParamSpec",
    "apply_unmasked",
    "check_option",
    "describe_parameters",
    "mask_to_neg_inf",
    "over_rows",
    "register_mapping",
    "row_function",
    "row_max",
]

F = TypeVar("F", bound=Callable[..., Tensor])
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class MappingSpec:
    """A mapping of the table.

    Attributes:
        function: the mapping.
        formula: p, in short; "/ sum" normalises it.
        zeros: what sets the sparsity.
        source: the publication.
        parameter: its parameter, if any.
        options: keyword arguments that are numbers and have a default; they are not learnable.
        shift_invariant: adding a constant to a row changes nothing.
        keeps_order: a higher logit never gets a lower probability.
        sums_to_one: every row with an unmasked entry sums to one.
        nonzeros: their number from the parameter and the number of entries, for a mapping whose parameter sets it.
    """

    function: Callable[..., Tensor]
    formula: str
    zeros: str
    source: str
    parameter: ParamSpec | None = None
    options: tuple[ParamSpec, ...] = ()
    shift_invariant: bool = True
    keeps_order: bool = True
    sums_to_one: bool = True
    nonzeros: Callable[[Any, int], Any] | None = None

    @property
    def name(self) -> str:
        """Its name everywhere: function, key, option, column."""
        return self.function.__name__

    def bind(self, caller: str, arguments: dict[str, V]) -> V | float | None:
        """Pick the value of the parameter from keyword arguments.

        Args:
            caller: the prefix of error messages.
            arguments: values by name. None counts as missing.

        Returns:
            The value, or the parameter's default; None for a mapping without a parameter. The domain is not checked.

        Raises:
            TypeError: for a name of something else, or a missing value without a default.

        Example:
            >>> from rsoftmax import MAPPINGS
            >>> MAPPINGS["r_softmax"].bind("my_layer", {"r": 0.5}), MAPPINGS["sparsehourglass"].bind("my_layer", {})
            (0.5, 10.0)
            >>> MAPPINGS["r_softmax"].bind("my_layer", {"t": 2.0})
            Traceback (most recent call last):
            TypeError: my_layer: r_softmax takes r and edge, got t=2.0
        """
        names = [spec.name for spec in (self.parameter, *self.options) if spec]
        for name, value in arguments.items():
            if value is not None and name not in names:
                shown = f"a tensor of shape {shape_of(value)}" if isinstance(value, Tensor) else repr(value)
                takes = " and ".join(names) or "no parameter"
                raise TypeError(f"{caller}: {self.name} takes {takes}, got {name}={shown}")
        if self.parameter is None:
            return None
        bound = arguments.get(self.parameter.name)
        if bound is None and self.parameter.default is None:
            raise TypeError(f"{caller}: {self.name} needs {self.parameter.describe()}")
        return self.parameter.default if bound is None else bound

    def bind_options(self, caller: str, arguments: dict[str, Any]) -> dict[str, float]:
        """Pick the options from keyword arguments, with their defaults.

        Args:
            caller: the prefix of error messages.
            arguments: values by name; other names are ignored.

        Returns:
            The options by name, in the order of the table.

        Raises:
            TypeError: for a value that is not a number.
            ValueError: for a value outside its domain.

        Example:
            >>> from rsoftmax import MAPPINGS
            >>> MAPPINGS["t_softmax"].bind_options("my_layer", {"t": 6.0})
            {'edge': inf}
        """
        return {o.name: check_option(caller, o, arguments.get(o.name, o.default)) for o in self.options}


MAPPINGS: dict[str, MappingSpec] = {}
"""All mappings by name, in the order of registration."""


def register_mapping(
    *,
    formula: str,
    zeros: str,
    source: str,
    parameter: ParamSpec | None = None,
    options: tuple[ParamSpec, ...] = (),
    shift_invariant: bool = True,
    keeps_order: bool = True,
    sums_to_one: bool = True,
    nonzeros: Callable[[Any, int], Any] | None = None,
) -> Callable[[F], F]:
    """Add a function to the table of mappings.

    Args:
        formula, zeros, ..., nonzeros: as in :class:`MappingSpec`.

    Returns:
        A decorator that returns the function unchanged: ``f(x, <parameter>, dim=-1, *, mask=None)``.

    Raises:
        TypeError: if the function lacks one of these arguments.
        ValueError: if another function is registered under the name.

    Example:
        >>> import torch
        >>> from rsoftmax.registry import POSITIVE, ParamSpec, mask_to_neg_inf, over_rows, register_mapping
        >>> B = ParamSpec("b", POSITIVE, example=2.0)
        >>> @register_mapping(formula="e^(b x) / sum", parameter=B, zeros="none", source="Boltzmann 1868")
        ... def cool_softmax(x, b, dim=-1, *, mask=None):
        ...     cool = lambda x, mask, b: mask_to_neg_inf(b * x, mask).softmax(-1)
        ...     return over_rows("cool_softmax", cool, x, dim, mask, B, b)
        >>> from rsoftmax import MODULES
        >>> from rsoftmax.attention import sparse_attention
        >>> MODULES["CoolSoftmax"](b=1.0)(torch.tensor([1.0, 2.0, 3.0]))
        tensor([0.0900, 0.2447, 0.6652])
        >>> sparse_attention(*torch.randn(3, 4, 5, 8), mapping="cool_softmax", b=3.0).shape
        torch.Size([4, 5, 8])
        >>> del MAPPINGS["cool_softmax"]

    Modules, attention, multi-label heads, Hugging Face models and the command line find the mapping in the table,
    whether they were imported before or after. Registering the same function again replaces its entry.
    """

    def register(function: F) -> F:
        spec = MappingSpec(
            function=function,
            formula=formula,
            zeros=zeros,
            source=source,
            parameter=parameter,
            options=options,
            shift_invariant=shift_invariant,
            keeps_order=keeps_order,
            sums_to_one=sums_to_one,
            nonzeros=nonzeros,
        )
        _check_spec(spec)
        MAPPINGS[spec.name] = spec
        return function

    return register


def _check_spec(spec: MappingSpec) -> None:
    """Raise unless the function takes the arguments of a mapping, and its name is not taken."""
    arguments = signature(spec.function).parameters
    for name in [*(s.name for s in (spec.parameter, *spec.options) if s), "dim", "mask"]:
        if name not in arguments:
            raise TypeError(
                f"register_mapping: {spec.name}{signature(spec.function)} has no argument {name!r};"
                " write f(x, <parameter>, dim=-1, *, mask=None)"
            )
    import_module("rsoftmax.mappings")  # the names of the built-in mappings are taken, whatever was imported before
    other = MAPPINGS.get(spec.name, spec).function
    if (other.__module__, other.__qualname__) != (spec.function.__module__, spec.function.__qualname__):
        raise ValueError(
            f"register_mapping: {spec.name!r} is already registered by {other.__module__}; choose another name"
        )


def describe_parameters() -> dict[str, str]:
    """The parameters of all mappings by name, each with a line of help.

    Example:
        >>> describe_parameters()["lam"]
        'lam of sparsegen_lin and sparsegen_exp, < 1 and finite'
    """
    users: dict[str, dict[str, list[str]]] = {}
    for spec in MAPPINGS.values():
        if p := spec.parameter:
            users.setdefault(p.name, {}).setdefault(p.domain.text, []).append(spec.name)
    return {
        name: "; ".join(f"{name} of {' and '.join(some)}, {text}" for text, some in by_domain.items())
        for name, by_domain in users.items()
    }


# --------------------------------------------------------------------------- domains


RATE = Domain(
    "in [0, 1]",
    "it is the fraction of each row to set to zero: 0 is softmax, 0.5 zeroes half of the row, 1 keeps the maximum only",
    lambda r: (r >= 0) & (r <= 1),
    torch.sigmoid,
    torch.logit,
)
POSITIVE = Domain(
    "> 0",
    "entries at least this far below the maximum become zero; math.inf gives softmax",
    lambda t: t > 0,
)
COUNT = Domain(
    ">= 1",
    "it is the number of entries to keep in each row: 1 keeps the maximum only; rows of at most k entries are softmax",
    lambda k: k >= 1,
    lambda raw: 1 + positive(raw),
    lambda k: torch.log(k - 1),
)
DISTANCE = Domain(
    ">= 0",
    "weights grow over this distance above the threshold, then stay constant; math.inf is the paper's, 0 a hard cut",
    lambda edge: edge >= 0,
)
WEIGHT = Domain(
    ">= 0 and finite",
    "a weight of 0 removes its entry",
    lambda w: (w >= 0) & (w < math.inf),
)
BELOW_ONE = Domain(
    "< 1 and finite",
    "0 is sparsemax, towards 1 the output becomes one-hot, below 0 it becomes denser",
    lambda lam: (lam < 1) & (lam > -math.inf),
    lambda raw: 1 - positive(raw).clamp(min=torch.finfo(raw.dtype).eps / 2),  # the largest float below 1
    lambda lam: torch.log1p(-lam),
)
NOT_NEGATIVE = Domain(
    ">= 0 and finite",
    "0 makes the mapping scale-invariant; larger values approach sparsemax (use that for infinity)",
    lambda q: (q >= 0) & (q < math.inf),
)
ENTMAX = Domain(
    "in [1, 4]",
    "1 is softmax, 1.5 is entmax15, 2 is sparsemax; larger values are sparser",
    lambda alpha: (alpha >= 1) & (alpha <= 4),
    lambda raw: 1 + 3 * torch.sigmoid(raw),
    lambda alpha: torch.logit((alpha - 1) / 3),
)
ABOVE_ONE = Domain(
    "> 1 and finite",
    "towards 1 all mass moves to the maximum, larger values make the support more uniform",
    lambda alpha: (alpha > 1) & (alpha < math.inf),
    lambda raw: 1 + positive(raw).clamp(min=torch.finfo(raw.dtype).eps),
    lambda alpha: torch.log(alpha - 1),
)
SUM = Domain(
    ">= 0",
    "it is the sum of each row; a row of at most k entries becomes all ones",
    lambda k: k >= 0,
)
LOGIT = Domain(
    "< inf",
    "it is the logit of an additional entry that takes a part of the sum; -math.inf is softmax",
    lambda sink: sink < math.inf,
    torch.clone,
    torch.clone,
)
