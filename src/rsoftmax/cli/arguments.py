"""What several commands do with their arguments."""

from pathlib import Path

import typer


def numbers(words: str) -> list[float]:
    """The numbers in ``words``, apart by commas or blanks; none if anything else is among them."""
    try:
        return [float(word) for word in words.replace(",", " ").split()]
    except ValueError:
        return []


def picture(path: Path, option: str = "--out") -> Path:
    """The path that an option names, if a picture can be written there."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{str(path)!r} must end in .png, .svg or .pdf", param_hint=option)
    if not path.resolve().parent.is_dir():
        raise typer.BadParameter(f"the folder {str(path.parent)!r} does not exist; create it first", param_hint=option)
    return path
