"""Random choices of a fuzz case: everything follows from the number of the case."""

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from rsoftmax import MappingSpec
from rsoftmax._rows import ParamSpec

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SPECIAL = (0.0, -0.0, 1.0, 1e-30, 1e30, -1e30, 1e-45, math.inf, -math.inf, math.nan)
EDGES = {
    "r": (0.0, 1.0, 0.25, 0.5),
    "k": (1.0, 2.0, math.inf),
    "t": (math.inf, 1e-30, 1e30),
    "q": (0.0, 1e4),
    "alpha": (1.0, 1.5, 2.0),
}


class Draw:
    """Choices and tensors that are the same whenever the case is the same."""

    def __init__(self, case: int) -> None:
        self._random = Random(case)
        self._generator = torch.Generator().manual_seed(case)

    def one_of(self, *options: Any) -> Any:
        return self._random.choice(options)

    def chance(self, p: float) -> bool:
        return self._random.random() < p

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def number(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def keep(self, *shape: int) -> Tensor:
        """A mask of which a part is True; which part differs from mask to mask."""
        return torch.rand(shape, generator=self._generator) < self.number(0.05, 1)

    def smaller(self, *shape: int) -> tuple[int, ...]:
        """A shape that broadcasts to this one."""
        sizes = tuple(1 if self.chance(0.3) else size for size in shape)
        return sizes[self.integer(0, len(sizes)) :] if self.chance(0.3) else sizes

    def scores(self, *shape: int, special: bool) -> Tensor:
        """Scores of some size, often tied, with a few that break things if wanted; not always contiguous."""
        x: Tensor = self.normal(*shape) * self.one_of(1e-3, 1.0, 1.0, 20.0)
        if self.chance(0.3):
            x = x.round()
        if special and self.chance(0.4):
            for _ in range(self.integer(1, 4)):
                x.view(-1)[self.integer(0, x.numel() - 1)] = self.one_of(*SPECIAL)
        return x.transpose(0, -1).contiguous().transpose(0, -1) if self.chance(0.3) else x

    def parameter(self, mapping: MappingSpec, *shape: int) -> Any:
        """A value of the mapping's parameter: a number, sometimes at the edge of its domain, or a tensor."""
        assert mapping.parameter
        name = mapping.parameter.name
        if self.chance(0.4):
            return self.one_of(*EDGES.get(name, ()), mapping.parameter.example, float(self.inside(mapping.parameter)))
        return self.inside(mapping.parameter, *shape)

    def inside(self, parameter: ParamSpec, *shape: int) -> Tensor:
        values = parameter.domain.constrain(self.normal(*shape))
        # Above 2, a rounding error at the threshold is not one in the result: alpha is drawn from [1, 2].
        return 1 + (values - 1) / 3 if parameter.name == "alpha" else values
