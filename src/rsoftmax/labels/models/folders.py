"""Folders of saved models: what may be written or removed, and how one version replaces another.

A save writes its files into a hidden folder next to the old ones, and one rename commits them; then they are moved to
their names. After a kill the next load or save finishes these moves; the next save deletes the files of one that was
not committed. Only one process may save to a folder at a time, and none should load from it meanwhile.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rsoftmax import __version__
from rsoftmax.labels.models.card import describe_evaluation, model_card
from rsoftmax.labels.review import saved_thresholds

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel

WEIGHTS, SETTINGS, CARD = "model.safetensors", "config.json", "README.md"
ESTIMATOR = "model.skops"  # in place of the weights: trees
LABELS, TABLE, FOREST, WORDS = "rsoftmax-labels", "rsoftmax-table", "rsoftmax-forest", "rsoftmax-words"
KINDS = {LABELS: "EncoderModel", TABLE: "TableModel", FOREST: "ForestModel", WORDS: "LabelModel"}
"""The kinds of saved models: ``model_type`` in config.json, and the class in ``rsoftmax.labels`` that loads them."""
UNFINISHED, COMMITTED = ".rsoftmax-unfinished-", ".rsoftmax-committed"


def load(folder: str | Path) -> "BaseLabelModel":
    """Load a saved model of any kind."""
    kind = KINDS[read_settings(Path(folder))["model_type"]]
    model: BaseLabelModel = getattr(import_module("rsoftmax.labels"), kind).load(folder)
    return model


def read_settings(folder: Path, kind: str | None = None) -> dict[str, Any]:
    """The settings of a saved model, whose other files can then be read.

    Args:
        folder: the folder.
        kind: a key of ``KINDS``; None: any.

    Raises:
        FileNotFoundError: if there is no model.
        ValueError: if it is of another kind, or was saved by a newer version.
    """
    _finish(folder)
    for name in (SETTINGS, ESTIMATOR if kind_of(folder) == FOREST else WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}; `rsoftmax train --out {folder}` saves a model there")
    settings, saved = _settings(folder), kind_of(folder)
    if saved is None:
        raise ValueError(
            f"{folder / SETTINGS} is damaged or belongs to another kind of model: expected the model_type"
            f" {' or '.join(KINDS)}. To train labels on top of an encoder: `rsoftmax train --encoder {folder}`"
        )
    if kind not in (saved, None):
        raise ValueError(f"{folder} holds a {KINDS[saved]}; load it by rsoftmax.labels.{KINDS[saved]}.load")
    if _release(version := settings.get("rsoftmax_version")) > _release(__version__):
        raise ValueError(f"{folder} was saved by rsoftmax {version}, this is {__version__}: pip install -U rsoftmax")
    if missing := sorted(name for name in _manifest(folder) - {CARD} if not (folder / name).is_file()):
        raise ValueError(f"{folder} is damaged: {missing[0]} is missing; restore it, or save the model again")
    _check_figures(folder, settings)
    return settings


@contextmanager
def write(folder: Path) -> Iterator[Path]:
    """A folder to write the files of a model into, which become those of ``folder`` in a single step.

    The settings get a list of these files, and the model card is written from the settings. Other files in ``folder``
    stay untouched, and so does a card unlike the one that the old settings lead to: a user wrote or edited it.
    Subfolders are left out: they hold chat templates.

    Raises:
        FileExistsError: if a file would replace one that is not part of a saved model of the same kind.
    """
    folder = folder.resolve()
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    _finish(folder)
    _remove_hidden(folder)
    staged = folder / f"{UNFINISHED}{uuid4().hex}"
    try:
        staged.mkdir()
        yield staged
        names = sorted({path.name for path in _files(staged)} | {CARD})
        settings = _settings(staged) | {"files": names, "rsoftmax_version": __version__}
        (staged / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        if not os.path.lexists(folder / CARD) or CARD in _own(folder):
            (staged / CARD).write_text(model_card(settings), encoding="utf-8")
        for path in _files(staged):
            path.chmod(staged.stat().st_mode & 0o666)  # as the umask says; safetensors makes files private
        check_writable(folder, settings["model_type"], names)
        staged.rename(folder / COMMITTED)
        _finish(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # not empty: it was written
                folder.rmdir()


def check_writable(folder: Path, kind: str, names: list[str] | None = None) -> None:
    """Raise unless a model can be saved in a folder without replacing anything but a model of its kind.

    Args:
        folder: the folder.
        kind: a key of ``KINDS``.
        names: the files to write. None: they are not known yet, and the folder must be new, empty, or hold a model of
            this kind.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file or a broken link; choose another folder")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write to {folder}: {parent} is not a folder, or not writable")
    saved = kind_of(folder)
    if saved not in (kind, None):
        raise FileExistsError(f"{folder} holds a {KINDS[saved]}; choose another folder for a {KINDS[kind]}")
    if names is None:
        foreign = _visible(folder) if saved is None else set()
    else:
        replaced = _visible(folder) & set(names) - {CARD}
        foreign = {name for name in replaced if saved is None or (folder / name).is_dir()}
    if foreign:
        raise FileExistsError(
            f"{folder} holds {min(foreign)}, which is not part of a saved {KINDS[kind]}; choose another folder"
        )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; the file then replaces ``path`` at once, so that nobody reads half of it."""
    unfinished = path.with_name(f".unfinished-{uuid4().hex}-{path.name}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def kind_of(folder: Path) -> str | None:
    """The kind of model saved in a folder; None if there is none, or another library's."""
    settings = _settings(folder) or _settings(folder / COMMITTED)
    kind = settings.get("model_type")
    return kind if isinstance(kind, str) and kind in KINDS else None


def is_vacant(folder: Path) -> bool:
    """Whether a folder holds nothing but what interrupted saves have left behind."""
    return not _visible(folder)


def remove_model(folder: Path, *patterns: str) -> None:
    """Delete the files of a saved model, those that match a pattern, and the folder if it is then empty.

    Without a saved model of this library in the folder, nothing is deleted. An edited model card never is.
    """
    if kind_of(folder) is not None or is_vacant(folder):
        own = map(escape, _own(folder))
        _remove_hidden(folder)
        remove(folder, *own, *patterns)


def remove(folder: Path, *patterns: str) -> None:
    """Delete the files of a folder whose names match a pattern, and the folder if it is then empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     parts = Path(parent, "parts")
        ...     parts.mkdir()
        ...     for name in ("1.part", "notes.txt"):
        ...         (parts / name).touch()
        ...     remove(parts, "*.part")
        ...     print([path.name for path in parts.iterdir()])
        ['notes.txt']
    """
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        if any(fnmatch(path.name, pattern) for pattern in patterns) and (path.is_file() or path.is_symlink()):
            path.unlink(missing_ok=True)
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()


def _check_figures(folder: Path, settings: dict[str, Any]) -> None:
    """Raise unless the evaluation and the levels of a review, which people may have edited, can be used."""
    labels = settings.get("labels") or settings.get("id2label") or (0, 1)  # transformers leaves out two labels
    readers: dict[str, Callable[[Any], Any]] = {
        "evaluation": describe_evaluation,
        "review": lambda review: saved_thresholds(review, len(labels)),
    }
    for name, read in readers.items():
        try:
            if settings.get(name) is not None:
                read(settings[name])
        except Exception as error:  # for files edited by hand there are many kinds
            raise ValueError(
                f"{folder} is damaged: {name!r} in {SETTINGS} cannot be read ({error!r}); restore it, or set it to null"
            ) from None


def _finish(folder: Path) -> None:
    """Move the files of a committed save to their names, the settings last; files that it lacks are deleted."""
    committed = folder / COMMITTED
    if committed.is_symlink() or not committed.is_dir():
        return
    if new := _manifest(committed):  # none if a kill came after the last move
        remove(folder, *map(escape, _own(folder) - new))
    for path in sorted(_files(committed), key=lambda path: path.name == SETTINGS):
        path.replace(folder / path.name)
    shutil.rmtree(committed, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]


def _settings(folder: Path) -> dict[str, Any]:
    """What config.json holds; nothing if it is missing or damaged."""
    try:
        settings = json.loads((folder / SETTINGS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _manifest(folder: Path) -> set[str]:
    """The names of the files of a saved model, as its settings list them; no name leads out of the folder."""
    names = _settings(folder).get("files")
    strings = {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    return {name for name in strings if name == os.path.basename(name) and name not in ("", ".", "..")}


def _own(folder: Path) -> set[str]:
    """The files of a saved model, but for a card that a user wrote or edited."""
    try:
        is_edited = (folder / CARD).read_text(encoding="utf-8") != model_card(_settings(folder))
    except Exception:  # no card, not a text, or damaged settings that no card can be written from
        is_edited = True
    return _manifest(folder) - ({CARD} if is_edited else set())


def _visible(folder: Path) -> set[str]:
    """The names in a folder, but for those of interrupted saves."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in names if not name.startswith((UNFINISHED, COMMITTED))}


def _remove_hidden(folder: Path) -> None:
    """Delete what interrupted saves have left behind."""
    for path in (folder / COMMITTED, *folder.glob(f"{UNFINISHED}*")):
        shutil.rmtree(path, ignore_errors=True)


def _release(version: Any) -> tuple[int, ...]:
    """The numbers of a version that say whether its files can be read: major and minor."""
    match = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    return tuple(map(int, match.groups())) if match else (0, 0)
