"""Folders of saved models: written at one stroke, never over something else, and checked when they are read."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

__all__ = ["SETTINGS", "WEIGHTS", "check_hashes", "check_place", "hashes", "settings_of", "written"]

WEIGHTS, SETTINGS, CARD = "model.safetensors", "config.json", "README.md"
KINDS = ("rsoftmax-labels", "rsoftmax-table")
"""The kinds of models that this package saves: ``model_type`` in the settings."""


@contextmanager
def written(folder: Path) -> Iterator[Path]:
    """Give a folder to write files into, which become those of ``folder`` when all of them are there.

    A new folder appears with all of them. In one that is there, only these files are replaced, the settings last:
    whatever else is in it stays, and the hashes in the settings tell files of two models apart, as a kill may leave
    them.
    """
    folder = folder.resolve()
    is_new = not folder.exists()
    unfinished = (folder.parent if is_new else folder) / f"{_unfinished(folder)}{uuid4().hex}"
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        if is_new:
            unfinished.rename(folder)
        else:
            for path in sorted(unfinished.iterdir(), key=lambda path: path.name == SETTINGS):
                os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_place(folder: Path) -> None:
    """Refuse to save where something else is, or where nothing can be written."""
    if folder.is_dir():
        others = [path for path in folder.iterdir() if not path.name.startswith(_unfinished(folder))]
        if others and kind_of(folder) is None:
            raise FileExistsError(f"{folder} holds something else; name a new folder, or one that a model was saved in")
    elif os.path.lexists(folder):
        raise FileExistsError(f"{folder} is no folder, or a link to one that is not there; name another")
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written: {there} is no folder, or not yours to write in")


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of a saved model; an error that says what else the folder is."""
    missing = [name for name in (SETTINGS, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} has no {missing[0]}; `rsoftmax train --out {folder}` writes a model there")
    if kind_of(folder) is None:
        raise ValueError(
            f"{folder / SETTINGS} is damaged, or that of a model of another kind: its model_type is none of"
            f" {', '.join(KINDS)}. An encoder becomes a model of labels by `rsoftmax train --encoder {folder}`; a"
            " picture classifier that `rsoftmax reproduce` saved before there was a model_type has to be saved again"
        )
    settings: dict[str, Any] = json.loads((folder / SETTINGS).read_bytes())
    return settings


def kind_of(folder: Path) -> str | None:
    """The kind of the model that was saved in a folder; None: of another kind, or none."""
    try:
        settings = json.loads((folder / SETTINGS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    return kind if kind in KINDS else None


def hashes(folder: Path) -> dict[str, str]:
    """A hash of each file, but for the settings, which hold them, and the card, which people write into."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    return {name: _hash(folder / name) for name in names if name not in (SETTINGS, CARD)}


def check_hashes(folder: Path, files: dict[str, str]) -> None:
    """Refuse files that are not those of the settings."""
    for name, digest in files.items():
        if not (folder / Path(name).name).is_file():
            raise ValueError(f"{name} is gone, which {SETTINGS} was saved with; put it back, or save the model again")
        if _hash(folder / Path(name).name) != digest:
            raise ValueError(
                f"{name} is not the file that {SETTINGS} was saved with: it was changed, or a save was stopped halfway;"
                " save the model again"
            )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unfinished(folder: Path) -> str:
    """How the names of folders begin in which a save to this one is under way."""
    return f".{folder.resolve().name}.unfinished-"
