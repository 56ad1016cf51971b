"""Launch the kernels on tensors."""

import math
from ctypes import c_float
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax._tensors import Value
from rsoftmax.kernels.triton import PARAMETRIC, projections, weighted
from rsoftmax.kernels.triton.row import Rows

POWERS = {"sparsemax": 1, "entmax15": 2}
LONGEST_WHOLE = 8192  # entries of a row that stays in registers
CHUNK = 4096


class Call(NamedTuple):
    """A kernel, its number of programs, and its arguments by name."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]

    def __call__(self) -> None:
        """Launch it."""
        self.kernel[(self.programs,)](**self.arguments)


def forward(
    name: str,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    state: Tensor,
    edge: float = math.inf,
) -> Tensor:
    """The probabilities; ``state`` is filled unless it is empty."""
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(x):
        forward_call(name, x, value, mask, p, state, edge)()
    return p


def backward(
    name: str,
    g: Tensor,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor,
    edge: float = math.inf,
    detach_threshold: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See :func:`rsoftmax.kernels.triton.backward`."""
    dx = torch.empty_like(p, memory_format=torch.contiguous_format)
    dvalue = value.new_empty((*x.shape[:-1], 1)) if isinstance(value, Tensor) else None
    with torch.cuda.device_of(x):
        backward_call(name, g, x, mask, p, state, dx, dvalue, edge, detach_threshold)()
    return dx, dvalue


def forward_call(
    name: str,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor,
    edge: float = math.inf,
) -> Call:
    """The launch that maps ``x`` into ``p``."""
    arguments = {"x": side_by_side(x), "mask": None if mask is None else as_rows(mask), "p": p, **shape(x)}
    if name in POWERS:
        return call(projections.forward, arguments, POWER=POWERS[name])
    return call(
        weighted.forward,
        arguments,
        value=as_rows(value) if isinstance(value, Tensor) else None,
        number=as_float32s(name, value) if isinstance(value, float) else None,
        edge=None if edge == math.inf else edge,
        state=state if len(state) else None,
        NAME=name,
        PIVOTS=1 if x.shape[-1] <= LONGEST_WHOLE else 8,
    )


def backward_call(
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
) -> Call:
    """The launch that fills ``dx`` and ``dvalue``."""
    arguments = {"g": side_by_side(g), "p": side_by_side(p), "dx": dx, "NAME": name, **shape(x)}
    if name not in PARAMETRIC:
        return call(projections.backward, arguments)
    return call(
        weighted.backward,
        arguments,
        x=side_by_side(x),
        mask=None if mask is None else as_rows(mask),
        edge=None if edge == math.inf else edge,
        state=state.contiguous(),
        dvalue=dvalue,
        DETACH=detach_threshold,
    )


def call(kernel: Any, arguments: dict[str, Any], **more: Any) -> Call:
    """The launch of a kernel with these arguments, in tiles that match the rows."""
    arguments = {**arguments, **more, **tile(arguments["n"])}
    return Call(kernel, -(-arguments["rows"] // arguments["ROWS"]), arguments)


def shape(x: Tensor) -> dict[str, int]:
    """The number of rows, and their length."""
    return {"rows": x.numel() // x.shape[-1], "n": x.shape[-1]}


def tile(n: int) -> dict[str, int]:
    """The tile of a program: 16 entries a thread; a few rows if they are short, or chunks of one."""
    if n > LONGEST_WHOLE:
        return {"ROWS": 1, "BLOCK": CHUNK, "WHOLE": False, "num_warps": CHUNK // 512}
    block = max(16, 1 << (n - 1).bit_length())
    return {"ROWS": min(4, max(1, 512 // block)), "BLOCK": block, "WHOLE": True, "num_warps": max(1, block // 512)}


def as_rows(tensor: Tensor) -> Rows:
    """A tensor as rows, without a copy: adjacent dimensions with matching strides are merged."""
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True):
        if sizes and stride == sizes[-1] * strides[-1]:
            sizes[-1] *= size
        elif size > 1:
            sizes.append(size)
            strides.append(stride)
    return Rows(tensor, tensor.stride(-1), tuple(sizes[:-1]), tuple(strides or [0]))


def side_by_side(tensor: Tensor) -> Rows:
    """The same for logits: copied if the entries of a row are not adjacent."""
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
