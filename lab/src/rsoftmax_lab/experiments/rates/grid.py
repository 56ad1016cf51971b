"""The runs of Table 2 at growing rates, with a fixed distance and with a fixed count."""

from collections.abc import Sequence
from typing import Any

from rsoftmax_lab.experiments.glue import grid as glue
from rsoftmax_lab.experiments.glue.grid import Run

SMALL: dict[str, Any] = {"seeds": 1, "epochs": 1, "max_train_samples": 192, "max_eval_samples": 96}


def grid(
    tasks: Sequence[str] = ("SST-2", "RTE"),
    rates: Sequence[float] = (0.2, 0.5, 0.9),
    learning_rates: Sequence[float] = (1e-4,),
    seeds: int = 3,
    t: float = 4.12,
    k: float = 8.0,
    edge: float = 1.0,
    validation_samples: int = 0,
    **rest: Any,
) -> list[Run]:
    """Softmax and the paper's r-softmax, then t- and k-softmax with an edge; one recipe without selection.

    t = 4.12 is what ``rsoftmax calibrate --edge 1 --error 0.0075`` finds for MiniLM-L6 on training texts of GLUE.
    """
    common = {"learning_rates": learning_rates, "seeds": seeds, "validation_samples": validation_samples, **rest}
    runs = glue.grid(tasks, ("softmax", "r_softmax"), rates=rates, **common)
    runs += glue.grid(tasks, ("t_softmax", "k_softmax"), t=t, k=k, edge=edge, **common)
    return sorted(runs, key=lambda run: run.seed)  # complete seeds first


def quick_grid(tasks: Sequence[str] = ("RTE",), **rest: Any) -> list[Run]:
    """A grid with few rows and one epoch."""
    return grid(tasks, **{**SMALL, "rates": (0.2, 0.5), **rest})
