"""Servers that a test starts, and stops again."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served(words: list[str], **environment: str) -> Iterator[str]:
    """The address of a command that is given ``--port`` and listens there."""
    port = _free_port()
    process = subprocess.Popen(
        [*words, "--port", str(port)], env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, text=True
    )
    try:
        _wait_for(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(address: str, process: "subprocess.Popen[str]") -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except urllib.error.HTTPError:  # an answer, though there is no page of this name
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
