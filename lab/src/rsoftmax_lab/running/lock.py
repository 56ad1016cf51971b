"""Locks on files and folders that several programs share: ``flock``, available on Linux and macOS."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def shared(path: Path) -> Iterator[int]:
    """The file, open for reading; excludes writers but not other readers."""
    with _locked(path, os.O_RDONLY, fcntl.LOCK_SH) as file:
        yield file


@contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """The file, created if necessary, open for appending; excludes readers and writers."""
    with _locked(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, fcntl.LOCK_EX) as file:
        yield file


@contextmanager
def folder(path: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Exclusive use of a folder among the programs that lock it in this way.

    Args:
        path: an existing folder.
        wait: called before waiting for another program.
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
        os.close(file)  # releases the lock
