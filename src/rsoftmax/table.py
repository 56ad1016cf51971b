"""The table of mappings: what a row says, how one is declared, and the parts of it that others ask for."""

from collections.abc import Callable, Iterator
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from rsoftmax.rows import Parameter
from rsoftmax.tensors import shape_of

F = TypeVar("F", bound=Callable[..., Tensor])
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """A row of the table.

    Attributes:
        function: the mapping.
        formula: p, in short; "/ sum" makes it add up to one.
        zeros: who decides how many probabilities are zero.
        source: where it comes from.
        parameter: what it takes beside the scores, if anything.
        shift_invariant: adding a constant to a row changes nothing.
        keeps_order: a higher score never gets a lower probability.
    """

    function: Callable[..., Tensor]
    formula: str
    zeros: str
    source: str
    parameter: Parameter | None = None
    shift_invariant: bool = True
    keeps_order: bool = True

    @property
    def name(self) -> str:
        """The word for it everywhere: function, key, option, column."""
        return self.function.__name__

    def bind(self, caller: str, given: dict[str, V]) -> V | float | None:
        """The value of the parameter, of what was given under its letter.

        Args:
            caller: who asks; error messages begin with it.
            given: values by letter. None counts as not given.

        Returns:
            The value, or else the parameter's default; None for a mapping without a parameter. Whether it lies in the
            domain is not looked at.

        Example:
            >>> from rsoftmax import MAPPINGS
            >>> MAPPINGS["r_softmax"].bind("my_layer", {"r": 0.5}), MAPPINGS["sparsehourglass"].bind("my_layer", {})
            (0.5, 10.0)
            >>> MAPPINGS["r_softmax"].bind("my_layer", {"t": 2.0})
            Traceback (most recent call last):
            TypeError: my_layer: r_softmax takes r, got t=2.0
        """
        found = {letter: value for letter, value in given.items() if value is not None}
        letter = self.parameter.name if self.parameter else None
        for other in found.keys() - {letter}:
            raise TypeError(
                f"{caller}: {self.name} takes {letter or 'no parameter'}, got {other}={_shown(found[other])}"
            )
        if self.parameter is None:
            return None
        value = found.get(self.parameter.name, self.parameter.default)
        if value is None:
            raise TypeError(f"{caller}: {self.name} needs {self.parameter.explained()}")
        return value


MAPPINGS: dict[str, Mapping] = {}
"""Every mapping by its name, in the order of declaration."""


def mapping(
    *,
    formula: str,
    zeros: str,
    source: str,
    parameter: Parameter | None = None,
    shift_invariant: bool = True,
    keeps_order: bool = True,
) -> Callable[[F], F]:
    """Declare a function to be a mapping: its row of the table, written above it.

    Args:
        formula: p, in short; "/ sum" makes it add up to one.
        zeros: who decides how many probabilities are zero.
        source: where it comes from.
        parameter: what it takes beside the scores, if anything.
        shift_invariant: adding a constant to a row changes nothing.
        keeps_order: a higher score never gets a lower probability.

    Returns:
        A decorator that leaves the function as it is: ``f(x, <parameter>, *, dim=-1, mask=None)``.

    Example:
        >>> import torch
        >>> from rsoftmax.domains import POSITIVE
        >>> from rsoftmax.rows import Parameter, filled, over_rows
        >>> B = Parameter("b", POSITIVE, example=2.0)
        >>> @mapping(formula="e^(b x) / sum", parameter=B, zeros="none", source="Boltzmann 1868")
        ... def cool_softmax(x, b, *, dim=-1, mask=None):
        ...     return over_rows("cool_softmax", lambda x, mask, b: filled(b * x, mask).softmax(-1), x, dim, mask, B, b)
        >>> from rsoftmax import MODULES, sparse_attention
        >>> MODULES["CoolSoftmax"](b=1.0)(torch.tensor([1.0, 2.0, 3.0]))
        tensor([0.0900, 0.2447, 0.6652])
        >>> sparse_attention(*torch.randn(3, 4, 5, 8), "cool_softmax", b=3.0).shape
        torch.Size([4, 5, 8])
        >>> del MAPPINGS["cool_softmax"]

    Modules, attention, heads, Hugging Face models and the command line find it in the table, whether they were imported
    before or after. A name that the table has already is refused, unless the same function is declared again.
    """

    def declare(function: F) -> F:
        row = Mapping(
            function=function,
            formula=formula,
            zeros=zeros,
            source=source,
            parameter=parameter,
            shift_invariant=shift_invariant,
            keeps_order=keeps_order,
        )
        _refuse_another(row)
        MAPPINGS[row.name] = row
        return function

    return declare


class Selected(AbstractMapping[str, Mapping]):
    """The rows of the table that fit a condition, as the table is now."""

    def __init__(self, fits: Callable[[Mapping], bool]) -> None:
        self._fits = fits

    def __getitem__(self, name: str) -> Mapping:
        row = MAPPINGS[name]
        if not self._fits(row):
            raise KeyError(name)
        return row

    def __iter__(self) -> Iterator[str]:
        return (name for name, row in MAPPINGS.items() if self._fits(row))

    def __len__(self) -> int:
        return sum(1 for _ in self)


ROW_MAPPINGS = Selected(lambda row: row.parameter is None or row.parameter.per_row)
"""The mappings that take no parameter, or one value for a row."""


def letters() -> dict[str, str]:
    """The letters of all parameters that are one value for a row, each with a line of help.

    Example:
        >>> letters()["lam"]
        'lam of sparsegen_lin and sparsegen_exp, < 1 and finite'
    """
    takers = [(row.parameter, row.name) for row in ROW_MAPPINGS.values() if row.parameter]
    return {
        p.name: f"{p.name} of {' and '.join(name for other, name in takers if other.name == p.name)}, {p.domain.text}"
        for p, _ in takers
    }


def _refuse_another(row: Mapping) -> None:
    there = MAPPINGS.get(row.name)
    if there and _origin(there) != _origin(row):
        raise ValueError(
            f"mapping: there is a mapping {row.name!r} already, of {there.function.__module__}; choose another name"
        )


def _origin(row: Mapping) -> tuple[str, str]:
    return row.function.__module__, row.function.__qualname__


def _shown(value: Any) -> str:
    return f"a tensor of shape {shape_of(value)}" if isinstance(value, Tensor) else repr(value)
