"""Rows on GPUs, forward and backward, in Triton: float32, float16 and bfloat16, computed in float32.

Compiled for sm_80, sm_90, sm_100 and gfx942, run in Triton's interpreter against the reference, not yet run on
hardware: speed, rounding on a device, and races between threads are untested.

Implements :class:`rsoftmax.kernels.Kernel`. It imports triton only when a kernel is launched, and has no autograd.
"""

import math
from ctypes import c_float
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax._tensors import Value, is_plain

if TYPE_CHECKING:
    from rsoftmax.kernels.triton.row import Rows

NAMES = ("softmax", "t_softmax", "r_softmax", "k_softmax", "sparsemax", "entmax15")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LONGEST = 2**24  # entries of a row: they are counted in float32
OLDEST = (3, 4)  # triton that compiles these kernels, the one of torch 2.8

PARAMETRIC = ("t_softmax", "r_softmax", "k_softmax")
POWERS = {"sparsemax": 1, "entmax15": 2}
STATE = 10  # numbers that forward leaves for backward, for each row, if the mapping has a parameter
LONGEST_WHOLE = 8192  # entries of a row that stays in registers
CHUNK = 4096
ABSENT = "the Triton kernels need a GPU build of torch with triton 3.4 or newer; run: pip install triton"


def available() -> bool:
    """Whether triton is installed, in a release that compiles these kernels."""
    return _version() >= OLDEST


available._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile cannot trace an import


@cache
def _version() -> tuple[int, ...]:
    try:
        version: str = import_module("triton").__version__
    except ImportError:
        return ()
    return tuple(map(int, version.split(".")[:2]))


def supports(name: str, dtype: torch.dtype) -> bool:
    """Whether there is such an operation for the dtype, and triton is installed."""
    return name in NAMES and dtype in DTYPES and available()


def supports_call(name: str, x: Tensor, value: Value | None) -> bool:
    """Whether these kernels can map the rows: on a CUDA or ROCm device, and triton is installed."""
    if not x.is_cuda or not supports(name, x.dtype) or x.shape[-1] > LONGEST:
        return False
    return all(is_plain(a) and not a.is_neg() for a in (x, value) if isinstance(a, Tensor))


def new_state(name: str, x: Tensor, keep_state: bool) -> Tensor:
    """Uninitialised memory for the state; of size 0 if there is none."""
    numbers = STATE if keep_state and name in PARAMETRIC else 0
    return x.new_empty((numbers, x.numel() // x.shape[-1]), dtype=torch.float32)


def forward(
    name: str, x: Tensor, value: Value | None, mask: Tensor | None, options: dict[str, Any], keep_state: bool
) -> tuple[Tensor, Tensor | None]:
    """Map the rows of ``x``, of any strides; see :class:`rsoftmax.kernels.Kernel`."""
    state = new_state(name, x, keep_state)
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(x):
        forward_launch(name, x, value, mask, p, state, options.get("edge", math.inf))()
    return p, state


def backward(
    name: str,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor | None,
    g: Tensor,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """The gradients in ``x``, and in ``value`` if that is a tensor; see :class:`rsoftmax.kernels.Kernel`."""
    state = new_state(name, x, False) if state is None else state
    dx = torch.empty_like(p, memory_format=torch.contiguous_format)
    dvalue = value.new_empty((*x.shape[:-1], 1)) if isinstance(value, Tensor) else None
    with torch.cuda.device_of(x):
        backward_launch(name, g, x, mask, p, state, dx, dvalue, **options)()
    return dx, dvalue


# --------------------------------------------------------------------------- launches


class Launch(NamedTuple):
    """A kernel, its number of programs, and its arguments by name."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]

    def __call__(self) -> None:
        """Launch it."""
        self.kernel[(self.programs,)](**self.arguments)


def forward_launch(
    name: str, x: Tensor, value: Value | None, mask: Tensor | None, p: Tensor, state: Tensor, edge: float = math.inf
) -> Launch:
    """The launch that maps ``x`` into ``p``; ``state`` is filled unless it is empty."""
    from rsoftmax.kernels.triton import projections, weighted

    arguments = {"x": contiguous_rows(x), "mask": None if mask is None else as_rows(mask), "p": p, **shape(x)}
    if name in POWERS:
        return launch(projections.forward, arguments, POWER=POWERS[name])
    return launch(
        weighted.forward,
        arguments,
        value=as_rows(value) if isinstance(value, Tensor) else None,
        number=as_float32s(name, value) if isinstance(value, float) else None,
        edge=None if edge == math.inf else edge,
        state=state if len(state) else None,
        NAME=name,
        PIVOTS=1 if x.shape[-1] <= LONGEST_WHOLE else 8,
    )


def backward_launch(
    name: str,
    g: Tensor,
    x: Tensor,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor,
    dx: Tensor,
    dvalue: Tensor | None,
    edge: float = math.inf,
    detach_threshold: bool = False,
) -> Launch:
    """The launch that fills ``dx`` and ``dvalue``."""
    from rsoftmax.kernels.triton import projections, weighted

    arguments = {"g": contiguous_rows(g), "p": contiguous_rows(p), "dx": dx, "NAME": name, **shape(x)}
    if name not in PARAMETRIC:
        return launch(projections.backward, arguments)
    return launch(
        weighted.backward,
        arguments,
        x=contiguous_rows(x),
        mask=None if mask is None else as_rows(mask),
        edge=None if edge == math.inf else edge,
        state=state.contiguous(),
        dvalue=dvalue,
        DETACH=detach_threshold,
    )


def launch(kernel: Any, arguments: dict[str, Any], **more: Any) -> Launch:
    """The launch of a kernel with these arguments, in tiles that match the rows."""
    arguments = {**arguments, **more, **tile(arguments["n"])}
    return Launch(kernel, -(-arguments["rows"] // arguments["ROWS"]), arguments)


def shape(x: Tensor) -> dict[str, int]:
    """The number of rows, and their length."""
    return {"rows": x.numel() // x.shape[-1], "n": x.shape[-1]}


def tile(n: int) -> dict[str, int]:
    """The tile of a program: 16 entries a thread; a few rows if they are short, or chunks of one."""
    if n > LONGEST_WHOLE:
        return {"ROWS": 1, "BLOCK": CHUNK, "WHOLE": False, "num_warps": CHUNK // 512}
    block = max(16, 1 << (n - 1).bit_length())
    return {"ROWS": min(4, max(1, 512 // block)), "BLOCK": block, "WHOLE": True, "num_warps": max(1, block // 512)}


def as_rows(tensor: Tensor) -> "Rows":
    """A tensor as rows, without a copy: adjacent dimensions with matching strides are merged."""
    from rsoftmax.kernels.triton.row import Rows

    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True):
        if sizes and stride == sizes[-1] * strides[-1]:
            sizes[-1] *= size
        elif size > 1:
            sizes.append(size)
            strides.append(stride)
    return Rows(tensor, tensor.stride(-1), tuple(sizes[:-1]), tuple(strides or [0]))


def contiguous_rows(tensor: Tensor) -> "Rows":
    """The same, copied if the entries of a row are not adjacent."""
    return as_rows(tensor if tensor.stride(-1) < 2 else tensor.contiguous())


def as_float32s(name: str, value: float) -> tuple[float, float, float]:
    """A parameter as the sum of three float32 numbers: Triton passes Python floats as float32.

    A rate or a count is exact in this way; a positive one below 2^-100 or above 2^25 is moved there, which moves no
    rank. A threshold is rounded to float32, as it is in torch where it meets float32 scores.
    """
    if name == "t_softmax":
        return c_float(value).value, 0.0, 0.0
    value = min(max(value, 2**-100), 2**25) if value > 0 else value
    high = c_float(value).value
    middle = c_float(value - high).value
    return high, middle, value - high - middle
