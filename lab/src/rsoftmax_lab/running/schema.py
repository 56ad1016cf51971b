"""Validation of values read from files: composable predicates, called schemas."""

from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, get_args

Schema = Callable[[Any], bool]

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


def fields(needed: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """A dictionary with all required and possibly some optional fields; other fields are ignored.

    Example:
        >>> schema = fields({"accuracy": share}, {"f1": share})
        >>> schema({"accuracy": 0.5, "loss": None}), schema({"accuracy": None}), schema({"accuracy": 1, "f1": "high"})
        (True, False, False)
    """

    def schema(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value and fits(value[name]) for name, fits in needed.items())
            and all(fits(value[name]) for name, fits in (optional or {}).items() if name in value)
        )

    return schema


def each(fits: Schema) -> Schema:
    """A list or dictionary whose values have this schema."""

    def schema(value: Any) -> bool:
        values = value.values() if isinstance(value, dict) else value
        return isinstance(value, dict | list) and all(map(fits, values))

    return schema


def maybe(fits: Schema) -> Schema:
    """A value of this schema, or None."""
    return lambda value: value is None or fits(value)


def of_type(kind: Any) -> Schema:
    """The schema of a dataclass field that is declared with this type.

    Example:
        >>> of_type(float | None)(3), of_type(int)("3"), of_type(int)(True)
        (True, False, False)
    """
    if isinstance(kind, UnionType):
        return lambda value: any(of_type(one)(value) for one in get_args(kind))
    if kind in (int, float):
        return lambda value: number(value) and (kind is float or isinstance(value, int))
    return lambda value: isinstance(value, NoneType if kind is None else kind)
