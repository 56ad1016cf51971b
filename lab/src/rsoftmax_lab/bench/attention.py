"""What attention costs with each mapping, beside torch's own, in time and in memory, in the same run."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.attention import sparse_attention
from rsoftmax_lab.bench.mappings import MODES, extra_bytes, machine, take_turns

SHAPES = ((8, 12, 128, 64), (2, 12, 512, 64), (1, 12, 2048, 64))  # batch, heads, length, width
LONG = (1, 12, 8192, 64)
RATES = (0.15, 0.5)
SDPA, EAGER = "scaled_dot_product_attention", "eager softmax"
Shape = tuple[int, int, int, int]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class Row:
    """One row of results: microseconds, or the most bytes allocated at once; ratios to torch's own attention."""

    method: str
    parameter: str
    mode: str
    batch: int
    heads: int
    length: int
    width: int
    threads: int
    measure: str
    median: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    machine: str = field(default_factory=machine)
    torch: str = torch.__version__


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention as one would type it; it holds the whole matrix."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def methods() -> dict[tuple[str, str], Attention]:
    """The calls under their name and parameter; torch's own comes first."""
    found: dict[tuple[str, str], Attention] = {(SDPA, ""): F.scaled_dot_product_attention, (EAGER, ""): eager}
    for r in RATES:
        found["r_softmax", f"r={r}"] = partial(sparse_attention, mapping="r_softmax", r=r)
    found["sparsemax", ""] = partial(sparse_attention, mapping="sparsemax")
    found["t_softmax", "t=2"] = partial(sparse_attention, mapping="t_softmax", t=2.0)
    return found


def _bound(attention: Attention, mode: str, shape: Shape) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(shape, generator=generator) for _ in range(4))
    if mode == "forward":
        return lambda: attention(q, k, v)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    return lambda: torch.autograd.grad(attention(*leaves), leaves, g)


def times(mode: str, shape: Shape, seconds: float) -> list[Row]:
    """All methods, in turns."""
    calls = {key: _bound(attention, mode, shape) for key, attention in methods().items()}
    rows = []
    for key, spread in take_turns(calls, (SDPA, ""), seconds, rounds=5).items():
        values = asdict(spread)
        rows.append(Row(*key, mode, *shape, torch.get_num_threads(), "us", values.pop("median_us"), **values))
    return rows


def memory(mode: str, shape: Shape) -> list[Row]:
    """The most that was allocated at once; of eager softmax, which takes gigabytes, in a forward pass only."""
    rows: list[Row] = []
    for key, attention in methods().items():
        if key in ((SDPA, ""), ("r_softmax", f"r={RATES[-1]}")) or (key[0] == EAGER and mode == "forward"):
            size = extra_bytes(_bound(attention, mode, shape))
            ratio = size / rows[0].median if rows else 1.0
            rows.append(Row(*key, mode, *shape, torch.get_num_threads(), "bytes", size, ratio, ratio, ratio, 1))
    return rows


def run(threads: list[int], quick: bool) -> Iterator[list[Row]]:
    """The whole benchmark, group by group; ``quick`` takes one small shape."""
    before = torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            for shape in ((2, 4, 64, 16),) if quick else SHAPES:
                for mode in MODES:
                    yield times(mode, shape, 0.1 if quick else 1.5)
        for mode in MODES:
            yield memory(mode, (1, 4, 1024, 16) if quick else LONG)
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Goal:
    """A claim about ratios of r_softmax to another method."""

    measure: str
    mode: str
    beside: str
    ratio: float


GOALS = (
    Goal("us", "forward", SDPA, 1.5),
    Goal("us", "forward+backward", SDPA, 2.0),
    *(Goal("bytes", mode, SDPA, 1.5) for mode in MODES),
    Goal("bytes", "forward", EAGER, 0.1),
)


def verdict(rows: list[Row]) -> str:
    """A Markdown table of goals, with the costliest of the cases that each speaks of."""
    lines = [["goal for r_softmax", "at most", "costliest case", "cases within"], ["---"] * 4]
    for goal in GOALS:
        cases = [row for row in rows if (row.method, row.mode, row.measure) == ("r_softmax", goal.mode, goal.measure)]
        if cases:
            ratios = [_beside(goal, case, rows) for case in cases]
            worst, case = max(zip(ratios, cases, strict=True), key=itemgetter(0))
            where = f"{_shape(case)}, {case.parameter}, threads: {case.threads}"
            title = f"{'time' if goal.measure == 'us' else 'extra memory'}, {goal.mode}, beside {goal.beside}"
            within = f"{sum(ratio <= goal.ratio for ratio in ratios)} of {len(ratios)}"
            lines.append([title, f"{goal.ratio}", f"{worst:.3g} ({where})", within])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _beside(goal: Goal, case: Row, rows: list[Row]) -> float:
    if goal.beside == SDPA:
        return case.ratio
    other = next(
        row
        for row in rows
        if (row.method, row.mode, row.measure, _shape(row)) == (goal.beside, case.mode, case.measure, _shape(case))
    )
    return case.median / other.median


def _shape(row: Row) -> Shape:
    return row.batch, row.heads, row.length, row.width


def title(group: list[Row]) -> str:
    """What a group of rows has in common."""
    first = group[0]
    what = "time" if first.measure == "us" else "extra memory"
    return f"{what}, {first.mode}, {_shape(first)}, threads: {first.threads}"


def read(path: Path) -> list[Row]:
    """The rows of a finished run."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]
