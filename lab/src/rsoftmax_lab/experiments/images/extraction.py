"""Feature extraction: computed once, in parts of 64 images; an interrupted computation is resumed.

Each part is a safetensors file that is written atomically.
"""

import hashlib
import json
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

from rsoftmax.labels.models.folders import replacing
from rsoftmax.labels.models.images import BadImageError, open_image
from rsoftmax_lab.experiments.images import stages
from rsoftmax_lab.experiments.images.backbone import Backbone, features
from rsoftmax_lab.experiments.images.image_set import ImageSet
from rsoftmax_lab.running import lock

BATCH, PART = 32, 64  # images per forward pass, and per file


class View(NamedTuple):
    """What to extract from each image.

    Attributes:
        source: the network's folder or hub id.
        before_last: 0: the pooled features in float32; otherwise the input of this many last stages, in float16.
        mirrored: whether images are flipped horizontally.
    """

    source: str
    before_last: int = 0
    mirrored: bool = False

    @property
    def what(self) -> str:
        """The name of the outputs."""
        return "states" if self.before_last else "features"

    def key(self, backbone: Backbone, images: ImageSet) -> str:
        """A hash of the network, its processor, and the names and sizes of the images."""
        known = f"1 {backbone.fingerprint()} {images.fingerprint()}"
        asked = f" {self.before_last} {self.mirrored}" if self.before_last else ""
        return hashlib.sha256(f"{known}{asked}".encode()).hexdigest()[:16]

    def of(self, images: list[Image.Image]) -> Tensor:
        """The outputs for a batch of images, [images, ...], on the CPU."""
        network, backbone = _network(self.source, self.before_last)
        shown = [ImageOps.mirror(image) for image in images] if self.mirrored else images
        pixels = backbone.pixels(shown).to(network.device)
        with torch.inference_mode():
            output: Tensor = network(pixels).last_hidden_state.half() if self.before_last else features(network, pixels)
        if not output.isfinite().all():
            raise ValueError(f"{self.source}: its {self.what} are not finite in {output.dtype}")
        return output.cpu().contiguous()


class Features(NamedTuple):
    """The outputs for some images.

    Attributes:
        X: the outputs, [kept, ...].
        kept: the indices of the images that could be opened.
        bad: the errors of the others.
    """

    X: NDArray[Any]
    kept: NDArray[np.int64]
    bad: list[str]


def folder_lock(cache: Path, console: Console) -> AbstractContextManager[None]:
    """Create and lock the folder; other programs wait with a message."""
    cache.mkdir(parents=True, exist_ok=True)
    return lock.folder(
        cache, partial(console.print, f"another program is computing features in {cache}; waiting for it")
    )


def parts_of(images: ImageSet, folder: Path) -> list[Path]:
    """The files of all parts, existing or not."""
    return [folder / f"{start:08d}.safetensors" for start in range(0, len(images), PART)]


def extract(
    view: View, images: ImageSet, folder: Path, *, skip_bad: bool, jobs: int | None, console: Console
) -> list[Path]:
    """Compute the missing parts; returns the files of all parts.

    Args:
        view: what to extract from each image.
        images: the images.
        folder: the folder of the parts.
        skip_bad: skip images that cannot be opened; otherwise the first one raises BadImageError.
        jobs: the number of processes with one thread each. Default: one per core, or one on a GPU.
        console: shows progress.
    """
    folder.mkdir(exist_ok=True)
    parts = parts_of(images, folder)
    left = {part: _places(number, images) for number, part in enumerate(parts) if not part.exists()}
    begin, done = time.monotonic(), sum(map(len, left.values()))
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        text = f"{view.what} of {len(images)} images"
        task = bar.add_task(text, total=len(parts), completed=len(parts) - len(left))
        for _ in _computed(view, images, left, skip_bad, jobs):
            bar.advance(task)
    if left:
        seconds = time.monotonic() - begin
        pace = f"{seconds:.1f} s, {done / seconds:.1f} per second"
        console.print(f"{view.what} of {done} images in {pace}: {folder.stem}")
    return parts


def load(path: Path) -> Features:
    """Read a part, or a file of several joined parts."""
    with opened(path) as file:
        bad = json.loads(file.metadata()["bad"])
        return Features(file.get_tensor("features").numpy(), file.get_tensor("kept").numpy(), bad)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Map the file into memory; reject damaged files and files of another kind."""
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (
        OSError,
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:  # the last three come from foreign metadata
        raise ValueError(f"{path} cannot be read: {error}; delete it to recompute it") from None


def save(path: Path, found: Features) -> None:
    """Write a file atomically."""
    tensors = {"features": torch.from_numpy(found.X), "kept": torch.from_numpy(found.kept)}
    with replacing(path) as unfinished:
        save_file(tensors, unfinished, {"bad": json.dumps(found.bad)})


def _places(number: int, images: ImageSet) -> NDArray[np.int64]:
    return np.arange(number * PART, min((number + 1) * PART, len(images)))


def _computed(
    view: View, images: ImageSet, parts: dict[Path, NDArray[np.int64]], skip_bad: bool, jobs: int | None
) -> Iterator[None]:
    """Compute parts in several processes; yields after each part."""
    spread = joblib.Parallel(
        n_jobs=jobs or (1 if torch.cuda.is_available() else joblib.cpu_count()),
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch="n_jobs",
    )
    tasks = (
        joblib.delayed(_compute)(view, images.take(places), places, part, skip_bad) for part, places in parts.items()
    )
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        yield from spread(tasks)


def _compute(view: View, images: ImageSet, places: NDArray[np.int64], part: Path, skip_bad: bool) -> None:
    """Compute and write one part, in a worker process."""
    kept, bad, found = [], [], []
    for start in range(0, len(images), BATCH):
        seen = []
        for i in range(start, min(start + BATCH, len(images))):
            try:
                seen.append(open_image(images.files[i], images.names[i]))
                kept.append(places[i])
            except BadImageError as error:
                if not skip_bad:
                    raise
                bad.append(str(error))
        if seen:
            found.append(view.of(seen))
    X = torch.cat(found) if found else view.of([Image.new("RGB", (32, 32))])[:0]
    save(part, Features(X.numpy(), np.array(kept, np.int64), bad))


@lru_cache(maxsize=1)
def _network(source: str, before_last: int) -> tuple[Any, Backbone]:
    """The network on the best device, without its last stages if requested; loaded once per process."""
    backbone = Backbone.load(source)
    if before_last:
        stages.remove_last(backbone.network, before_last)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return backbone.network.to(device, memory_format=torch.channels_last), backbone
