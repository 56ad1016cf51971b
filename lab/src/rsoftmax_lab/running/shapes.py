"""Validation of values read from files: composable predicates, called shapes."""

from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, get_args

Shape = Callable[[Any], bool]

LARGEST = 1e15


def number(value: Any) -> bool:
    """A finite number within the range of float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def share(value: Any) -> bool:
    """A number from 0 to 1."""
    return number(value) and 0 <= value <= 1


def positive(value: Any) -> bool:
    """A number above 0."""
    return number(value) and value > 0


def fields(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """A dictionary with all required and possibly some optional fields; other fields are ignored.

    Example:
        >>> shape = fields({"accuracy": share}, {"f1": share})
        >>> shape({"accuracy": 0.5, "loss": None}), shape({"accuracy": None}), shape({"accuracy": 1, "f1": "high"})
        (True, False, False)
    """

    def shape(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value and fits(value[name]) for name, fits in needed.items())
            and all(fits(value[name]) for name, fits in (optional or {}).items() if name in value)
        )

    return shape


def each(fits: Shape) -> Shape:
    """A list or dictionary whose values have this shape."""

    def shape(value: Any) -> bool:
        values = value.values() if isinstance(value, dict) else value
        return isinstance(value, dict | list) and all(map(fits, values))

    return shape


def maybe(fits: Shape) -> Shape:
    """A value of this shape, or None."""
    return lambda value: value is None or fits(value)


def of_type(kind: Any) -> Shape:
    """The shape of a dataclass field that is declared with this type.

    Example:
        >>> of_type(float | None)(3), of_type(int)("3"), of_type(int)(True)
        (True, False, False)
    """
    if isinstance(kind, UnionType):
        return lambda value: any(of_type(one)(value) for one in get_args(kind))
    if kind in (int, float):
        return lambda value: number(value) and (kind is float or isinstance(value, int))
    return lambda value: isinstance(value, NoneType if kind is None else kind)
