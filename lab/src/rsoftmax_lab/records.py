"""Records: the finished runs of an experiment in a file of JSON Lines, which survives a kill.

A run is a frozen dataclass whose defaults are the paper's numbers. It is identified by its differences from them, which
its record contains: ``{"run": {"classes": 30, "method": "zlpr"}, "seconds": 8.1, ...}``. A record is one line; a
program that is killed while writing leaves an incomplete line, which readers skip with a notice.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

Record = dict[str, Any]
Notice = Callable[[str], None]
Run = TypeVar("Run")
SomeRun = TypeVar("SomeRun", bound="BaseRun")

MAX_DEPTH = 20  # levels of lists and dictionaries; deeper ones would exceed Python's recursion limit later
MAX_NUMBER = 1e15


class BaseRun:
    """The base class of an experiment's runs, which are frozen dataclasses.

    Attributes:
        DATA: the fields that identify the data: a dataset, a task, a draw.
        VARIED: the fields that are compared on the same data. All other fields are settings, which must agree.
        SCHEMA: what a finished record must contain; see :func:`fits`.
    """

    DATA: ClassVar[tuple[str, ...]] = ()
    VARIED: ClassVar[tuple[str, ...]] = ()
    SCHEMA: ClassVar[dict[str, Any]] = {}


def differences(run: Any) -> Record:
    """The fields of a run that differ from the defaults.

    Example:
        >>> from rsoftmax_lab.experiments.synthetic import Run
        >>> differences(Run(classes=30, method="zlpr", epochs=150))
        {'method': 'zlpr', 'classes': 30}
    """
    values = [(field, getattr(run, field.name)) for field in fields(run)]
    return {field.name: value for field, value in values if field.default is MISSING or value != field.default}


def settings(run: BaseRun) -> Record:
    """The differences that comparable runs must have in common.

    Example:
        >>> from rsoftmax_lab.experiments.synthetic import Run
        >>> settings(Run(classes=30, method="zlpr", epochs=20))
        {'epochs': 20}
    """
    return {name: value for name, value in differences(run).items() if name not in (*run.DATA, *run.VARIED)}


def key(changes: Record) -> str:
    """The name of a run: its differences in a canonical form. Adding a field does not change existing names.

    Example:
        >>> key({"task": "MRPC", "epochs": 5.0})
        '{"epochs": 5, "task": "MRPC"}'
    """
    return json.dumps(_canonical(changes), sort_keys=True)


def _canonical(value: Any) -> Any:
    """The value with integral floats as integers, so that equal numbers have one spelling."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {name: _canonical(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_canonical(inner) for inner in value]
    return value


# ---------------------------------------------------------------------------------------------- the file


def append(path: Path, record: Record) -> None:
    """Append a record to the file, completely or not at all."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    line = text.encode(errors="backslashreplace") + b"\n"  # lone surrogates, in JSON's spelling
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line  # after an incomplete line
        written = 0
        try:
            written = os.write(file.fileno(), line)
            os.fsync(file.fileno())
        finally:
            if written < len(line):
                os.ftruncate(file.fileno(), size)
    if written < len(line):
        raise OSError(f"{path}: no space left for a record of {len(line)} bytes; the file is unchanged")


def read(path: Path, notice: Notice) -> list[Record]:
    """The records of the file in the order of writing; empty if the file does not exist.

    Args:
        path: the file.
        notice: called with a message for each line that is skipped because it is not a record.
    """
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.exists() else [], start=1):
        try:
            record = json.loads(line or b"null")
        except (ValueError, RecursionError):
            record = line
        if isinstance(record, dict) and not _is_deep(record):
            records.append(record)
        elif line.strip():
            start = line[:40].decode(errors="replace")
            notice(f"{path}, line {number} is not a complete record (was its program killed?): {start!r}...")
    return records


def _is_deep(record: Record) -> bool:
    level: list[Any] = [record]
    for _ in range(MAX_DEPTH):
        lists = [value.values() if isinstance(value, dict) else value for value in level]
        level = [inner for values in lists for inner in values if isinstance(inner, dict | list)]
    return bool(level)


def finished(records: Iterable[Record]) -> dict[str, Record]:
    """The last successful record of each run, by the run's name."""
    return {key(record["run"]): record for record in records if "run" in record and "error" not in record}


# ---------------------------------------------------------------------------------------------- validation


def number(value: Any) -> bool:
    """A finite number within the range of float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER <= value <= MAX_NUMBER


def share(value: Any) -> bool:
    """A number from 0 to 1."""
    return number(value) and 0 <= value <= 1


def positive(value: Any) -> bool:
    """A number above 0."""
    return number(value) and value > 0


def fits(value: Any, schema: Any) -> bool:
    """Whether a value from a file has the structure that the schema shows.

    Args:
        value: the value.
        schema: a predicate such as :func:`number`; a type; None; a union of types, or a tuple of schemas, one of which
            must fit; ``[schema]``, for each value of a list or dictionary; or a dictionary of schemas by field, where
            fields that end in "?" may be missing and other fields are ignored.

    Example:
        >>> schema = {"accuracy": share, "f1?": share, "curve": [number]}
        >>> fits({"accuracy": 0.5, "curve": [1, 2], "loss": None}, schema), fits({"accuracy": 0.5}, schema)
        (True, False)
        >>> fits(3, float | None), fits("3", int), fits(True, int)
        (True, False, False)
    """
    match schema:
        case dict():
            known = {name.rstrip("?"): inner for name, inner in schema.items()}
            return isinstance(value, dict) and all(
                fits(value[name], inner) if name in value else f"{name}?" in schema for name, inner in known.items()
            )
        case [inner]:
            return isinstance(value, dict | list) and all(
                fits(one, inner) for one in (value.values() if isinstance(value, dict) else value)
            )
    if alternatives := schema if isinstance(schema, tuple) else get_args(schema):
        return any(fits(value, one) for one in alternatives)
    if schema in (int, float):
        return number(value) and (schema is float or isinstance(value, int))
    return isinstance(value, NoneType if schema is None else schema) if _is_type(schema) else schema(value)


def _is_type(schema: Any) -> bool:
    return schema is None or isinstance(schema, type)


# ---------------------------------------------------------------------------------------------- finished runs


class Trial(NamedTuple, Generic[SomeRun]):
    """A finished run and its record."""

    run: SomeRun
    record: Record


@dataclass(frozen=True)
class Trials(Generic[SomeRun]):
    """The finished runs of one file."""

    path: Path
    trials: list[Trial[SomeRun]]

    def __len__(self) -> int:
        return len(self.trials)

    def __iter__(self) -> Iterator[Trial[SomeRun]]:
        return iter(self.trials)

    @property
    def settings(self) -> Record:
        """The settings of the first run that differ from the paper's; shared by all if they are :meth:`alike`."""
        return settings(self.trials[0].run)

    def where(self, wanted: Callable[[SomeRun], bool]) -> "Trials[SomeRun]":
        """The trials whose run satisfies a condition."""
        return replace(self, trials=[trial for trial in self.trials if wanted(trial.run)])

    def alike(self, notice: Notice, what: str = "") -> "Trials[SomeRun]":
        """The trials under one common setting, which can be compared.

        These are the runs under the paper's settings, otherwise under the settings that cover the most data, and among
        those under the ones with the most records.

        Args:
            notice: called with a message if other runs are left out.
            what: the part of the file, for the message.
        """
        groups: dict[str, list[Trial[SomeRun]]] = {}
        for trial in self.trials:
            groups.setdefault(key(settings(trial.run)), []).append(trial)
        common = replace(self, trials=groups.get(key({})) or max(groups.values(), key=_coverage, default=[]))
        if len(groups) > 1:
            shown = f"those with {common.settings}" if common.settings else "those with the paper's settings"
            notice(f"{self.path} mixes runs with different settings{what and f' of {what}'}; showing {shown}")
        return common


def _coverage(trials: list[Trial[SomeRun]]) -> tuple[int, int]:
    """The number of datasets, and of records."""
    return len({key({name: getattr(run, name) for name in run.DATA}) for run, _ in trials}), len(trials)


def read_trials(path: Path, kind: type[SomeRun], notice: Notice) -> Trials[SomeRun]:
    """The finished runs of a file.

    Args:
        path: the file; a missing file has no runs.
        kind: the class of the runs.
        notice: called with a message if records of other experiments or later versions are left out.
    """
    records = finished(read(path, notice)).values()
    trials = [trial for record in records if (trial := _trial(record, kind)) is not None]
    if len(trials) < len(records):
        notice(f"{path}: {len(records) - len(trials)} records are not runs known to this version and are left out")
    return Trials(path, trials)


def _trial(record: Record, kind: type[SomeRun]) -> Trial[SomeRun] | None:
    """The run of a record; None if it is malformed. Compared fields must have the declared types, numbers a size."""
    try:
        run = kind(**record["run"])
    except (TypeError, ValueError):  # fields or values unknown to this version
        return None
    types = {field.name: field.type for field in fields(run)}  # type: ignore[arg-type]
    sound = all(
        fits(value, types[name]) if name in (*run.DATA, *run.VARIED) else number(value) or not _is_number(value)
        for name, value in differences(run).items()
    )
    return Trial(run, record) if sound and fits(record, kind.SCHEMA) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
