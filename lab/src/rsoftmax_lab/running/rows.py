"""What a file of rows says: the finished runs of an experiment that this version knows, under the same settings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from rsoftmax_lab.running import journal, shapes
from rsoftmax_lab.running.journal import Notice
from rsoftmax_lab.running.runs import BaseRun, Row, differences, key, settings

Run = TypeVar("Run", bound=BaseRun)


class Trial(NamedTuple, Generic[Run]):
    """A finished run and its row."""

    run: Run
    row: Row


@dataclass(frozen=True)
class Trials(Generic[Run]):
    """Finished runs of one file."""

    path: Path
    trials: list[Trial[Run]]

    def __len__(self) -> int:
        return len(self.trials)

    def __iter__(self) -> Iterator[Trial[Run]]:
        return iter(self.trials)

    @property
    def settings(self) -> Row:
        """What the first run changes of the paper's settings; all do if they are :meth:`alike`."""
        return settings(self.trials[0].run)

    def where(self, wanted: Callable[[Run], bool]) -> "Trials[Run]":
        """Those whose run is wanted."""
        return replace(self, trials=[trial for trial in self.trials if wanted(trial.run)])

    def alike(self, notice: Notice, what: str = "") -> "Trials[Run]":
        """Those under the same settings, as others cannot be compared with them.

        These are the runs under the paper's settings, or else under those that cover most places, and of equals have
        most rows.

        Args:
            notice: told if there are others, which are left out.
            what: of which part of the file, for the notice.
        """
        groups: dict[str, list[Trial[Run]]] = {}
        for trial in self.trials:
            groups.setdefault(key(settings(trial.run)), []).append(trial)
        chosen = groups.get(key({})) or max(groups.values(), key=_coverage, default=[])
        found = replace(self, trials=chosen)
        if len(groups) > 1:
            shown = f"those with {found.settings}" if found.settings else "those with the paper's settings"
            notice(f"{self.path} mixes runs of different settings{what and f' of {what}'}; shown are {shown}")
        return found


def read(path: Path, kind: type[Run], notice: Notice) -> Trials[Run]:
    """The finished runs of a file.

    Args:
        path: the file; one that does not exist has none.
        kind: the class of the runs.
        notice: told how many rows are no such runs, being of another experiment or of a later version.
    """
    rows = finished(journal.read(path, notice)).values()
    known = [trial for row in rows if (trial := _trial(row, kind)) is not None]
    if len(known) < len(rows):
        notice(f"{path}: {len(rows) - len(known)} rows are no runs that this version knows; they are left out")
    return Trials(path, known)


def finished(rows: Iterable[Row]) -> dict[str, Row]:
    """The last successful row of each run, by the run's name."""
    return {key(row["run"]): row for row in rows if "run" in row and "error" not in row}


def _trial(row: Row, kind: type[Run]) -> Trial[Run] | None:
    try:
        run = kind(**row["run"])
    except (TypeError, ValueError):  # fields, or values of them, that this version does not know
        return None
    return Trial(run, row) if _is_sound(run) and shapes.fields(kind.ANSWERS, kind.ADDED)(row) else None


def _is_sound(run: BaseRun) -> bool:
    """Whether what is compared is of its type, and no number is out of the world; other settings may be anything."""
    types = {field.name: field.type for field in fields(run)}  # type: ignore[arg-type]
    return all(
        shapes.of_type(types[name])(value) if name in (*run.PLACE, *run.VARIED) else _is_setting(value)
        for name, value in differences(run).items()
    )


def _is_setting(value: Any) -> bool:
    return shapes.number(value) or isinstance(value, bool) or not isinstance(value, int | float)


def _coverage(trials: list[Trial[Run]]) -> tuple[int, int]:
    places = {key({name: getattr(run, name) for name in run.PLACE}) for run, _ in trials}
    return len(places), len(trials)
