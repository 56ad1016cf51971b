"""Reads files of rows: the finished runs of an experiment, grouped by settings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from rsoftmax_lab.running import journal, schema
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.runs import BaseRun, Row, differences, key, settings

Run = TypeVar("Run", bound=BaseRun)


class Trial(NamedTuple, Generic[Run]):
    """A finished run and its row."""

    run: Run
    row: Row


@dataclass(frozen=True)
class Trials(Generic[Run]):
    """The finished runs of one file."""

    path: Path
    trials: list[Trial[Run]]

    def __len__(self) -> int:
        return len(self.trials)

    def __iter__(self) -> Iterator[Trial[Run]]:
        return iter(self.trials)

    @property
    def settings(self) -> Row:
        """The settings of the first run that differ from the paper's; shared by all if they are :meth:`alike`."""
        return settings(self.trials[0].run)

    def where(self, wanted: Callable[[Run], bool]) -> "Trials[Run]":
        """The trials whose run satisfies a condition."""
        return replace(self, trials=[trial for trial in self.trials if wanted(trial.run)])

    def alike(self, notice: Notice, what: str = "") -> "Trials[Run]":
        """The trials under one common setting, which can be compared.

        These are the runs under the paper's settings, otherwise under the settings that cover the most data, and among
        those under the ones with the most rows.

        Args:
            notice: called with a message if other runs are left out.
            what: the part of the file, for the message.
        """
        groups: dict[str, list[Trial[Run]]] = {}
        for trial in self.trials:
            groups.setdefault(key(settings(trial.run)), []).append(trial)
        chosen = groups.get(key({})) or max(groups.values(), key=_coverage, default=[])
        found = replace(self, trials=chosen)
        if len(groups) > 1:
            shown = f"those with {found.settings}" if found.settings else "those with the paper's settings"
            notice(f"{self.path} mixes runs with different settings{what and f' of {what}'}; showing {shown}")
        return found


def read(path: Path, kind: type[Run], notice: Notice) -> Trials[Run]:
    """The finished runs of a file.

    Args:
        path: the file; a missing file has no runs.
        kind: the class of the runs.
        notice: called with a message if rows of other experiments or later versions are left out.
    """
    rows = finished(journal.read(path, notice)).values()
    known = [trial for row in rows if (trial := _trial(row, kind)) is not None]
    if len(known) < len(rows):
        notice(f"{path}: {len(rows) - len(known)} rows are not runs known to this version and are left out")
    return Trials(path, known)


def finished(rows: Iterable[Row]) -> dict[str, Row]:
    """The last successful row of each run, by the run's name."""
    return {key(row["run"]): row for row in rows if "run" in row and "error" not in row}


def _trial(row: Row, kind: type[Run]) -> Trial[Run] | None:
    try:
        run = kind(**row["run"])
    except (TypeError, ValueError):  # fields or values unknown to this version
        return None
    return Trial(run, row) if _is_sound(run) and schema.fields(kind.REQUIRED, kind.OPTIONAL)(row) else None


def _is_sound(run: BaseRun) -> bool:
    """Whether compared fields have the declared types and all numbers are in range; other settings are not checked."""
    types = {field.name: field.type for field in fields(run)}  # type: ignore[arg-type]
    return all(
        schema.of_type(types[name])(value) if name in (*run.PLACE, *run.VARIED) else _is_setting(value)
        for name, value in differences(run).items()
    )


def _is_setting(value: Any) -> bool:
    return schema.number(value) or isinstance(value, bool) or not isinstance(value, int | float)


def _coverage(trials: list[Trial[Run]]) -> tuple[int, int]:
    places = {key({name: getattr(run, name) for name in run.PLACE}) for run, _ in trials}
    return len(places), len(trials)
