"""Which kernels run, and how to choose them: ``native`` (compiled: CPU, Triton) or ``reference`` (plain torch).

>>> import rsoftmax
>>> with rsoftmax.use_kernels("reference"):
...     rsoftmax.kernels.in_use()
'reference'
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from rsoftmax.kernels import cpu, triton
from rsoftmax.kernels.cpu import attention
from rsoftmax.kernels.operands import Operands as Operands
from rsoftmax.kernels.operands import Options as Options

__all__ = ["use_kernels"]

Value = float | Tensor


class Kernel(Protocol):
    """What a package of compiled kernels has: rows in, rows out. The definition of each operation is the reference's.

    An operation is called by its name in :mod:`rsoftmax.kernels.reference`. Rows are the last dimension of ``x``, a
    value is a number or a tensor ``[..., 1]``, and a mask, True = keep, has the shape of ``x``.
    """

    @property
    def ABSENT(self) -> str:  # noqa: N802
        """What to tell a user whose installation lacks it."""

    def available(self) -> bool:
        """Whether it can run at all."""

    def has(self, name: str, dtype: torch.dtype) -> bool:
        """Whether it has the operation for a type; what can be asked of tensors that are traced."""

    def takes(self, name: str, x: Tensor, value: Value | None) -> bool:
        """Whether it has the operation, for tensors like these."""

    def new_state(self, name: str, x: Tensor, keep_state: bool) -> Tensor:
        """Room for what forward leaves for backward, of size 0 if nothing is needed."""

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


REGISTRY: dict[str, Kernel] = {"cpu": cpu, "triton": triton}
"""The compiled kernels by name: the first that takes a tensor runs."""

KERNELS = ("native", "reference")  # all compiled ones, or none
CHOICES: dict[str, tuple[Kernel, ...]] = {"native": tuple(REGISTRY.values()), "reference": ()}
CHOICES |= {name: (kernel,) for name, kernel in REGISTRY.items()}
_choice: ContextVar[str] = ContextVar("rsoftmax_kernels", default="native")


def kernel_for(name: str, x: Tensor, value: Value | None) -> Kernel | None:
    """The kernel that runs an operation on these tensors; None: the reference does."""
    for kernel in REGISTRY.values():
        if kernel.takes(name, x, value):  # asked first: torch.compile cannot read the choice, and takes nothing
            return kernel if kernel in CHOICES[_choice.get()] else None
    return None


def attention_kernel() -> ModuleType | None:
    """The kernel of attention as a whole, ``kernels/cpu/attention.py``; None: it is computed from products and rows."""
    return attention if cpu.LEVEL and cpu in CHOICES[_choice.get()] else None


def kernel_on(device: str) -> Kernel | None:
    """The kernel behind the operators on a kind of device."""
    return REGISTRY[{"cpu": "cpu", "cuda": "triton"}[device]] if device in ("cpu", "cuda") else None


def chosen() -> str:
    """The name that :func:`use_kernels` was given, or the default: "native" or "reference"."""
    return _choice.get()


def in_use() -> str:
    """The kernels that CPU tensors meet, with their instruction set: ``native (avx512)``, or ``reference``."""
    return f"native ({cpu.LEVEL})" if cpu.LEVEL and cpu in CHOICES[_choice.get()] else "reference"


@contextmanager
def use_kernels(name: str) -> Iterator[None]:
    """Choose the kernels within a ``with`` block.

    Args:
        name: "native", the compiled ones for each device; "reference", none; or one of them alone: "cpu", "triton".

    Raises:
        ValueError: for another name.
        RuntimeError: for kernels that this installation lacks.

    Example:
        >>> with use_kernels("reference"):
        ...     in_use()
        'reference'
    """
    if name not in CHOICES:
        raise ValueError(f"kernels must be one of {', '.join(CHOICES)}, got {name!r}")
    wanted = REGISTRY["cpu" if name == "native" else name] if name != "reference" else None
    if wanted is not None and not wanted.available():
        raise RuntimeError(wanted.ABSENT)
    token = _choice.set(name)
    try:
        yield
    finally:
        _choice.reset(token)
