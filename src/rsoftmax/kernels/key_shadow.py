"""Int8 shadows of keys, which let a kernel skip keys that have no weight."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax._tensors import memory_state

LINE = 64  # the layout is that of kernels/cpu/csrc/attention/shadow.h
KEYS = 16  # of a block
WIDTH = 256  # the largest


class KeyShadow:
    """The shadow of keys [batch, heads, tokens, width] that grow in place.

    The tensor of keys has it as its attribute ``shadow``; a view or a copy has none. Memory is taken, and keys are
    rounded, when a kernel first uses it. The shadow follows the tensor's version, so a change by any operation of torch
    is noticed. A copy of a shadow is empty.
    """

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.unchanged = 0  # how many of the first keys are as they were when it was used
        self.seen: tuple[int, int] | None = None  # the state of the keys' memory

    def __reduce__(self) -> tuple[type["KeyShadow"], tuple[()]]:
        return KeyShadow, ()

    @contextmanager
    def writing(self, keys: Tensor, start: int) -> Iterator[None]:
        """Within the block, keys are written from a token on, and no others."""
        self._look(keys)
        yield
        self.unchanged, self.seen = min(self.unchanged, start), memory_state(keys)

    def map(self, change: Callable[[Tensor], Tensor], before: Tensor, after: Tensor) -> "KeyShadow":
        """The shadow of other keys, which are that change of the keys before."""
        self._look(before)
        other = KeyShadow()
        if self.memory is not None:
            other.memory, other.unchanged, other.seen = change(self.memory), self.unchanged, memory_state(after)
        return other

    def use(self, keys: Tensor) -> tuple[Tensor, int]:
        """The memory [batch, heads, bytes] for these keys, and how many of the first it may have already.

        The caller sets ``unchanged`` when the memory has all of them.
        """
        self._look(keys)
        batch, heads, tokens, width = keys.shape
        size = LINE * (1 + -(-tokens // KEYS) * (1 + -(-width // 4)))
        if self.memory is None or self.memory.shape[:2] != keys.shape[:2]:
            self.memory = torch.zeros(batch, heads, 0, dtype=torch.uint8)
        if self.memory.shape[-1] < size:  # with room for a quarter more tokens
            self.memory = F.pad(self.memory, (0, (size + size // 4) // LINE * LINE - self.memory.shape[-1]))
        return self.memory, self.unchanged

    def _look(self, keys: Tensor) -> None:
        if self.seen != memory_state(keys):
            self.unchanged, self.seen = 0, memory_state(keys)


def shadow_of(keys: Tensor) -> KeyShadow | None:
    """The shadow of a tensor of keys, if it has one."""
    shadow: KeyShadow | None = getattr(keys, "shadow", None)
    return None if keys.is_inference() else shadow  # without a version
