"""Which kernels run, and how to choose them: ``native`` (compiled, CPU) or ``reference`` (plain torch, everywhere).

>>> import rsoftmax
>>> with rsoftmax.use_kernels("reference"):
...     rsoftmax.kernels.in_use()
'reference'
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor

from rsoftmax.kernels import cpu

__all__ = ["use_kernels"]

KERNELS = ("native", "reference")
Value = float | Tensor


class Kernel(Protocol):
    """What a package of compiled kernels has: rows in, rows out. The definition of each operation is the reference's.

    An operation is called by its name in :mod:`rsoftmax.kernels.reference`. Rows are the last dimension of ``x``, a
    value is a number or a tensor ``[..., 1]``, and a mask, True = keep, has the shape of ``x``.
    """

    @property
    def LEVEL(self) -> str:  # noqa: N802
        """What it was compiled for; empty if it was not."""

    @property
    def ABSENT(self) -> str:  # noqa: N802
        """What to tell a user whose installation lacks it."""

    def takes(self, name: str, x: Tensor, value: Value | None) -> bool:
        """Whether it has the operation, for tensors like these."""

    def forward(
        self, name: str, x: Tensor, value: Value | None, mask: Tensor | None, keep_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The probabilities, and what backward needs to know besides, if that is wanted and there is anything."""

    def backward(
        self,
        name: str,
        x: Tensor,
        value: Value | None,
        mask: Tensor | None,
        p: Tensor,
        state: Tensor | None,
        g: Tensor,
        options: dict[str, bool],
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients in ``x`` and in the value, if that is a tensor, from the incoming gradient ``g``."""


NATIVE: tuple[Kernel, ...] = (cpu,)
"""The compiled kernels: the first that takes a tensor runs."""

_choice: ContextVar[str] = ContextVar("rsoftmax_kernels", default="native" if cpu.LEVEL else "reference")


def kernel_for(name: str, x: Tensor, value: Value | None) -> Kernel | None:
    """The kernel that runs an operation on these tensors; None: the reference does."""
    for kernel in NATIVE:
        if kernel.takes(name, x, value):
            return kernel if _choice.get() == "native" else None
    return None


def chosen() -> str:
    """The name that :func:`use_kernels` was given, or the default: "native" or "reference"."""
    return _choice.get()


def in_use() -> str:
    """The kernels that CPU tensors meet, with their instruction set: ``native (avx512)``, or ``reference``."""
    return f"native ({cpu.LEVEL})" if _choice.get() == "native" else "reference"


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
    if name == "native" and not cpu.LEVEL:
        raise RuntimeError(cpu.ABSENT)
    token = _choice.set(name)
    try:
        yield
    finally:
        _choice.reset(token)
