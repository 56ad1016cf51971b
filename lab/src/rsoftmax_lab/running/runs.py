"""A run: a frozen dataclass whose defaults are the paper's numbers, identified by its differences from them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, TypeVar

from rsoftmax_lab.running.schema import Schema

Row = dict[str, Any]
Run = TypeVar("Run")


class BaseRun:
    """The base class of an experiment's runs.

    Attributes:
        PLACE: the fields that identify the data: a dataset, a task, a draw.
        VARIED: the fields that are compared on the same data. All other fields are settings, which must agree.
        REQUIRED: the required fields of a finished row, with their schemas.
        OPTIONAL: fields that rows of earlier versions lack, with their schemas.
    """

    PLACE: ClassVar[tuple[str, ...]] = ()
    VARIED: ClassVar[tuple[str, ...]] = ()
    REQUIRED: ClassVar[Mapping[str, Schema]] = {}
    OPTIONAL: ClassVar[Mapping[str, Schema]] = {}


def differences(run: Any) -> Row:
    """The fields of a run that differ from the defaults.

    Example:
        >>> from rsoftmax_lab.experiments.synthetic.grid import Run
        >>> differences(Run(classes=30, method="zlpr", epochs=150))
        {'method': 'zlpr', 'classes': 30}
    """
    given = {field.name: getattr(run, field.name) for field in fields(run)}
    return {
        field.name: given[field.name]
        for field in fields(run)
        if field.default is MISSING or given[field.name] != field.default
    }


def settings(run: BaseRun) -> Row:
    """The differences that comparable runs must have in common.

    Example:
        >>> from rsoftmax_lab.experiments.synthetic.grid import Run
        >>> settings(Run(classes=30, method="zlpr", epochs=20))
        {'epochs': 20}
    """
    return {name: value for name, value in differences(run).items() if name not in (*run.PLACE, *run.VARIED)}


def key(changes: Row) -> str:
    """The name of a run: its differences in a canonical form. Adding a field does not change existing names.

    Example:
        >>> key({"task": "MRPC", "epochs": 5.0})
        '{"epochs": 5, "task": "MRPC"}'
    """
    return json.dumps(_spelled(changes), sort_keys=True)


def distinct(runs: Iterable[Run]) -> list[Run]:
    """The runs without duplicates, in order: an option may be repeated with the same value."""
    return list({key(differences(run)): run for run in runs}.values())


def _spelled(value: Any) -> Any:
    """The value; an integral float becomes an integer, so that equal numbers have one spelling."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {name: _spelled(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_spelled(inner) for inner in value]
    return value
