"""The datasets of the experiments, read from folders in their official layouts or from the Hugging Face Hub."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def source_name(source: str, *patterns: str) -> str:
    """The name of a model or dataset in records: its hub id, or its folder's name with a hash of its files.

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
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{folder.name}@{digest.hexdigest()[:8]}"


def absolute(source: str) -> str:
    """A folder as an absolute path, because workers may start elsewhere; a hub id unchanged."""
    return str(Path(source).absolute()) if Path(source).is_dir() else source


def load_hub(name: str, *configuration: str) -> Any:
    """The splits of a dataset on the Hugging Face Hub.

    Args:
        name: its hub id.
        configuration: the configuration, if there are several.
    """
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as missing:
        hint = f"loading it from the hub needs {missing.name}; run: pip install 'rsoftmax-lab[hub]'"
        raise ModuleNotFoundError(f"{name!r} is not a folder, and {hint}", name=missing.name) from None
    try:
        return load_dataset(name, *configuration)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: {str(error).strip().splitlines()[0]}") from None
