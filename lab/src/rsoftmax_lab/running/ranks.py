"""Distributed runs under ``torchrun`` or ``accelerate launch``: all processes share each run, rank 0 writes."""

import os
from typing import Any

LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # set by launchers, always together


def together() -> bool:
    """Whether a launcher started this process. A single variable is not enough: a cluster may set it too."""
    return all(name in os.environ for name in LAUNCHED)


def count() -> int:
    """The number of processes on all machines."""
    return int(os.environ["WORLD_SIZE"]) if together() else 1


def first() -> bool:
    """Whether this is the process that writes."""
    return not together() or os.environ["RANK"] == "0"


def agreed(value: Any) -> Any:
    """The value of rank 0 in every process, because other machines may see other files."""
    if not together():
        return value
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.accelerator.is_available())  # by default it looks for accelerators only
    box = [value]
    torch.distributed.broadcast_object_list(box)
    return box[0]
