"""Items that need not fit in memory: read anew in every loop, and some at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from typing import Any

__all__ = ["Stream", "batches", "join", "select"]

CHARACTERS = 2**23  # of texts that are in memory at the same time; a longer text is alone


@dataclass(frozen=True)
class Stream(Sequence[Any]):
    """Items whose number is known, and that are read anew in every loop; an index reads all before it, too.

    Attributes:
        size: the number of items.
        read: returns them one by one.

    Example:
        >>> squares = Stream(3, lambda: (i**2 for i in range(3)))
        >>> len(squares), list(squares), list(squares)
        (3, [0, 1, 4], [0, 1, 4])
    """

    size: int
    read: Callable[[], Iterator[Any]]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        return self.read()

    def __getitem__(self, index: Any) -> Any:
        at = range(self.size)[index]
        return next(islice(self, at, None)) if isinstance(at, int) else list(islice(self, at.start, at.stop, at.step))


def select(items: Any, rows: Sequence[int]) -> Any:
    """The items with these numbers, which rise; a stream stays one."""
    if not isinstance(items, Stream):
        return [items[row] for row in rows]
    chosen = bytearray(len(items))
    for row in rows:
        chosen[row] = 1
    return Stream(len(rows), lambda: compress(items, chosen))


def join(first: Any, second: Any) -> Any:
    """The items of both; a stream, if one of them is."""
    if not isinstance(first, Stream) and not isinstance(second, Stream):
        return [*first, *second]
    return Stream(len(first) + len(second), lambda: chain(first, second))


def batches(items: Iterable[Any], most: int, length: Callable[[Any], int] = len) -> Iterator[list[Any]]:
    """So many items at a time, or fewer where they are long.

    Args:
        items: texts, or others.
        most: the maximum number at a time.
        length: the number of characters of an item.

    Example:
        >>> list(batches("abcde", 2))
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    batch: list[Any] = []
    characters = 0
    for item in items:
        characters += length(item)
        if batch and (len(batch) == most or characters > CHARACTERS):
            yield batch
            batch, characters = [], length(item)
        batch.append(item)
    if batch:
        yield batch
