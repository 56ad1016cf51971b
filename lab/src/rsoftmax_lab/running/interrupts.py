"""Ctrl-C, wherever it falls."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts at any point.

    Python prints and drops an interrupt that is raised in a destructor or in the callback of a weak reference, of which
    process pools have many. Such an interrupt is sent again a moment later, as a signal, which also ends a wait.
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
