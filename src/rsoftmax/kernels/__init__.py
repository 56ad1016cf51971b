"""Which kernels run, and how to choose them: ``native`` (compiled: CPU, Triton) or ``reference`` (plain torch).

>>> import rsoftmax
>>> with rsoftmax.use_kernels("reference"):
...     rsoftmax.kernels.cpu_kernels()
'reference'
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from rsoftmax._tensors import Value
from rsoftmax.kernels import cpu, triton
from rsoftmax.kernels.cpu import attention, rows
from rsoftmax.kernels.cpu.rows import extremes as extremes
from rsoftmax.kernels.triton import check

__all__ = ["use_kernels"]


class Kernel(Protocol):
    """The interface of a package of compiled kernels: rows in, rows out. The reference defines each operation.

    An operation has the name of its function in :mod:`rsoftmax.kernels.reference`. Rows are the last dimension of
    ``x``, a value is a number or a tensor ``[..., 1]``, a mask, True = keep, has the shape of ``x``, and options are
    the further keyword arguments of the operation.
    """

    @property
    def ABSENT(self) -> str:  # noqa: N802
        """The message for installations that lack it."""

    def available(self) -> bool:
        """Whether it can run at all."""

    def supports(self, name: str, dtype: torch.dtype) -> bool:
        """Whether it implements the operation for a dtype; can be evaluated while tracing."""

    def supports_call(self, name: str, x: Tensor, value: Value | None) -> bool:
        """Whether it implements the operation for these tensors."""

    def new_state(self, name: str, x: Tensor, keep_state: bool) -> Tensor:
        """Uninitialised memory for the state, of size 0 if there is none."""

    def forward(
        self, name: str, x: Tensor, value: Value | None, mask: Tensor | None, options: dict[str, Any], keep_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The probabilities, contiguous, and the state for backward if it is requested and there is one."""

    def backward(
        self,
        name: str,
        x: Tensor,
        value: Value | None,
        mask: Tensor | None,
        p: Tensor,
        state: Tensor | None,
        g: Tensor,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients in ``x``, and in the value if it is a tensor, from the incoming gradient ``g``."""


REGISTRY: dict[str, Kernel] = {"cpu": rows, "triton": triton}
"""The compiled kernels by name: the first one that supports a call runs."""

KERNELS = ("native", "reference")  # all compiled ones, or none
CHOICES: dict[str, tuple[Kernel, ...]] = {"native": tuple(REGISTRY.values()), "reference": ()}
CHOICES |= {name: (kernel,) for name, kernel in REGISTRY.items()}
_choice: ContextVar[str] = ContextVar("rsoftmax_kernels", default="native")


def kernel_for(
    name: str, x: Tensor, value: Value | None, mask: Tensor | None, options: dict[str, Any], keep_state: bool
) -> Kernel | None:
    """The kernel that runs an operation on these tensors; None: the reference."""
    for kernel in REGISTRY.values():
        if kernel.supports_call(name, x, value):  # first: torch.compile cannot read a ContextVar
            choice = _choice.get()
            if kernel not in CHOICES[choice]:
                return None
            unchecked = kernel is not triton or choice == "triton"
            return kernel if unchecked or check.agrees(name, x, value, mask, options, keep_state) else None
    return None


def kernel_on(device: str) -> Kernel | None:
    """The kernel behind the operators on a kind of device."""
    return {"cpu": REGISTRY["cpu"], "cuda": REGISTRY["triton"]}.get(device)


def attention_kernel() -> ModuleType | None:
    """The kernel of attention as a whole, ``kernels/cpu/attention.py``; None: products and rows."""
    return attention if cpu.LEVEL and rows in CHOICES[_choice.get()] else None


def get_kernels() -> str:
    """The argument of :func:`use_kernels`, or the default, "native"."""
    return _choice.get()


def cpu_kernels() -> str:
    """The kernels that run on the CPU, with their instruction set: ``native (avx512)``, or ``reference``."""
    return f"native ({cpu.LEVEL})" if attention_kernel() else "reference"


@contextmanager
def use_kernels(name: str) -> Iterator[None]:
    """Choose the kernels within a ``with`` block.

    Args:
        name: "native", the compiled kernels for each device, those for GPUs if they agree with the reference, with
            which they are compared before their first result; "reference", none; or one of them, uncompared: "cpu",
            "triton".

    Raises:
        ValueError: for another name.
        RuntimeError: for kernels that this installation lacks.

    Example:
        >>> with use_kernels("reference"):
        ...     cpu_kernels()
        'reference'
    """
    if name not in CHOICES:
        raise ValueError(f"kernels must be one of {', '.join(CHOICES)}, got {name!r}")
    if name != "reference" and not CHOICES[name][0].available():
        raise RuntimeError(CHOICES[name][0].ABSENT)
    with as_chosen(name):
        yield


@contextmanager
def as_chosen(name: str) -> Iterator[None]:
    """The choice that :func:`get_kernels` returned before, also where nothing is compiled."""
    token = _choice.set(name)
    try:
        yield
    finally:
        _choice.reset(token)
