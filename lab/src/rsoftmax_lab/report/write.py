"""The report of all experiments: a section for each that has results."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.table import Table as RichTable

from rsoftmax_lab.report.page import page
from rsoftmax_lab.running.journal import Notice

HEAD = """# Results

Written by `rsoftmax report`. Scores in per cent, mean ± standard deviation over seeds (differences: of the differences
seed by seed).

In multi-label contests, *validation* is what the paper reports: the best epoch on the rows that it is chosen on. *Test*
is the same epoch on rows that nothing was chosen on. "Threshold tuned" is chosen on validation too; "true count" is
told how many labels each row has. Nothing to find and nothing found counts as right (`zero_division=1`).
"""


class Section(NamedTuple):
    """What the report says of an experiment.

    Attributes:
        text: Markdown.
        summary: the one table to end a command with.
        pictures: what was drawn for it, in the report's folder.
    """

    text: str
    summary: RichTable
    pictures: list[Path]


class Reported(Protocol):
    """An experiment, as the report sees it."""

    def section(self, results: Path, out: Path, notice: Notice) -> Section | None:
        """Read the rows in a folder of results and draw pictures into the report's; None if there are no rows."""


class Report(NamedTuple):
    """The sections that had results, by name, and all files."""

    sections: dict[str, Section]
    files: list[Path]


def write(experiments: Mapping[str, Reported], results: Path, out: Path, notice: Notice) -> Report:
    """Write report.md, report.html and the figures; raises FileNotFoundError if there are no results."""
    none = FileNotFoundError(f"no results in {results}; `rsoftmax reproduce synthetic --out {results}` makes some")
    if not results.is_dir():
        raise none
    out.mkdir(parents=True, exist_ok=True)
    found = {name: experiment.section(results, out, notice) for name, experiment in experiments.items()}
    sections = {name: section for name, section in found.items() if section is not None}
    if not sections:
        raise none
    text = "\n".join([HEAD, *(section.text for section in sections.values())])
    markdown, html = out / "report.md", out / "report.html"
    markdown.write_text(text, encoding="utf-8")
    html.write_text(page(text, out), encoding="utf-8")
    pictures = [picture for section in sections.values() for picture in section.pictures]
    return Report(sections, [*pictures, markdown, html])
