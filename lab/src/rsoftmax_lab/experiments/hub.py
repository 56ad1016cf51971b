"""Datasets from the Hugging Face Hub, loaded with ``datasets``."""

from typing import Any


def load(name: str, *configuration: str) -> Any:
    """The splits of a dataset on the hub, by name.

    Args:
        name: its hub id.
        configuration: the configuration, if there are several.
    """
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{name!r} is not a folder, and loading it from the hub needs {missing.name}; run:"
            " pip install 'rsoftmax-lab[hub]'",
            name=missing.name,
        ) from None
    try:
        return load_dataset(name, *configuration)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: {str(error).strip().splitlines()[0]}") from None
