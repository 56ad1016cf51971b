"""The CPU kernels: the library for the best instruction set that this CPU supports.

``rows`` and ``attention`` call it: tensors in, addresses out; no autograd, no checks.
"""

import importlib
import sys
from typing import Any

import torch

LEVELS = {"AVX512": ("avx512", "avx2", "baseline"), "AVX2": ("avx2", "baseline")}
REMEDY = (
    "there are none for Windows"
    if sys.platform == "win32"
    else "install a C++ compiler (gcc 12 or newer, or clang) and run: pip install --force-reinstall --no-deps rsoftmax"
)
ABSENT = f"rsoftmax was installed without its compiled kernels and runs on plain torch, which is slower; {REMEDY}"


def _load() -> tuple[str, Any]:
    """The library, and its instruction set; ATEN_CPU_CAPABILITY limits the choice."""
    for level in LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("baseline",)):
        try:
            return level, importlib.import_module(f"{__name__}._rows_{level}")
        except ImportError:
            continue
    return "", None


LEVEL, library = _load()
OPERATIONS: dict[str, int] = library.OPERATIONS if LEVEL else {}
DTYPES: dict[torch.dtype, int] = {getattr(torch, n): i for n, i in library.DTYPES.items()} if LEVEL else {}
STATE: dict[str, int] = library.STATE if LEVEL else {}  # how many numbers forward keeps for backward, for each row
