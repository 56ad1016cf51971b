"""Under ``torchrun`` or ``accelerate launch`` several processes do every run together; the first one writes."""

import os
from typing import Any


def together() -> bool:
    """Whether a launcher has started this process."""
    return "WORLD_SIZE" in os.environ


def count() -> int:
    """How many processes there are, on all machines."""
    return int(os.environ.get("WORLD_SIZE", 1))


def first() -> bool:
    """Whether this is the process that writes."""
    return os.environ.get("RANK", "0") == "0"


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
