"""The Python face of rows.cpp: tensors in, addresses out. No autograd, no checks."""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

_ORDINARY = (Tensor, torch.nn.Parameter)
_LEVELS = {"AVX512": ("avx512", "avx2", "baseline"), "AVX2": ("avx2", "baseline")}
_OPS = {"t_softmax": 0, "r_softmax": 1, "softmax": 1, "sparsemax": 2, "entmax15": 3}  # softmax: at rate 0
_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}

ABSENT = (
    "rsoftmax was installed without its compiled kernels and runs on plain torch, which is slower;"
    " install a C++ compiler (gcc or clang) and then: pip install --force-reinstall --no-deps rsoftmax"
)


def _load() -> tuple[str, Any]:
    """The library for the best instruction set that this CPU, and whoever set ATEN_CPU_CAPABILITY, allows."""
    for level in _LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("baseline",)):
        try:
            return level, importlib.import_module(f"rsoftmax.kernels._rows_{level}")
        except ImportError:
            continue
    return "", None


LEVEL, _library = _load()
STATE = _library.STATE if LEVEL else 0  # numbers that forward leaves for backward, for each row


def takes(x: Tensor) -> bool:
    """Whether rows can go to the kernels."""
    return x.dtype in _DTYPES and in_memory(x)


def in_memory(x: Tensor) -> bool:
    """Whether looking at a tensor's memory is free and makes sense: ordinary, on the CPU, unseen by others."""
    return (
        ordinary(x)
        and x.is_cpu
        and not x.is_neg()  # a view that negates, such as the imaginary part of a conjugate
        and not x._is_zerotensor()
        and _len_torch_dispatch_stack() == 0
    )


def ordinary(x: Tensor) -> bool:
    """Whether a tensor, on whatever device, is what it seems: not traced, not transformed, not of another class."""
    return (
        not is_compiling()
        and type(x) in _ORDINARY
        and not _is_tracing()
        and not _are_functorch_transforms_active()
        and not is_legacy_batchedtensor(x)  # what autograd makes of a batch of gradients
        and forward_ad._current_level < 0
    )


def run(
    name: str,
    x: Tensor,
    value: float | Tensor | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor | None = None,
    g: Tensor | None = None,
    dx: Tensor | None = None,
    dvalue: Tensor | None = None,
    detach_threshold: bool = False,
) -> None:
    """Map the rows of ``x`` into ``p``; or, with an incoming gradient ``g``, fill ``dx`` and ``dvalue``.

    Args:
        name: the mapping.
        x: rows [..., n]; copied only if the entries of one do not lie side by side.
        value: the parameter: a number, a tensor [..., 1], or nothing.
        mask: True = keep, expanded to the shape of ``x``, or nothing.
        p: the probabilities, contiguous: the output of forward, which may be ``x`` itself, and an input of backward.
        state: float64 [rows, STATE], which forward fills for backward, or nothing.
        g: the incoming gradient, contiguous.
        dx: where the gradient in ``x`` goes, contiguous.
        dvalue: where the gradient in the parameter goes, float64 [rows], or nothing.
        detach_threshold: as in :func:`rsoftmax.r_softmax`.
    """
    n = x.shape[-1]
    rows, stride = x, n
    if not x.is_contiguous():
        rows = x.reshape(-1, n)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        stride = rows.stride(0)
    values = value.to(torch.float64).reshape(-1).contiguous() if isinstance(value, Tensor) else None
    offsets = None if mask is None else _offsets(mask)
    _library.run(
        _OPS[name],
        _DTYPES[x.dtype],
        x.numel() // n,
        n,
        rows.data_ptr(),
        stride,
        _address(mask),
        0 if mask is None else mask.stride(-1),
        _address(offsets),
        value if isinstance(value, float) else 0.0,
        _address(values),
        p.data_ptr(),
        _address(state),
        _address(g),
        _address(dx),
        _address(dvalue),
        detach_threshold,
        torch.get_num_threads(),
    )


def _offsets(mask: Tensor) -> Tensor:
    """Where each row of an expanded mask begins: eight bytes a row, instead of writing the mask out."""
    offset = torch.zeros((), dtype=torch.int64, device=mask.device)
    for size, stride in zip(mask.shape[:-1], mask.stride()[:-1], strict=True):
        offset = offset.unsqueeze(-1) + torch.arange(size, device=mask.device) * stride
    return offset.reshape(-1)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
