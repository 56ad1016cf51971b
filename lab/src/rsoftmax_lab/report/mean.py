"""Mean scores over seeds."""

import statistics
from typing import NamedTuple


class Mean(NamedTuple):
    """A mean over seeds with its standard deviation, which is None for a single seed."""

    value: float
    spread: float | None

    def __str__(self) -> str:
        return f"{self.value:.2f}" if self.spread is None else f"{self.value:.2f} ± {self.spread:.2f}"

    @classmethod
    def of(cls, values: list[float]) -> "Mean":
        """The mean of the seeds' values."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def signed(mean: Mean | None) -> str:
    """A difference with its sign; empty if unknown."""
    return "" if mean is None else f"{'+' if mean.value >= 0 else ''}{mean}"
