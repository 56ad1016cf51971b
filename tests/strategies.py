"""Random cases for property tests: choices by Hypothesis, which shrinks them, and numbers from a seed that it chooses.

A few examples in a usual run, the same each time; ``make fuzz`` runs very many others, with the profile "fuzz".
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rsoftmax import MappingSpec
from rsoftmax.registry import ParamSpec

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SPECIAL = (0.0, -0.0, 1.0, 1e-30, 1e30, -1e30, 1e-45, math.inf, -math.inf, math.nan)
EDGES = {
    "r": (0.0, 1.0, 0.25, 0.5),
    "k": (1.0, 2.0, math.inf),
    "t": (math.inf, 1e-30, 1e30),
    "q": (0.0, 1e4),
    "alpha": (1.0, 1.5, 2.0),
}


T = TypeVar("T")


class Draw:
    """Choices and tensors of a case."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self._generator = torch.Generator().manual_seed(self.integer(0, 1 << 30))

    def one_of(self, *options: T) -> T:
        return self._data.draw(st.sampled_from(options))

    def chance(self, p: float) -> bool:
        return self.integer(1, 100) > 100 * (1 - p)  # shrinks to False

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def number(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self._generator))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def keep(self, *shape: int) -> Tensor:
        """A mask of which a part is True; which part differs from mask to mask."""
        return torch.rand(shape, generator=self._generator) < self.number(0.05, 1)

    def smaller(self, *shape: int) -> tuple[int, ...]:
        """A shape that broadcasts to this one."""
        sizes = tuple(1 if self.chance(0.3) else size for size in shape)
        return sizes[self.integer(0, len(sizes)) :] if self.chance(0.3) else sizes

    def scores(self, *shape: int, special: bool = False) -> Tensor:
        """Scores of some size, often tied, with a few that break things if wanted; not always contiguous."""
        x: Tensor = self.normal(*shape) * self.one_of(1.0, 1e-3, 20.0)
        if self.chance(0.3):
            x = x.round()
        if special and self.chance(0.4):
            for _ in range(self.integer(1, 4)):
                x.view(-1)[self.integer(0, x.numel() - 1)] = self.one_of(*SPECIAL)
        return x.transpose(0, -1).contiguous().transpose(0, -1) if self.chance(0.3) else x

    def labels(self, *shape: int) -> Tensor:
        """Labels, bool; sometimes none at all."""
        y = self.keep(*shape)
        return torch.zeros_like(y) if self.chance(0.05) else y

    def parameter(self, mapping: MappingSpec, *shape: int) -> Any:
        """A value of the mapping's parameter: a tensor, or a number, sometimes at the edge of its domain."""
        assert mapping.parameter
        if self.chance(0.4):
            edges = EDGES.get(mapping.parameter.name, ())
            return self.one_of(mapping.parameter.example, *edges, float(self.inside(mapping.parameter)))
        return self.inside(mapping.parameter, *shape)

    def inside(self, parameter: ParamSpec, *shape: int) -> Tensor:
        """Values inside of the domain."""
        values = parameter.domain.constrain(self.normal(*shape))
        # Above 2, a rounding error at the threshold is not one in the result: alpha is drawn from [1, 2].
        return 1 + (values - 1) / 3 if parameter.name == "alpha" else values


def examples(count: int, **changes: Any) -> Callable[[Callable[[Draw], None]], Callable[[], None]]:
    """Test a property of random cases: ``count`` of them, or ``count`` per cent of those that the profile asks for."""
    profile = settings().max_examples
    options: dict[str, Any] = {
        "max_examples": count * profile // 100,
        "derandomize": profile == 100,  # the default
        "deadline": None,
        "print_blob": True,
        "report_multiple_bugs": False,
        "suppress_health_check": list(HealthCheck),
        "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    }

    def decorate(check: Callable[[Draw], None]) -> Callable[[], None]:
        @settings(**options | changes)
        @given(data=st.data())
        def test(data: st.DataObject) -> None:
            check(Draw(data))

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.check = check  # type: ignore[attr-defined]
        return test

    return decorate
