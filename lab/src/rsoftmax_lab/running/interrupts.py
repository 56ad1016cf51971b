"""Ctrl-C while joblib works."""

import _thread
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is heard wherever it falls, and joblib stays silent about what it stops.

    Python prints and drops an interrupt that falls into a destructor or the callback of a weak reference, of which
    joblib has many. Such a one is sent again a moment later.
    """
    usual = sys.unraisablehook

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, _thread.interrupt_main).start()
        else:
            usual(dropped)

    sys.unraisablehook = hook
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*tasks which were still being processed by the workers.*")
            yield
    finally:
        sys.unraisablehook = usual
