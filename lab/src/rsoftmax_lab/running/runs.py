"""A run: a frozen dataclass whose defaults are the paper's numbers, named by what it changes of them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, TypeVar

from rsoftmax_lab.running.shapes import Shape

Row = dict[str, Any]
Run = TypeVar("Run")


class BaseRun:
    """What the runs of an experiment say about themselves.

    Attributes:
        PLACE: the fields that say what a run is done on: a data set, a task, a draw.
        VARIED: the fields that are compared with each other there. All other fields are settings, which must be alike.
        ANSWERS: what the row of a finished run must hold, and the shape of it.
        ADDED: what rows of earlier versions do not hold, and its shape in those that do.
    """

    PLACE: ClassVar[tuple[str, ...]] = ()
    VARIED: ClassVar[tuple[str, ...]] = ()
    ANSWERS: ClassVar[Mapping[str, Shape]] = {}
    ADDED: ClassVar[Mapping[str, Shape]] = {}


def differences(run: Any) -> Row:
    """What a run changes of its defaults.

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
    """Of the differences, those that runs must have in common to be compared.

    Example:
        >>> from rsoftmax_lab.experiments.synthetic.grid import Run
        >>> settings(Run(classes=30, method="zlpr", epochs=20))
        {'epochs': 20}
    """
    return {name: value for name, value in differences(run).items() if name not in (*run.PLACE, *run.VARIED)}


def key(changes: Row) -> str:
    """The name of a run: its differences, in one spelling. A field added later leaves the old names alone.

    Example:
        >>> key({"task": "MRPC", "epochs": 5.0})
        '{"epochs": 5, "task": "MRPC"}'
    """
    return json.dumps(_spelled(changes), sort_keys=True)


def distinct(runs: Iterable[Run]) -> list[Run]:
    """Each run once, in their order: an option may be given twice with the same value."""
    return list({key(differences(run)): run for run in runs}.values())


def _spelled(value: Any) -> Any:
    """The same value; a whole number is written without a fraction, as it is the same number."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {name: _spelled(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_spelled(inner) for inner in value]
    return value
