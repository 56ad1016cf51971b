"""Whether the weights in a file are those of the model that the settings describe, before memory is taken for it."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from rsoftmax.folders import SETTINGS, WEIGHTS


def check_shapes(build: Callable[[], nn.Module], folder: Path) -> None:
    """Refuse weights of another shape, or of another number, than those of the model that ``build`` makes.

    transformers may write a tensor under another name than the model has it: names that the file alone has are left to
    :func:`check_report`.
    """
    with safe_open(folder / WEIGHTS, "pt") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    with torch.device("meta"), _at_most(1000 + 20 * len(found)):
        model = build()
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    if different := min((name for name in wanted.keys() & found if wanted[name] != found[name]), default=None):
        raise ValueError(f"{different} is {found[different]} in {WEIGHTS}, and {wanted[different]} by {SETTINGS}")
    there, asked = (sum(map(math.prod, shapes.values())) for shapes in (found, wanted))
    if asked > 2 * there:
        raise ValueError(f"{WEIGHTS} holds {there} numbers, and {SETTINGS} asks for {asked}")


def check_report(report: dict[str, Any]) -> None:
    """Refuse a model of which a tensor was not in the file, or a file of which a tensor is not the model's."""
    for kind, what in (("missing_keys", "lacks"), ("unexpected_keys", "holds"), ("mismatched_keys", "has another")):
        if names := sorted(map(str, report[kind])):
            raise ValueError(f"{WEIGHTS} {what} {names[0]}, which {SETTINGS} does not say")


@contextmanager
def _at_most(modules: int) -> Iterator[None]:
    """Stop the making of a network that has more modules, as a number of layers that is damaged may ask for."""
    numbers = count()

    def hook(*_: Any) -> None:
        if next(numbers) > modules:
            raise ValueError(f"{SETTINGS} asks for more layers than {WEIGHTS} has tensors for")

    handle = nn.modules.module.register_module_module_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()
