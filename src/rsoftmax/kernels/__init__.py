"""Which kernels run, and how to choose them: ``native`` (compiled, CPU) or ``reference`` (plain torch, everywhere).

>>> import rsoftmax
>>> with rsoftmax.use_kernels("reference"):
...     rsoftmax.kernels.in_use()
'reference'
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rsoftmax.kernels import native

KERNELS = ("native", "reference")

_choice: ContextVar[str] = ContextVar("rsoftmax_kernels", default="native" if native.LEVEL else "reference")


def in_use() -> str:
    """The kernels that CPU tensors meet, with their instruction set: ``native (avx512)``, or ``reference``."""
    return f"native ({native.LEVEL})" if _choice.get() == "native" else "reference"


@contextmanager
def use_kernels(name: str) -> Iterator[None]:
    """Choose the kernels within a ``with`` block.

    Args:
        name: "native", where they were compiled, or "reference".

    Raises:
        ValueError: for another name.
        RuntimeError: for "native" where the package was installed without a compiler.
    """
    if name not in KERNELS:
        raise ValueError(f"kernels must be one of {', '.join(KERNELS)}, got {name!r}")
    if name == "native" and not native.LEVEL:
        raise RuntimeError(native.ABSENT)
    token = _choice.set(name)
    try:
        yield
    finally:
        _choice.reset(token)


def native_chosen() -> bool:
    """Whether to prefer the native kernels; says once where there are none."""
    if not native.LEVEL:
        _say_once()
    return _choice.get() == "native"


def _say_once() -> None:
    global _said
    if not _said:
        _said = True
        warnings.warn(native.ABSENT, stacklevel=5)


_said = False
