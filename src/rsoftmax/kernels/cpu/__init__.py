"""The kernels for the CPU: the Python face of rows.cpp. Tensors in, addresses out; no autograd, no checks."""

import importlib
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, get_num_threads

from rsoftmax.tensors import in_memory

Value = float | Tensor

LEVELS = {"AVX512": ("avx512", "avx2", "baseline"), "AVX2": ("avx2", "baseline")}
REMEDY = (
    "there are none for Windows"
    if sys.platform == "win32"
    else "install a C++ compiler (gcc 12 or newer, or clang) and then: pip install --force-reinstall --no-deps rsoftmax"
)
ABSENT = f"rsoftmax was installed without its compiled kernels and runs on plain torch, which is slower; {REMEDY}"


def _load() -> tuple[str, Any]:
    """The library for the best instruction set that this CPU, and whoever set ATEN_CPU_CAPABILITY, allows."""
    for level in LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("baseline",)):
        try:
            return level, importlib.import_module(f"{__name__}._rows_{level}")
        except ImportError:
            continue
    return "", None


LEVEL, _library = _load()
OPERATIONS: dict[str, int] = _library.OPERATIONS if LEVEL else {}
ATTENDS: dict[str, int] = _library.ATTENDS if LEVEL else {}  # 1: attention knows it
DTYPES: dict[torch.dtype, int] = {getattr(torch, n): i for n, i in _library.DTYPES.items()} if LEVEL else {}
STATE: dict[str, int] = _library.STATE if LEVEL else {}  # numbers that forward leaves for backward, for each row


def available() -> bool:
    """Whether the kernels were compiled."""
    return bool(LEVEL)


def has(name: str, dtype: torch.dtype) -> bool:
    """Whether there is such an operation for the type."""
    return name in OPERATIONS and dtype in DTYPES


def takes(name: str, x: Tensor, value: Value | None) -> bool:
    """Whether these rows can go to the kernels; says once if there are none."""
    if not in_memory(x) or (isinstance(value, Tensor) and not in_memory(value)):
        return False
    if not LEVEL:
        _warn_once()
    return has(name, x.dtype)


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(ABSENT, stacklevel=7)  # the line that called the mapping


_warned = False


def new_state(name: str, x: Tensor, keep_state: bool) -> Tensor:
    """Room for what forward leaves for backward; of size 0 if nothing is needed."""
    rows = x.numel() // x.shape[-1] if keep_state and STATE[name] else 0
    return x.new_empty((rows, STATE[name]), dtype=torch.float64)


def forward(
    name: str, x: Tensor, value: Value | None, mask: Tensor | None, keep_state: bool
) -> tuple[Tensor, Tensor | None]:
    """Probabilities, contiguous, and the state, float64 [rows, numbers], if backward will ask for it."""
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    state = None
    if keep_state and STATE[name]:
        state = torch.empty(x.numel() // x.size(-1), STATE[name], dtype=torch.float64, device=x.device)
    _run(name, x, value, mask, p, state)
    return p, state


def backward(
    name: str,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor | None,
    g: Tensor,
    options: dict[str, bool],
) -> tuple[Tensor, Tensor | None]:
    """The gradient in ``x``, contiguous, and in a tensor parameter, float64 [..., 1]."""
    p, g = p.contiguous(), g.contiguous()  # hooks may have stored them in another layout
    state = None if state is None else state.contiguous()
    dx, dvalues = torch.empty_like(p), None
    if isinstance(value, Tensor):
        dvalues = torch.empty(*x.shape[:-1], 1, dtype=torch.float64, device=x.device)
    _run(name, x, value, mask, p, state, g, dx, dvalues, **options)
    return dx, dvalues


def _run(
    name: str,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor | None = None,
    g: Tensor | None = None,
    dx: Tensor | None = None,
    dvalues: Tensor | None = None,
    detach_threshold: bool = False,
) -> None:
    """Map the rows of ``x`` into ``p``, which may be ``x`` itself; with ``g``, fill ``dx`` and ``dvalues`` instead.

    Rows are copied only if the entries of one do not lie side by side. The fields are those of ``Call`` in call.h.
    """
    n = x.size(-1)
    rows, stride = (x, n) if x.is_contiguous() else _rows(x)
    values = value.to(torch.float64).contiguous() if isinstance(value, Tensor) else None
    offsets = None if mask is None or mask.is_contiguous() else _offsets(mask)
    _library.run(
        op=OPERATIONS[name],
        dtype=DTYPES[x.dtype],
        rows=x.numel() // n,
        n=n,
        x=rows.data_ptr(),
        x_stride=stride,
        mask=0 if mask is None else mask.data_ptr(),
        mask_step=0 if mask is None else mask.stride(-1),
        mask_stride=n,
        mask_rows=0 if offsets is None else offsets.data_ptr(),
        number=value if isinstance(value, float) else 0.0,
        values=0 if values is None else values.data_ptr(),
        p=p.data_ptr(),
        states=0 if state is None else state.data_ptr(),
        g=0 if g is None else g.data_ptr(),
        dx=0 if dx is None else dx.data_ptr(),
        dvalues=0 if dvalues is None else dvalues.data_ptr(),
        detach=detach_threshold,
        threads=get_num_threads(),
    )


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """Rows as a matrix, each of them in one piece, and how far apart they are."""
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    return rows, rows.stride(0)


def _offsets(mask: Tensor) -> Tensor:
    """Where each row of an expanded mask begins: eight bytes a row, instead of writing the mask out."""
    offset = torch.zeros((), dtype=torch.int64, device=mask.device)
    for size, stride in zip(mask.shape[:-1], mask.stride()[:-1], strict=True):
        offset = offset.unsqueeze(-1) + torch.arange(size, device=mask.device) * stride
    return offset.reshape(-1)
