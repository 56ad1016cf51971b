"""Arguments that several commands share: lists of numbers, output files, parameters of mappings, usage errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

TAKES_PARAMETERS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""The context settings of a command that reads its remaining words itself."""


def numbers(words: str) -> list[float]:
    """The comma-separated numbers in ``words``; empty if any of them is not a number."""
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        return []


def figure_path(path: Path, option: str = "--out") -> Path:
    """Check that a figure can be written to the path that ``option`` names."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{str(path)!r} must end in .png, .svg or .pdf", param_hint=option)
    folder = path.resolve().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"the folder {str(path.parent)!r} does not exist; create it first", param_hint=option)
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise typer.BadParameter(f"{str(path)!r} is a folder or cannot be written; choose another", param_hint=option)
    return path


def parameters(context: typer.Context) -> dict[str, float]:
    """Parameters and options of mappings, as in ``--r 0.5 --edge 1``, from the words that the command did not parse.

    Their names come from the table of mappings, so torch is loaded when the command runs and not for its help.
    """
    from rsoftmax.mappings import MAPPINGS  # registers the built-in mappings
    from rsoftmax.registry import describe_parameters

    options = {option.name: option for spec in MAPPINGS.values() for option in spec.options}
    texts = describe_parameters() | {name: f"{name}, {option.domain.text}" for name, option in options.items()}
    values: dict[str, float] = {}
    words = iter(context.args)
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise typer.BadParameter(f"Got unexpected extra argument(s) ({word})")
        if name not in texts:
            listed = "; ".join(f"--{text}" for text in texts.values())
            raise typer.BadParameter(f"there is no option --{name}; the parameters are {listed}")
        value = value or next(words, "")
        try:
            values[name] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not a number", param_hint=f"--{name}") from None
    return values


@contextmanager
def usage_errors(hint: str | None = None) -> Iterator[None]:
    """Report errors of the library as usage errors of the argument ``hint`` instead of a traceback."""
    try:
        yield
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None
