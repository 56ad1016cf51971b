"""What an experiment puts into the report: text, pictures, and a table for the terminal."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from matplotlib.figure import Figure
from PIL import Image
from rich.markup import escape
from rich.table import Table as RichTable


class Section(NamedTuple):
    """A part of the report.

    Attributes:
        text: Markdown.
        summary: the one table to end a command with.
        pictures: what was drawn for it, in the report's folder.
    """

    text: str
    summary: RichTable
    pictures: list[Path]


@dataclass(frozen=True)
class Table:
    """Cells of text; the same for Markdown and for the terminal."""

    columns: list[str]
    rows: list[list[str]]

    def __str__(self) -> str:
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def rich(self, title: str) -> RichTable:
        """For the terminal."""
        table = RichTable(escape(self.columns[0]), title=title, title_justify="left")
        for column in self.columns[1:]:
            table.add_column(escape(column), justify="right")
        for row in self.rows:
            table.add_row(*(re.sub(r"\*\*(.*?)\*\*", r"[bold]\1[/bold]", escape(cell)) for cell in row))
        return table


class Claim(NamedTuple):
    """What the paper or we say, and what the numbers say to that."""

    text: str
    numbers: list[str]
    holds: bool | None


def weighed(claims: list[Claim], columns: list[str]) -> Table:
    """Claims down; what each column's numbers say, and whether the claim holds, across."""
    verdict = {True: "yes", False: "no", None: "?"}
    return Table(["claim", *columns, "holds"], [[claim.text, *claim.numbers, verdict[claim.holds]] for claim in claims])


def save(figure: Figure, path: Path) -> None:
    """Write a picture of 256 colours: enough for lines, and a third of the size."""
    figure.savefig(path, dpi=130)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(256)
    few.save(path, optimize=True)


def render(template: str, **values: Any) -> str:
    """Fill in a template of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rsoftmax_lab", "experiments"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(**values)
