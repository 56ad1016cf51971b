"""What a network says of pictures: computed once, in parts of 64 pictures; a stopped computation is resumed.

Each part is a safetensors file, whole or not there.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rsoftmax.huggingface.backbone import Backbone, features
from rsoftmax.pictures import BadPictureError, open_picture
from rsoftmax_lab.experiments.images import stages
from rsoftmax_lab.experiments.images.pictures import Pictures
from rsoftmax_lab.running import lock

BATCH, PART = 32, 64  # pictures in a pass, and in a file that survives a kill


class View(NamedTuple):
    """What is asked of each picture.

    Attributes:
        source: the network's folder or hub id.
        before_last: 0: the features that the network pools, in float32; otherwise the states that its last so many
            stages read, in float16.
        mirrored: left and right exchanged.
    """

    source: str
    before_last: int = 0
    mirrored: bool = False

    @property
    def what(self) -> str:
        """What the answers are called."""
        return "states" if self.before_last else "features"

    def key(self, backbone: Backbone, pictures: Pictures) -> str:
        """The name of the answers: a hash of the network, its processor, the names and sizes of the pictures."""
        known = f"1 {backbone.fingerprint()} {pictures.fingerprint()}"
        asked = f" {self.before_last} {self.mirrored}" if self.before_last else ""
        return hashlib.sha256(f"{known}{asked}".encode()).hexdigest()[:16]

    def of(self, pictures: list[Image.Image]) -> Tensor:
        """The network's answers for a few pictures, [pictures, ...], on the CPU."""
        network, backbone = _network(self.source, self.before_last)
        shown = [ImageOps.mirror(picture) for picture in pictures] if self.mirrored else pictures
        pixels = backbone.pixels(shown).to(network.device)
        with torch.inference_mode():
            said: Tensor = network(pixels).last_hidden_state.half() if self.before_last else features(network, pixels)
        if not said.isfinite().all():
            raise ValueError(f"{self.source}: its {self.what} are not finite numbers of the type {said.dtype}")
        return said.cpu().contiguous()


class Features(NamedTuple):
    """What is known of some pictures.

    Attributes:
        X: [kept, ...].
        kept: which pictures these are, by their place in the list.
        bad: what is wrong with the others.
    """

    X: NDArray[Any]
    kept: NDArray[np.int64]
    bad: list[str]


def folder_lock(cache: Path, console: Console) -> AbstractContextManager[None]:
    """The folder, made if need be, for this program alone; others wait, and say so."""
    cache.mkdir(parents=True, exist_ok=True)
    return lock.folder(cache, partial(console.print, f"another program computes features in {cache}; waiting for it"))


def parts_of(pictures: Pictures, folder: Path) -> list[Path]:
    """The files of the parts, there or not."""
    return [folder / f"{start:08d}.safetensors" for start in range(0, len(pictures), PART)]


def extract(
    view: View, pictures: Pictures, folder: Path, *, skip_bad: bool, jobs: int | None, console: Console
) -> list[Path]:
    """Compute the parts that are not there yet; all parts.

    Args:
        view: what is asked of each picture.
        pictures: what to look at.
        folder: where the parts are.
        skip_bad: go on without the pictures that cannot be opened; otherwise the first one raises BadPictureError.
        jobs: processes, each with one thread; by default one for each core, or one if it computes on a GPU.
        console: where progress goes.
    """
    folder.mkdir(exist_ok=True)
    parts = parts_of(pictures, folder)
    left = {part: _places(number, pictures) for number, part in enumerate(parts) if not part.exists()}
    begin, done = time.monotonic(), sum(map(len, left.values()))
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        text = f"{view.what} of {len(pictures)} pictures"
        task = bar.add_task(text, total=len(parts), completed=len(parts) - len(left))
        for _ in _computed(view, pictures, left, skip_bad, jobs):
            bar.advance(task)
    if left:
        seconds = time.monotonic() - begin
        pace = f"{seconds:.1f} s, {done / seconds:.1f} a second"
        console.print(f"{view.what} of {done} pictures in {pace}: {folder.stem}")
    return parts


def load(path: Path) -> Features:
    """Read a part, or several joined to one file."""
    with opened(path) as file:
        bad = json.loads(file.metadata()["bad"])
        return Features(file.get_tensor("features").numpy(), file.get_tensor("kept").numpy(), bad)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, mapped into memory; one that holds something else, or nothing whole, is refused."""
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:  # the last three of another's metadata
        raise ValueError(f"{path} cannot be read: {error}; delete it, and it is computed anew") from None


def save(path: Path, found: Features) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    tensors = {"features": torch.from_numpy(found.X), "kept": torch.from_numpy(found.kept)}
    save_file(tensors, unfinished, {"bad": json.dumps(found.bad)})
    os.replace(unfinished, path)


def _places(number: int, pictures: Pictures) -> NDArray[np.int64]:
    return np.arange(number * PART, min((number + 1) * PART, len(pictures)))


def _computed(
    view: View, pictures: Pictures, parts: dict[Path, NDArray[np.int64]], skip_bad: bool, jobs: int | None
) -> Iterator[None]:
    """Compute parts, spread over processes; yields after each."""
    spread = joblib.Parallel(
        n_jobs=jobs or (1 if torch.cuda.is_available() else joblib.cpu_count()),
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch="n_jobs",
    )
    tasks = (
        joblib.delayed(_compute)(view, pictures.take(places), places, part, skip_bad) for part, places in parts.items()
    )
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        yield from spread(tasks)


def _compute(view: View, pictures: Pictures, places: NDArray[np.int64], part: Path, skip_bad: bool) -> None:
    """Write the part of some pictures, in whichever process this is."""
    kept, bad, found = [], [], []
    for start in range(0, len(pictures), BATCH):
        seen = []
        for i in range(start, min(start + BATCH, len(pictures))):
            try:
                seen.append(open_picture(pictures.files[i], pictures.names[i]))
                kept.append(places[i])
            except BadPictureError as error:
                if not skip_bad:
                    raise
                bad.append(str(error))
        if seen:
            found.append(view.of(seen))
    X = torch.cat(found) if found else view.of([Image.new("RGB", (32, 32))])[:0]
    save(part, Features(X.numpy(), np.array(kept, np.int64), bad))


@lru_cache(maxsize=1)
def _network(source: str, before_last: int) -> tuple[Any, Backbone]:
    """The network where it computes best, without its last stages if so asked; once for each process."""
    backbone = Backbone.load(source)
    if before_last:
        stages.remove_last(backbone.network, before_last)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return backbone.network.to(device, memory_format=torch.channels_last), backbone
