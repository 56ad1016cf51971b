"""What an experiment is: a folder of files that are named alike."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the commands are listed without what runs and reports them
    from rsoftmax_lab.report.write import Section
    from rsoftmax_lab.running.journal import Notice
    from rsoftmax_lab.running.rows import Trials


@dataclass(frozen=True)
class Experiment:
    """An experiment, by the files of its folder.

    ========================  ==========================================================================================
    ``data.py``               what is learned from: drawn, or read from files
    ``grid.py``               ``Run``, one run with the paper's numbers as defaults; ``grid`` and ``quick_grid``
    ``run.py``                from a run to its row
    ``section.py``            ``section(found, out, notice)``: what the report says, from the rows that were found
    ``template.md.jinja``     the text of the section
    ``figure.py``             its figure, if it has one
    ``command.py``            a function for each command, with the options of the command as its parameters
    ========================  ==========================================================================================

    Attributes:
        folder: its name in this package.
        commands: the NAMEs of ``rsoftmax reproduce NAME``, each of which writes its rows to ``NAME.jsonl``.
    """

    folder: str
    commands: tuple[str, ...]

    def command(self, name: str) -> Callable[..., None]:
        """The function behind ``rsoftmax reproduce NAME``."""
        function: Callable[..., None] = getattr(self._file("command"), name)
        return function

    def read(self, results: Path, notice: "Notice") -> "dict[str, Trials[Any]]":
        """The finished runs in a folder of results, by command; only of commands that have some."""
        from rsoftmax_lab.running import rows

        run = self._file("grid").Run
        found = {name: rows.read(results / f"{name}.jsonl", run, notice) for name in self.commands}
        return {name: trials for name, trials in found.items() if len(trials)}

    def section(self, results: Path, out: Path, notice: "Notice") -> "Section | None":
        """What the report says of a folder of results, with pictures drawn into ``out``; None if there are no rows."""
        found = self.read(results, notice)
        section: Section | None = self._file("section").section(found, out, notice) if found else None
        return section

    def _file(self, name: str) -> Any:
        return import_module(f".{self.folder}.{name}", __package__)
