"""Saves, loads and kills at the same time: a reader sees one whole version, and the next save removes what is left."""

import json
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from fuzz_draw import Draw

from rsoftmax.labels.models import folders

FILES = ("model.safetensors", "extra.json", "deep/vocab.txt")
WRITERS, READERS = 2, 2
fork = multiprocessing.get_context("fork")


def check(draw: Draw) -> None:
    """A second of saves by two processes, some of which are killed, while two others load."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save(folder, 0, 0)
        end = time.monotonic() + 1.0
        readers = [_start(_read, folder, end) for _ in range(READERS)]
        while time.monotonic() < end:
            _save_and_kill(draw, folder, end)
        for reader in readers:
            reader.join()
            assert reader.exitcode == 0, f"a reader saw files of two versions (exit code {reader.exitcode})"
        save(folder, 1, 10_000)
        left = sorted(path.name for path in folder.iterdir() if path.name.startswith(".rsoftmax"))
        assert not left, f"left behind by killed saves: {left}"
        assert stamp(folder) == 10_000


def _save_and_kill(draw: Draw, folder: Path, end: float) -> None:
    """Start writers and kill some of them at a random moment."""
    writers = [_start(_write, folder, end, draw.integer(0, 1 << 30)) for _ in range(WRITERS)]
    if draw.chance(0.7):
        time.sleep(draw.number(0, 0.1))
        for writer in writers[: draw.integer(1, WRITERS)]:
            os.kill(writer.pid or 0, signal.SIGKILL)
    else:
        time.sleep(0.2)
        for writer in writers:
            writer.terminate()
    for writer in writers:
        writer.join()
        assert writer.exitcode != 1, "a save failed; see the traceback above"


def _start(work: Any, *given: Any) -> Any:
    process = fork.Process(target=work, args=given)
    process.start()
    return process


def _write(folder: Path, end: float, seed: int) -> None:
    random = Random(seed)
    while time.monotonic() < end:
        save(folder, random.randrange(1, 4), random.randrange(1_000))


def _read(folder: Path, end: float) -> None:
    while time.monotonic() < end:
        stamp(folder)


def save(folder: Path, copies: int, number: int) -> None:
    """Save files that all hold the same number; a version may lack some of them."""
    with folders.write(folder) as place:
        settings = {"model_type": folders.TABLE, "stamp": number, "copies": copies}
        (place / folders.SETTINGS).write_text(json.dumps(settings))
        for name in FILES[: max(copies, 1)]:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(str(number))


def stamp(folder: Path) -> int:
    """The number of the version in a folder; all of its files must have it."""
    with folders.read(folder) as place:
        settings = json.loads((place / folders.SETTINGS).read_text())
        numbers = [int((place / name).read_text()) for name in FILES[: max(settings["copies"], 1)]]
    assert numbers == [settings["stamp"]] * len(numbers), (numbers, settings)
    return int(settings["stamp"])
