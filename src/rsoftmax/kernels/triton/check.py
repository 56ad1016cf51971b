"""Before its first result on a device, a kernel is compared with the reference.

Triton compiles a program for each dtype, length class and set of arguments. Each one is compared, forward and, if a
gradient will be needed, backward, on a few rows where nothing but rounding may differ. The scores are multiples of
``UNIT`` from -4 to 4, evenly spaced, so their differences are exact and the zeros must be those of the reference.
Thresholds are multiples of UNIT / 32, at least 1.5 below the maximum, and no score is as far above one as the edge.
"""

import threading
import warnings
from typing import Any

import torch
from torch import Tensor

from rsoftmax._tensors import Value, smallest
from rsoftmax.kernels import triton
from rsoftmax.kernels.reference import reference_backward, reference_forward

ROWS = 16  # as many as most calls have a multiple of: Triton compiles other programs for other numbers
LARGEST = 4.0
UNIT = 2**-10
EDGE = 1 + UNIT / 64
STEPS = 32  # roundings on the way to a weight: the exponential, the ramp, a sum by halves, the division
AMPLIFIED = 16  # how much larger it is in a gradient, (p + u) h - sum u h with sum u <= 2 and |h| <= 2

_lock = threading.Lock()
_agreeing: set[tuple[Any, ...]] = set()
_differing: set[tuple[torch.device, str]] = set()


def agrees(
    name: str, x: Tensor, value: Value | None, mask: Tensor | None, options: dict[str, Any], keep_state: bool
) -> bool:
    """Whether the program that a call needs computes what the reference computes; warns once if it does not."""
    n, kind = x.shape[-1], value.dtype if isinstance(value, Tensor) else type(value)
    settings = ("edge" in options and options["edge"] < torch.inf, options.get("detach_threshold"), keep_state)
    program = (x.device, name, x.dtype, *triton.tile(n).values(), n % 16 == 0, kind, mask is None, *settings)
    if program in _agreeing:
        return True
    if x.is_cuda and torch.cuda.is_current_stream_capturing():  # results cannot be read
        return False
    with _lock:
        if program in _agreeing or (x.device, name) in _differing:
            return program in _agreeing
        try:
            difference = compare(name, x, value, mask, options, keep_state)
        except Exception as error:  # compilers and drivers raise all kinds
            difference = f"{type(error).__name__}: {error}"
        if difference is None:
            _agreeing.add(program)
            return True
        _differing.add((x.device, name))
    warnings.warn(
        f"rsoftmax: the Triton kernel of {name} is not used on {x.device}, the reference runs instead, because for"
        f" {x.dtype} and rows of {n} it fails: {difference}\nPlease report this message with the output of"
        ' `python -m torch.utils.collect_env`. use_kernels("reference") silences it.',
        stacklevel=2,
    )
    return False


def compare(
    name: str, x: Tensor, value: Value | None, mask: Tensor | None, options: dict[str, Any], keep_state: bool
) -> str | None:
    """The first difference from the reference in float64 beyond rounding, on rows like those of a call."""
    generator, n = torch.Generator().manual_seed(0), min(x.shape[-1], 2 * triton.LONGEST_WHOLE + x.shape[-1] % 16)
    unit = max(UNIT, LARGEST * torch.finfo(x.dtype).eps)  # exact in the dtype
    levels = (torch.linspace(-LARGEST, LARGEST, n, dtype=torch.float64, device="cpu") / unit).round() * unit
    order = torch.rand(ROWS, n, generator=generator, device="cpu").argsort(-1)
    scores, g = levels[order], 2 * torch.rand(ROWS, n, generator=generator, device="cpu") - 1
    mask = None if mask is None else order % 4 != 3
    options = options | ({"edge": EDGE} if options.get("edge", torch.inf) < torch.inf else {})
    if value is not None:
        share = (torch.arange(ROWS, dtype=torch.float64, device="cpu")[:, None] + 8) / 32
        values = {"t_softmax": 2 * LARGEST * share, "k_softmax": 1 + share * (n - 1)}.get(name, share)
        value = values.to(value.dtype) if isinstance(value, Tensor) else values[8].item()

    with torch.inference_mode(False), torch.no_grad():
        rows, on_device = scores.to(x), value.to(x.device) if isinstance(value, Tensor) else value
        keep = None if mask is None else mask.to(x.device)
        p, state = triton.forward(name, rows, on_device, keep, options, keep_state)
        results: list[Tensor | None] = [p]
        if keep_state:
            results += triton.backward(name, rows, on_device, keep, p, state, g.to(x), options)
        s, value = scores.requires_grad_(), value.double().requires_grad_() if isinstance(value, Tensor) else value
        truths: list[Tensor | None] = [reference_forward(name, s, mask, value, options)]
        if keep_state:
            needed = (True, isinstance(value, Tensor))
            truths += reference_backward(name, s, mask, value, options, g.to(x.dtype).double(), needed)
        ties = levels.unique(return_inverse=True)[1][order]
        return difference(name, x.dtype, ties, results, truths)


def difference(
    name: str, dtype: torch.dtype, ties: Tensor, results: list[Tensor | None], truths: list[Tensor | None]
) -> str | None:
    """Compare probabilities, and gradients: those of tied scores by their sum, since either may be the threshold."""
    limits = torch.finfo(dtype)
    rounding = STEPS * torch.finfo(torch.float32).eps + limits.eps
    for what, result, truth in zip(("p", "dx", "dvalue"), results, truths, strict=False):
        if result is None or truth is None:
            continue
        a = result.cpu().double()
        if what == "p":
            largest = truth.amax(-1, keepdim=True)
            bound = rounding * (truth + largest) + smallest(result)
            visible = rounding * largest if name in triton.POWERS else limits.tiny
            wrong = ((a == 0) != (truth == 0)) & (torch.maximum(a, truth) > visible)
        else:
            bound = torch.full_like(truth, AMPLIFIED * rounding * (1 if what == "dx" else 2 * LARGEST))
            if what == "dx":
                a, truth = (torch.zeros_like(d).scatter_add(-1, ties, d).gather(-1, ties) for d in (a, truth))
            wrong = torch.zeros_like(truth, dtype=torch.bool)
        wrong |= ~((a - truth).abs() <= bound)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            return f"{what}{list(at)} is {a[at].item():.9g} instead of {truth[at].item():.9g}"
    return None
