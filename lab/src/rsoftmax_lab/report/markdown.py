"""Conversion of values to Markdown: the only place where names, settings and scores from data are escaped."""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2

from rsoftmax.labels.models.card import printable
from rsoftmax_lab.report.table import Bold, Table

TEMPLATE = "template.md.jinja"
MARKUP = re.compile(r"[\\`*\[<|&~$]|(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is not markup


class Markdown(str):
    """Text that is already Markdown."""


def render(package: str, **values: Any) -> str:
    """Render the template of a package; values are converted by :func:`markdown`."""
    environment = jinja2.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        finalize=markdown,
    )
    return environment.from_string((files(package) / TEMPLATE).read_text(encoding="utf-8")).render(**values)


def markdown(value: object) -> str:
    """A value as Markdown.

    Example:
        >>> print(markdown(Table(["F1", "VOC"], [["softmax", Bold("76.05")]])))
        | F1 | VOC |
        | --- | ---: |
        | softmax | **76.05** |
        >>> print(markdown("a|b <img src=x> ![x](nope.png) max_length"))
        a\\|b \\<img src=x> !\\[x](nope.png) max_length

    Everything but tables and :class:`Markdown` is converted to text and escaped.
    """
    match value:
        case Table():
            lines = [value.columns, ["---", *["---:"] * (len(value.columns) - 1)], *value.rows]
            return "\n".join(f"| {' | '.join(map(markdown, line))} |" for line in lines)
        case Markdown():
            return value
        case Bold():
            return f"**{_escaped(value)}**"
    return _escaped(str(value))


def _escaped(text: str) -> str:
    return MARKUP.sub(r"\\\g<0>", printable(text))


def listed(settings: Mapping[str, Any]) -> str:
    """Settings as a comma-separated list."""
    return ", ".join(f"{name} = {value}" for name, value in settings.items())
