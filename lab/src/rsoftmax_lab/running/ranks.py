"""Under ``torchrun`` or ``accelerate launch`` several processes do every run together; the first one writes."""

import os
from typing import Any

LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what a launcher sets, all of them


def together() -> bool:
    """Whether a launcher has started this process. One variable alone, as a cluster may set it, does not say so."""
    return all(name in os.environ for name in LAUNCHED)


def count() -> int:
    """How many processes there are, on all machines."""
    return int(os.environ["WORLD_SIZE"]) if together() else 1


def first() -> bool:
    """Whether this is the process that writes."""
    return not together() or os.environ["RANK"] == "0"


def agreed(value: Any) -> Any:
    """The first process's value, in all of them: other machines may see other files. Alone, the value itself."""
    if not together():
        return value
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.accelerator.is_available())  # by itself it looks for accelerators only
    box = [value]
    torch.distributed.broadcast_object_list(box)
    return box[0]
