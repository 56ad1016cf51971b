"""Deleting what a program has written, and nothing else: a user may have put files beside it."""

from pathlib import Path


def remove(folder: Path, *patterns: str) -> None:
    """Delete the files of a folder whose names match one of the patterns, and the folder if it is empty then.

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
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        if path.is_file() or path.is_symlink():
            path.unlink(missing_ok=True)
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()
