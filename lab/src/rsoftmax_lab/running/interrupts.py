"""Ctrl-C while joblib works."""

import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts at any point, and joblib does not warn about the runs that it stops.

    Python prints and drops an interrupt that is raised in a destructor or in the callback of a weak reference, of which
    joblib has many. Such an interrupt is sent again a moment later, as a signal, which also ends a wait.
    """
    usual, main = sys.unraisablehook, threading.main_thread()

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, signal.pthread_kill, (main.ident, signal.SIGINT)).start()
        else:
            usual(dropped)

    sys.unraisablehook = hook
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*tasks which were still being processed by the workers.*")
            yield
    finally:
        sys.unraisablehook = usual
