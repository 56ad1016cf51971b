"""Cross-compile the Triton kernels and print their registers and predicted times, as Markdown or JSON lines.

No GPU is needed.

python tools/triton_resources.py                       # registers and predictions; docs/gpu.md quotes them
python tools/triton_resources.py --json --target sm_90 --length 8192
"""
# mypy: disable-error-code="import-not-found, import-untyped"

import argparse
import json
import math
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rsoftmax.kernels import triton as kernels
from rsoftmax.kernels.triton import NAMES, PARAMETRIC, STATE

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
LENGTHS = (128, 1024, 8192, 32768)
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.bool: "*i1"}


@dataclass(frozen=True)
class Chip:
    """Published peak rates."""

    name: str
    bandwidth: float  # bytes a second
    processors: int
    clock: float  # a second; at each tick a processor issues four instructions, each for a whole warp


CHIPS = {
    "sm_80": Chip("A100 80GB SXM", 2.04e12, 108, 1.41e9),
    "sm_90": Chip("H100 SXM", 3.35e12, 132, 1.83e9),
    "sm_100": Chip("B200", 8.0e12, 148, 1.85e9),
}


@dataclass(frozen=True)
class Resources:
    """What one kernel takes for each thread: registers, and bytes of stack and of spilled registers."""

    target: str
    name: str
    direction: str
    n: int
    registers: int
    stack: int
    spills: int
    instructions: float  # that warps issue for each row of normal data; NaN on AMD and for rows in chunks


def calls(name: str, n: int, dtype: torch.dtype = torch.float32, rows: int = 64) -> dict[str, kernels.Launch]:
    """The launches of a mapping, masked, with a parameter for each row."""
    x, mask = torch.empty(rows, n, dtype=dtype), torch.ones(rows, n, dtype=torch.bool)
    value = torch.ones(rows, 1) if name in PARAMETRIC else None
    state = torch.empty(STATE if name in PARAMETRIC else 0, rows)
    return {
        "forward": kernels.forward_launch(name, x, value, mask, x, state),
        "backward": kernels.backward_launch(name, x, x, mask, x, state, x, value),
    }


def compiled(call: kernels.Launch, target: GPUTarget) -> Any:
    """The kernel for a target, specialised for these arguments as Triton would when it is launched."""
    constants: dict[tuple[int, ...], Any] = {}
    aligned: dict[tuple[int, ...], Any] = {}

    def type_of(argument: Any, path: tuple[int, ...], fixed: bool = False) -> Any:
        if isinstance(argument, tuple):
            types = [type_of(part, (*path, i)) for i, part in enumerate(argument)]
            return type(argument)(*types) if hasattr(argument, "_fields") else tuple(types)
        if fixed or argument is None or (isinstance(argument, int) and argument == 1):
            constants[path] = argument
            return "constexpr"
        if isinstance(argument, Tensor) or (isinstance(argument, int) and argument % 16 == 0):
            aligned[path] = [["tt.divisibility", 16]]
        return POINTERS[argument.dtype] if isinstance(argument, Tensor) else "i32"

    signature = {
        name: type_of(call.arguments[name], (i,), call.kernel.params[i].is_constexpr)
        for i, name in enumerate(call.kernel.arg_names)
    }
    source = ASTSource(call.kernel, signature, constants, aligned)
    return triton.compile(source, target=target, options={"num_warps": call.arguments["num_warps"]})


def resources(target: str, name: str, direction: str, n: int) -> Resources:
    """What the kernel of a mapping takes, for rows of length n."""
    call = calls(name, n)[direction]
    kernel = compiled(call, TARGETS[target])
    if "amdgcn" in kernel.asm:
        return Resources(target, name, direction, n, *_of_amd(kernel.asm["amdgcn"]), math.nan)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = _output("cuobjdump", "--dump-resource-usage", file.name)
        assembly = _output("nvdisasm", "-c", file.name)
    issued = math.nan
    if call.arguments["WHOLE"]:
        steps = _steps(name, n) if direction == "forward" else []
        issued = _issued(assembly, steps) * call.arguments["num_warps"] / call.arguments["ROWS"]
    return Resources(target, name, direction, n, *_of_nvidia(usage, assembly), issued)


def _of_amd(assembly: str) -> tuple[int, int, int]:
    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", assembly)
        assert found, f"{key} is missing"
        return int(found[1])

    spills = 4 * (number("vgpr_spill_count") + number("sgpr_spill_count"))
    return number("vgpr_count"), number("private_segment_fixed_size"), spills


def _of_nvidia(usage: str, assembly: str) -> tuple[int, int, int]:
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", usage)
    assert found, usage
    spilling = re.findall(r"\b(?:STL|LDL)\b", assembly)
    return int(found[1]), int(found[2]), int(found[3]) + 4 * len(spilling)


def _output(program: str, *arguments: str) -> str:
    return subprocess.run([str(BINARIES / program), *arguments], capture_output=True, text=True, check=True).stdout


def _issued(assembly: str, steps: list[float]) -> float:
    """Instructions that a warp issues, if the loops of a kernel, in the order of its text, take so many steps.

    A loop is a jump back. What follows the end of the kernel is code for rare cases.
    """
    labels: dict[str, int] = {}
    loops: list[int] = []
    count = 0
    for line in assembly.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = count
        elif re.match(r"\s+/\*[0-9a-f]{4,}\*/", line):
            count += 1
            if re.search(r"\*/\s+EXIT", line):
                break
            jump = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
            if jump and jump[1] in labels:
                loops.append(count - labels[jump[1]])
    assert len(loops) == len(steps), (loops, steps)
    return count + sum((taken - 1) * body for taken, body in zip(steps, loops, strict=True))


def _steps(name: str, n: int) -> list[float]:
    """How many steps the loops of a forward kernel take on normal data, of which r_softmax and k_softmax keep half."""
    rows = torch.randn(64, n, generator=torch.Generator().manual_seed(0))
    if name in ("r_softmax", "k_softmax"):
        return [sum(map(_bisection, rows)) / 64]
    if name in kernels.POWERS:
        return [sum(_newton(row, kernels.POWERS[name]) for row in rows) / 64, 2]
    return []


def _bisection(row: Tensor) -> int:
    bits = row.view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).sort().values.long()
    k, low, high, steps = len(row) - len(row) // 2, int(keys[0]), int(keys[-1]), 0
    while low < high:
        steps += 1
        pivot = (low + high + 1) // 2
        count = len(keys) - int(torch.searchsorted(keys, pivot))
        low, high = (pivot, pivot if count == k else high) if count >= k else (low, pivot - 1)
    return steps


def _newton(row: Tensor, power: int) -> int:
    z, tau, steps = (row - row.max()) / power, torch.tensor(-1.0), 0
    while True:
        steps += 1
        above = (z - tau).clamp(min=0)
        norm = above.pow(power).sum() ** (1 / power)
        higher = tau + norm ** (power - 1) * (norm - 1) / above.pow(power - 1)[above > 0].sum()
        if not higher > tau:
            return steps
        tau = higher


def ratio(row: Resources, softmax_bytes: int) -> float:
    """The predicted time to what softmax's memory takes: that of memory or of issuing instructions, the longer one."""
    chip = CHIPS[row.target]
    moved = _bytes(row.name, row.direction, row.n)
    seconds = max(moved / chip.bandwidth, row.instructions / (4 * chip.processors * chip.clock))
    return seconds / (softmax_bytes / chip.bandwidth)


def _bytes(name: str, direction: str, n: int) -> int:
    """What is read and written for a row of float32: its scores, outputs and gradients, and what backward is left."""
    remembered = 4 * STATE if name in PARAMETRIC else 0
    tensors = 2 if direction == "forward" else 4 if name in PARAMETRIC else 3
    return 4 * n * tensors + remembered


def markdown(rows: list[Resources]) -> str:
    """Both tables."""
    targets = list(dict.fromkeys(row.target for row in rows))
    found = {(row.name, row.direction, row.n, row.target): row for row in rows}
    cases = list(dict.fromkeys(case[:3] for case in found))
    lines = [
        "Registers / bytes of stack / bytes spilled per thread, for float32 rows with a mask and one parameter per row"
        f" (Triton {triton.__version__}).",
        "",
        f"| | | n | {' | '.join(targets)} |",
        "|---|---|---|" + "---|" * len(targets),
    ]
    for case in cases:
        cells = [found[*case, target] for target in targets]
        shown = " | ".join(f"{cell.registers} / {cell.stack} / {cell.spills}" for cell in cells)
        lines.append(f"| {' | '.join(map(str, case))} | {shown} |")
    predicted = [target for target in targets if target in CHIPS]
    lines += [
        "",
        "## Predicted times",
        "",
        "Predicted time relative to softmax. These are predictions, not measurements. A kernel's time is taken to be"
        " the larger of bytes moved / memory bandwidth and instructions issued / issue rate, at the published peak"
        " rates. Instructions are counted in the compiled code, and loop iterations on normally distributed"
        " rows (r = 0.5). Softmax is assumed to be limited by memory bandwidth alone.",
        "",
        f"| | | n | {' | '.join(CHIPS[target].name for target in predicted)} |",
        "|---|---|---|" + "---|" * len(predicted),
    ]
    for name, direction, n in cases:
        if n <= kernels.LONGEST_WHOLE:
            base = _bytes("softmax", direction, n)
            shown = " | ".join(f"{ratio(found[name, direction, n, target], base):.1f}" for target in predicted)
            lines.append(f"| {name} | {direction} | {n} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--length", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--json", action="store_true", help="a line for each kernel instead of tables")
    chosen = parser.parse_args()
    rows = [
        resources(target, name, direction, n)
        for name in NAMES
        for direction in ("forward", "backward")
        for n in chosen.length
        for target in chosen.target
    ]
    print("\n".join(json.dumps(asdict(row)) for row in rows) if chosen.json else markdown(rows))


if __name__ == "__main__":
    main()
