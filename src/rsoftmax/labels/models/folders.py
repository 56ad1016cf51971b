"""Folders of saved models: their kinds, what may be written or removed, and how one version replaces another.

A save writes its files into a hidden folder next to the old ones, and commits them by a single rename. From then on
readers get the new version: from the hidden folder if the save is killed at this point, and otherwise from the files,
which are then moved to their places under a lock that readers share. No reader sees files of two versions.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rsoftmax import __version__
from rsoftmax.labels.models.card import is_unedited

try:
    import fcntl
except ImportError:  # Windows has no flock: there, two programs must not save to one folder at the same time
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from rsoftmax.labels.models.base import BaseLabelModel

__all__ = [
    "CARD",
    "KINDS",
    "LABELS",
    "SETTINGS",
    "TABLE",
    "WEIGHTS",
    "check_writable",
    "is_vacant",
    "kind_of",
    "load",
    "read",
    "read_settings",
    "remove",
    "remove_model",
    "replacing",
    "write",
]

WEIGHTS, SETTINGS, CARD = "model.safetensors", "config.json", "README.md"
LABELS, TABLE = "rsoftmax-labels", "rsoftmax-table"
KINDS = {
    LABELS: ("rsoftmax.labels", "LabelModel", "from_pretrained"),
    TABLE: ("rsoftmax.labels", "TableModel", "load"),
}
"""The kinds of saved models: ``model_type`` in config.json, and the module, class and method that load them."""
COMMITTED = ".rsoftmax-committed"
UNFINISHED = ".rsoftmax-unfinished-"
LEFTOVER = re.compile(rf"{re.escape(UNFINISHED)}[0-9a-f]{{32}}")


def load(folder: Path) -> "BaseLabelModel":
    """Load a saved model of any kind."""
    module, name, method = KINDS[read_settings(folder)["model_type"]]
    model: BaseLabelModel = getattr(getattr(import_module(module), name), method)(folder)
    return model


@contextmanager
def read(folder: Path) -> Iterator[Path]:
    """The folder to read the files of one whole version from; saves wait until the block ends."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {str(folder)!r}; `rsoftmax train --out {folder}` saves a model there")
    with _locked(folder, exclusive=False):
        yield _whole(folder)


@contextmanager
def write(folder: Path) -> Iterator[Path]:
    """A folder to write the files of a model into, which become those of ``folder`` in a single step.

    Other files in ``folder`` are kept, and so is an edited model card.

    Raises:
        FileExistsError: if a file would replace one that is not part of a saved model of the same kind.
    """
    folder = folder.resolve()
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / _unfinished_name()
    try:
        with ExitStack() as locks:
            # A save that commits holds the folder alone, and would delete a staged folder that is not locked yet.
            with _locked(folder, exclusive=False):
                staged.mkdir()
                locks.enter_context(_locked(staged, exclusive=True))
            yield staged
            _commit(folder, staged)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # not empty: it was written
                folder.rmdir()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; the file then replaces ``path`` at once, so that nobody reads half of it."""
    unfinished = path.with_name(f".unfinished-{uuid4().hex}-{path.name}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(folder: Path, kind: str, staged: Path | None = None) -> None:
    """Decide whether a model may be saved in a folder: raise unless it replaces nothing but a model of its kind.

    Args:
        folder: the folder.
        kind: a key of ``KINDS``.
        staged: the folder with the files to be saved. None: they are not known yet, and the folder must be new, empty,
            or hold a model of this kind.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file or a broken link; choose another folder")
    parent = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write to {folder}: {parent} is not a folder, or not writable")
    found = kind_of(folder)
    if found not in (kind, None):
        raise FileExistsError(f"{folder} holds a {KINDS[found][1]}; choose another folder for a {KINDS[kind][1]}")
    if staged is not None:
        own = _own(folder) if found else set()
        foreign = {name for name in _names(staged) - own - {CARD} if _differ(folder / name, staged / name)}
    else:
        foreign = set() if found else _others(folder)
    if foreign:
        raise FileExistsError(
            f"{folder} holds {min(foreign)}, which is not part of a saved {KINDS[kind][1]}; choose another folder"
        )


def read_settings(folder: Path, kind: str | None = None) -> dict[str, Any]:
    """The settings of a saved model.

    Args:
        folder: the folder.
        kind: a key of ``KINDS``; None: any.

    Raises:
        FileNotFoundError: if there is no model.
        ValueError: if it is of another kind, or was saved by a newer version.
    """
    place = _whole(folder)
    for name in (SETTINGS, WEIGHTS):
        if not (place / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}; `rsoftmax train --out {folder}` saves a model there")
    found = kind_of(folder)
    if found is None:
        raise ValueError(
            f"{folder / SETTINGS} is damaged or belongs to another kind of model: expected the model_type"
            f" {' or '.join(KINDS)}. To train labels on top of an encoder: `rsoftmax train --encoder {folder}`"
        )
    if kind not in (found, None):
        raise ValueError(f"{folder} holds a {KINDS[found][1]}; load it by {'.'.join(KINDS[found])}")
    settings: dict[str, Any] = json.loads((place / SETTINGS).read_bytes())
    saved = settings.get("rsoftmax_version")
    if _release(saved) > _release(__version__):
        raise ValueError(f"{folder} was saved by rsoftmax {saved}, this is {__version__}: pip install -U rsoftmax")
    missing = sorted(name for name in _manifest(folder) - {CARD} if not (place / name).is_file())
    if missing:
        raise ValueError(f"{folder} is damaged: {missing[0]} is missing; restore it, or save the model again")
    return settings


def kind_of(folder: Path) -> str | None:
    """The kind of model saved in a folder; None if there is none, or another library's."""
    kind = _settings(_whole(folder)).get("model_type")
    return kind if isinstance(kind, str) and kind in KINDS else None


def is_vacant(folder: Path) -> bool:
    """Whether a folder holds nothing but what interrupted saves have left behind."""
    return not _others(folder)


def remove_model(folder: Path, *patterns: str) -> None:
    """Delete the files of a saved model, those that match a pattern, and the folder if it is then empty.

    Without a saved model of this library in the folder, nothing is deleted. An edited model card never is.
    """
    if kind_of(folder) is None and not is_vacant(folder):
        return
    own = _manifest(folder)
    if _is_edited(folder / CARD):
        own.discard(CARD)
    for place in (folder / COMMITTED, *_leftovers(folder)):
        shutil.rmtree(place, ignore_errors=True)
    remove(folder, *map(escape, own), *patterns)


def remove(folder: Path, *patterns: str) -> None:
    """Delete the files of a folder whose names match a pattern, and the folder if it is then empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     parts = Path(place, "parts")
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


def _commit(folder: Path, staged: Path) -> None:
    """Make the staged files the version of the folder."""
    settings = {**_settings(staged), "files": sorted(_names(staged)), "rsoftmax_version": __version__}
    (staged / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for path in _files(staged):
        path.chmod(staged.stat().st_mode & 0o666)  # as the umask says; safetensors makes files private
    with _locked(folder, exclusive=True):
        _publish(folder)
        for leftover in _leftovers(folder):
            _remove_if_dead(leftover)
        check_writable(folder, settings["model_type"], staged)
        if _is_edited(folder / CARD):
            (staged / CARD).unlink(missing_ok=True)
        staged.rename(folder / COMMITTED)
        _publish(folder)


def _publish(folder: Path) -> None:
    """Put the files of the committed version in their places; files that it lacks are deleted."""
    committed = folder / COMMITTED
    if not committed.is_dir():
        return
    for name in _own(folder) - _names(committed) - {CARD}:
        (folder / name).unlink(missing_ok=True)
    for path in _files(committed):
        target, link = folder / path.relative_to(committed), folder / _unfinished_name()
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(path, link)
        os.replace(link, target)
        link.unlink(missing_ok=True)  # os.replace leaves it if both are links to one file
    done = folder / _unfinished_name()
    committed.rename(done)
    shutil.rmtree(done, ignore_errors=True)


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, link)
        shutil.copymode(path, link)


def _whole(folder: Path) -> Path:
    """Where the files of the current version are."""
    return folder / COMMITTED if (folder / COMMITTED).is_dir() else folder


def _settings(place: Path) -> dict[str, Any]:
    try:
        settings = json.loads((place / SETTINGS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _manifest(folder: Path) -> set[str]:
    """The names of the files that the saved model consists of."""
    return _listed(_whole(folder))


def _own(folder: Path) -> set[str]:
    """The names of files that a save may replace or delete.

    Not among them is a folder that took the place of a file, or a file that a linked folder leads to.
    """
    place = folder.resolve()
    return {
        name
        for name in _listed(folder)
        if not (place / name).is_dir() and (place / name).parent.resolve().is_relative_to(place)
    }


def _listed(place: Path) -> set[str]:
    """The names of files that the settings in a folder list; none outside the folder."""
    names = _settings(place).get("files")
    strings = {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    return {name for name in strings if os.path.normpath(os.path.join("folder", name)).startswith(f"folder{os.sep}")}


def _files(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def _names(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in _files(place)}


def _differ(old: Path, new: Path) -> bool:
    """Whether a file would be replaced by another one."""
    return os.path.lexists(old) and not (old.is_file() and old.read_bytes() == new.read_bytes())


def _is_edited(card: Path) -> bool:
    """Whether a model card was written or changed by hand."""
    try:
        return not is_unedited(card.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True


def _release(version: Any) -> tuple[int, ...]:
    """The numbers of a version that say whether its files can be read: major and minor."""
    found = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    return tuple(map(int, found.groups())) if found else (0, 0)


def _unfinished_name() -> str:
    return f"{UNFINISHED}{uuid4().hex}"


def _leftovers(folder: Path) -> list[Path]:
    """What saves to a folder are writing, or have left behind."""
    return [path for path in folder.iterdir() if LEFTOVER.fullmatch(path.name)] if folder.is_dir() else []


def _others(folder: Path) -> set[str]:
    """The names in a folder, but for those of interrupted saves."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return names - {COMMITTED, *(path.name for path in _leftovers(folder))}


def _remove_if_dead(leftover: Path) -> None:
    """Delete what a save has left behind, unless its process still holds the lock."""
    if leftover.is_dir():
        with suppress(BlockingIOError), _locked(leftover, exclusive=True, wait=False):
            shutil.rmtree(leftover, ignore_errors=True)
    else:
        leftover.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path, *, exclusive: bool, wait: bool = True) -> Iterator[None]:
    """Hold an advisory lock on a folder: alone, or shared with others.

    Raises:
        BlockingIOError: if another process holds it and ``wait`` is False.
    """
    if fcntl is None:
        _refuse_unless(wait)
        yield
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
        except OSError:  # held by another process, or a file system without locks
            _refuse_unless(wait)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # also in child processes that were forked meanwhile
        os.close(file)


def _refuse_unless(wait: bool) -> None:
    if not wait:
        raise BlockingIOError
