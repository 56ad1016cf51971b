"""Data sets of the Hugging Face hub, loaded by the package ``datasets``."""

from typing import Any


def load(name: str, *configuration: str) -> Any:
    """The splits of a data set on the hub, by their names.

    Args:
        name: its hub id; said to be no folder in an error, as a folder would have been read without the hub.
        configuration: which part of it, if it has several.
    """
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{name!r} is not a folder, and to read it from the hub needs {missing.name}; run:"
            " pip install 'rsoftmax-lab[hub]'",
            name=missing.name,
        ) from None
    try:
        return load_dataset(name, *configuration)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: {str(error).strip().splitlines()[0]}") from None
