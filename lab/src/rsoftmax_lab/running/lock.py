"""The lock on a file or folder that several programs use at once: ``flock``, which Linux and macOS have."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def shared(path: Path) -> Iterator[int]:
    """The file, open for reading; other readers may have it at the same time, writers not."""
    with _locked(path, os.O_RDONLY, fcntl.LOCK_SH) as file:
        yield file


@contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """The file, made if need be, open for appending; nobody else has it at the same time."""
    with _locked(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, fcntl.LOCK_EX) as file:
        yield file


@contextmanager
def folder(path: Path, wait: Callable[[], None]) -> Iterator[None]:
    """The folder to oneself, among the programs that ask for it in this way.

    Args:
        path: the folder, which must be there.
        wait: called before waiting for another program, if there is one.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextmanager
def _locked(path: Path, flags: int, lock: int) -> Iterator[int]:
    file = os.open(path, flags, 0o644)
    try:
        fcntl.flock(file, lock)
        yield file
    finally:
        os.close(file)  # and with it the lock
