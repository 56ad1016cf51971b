"""The outputs of a pretrained network for images: computed once, in parts of 64 images, and read from files.

An interrupted computation is resumed: each part is a safetensors file that is written atomically. What is computed are
the pooled features, or the inputs of the network's last stages if these are trained. The latter are stored in float16,
with 11 significant bits, which halves the files: 392 KB for an image of 224 x 224 before the last stage of a ResNet-50.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
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
from torch import Tensor, nn

from rsoftmax.labels.models.folders import remove, replacing
from rsoftmax.labels.models.images import BadImageError, open_image
from rsoftmax.labels.models.inputs import IMAGE, cannot_load, example_items, load_encoder
from rsoftmax_lab.data.images import ImageSet

BATCH, PART = 32, 64  # images per forward pass, and per file


# ---------------------------------------------------------------------------------------------- the network


@dataclass(frozen=True)
class Backbone:
    """A pretrained network and its image processor, as Hugging Face saves them.

    Attributes:
        source: the folder or hub id.
        name: the folder's name, or the hub id.
        network: a module whose output has a ``pooler_output``.
        processor: resizes and normalizes images.
    """

    source: str
    name: str
    network: Any
    processor: Any

    @classmethod
    def load(cls, model: str) -> "Backbone":
        """Load a network from a folder or hub id ``owner/name``."""
        network, processor, missing, _ = load_encoder(model)
        name = Path(model).resolve().name if Path(model).is_dir() else model
        backbone = cls(model, name, network, processor)
        try:
            if missing:
                raise ValueError(f"its weights lack {min(missing)}, which would be initialized at random")
            with torch.inference_mode():
                pooled(network, backbone.pixels(example_items(IMAGE)))
        except Exception as error:  # for networks of other kinds transformers raises many kinds
            raise cannot_load(model, error) from None
        return backbone

    def pixels(self, images: list[Image.Image]) -> Tensor:
        """[images, 3, height, width], as the network takes them."""
        pixels: Tensor = self.processor(images=images, return_tensors="pt")[IMAGE]
        return pixels

    def fingerprint(self) -> str:
        """A hash of the weights, the configuration and the processor."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        for settings in (self.network.config.to_dict(), self.processor.to_dict()):
            for name in ("_name_or_path", "transformers_version"):  # do not change the network
                settings.pop(name, None)
            digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        return digest.hexdigest()


def pooled(network: nn.Module, pixels: Tensor) -> Tensor:
    """The pooled output of the network, [images, features]."""
    output = getattr(network(pixels), "pooler_output", None)
    if output is None:
        raise ValueError(f"{type(network).__name__} has no pooler output; choose a network like ResNetModel")
    flat: Tensor = output.flatten(1)
    return flat


def check_stages(network: Any, last: int) -> None:
    """Reject a network that cannot be split before its last stages."""
    stages = getattr(getattr(network, "encoder", None), "stages", None)
    name = type(network).__name__
    if stages is None or not hasattr(network, "embedder"):
        hint = "use a network like ResNetModel, or --finetune to train the whole network"
        raise ValueError(f"{name} has no stages; {hint}")
    if not 1 <= last <= len(stages):
        raise ValueError(f"{name} has {len(stages)} stages; the last {last} of them cannot be trained")


def remove_last(network: Any, last: int) -> None:
    """Remove the last stages: the last hidden state of the rest is their input."""
    check_stages(network, last)
    del network.encoder.stages[-last:]


@contextmanager
def begins_with_last(network: Any, last: int) -> Iterator[None]:
    """Within the block, the network consists of its last stages and the pooling, and takes the output of the others.

    With ``last=0`` it is unchanged and takes images.
    """
    if not last:
        yield
        return
    check_stages(network, last)
    embedder, stages = network.embedder, network.encoder.stages
    network.embedder, network.encoder.stages = nn.Identity(), stages[-last:]
    try:
        yield
    finally:
        network.embedder, network.encoder.stages = embedder, stages


# ---------------------------------------------------------------------------------------------- parts


class View(NamedTuple):
    """What to compute for each image.

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

    def path(self, backbone: Backbone, images: ImageSet, cache: Path) -> Path:
        """The file, named after a hash of the network, its processor, and the names and sizes of the images."""
        states = f" {self.before_last} {self.mirrored}" if self.before_last else ""
        text = f"1 {backbone.fingerprint()} {images.fingerprint()}{states}"
        return cache / f"{self.what}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"

    def of(self, images: list[Image.Image]) -> Tensor:
        """The outputs for a batch of images, [images, ...], on the CPU."""
        network, backbone = _network(self.source, self.before_last)
        pixels = backbone.pixels([ImageOps.mirror(image) for image in images] if self.mirrored else images)
        pixels = pixels.to(network.device)
        with torch.inference_mode():
            output: Tensor = network(pixels).last_hidden_state.half() if self.before_last else pooled(network, pixels)
        if not output.isfinite().all():
            raise ValueError(f"{self.source}: its {self.what} are not finite in {output.dtype}")
        return output.cpu().contiguous()


@lru_cache(maxsize=1)
def _network(source: str, before_last: int) -> tuple[Any, Backbone]:
    """The network on the best device, without its last stages if requested; loaded once per process."""
    backbone = Backbone.load(source)
    if before_last:
        remove_last(backbone.network, before_last)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return backbone.network.to(device, memory_format=torch.channels_last), backbone


class Features(NamedTuple):
    """The outputs for some images.

    Attributes:
        X: the outputs, [images, ...].
        good: the indices of these images among all; the others could not be opened.
        bad: the errors of the others.
    """

    X: NDArray[Any]
    good: NDArray[np.int64]
    bad: list[str]


def load(path: Path) -> Features:
    """Read a part, or a file of several joined parts."""
    with opened(path) as file:
        bad = json.loads(file.metadata()["bad"])
        return Features(file.get_tensor("features").numpy(), file.get_tensor("kept").numpy(), bad)


def save(path: Path, features: Features) -> None:
    """Write a file atomically."""
    tensors = {"features": torch.from_numpy(features.X), "kept": torch.from_numpy(features.good)}
    with replacing(path) as unfinished:
        save_file(tensors, unfinished, {"bad": json.dumps(features.bad)})


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Map the file into memory; reject damaged files and files of another kind."""
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:  # the last three: foreign metadata
        raise ValueError(f"{path} cannot be read: {error}; delete it to recompute it") from None


@contextmanager
def only_user(cache: Path, console: Console) -> Iterator[None]:
    """Create the folder; other programs that compute features in it wait for the end of the block."""
    cache.mkdir(parents=True, exist_ok=True)
    folder = os.open(cache, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"another program is computing features in {cache}; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def extract_parts(
    view: View, images: ImageSet, folder: Path, *, skip_bad: bool, jobs: int | None, console: Console
) -> list[Path]:
    """Compute the missing parts; returns the files of all parts.

    Args:
        view: what to compute for each image.
        images: the images.
        folder: the folder of the parts.
        skip_bad: skip images that cannot be opened; otherwise the first one raises BadImageError.
        jobs: the number of processes with one thread each. Default: one per core, or one on a GPU.
        console: shows progress.
    """
    folder.mkdir(exist_ok=True)
    starts = {folder / f"{start:08d}.safetensors": start for start in range(0, len(images), PART)}
    missing = {
        path: np.arange(start, min(start + PART, len(images))) for path, start in starts.items() if not path.exists()
    }
    begin, count = time.monotonic(), sum(map(len, missing.values()))
    parallel = joblib.Parallel(
        n_jobs=jobs or (1 if torch.cuda.is_available() else joblib.cpu_count()),
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch="n_jobs",
    )
    tasks = (
        joblib.delayed(_compute)(view, images.take(index), index, path, skip_bad) for path, index in missing.items()
    )
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(f"{view.what} of {len(images)} images", total=len(missing))
        with joblib.parallel_config("loky", inner_max_num_threads=1):
            for _ in parallel(tasks):
                bar.advance(task)
    if missing:
        seconds = time.monotonic() - begin
        pace = f"{seconds:.1f} s, {count / seconds:.1f} per second"
        console.print(f"{view.what} of {count} images in {pace}: {folder.stem}")
    return list(starts)


def _compute(view: View, images: ImageSet, index: NDArray[np.int64], path: Path, skip_bad: bool) -> None:
    """Compute and write one part, in a worker process."""
    good, bad, outputs = [], [], []
    for start in range(0, len(images), BATCH):
        batch = []
        for i in range(start, min(start + BATCH, len(images))):
            try:
                batch.append(open_image(images.files[i], images.names[i]))
                good.append(index[i])
            except BadImageError as error:
                if not skip_bad:
                    raise
                bad.append(str(error))
        if batch:
            outputs.append(view.of(batch))
    X = torch.cat(outputs) if outputs else view.of([Image.new("RGB", (32, 32))])[:0]
    save(path, Features(X.numpy(), np.array(good, np.int64), bad))


# ---------------------------------------------------------------------------------------------- features


def extract(
    backbone: Backbone,
    images: ImageSet,
    cache: Path,
    *,
    skip_bad: bool = False,
    jobs: int | None = None,
    console: Console | None = None,
) -> Path:
    """Compute the pooled features unless they are cached in one file; returns the file, for :func:`load`.

    During the computation there is a folder of parts instead. Images that could not be opened are tried again each
    time. The arguments are those of :func:`extract_parts`; ``cache`` is the folder of the file.
    """
    console = console or Console(soft_wrap=True)
    view = View(backbone.source)
    path = view.path(backbone, images, cache)
    with only_user(cache, console):
        if path.exists() and _is_repaired(load(path), images):
            path.unlink()
        if not path.exists():
            folder = path.with_suffix(f".parts-{PART}")
            parts = extract_parts(view, images, folder, skip_bad=skip_bad, jobs=jobs, console=console)
            loaded = [load(part) for part in parts]
            X, index = (
                np.concatenate(arrays) for arrays in zip(*((part.X, part.good) for part in loaded), strict=True)
            )
            save(path, Features(X, index, [error for part in loaded for error in part.bad]))
            remove(folder, *(f"{part.name}*" for part in parts))
    bad = load(path).bad
    if bad and not skip_bad:
        raise BadImageError(bad[0])
    return path


def _is_repaired(features: Features, images: ImageSet) -> bool:
    """Whether an image that could not be opened before can be opened now."""
    bad = np.setdiff1d(np.arange(len(images)), features.good)
    return len(bad) > 0 and len(images.take(bad).openable(skip_bad=True)[0]) > 0
