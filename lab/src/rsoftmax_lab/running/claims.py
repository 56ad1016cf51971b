"""Claims on the runs of a file of rows, so that no two programs do the same run.

A claim is a lock on one byte of an empty file next to the rows, at an offset derived from the run's name. The operating
system releases the locks of a program that exits or is killed, so no stale claim remains.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Claims:
    """The claims of this program. Create one object per file: a program's locks on a file are shared."""

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
        """Release the claim on a run whose row is written."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(name))


@contextmanager
def on(path: Path) -> Iterator[Claims]:
    """Claims on the runs of a file of rows, released at the end of the block."""
    file = os.open(path.with_name(f".{path.name}.claims"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield Claims(file)
    finally:
        os.close(file)


def _place(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
