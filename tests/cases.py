"""What the tests share: a parameter for every mapping, and rows that break things."""

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from rsoftmax import MAPPINGS, Mapping

PARAMETRIC = [mapping for mapping in MAPPINGS.values() if mapping.parameter]

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


def parameter_of(mapping: Mapping, x: Tensor, dim: int = -1, seed: int = 0) -> list[Tensor]:
    """A fitting parameter for each row of x (for each entry, if the mapping wants that), or nothing."""
    if mapping.parameter is None:
        return []
    shape = list(x.shape)
    if mapping.parameter.per_row and shape:
        shape[dim] = 1
    free = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return [mapping.parameter.domain.constrain(free).to(x.dtype)]


def value_strategy(mapping: Mapping) -> st.SearchStrategy[float]:
    """Anything in the domain: the edges, the table's example, and what lies between."""
    assert mapping.parameter
    edges, low, high = {
        "r": ([0.0, 1.0, 0.25, 0.5], 0.0, 1.0),
        "t": ([float("inf"), 1e-30, 1e30], 1e-3, 50.0),
        "q": ([0.0, 1e4], 0.01, 50.0),
        "lam": ([], -20.0, 0.9),
        "alpha": ([1.0, 1.5, 2.0, 3.0, 4.0], 1.001, 4.0),
    }[mapping.parameter.name]
    return st.sampled_from([*edges, mapping.parameter.example]) | st.floats(low, high)


def scores() -> st.SearchStrategy[float]:
    """Scores of ordinary size, often tied."""
    return st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0]) | st.floats(-30, 30, width=32)


def rows(max_length: int = 12) -> st.SearchStrategy[NDArray[np.float64]]:
    """Rows of ordinary scores, with removed entries now and then."""
    removed = st.just(-np.inf)
    entries = st.lists(scores() | scores() | removed, min_size=1, max_size=max_length)
    return entries.map(lambda row: np.array(row, dtype=np.float64))


def spread_apart(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Float64 scores without order: distinct by far more than a step of gradcheck, and at no mapping's kink."""
    generator = torch.Generator().manual_seed(seed)
    count = int(np.prod(shape))
    places = torch.randperm(count, generator=generator) + 0.5 * torch.rand(
        count, generator=generator, dtype=torch.float64
    )
    return (places / count * 4 - 1.7).reshape(shape)
