"""Sparse probability mappings with a controllable rate of zeros.

Importing the package is fast: torch is imported when the first name is used. The public names are those in ``__all__``
of the modules below, and some modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from rsoftmax import attention as attention
    from rsoftmax import kernels as kernels
    from rsoftmax import labels as labels
    from rsoftmax import losses as losses
    from rsoftmax import nn as nn
    from rsoftmax import registry as registry
    from rsoftmax.kernels import *  # noqa: F403
    from rsoftmax.mappings import *  # noqa: F403
    from rsoftmax.nn import *  # noqa: F403

__version__ = "0.2.0"

_HOMES = ("mappings", "nn", "kernels")
_MODULES = ("attention", "kernels", "labels", "losses", "nn", "registry")


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            listed = (public for home in _HOMES for public in _module(home).__all__)
            return sorted({*_MODULES, *listed, *_module("nn").MODULES})
        if not name.startswith("_"):
            try:
                return _module(name)
            except ModuleNotFoundError as missing:
                if missing.name != f"{__name__}.{name}":
                    raise
            for home in map(_module, _HOMES):
                if name in home.__all__:
                    globals()[name] = value = getattr(home, name)
                    return value
            if name in (classes := _module("nn").MODULES):  # a generated class
                return classes[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
