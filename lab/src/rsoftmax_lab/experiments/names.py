"""What rows call an encoder and its data."""

import hashlib
from functools import cache
from pathlib import Path


@cache
def source_name(source: str, *patterns: str) -> str:
    """What a model or a set is called in rows: its name on the hub, or its folder's and a hash of its files.

    Example:
        >>> source_name("google-bert/bert-base-uncased", "*.safetensors")
        'google-bert/bert-base-uncased'
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory(suffix="-tiny") as folder:
        ...     source_name(folder, "*.safetensors") == folder.split("/")[-1] + "@e3b0c442"
        True

    The path to the folder is left out, as it says nothing elsewhere; the hash tells folders of the same name apart.
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
