"""Shared by the tests: parameters for every mapping, adversarial rows, names for the cases of a loop, programs."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from rsoftmax import MAPPINGS, MappingSpec, weighted_softmax
from rsoftmax.registry import ABOVE_ONE, SUM, WEIGHT, ParamSpec

PARAMETRIC = [mapping for mapping in MAPPINGS.values() if mapping.parameter]

WEIGHTED = MappingSpec(
    function=weighted_softmax,
    formula="w e^x / sum",
    zeros="w",
    source="Bałazy et al. 2023",
    parameter=ParamSpec("w", WEIGHT, example=1.0),
    keeps_order=False,
)
"""weighted_softmax obeys the laws of the table, but is not in it: it has a weight for each entry."""

FUNCTIONS = {**MAPPINGS, "weighted_softmax": WEIGHTED}
"""All functions that turn rows into probabilities."""

TINY = float(np.finfo(np.float32).smallest_subnormal)

ADVERSARIAL: dict[str, list[float]] = {
    "one entry": [3.0],
    "two": [0.0, 1.0],
    "ties at the top": [1.0, 2.0, 3.0, 3.0],
    "ties at the bottom": [1.0, 1.0, 1.0, 3.0],
    "ties everywhere": [1.0, 2.0, 2.0, 1.0, 2.0, 1.0],
    "all equal": [0.7] * 7,
    "all zero": [0.0] * 5,
    "signed zeros": [0.0, -0.0, 0.0, -1.0],
    "spread 1e4": [1e4, -1e4, 0.0, 1e4 - 1, 9999.5],
    "spread 1e30": [1e30, -1e30, 0.0, 1.0, 9.9e29],
    "far from zero": [1e4 + 0.25 * i for i in range(8)],
    "tiny spread": [1.0, 1.0 + 2**-23, 1.0 + 2**-22, 1.0 + 3 * 2**-23],
    "tiny": [1e-30, 2e-30, -1e-30, 0.0],
    "denormal": [0.0, TINY, 2 * TINY, 3 * TINY, 5 * TINY],
    "removed first": [float("-inf"), 1.0, 2.0, 0.5],
    "removed last": [1.0, 2.0, 0.5, float("-inf")],
    "one left": [float("-inf"), 1.0, float("-inf")],
    "nothing left": [float("-inf")] * 4,
    "NaN": [1.0, float("nan"), 2.0],
    "NaN and removed": [float("-inf"), float("nan"), 2.0],
    "plus infinity": [1.0, float("inf"), 2.0],
}


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Name the case in the report of a failure inside a loop."""
    try:
        yield
    except Exception as error:
        error.add_note(f"case: {', '.join(map(str, names))}")
        raise


FORKS = """
import os, sys, traceback
{imports}
for case, program in {programs!r}.items():
    process = os.fork()
    if process == 0:
        status = 1
        try:
            exec(program, {{"__name__": "__main__"}})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if os.waitpid(process, 0)[1]:
        sys.exit(f"case: {{case}}")
"""


def run_programs(imports: str, programs: dict[str, str]) -> None:
    """Run programs, each in a fork of one process that has imported the slow modules, but not this package."""
    words = [sys.executable, "-c", FORKS.format(imports=imports, programs=programs)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def parameter_of(mapping: MappingSpec, x: Tensor, dim: int = -1, seed: int = 0) -> list[Tensor]:
    """A random parameter for each row of x (for each entry of weighted_softmax); empty if there is none."""
    if mapping.parameter is None:
        return []
    shape = list(x.shape)
    if mapping is not WEIGHTED and shape:
        shape[dim] = 1
    raw = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return [mapping.parameter.domain.constrain(raw).to(x.dtype)]


def example_of(mapping: MappingSpec, n: int) -> list[Any]:
    """The example of the parameter, for rows of n; empty if there is none."""
    if mapping.parameter is None:
        return []
    return [torch.linspace(0.5, 1.5, n, dtype=torch.float64) if mapping is WEIGHTED else mapping.parameter.example]


def value_strategy(mapping: MappingSpec) -> st.SearchStrategy[float]:
    """Values in the domain: its ends, the table's example, and anything between."""
    assert mapping.parameter
    of_domain: dict[str, tuple[list[float], float, float]] = {  # where a name has several
        ABOVE_ONE.text: ([1.01, 1.5, 10.0], 1.05, 6.0),
        SUM.text: ([0.0, 1.0, 2.0, 12.0, float("inf")], 0.0, 14.0),
    }
    edges, low, high = (
        of_domain.get(mapping.parameter.domain.text)
        or {
            "r": ([0.0, 1.0, 0.25, 0.5], 0.0, 1.0),
            "t": ([float("inf"), 1e-30, 1e30], 1e-3, 50.0),
            "k": ([1.0, 2.0, 3.0, 12.0, float("inf")], 1.0, 14.0),
            "q": ([0.0, 1e4], 0.01, 50.0),
            "lam": ([], -20.0, 0.9),
            "alpha": ([1.0, 1.5, 2.0, 3.0, 4.0], 1.001, 4.0),
            "sink": ([0.0, float("-inf"), 30.0], -20.0, 20.0),
        }[mapping.parameter.name]
    )
    return st.sampled_from([*edges, mapping.parameter.example]) | st.floats(low, high)


def scores() -> st.SearchStrategy[float]:
    """Logits of moderate size, often tied."""
    return st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0]) | st.floats(-30, 30, width=32)


def rows(max_length: int = 12) -> st.SearchStrategy[NDArray[np.float64]]:
    """Rows of moderate logits, sometimes with removed entries."""
    removed = st.just(-np.inf)
    entries = st.lists(scores() | scores() | removed, min_size=1, max_size=max_length)
    return entries.map(lambda row: np.array(row, dtype=np.float64))


def spread_apart(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Unordered float64 logits, further apart than a step of gradcheck and away from every mapping's kinks."""
    generator = torch.Generator().manual_seed(seed)
    count = int(np.prod(shape))
    places = torch.randperm(count, generator=generator) + 0.5 * torch.rand(
        count, generator=generator, dtype=torch.float64
    )
    return (places / count * 4 - 1.7).reshape(shape)


def draw_labels(rows: int, labels: int, seed: int = 0, shift: float = -1.0) -> tuple[Tensor, Tensor]:
    """Log-odds [rows, K], and labels drawn with exactly these."""
    generator = torch.Generator().manual_seed(seed)
    u = 2 * torch.randn(rows, labels, generator=generator, dtype=torch.float64) + shift
    return u, (torch.rand(rows, labels, generator=generator, dtype=torch.float64) < u.sigmoid()).double()
