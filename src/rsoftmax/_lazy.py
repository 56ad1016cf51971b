"""Public names of a package that are imported on first use, with an error that names the extra to install."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str], extra: str) -> tuple[Callable[[str], Any], list[str]]:
    """The ``__getattr__`` and ``__all__`` of a package.

    Args:
        package: the name of the package.
        homes: module below the package -> the names that it defines, separated by spaces.
        extra: installs what these modules need.

    Returns:
        A function that imports a name on first use, and all names in alphabetical order.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{home_of[name]}"), name)
        except ModuleNotFoundError as missing:
            raise ImportError(f"{package}.{name} needs {missing.name}: pip install 'rsoftmax[{extra}]'") from missing

    return __getattr__, sorted(home_of)
