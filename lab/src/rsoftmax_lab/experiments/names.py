"""Models and datasets, given as a folder or hub id: their names in rows, and their place for other processes."""

import hashlib
from functools import cache
from pathlib import Path


@cache
def source_name(source: str, *patterns: str) -> str:
    """The name of a model or dataset in rows: its hub id, or its folder's name with a hash of its files.

    Example:
        >>> source_name("google-bert/bert-base-uncased", "*.safetensors")
        'google-bert/bert-base-uncased'
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory(suffix="-tiny") as folder:
        ...     source_name(folder, "*.safetensors") == folder.split("/")[-1] + "@e3b0c442"
        True

    The path is omitted because it differs between machines; the hash distinguishes folders of the same name.
    """
    folder = Path(source).absolute()
    if not folder.is_dir():
        return source
    digest = hashlib.sha256()
    for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
        digest.update(file.relative_to(folder).as_posix().encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return f"{folder.name}@{digest.hexdigest()[:8]}"


def absolute(source: str) -> str:
    """A folder as an absolute path, because workers may start elsewhere; a hub id unchanged."""
    return str(Path(source).absolute()) if Path(source).is_dir() else source
