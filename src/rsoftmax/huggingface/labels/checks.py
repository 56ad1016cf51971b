"""Checks that the weights in a file fit the settings, before memory is allocated for a damaged model."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from rsoftmax.files.folders import SETTINGS, WEIGHTS


def check_shapes(build: Callable[[], nn.Module], folder: Path) -> None:
    """Raise unless the weights have the shapes, and about the number, of those of the model that ``build`` returns.

    transformers may rename tensors in the file; names that occur only there are left to :func:`check_report`.
    """
    with safe_open(folder / WEIGHTS, "pt") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    with torch.device("meta"), _max_modules(1000 + 20 * len(found)):
        model = build()
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    if different := min((name for name in expected.keys() & found if expected[name] != found[name]), default=None):
        raise ValueError(f"{different} is {found[different]} in {WEIGHTS} but {expected[different]} by {SETTINGS}")
    have, need = (sum(map(math.prod, shapes.values())) for shapes in (found, expected))
    if need > 2 * have:
        raise ValueError(f"{WEIGHTS} holds {have} weights but {SETTINGS} describes {need}")


def check_report(report: dict[str, Any]) -> None:
    """Raise unless the file held exactly the tensors of the model."""
    for kind, what in (("missing_keys", "lacks"), ("unexpected_keys", "has"), ("mismatched_keys", "has another")):
        if names := sorted(map(str, report[kind])):
            raise ValueError(f"{WEIGHTS} {what} {names[0]}, unlike the model that {SETTINGS} describes")


@contextmanager
def _max_modules(number: int) -> Iterator[None]:
    """Stop the construction of a network with more modules, as a damaged number of layers may ask for."""
    numbers = count()

    def hook(*_: Any) -> None:
        if next(numbers) > number:
            raise ValueError(f"{SETTINGS} describes more layers than {WEIGHTS} has tensors for")

    handle = nn.modules.module.register_module_module_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()
