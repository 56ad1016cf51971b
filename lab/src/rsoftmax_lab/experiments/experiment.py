"""An experiment: a folder of files with fixed names."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands are listed without these imports
    from rsoftmax_lab.report.write import Section
    from rsoftmax_lab.running.journal import Notice
    from rsoftmax_lab.running.rows import Trials


@dataclass(frozen=True)
class Experiment:
    """An experiment, loaded from the files of its folder.

    ========================  ==========================================================================================
    ``data.py``               the data, generated or read from files; a reader that several experiments share is beside
                              their folders, such as ``goemotions.py``
    ``grid.py``               ``Run``, one run with the paper's numbers as defaults; ``grid`` and ``quick_grid``
    ``run.py``                does a run and returns its row
    ``section.py``            ``section(found, out, notice)``: the section of the report, from the rows
    ``template.md.jinja``     the text of the section
    ``figure.py``             its figure, if it has one
    ``command.py``            a function for each command, whose parameters are the command's options
    ========================  ==========================================================================================

    Attributes:
        folder: its name in this package.
        commands: the names of its commands; ``rsoftmax reproduce NAME`` writes its rows to ``NAME.jsonl``.
        shows: the experiments whose rows its section shows, if it has none of its own; then without data.py and run.py.
    """

    folder: str
    commands: tuple[str, ...]
    shows: "tuple[Experiment, ...]" = ()

    def command(self, name: str) -> Callable[..., None]:
        """The function behind ``rsoftmax reproduce NAME``."""
        function: Callable[..., None] = getattr(self._file("command"), name)
        return function

    def read(self, results: Path, notice: "Notice") -> "dict[str, Trials[Any]]":
        """The finished runs in a results folder, by command; commands without runs are omitted."""
        from rsoftmax_lab.running import rows

        if self.shows:
            return {name: trials for one in self.shows for name, trials in one.read(results, notice).items()}
        run = self._file("grid").Run
        found = {name: rows.read(results / f"{name}.jsonl", run, notice) for name in self.commands}
        return {name: trials for name, trials in found.items() if len(trials)}

    def section(self, results: Path, out: Path, notice: "Notice") -> "Section | None":
        """The section of a results folder, with figures drawn into ``out``; None if there are no rows."""
        if self.shows:
            notice = _ignore  # the sections of those experiments have said it
        found = self.read(results, notice)
        section: Section | None = self._file("section").section(found, out, notice) if found else None
        return section

    def _file(self, name: str) -> Any:
        return import_module(f".{self.folder}.{name}", __package__)


def _ignore(notice: str) -> None:
    """Drop a notice."""
