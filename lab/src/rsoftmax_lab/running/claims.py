"""Which runs of a file of rows are under way, in whichever program: no two programs do the same run.

A claim is a lock on one byte of an empty file beside the rows, at a place that the run's name gives. The system ends
the claims of a program that ends, also of one that is killed, so none is left behind.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Claims:
    """The claims of this program; of one object for each file, as a program's locks on a file are one set."""

    def __init__(self, file: int) -> None:
        self._file = file

    def take(self, name: str) -> bool:
        """Claim a run; False if another program has claimed it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))
        except (BlockingIOError, PermissionError):  # which of them depends on the system
            return False
        return True

    def release(self, name: str) -> None:
        """End a claim: of a run whose row is written."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(name))


@contextmanager
def on(path: Path) -> Iterator[Claims]:
    """Claims on the runs of a file of rows; they end with the context."""
    file = os.open(path.with_name(f".{path.name}.claims"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield Claims(file)
    finally:
        os.close(file)


def _place(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
