"""The parameters of the mappings as options: ``--r 0.5 --t 2``, one for each letter in the table of mappings.

They are read off the words that a command does not know itself. So the table, and torch with it, is loaded when the
command runs, and not for its help.
"""

from collections.abc import Iterator

import typer

TAKES_PARAMETERS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""The context settings of a command that calls :func:`given`."""


def given(context: typer.Context) -> dict[str, float]:
    """The parameters among the words that the command did not know, by letter; other words are refused."""
    from rsoftmax.table import letters

    known = letters()
    found: dict[str, float] = {}
    words = iter(context.args)
    for word in words:
        letter, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise typer.BadParameter(f"Got unexpected extra argument(s) ({word})")
        if letter not in known:
            listed = "; ".join(f"--{text}" for text in known.values())
            raise typer.BadParameter(f"there is no option --{letter}; the parameters are {listed}")
        found[letter] = _number(letter, value, words)
    return found


def _number(letter: str, value: str, words: Iterator[str]) -> float:
    text = value or next(words, "")
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint=f"--{letter}") from None
