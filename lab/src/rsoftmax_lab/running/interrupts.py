"""Reliable handling of Ctrl+C."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl+C interrupt the program at any point.

    Python prints and drops a KeyboardInterrupt that is raised in a destructor or in the callback of a weak reference,
    which process pools use a lot. Such an interrupt is sent again as a signal, which also ends a wait.
    """
    usual, main = sys.unraisablehook, threading.main_thread()

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, signal.pthread_kill, (main.ident, signal.SIGINT)).start()
        else:
            usual(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual
