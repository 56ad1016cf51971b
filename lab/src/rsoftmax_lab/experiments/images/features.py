"""The features of a frozen network: computed once and kept in a safetensors file; a stopped computation is resumed.

The file's name is a hash of the network, its processor, and the names and sizes of the pictures. While it is under way
there is a folder of parts instead, each of them whole. Pictures that could not be opened are tried again each time.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from rsoftmax.huggingface.backbone import Backbone, features
from rsoftmax.pictures import BadPictureError, open_picture
from rsoftmax_lab.experiments.images.pictures import Pictures
from rsoftmax_lab.running import lock, own_files

BATCH, PART = 32, 64  # pictures in a pass, and in a file that survives a kill


class Features(NamedTuple):
    """What is known of the pictures.

    Attributes:
        X: [kept, features].
        kept: which pictures these are, by their place in the list.
        bad: what is wrong with the others.
    """

    X: NDArray[np.float32]
    kept: NDArray[np.int64]
    bad: list[str]


def key(backbone: Backbone, pictures: Pictures) -> str:
    """The name of these features."""
    return hashlib.sha256(f"1 {backbone.fingerprint()} {pictures.fingerprint()}".encode()).hexdigest()[:16]


def extract(
    backbone: Backbone,
    pictures: Pictures,
    cache: Path,
    *,
    skip_bad: bool = False,
    jobs: int | None = None,
    console: Console | None = None,
) -> Path:
    """Make sure that the file of features is there.

    Args:
        backbone: the network.
        pictures: what to look at.
        cache: the folder for the file; made if need be.
        skip_bad: go on without the pictures that cannot be opened; otherwise the first one raises BadPictureError.
        jobs: processes, each with one thread; by default one for each core, or one if it computes on a GPU.
        console: where progress goes.

    Returns:
        The file.
    """
    console = console or Console(soft_wrap=True)
    path = cache / f"features-{key(backbone, pictures)}.safetensors"
    cache.mkdir(parents=True, exist_ok=True)
    with lock.folder(cache, partial(console.print, f"another program computes features in {cache}; waiting for it")):
        if path.exists() and _repaired(load(path), pictures):
            path.unlink()
        if not path.exists():
            _extract(backbone, pictures, path, skip_bad, jobs, console)
    bad = load(path).bad
    if bad and not skip_bad:
        raise BadPictureError(bad[0])
    return path


def load(path: Path) -> Features:
    """Read a file that :func:`extract` wrote."""
    try:
        with safe_open(path, "pt") as file:
            bad = json.loads(file.metadata()["bad"])
            return Features(file.get_tensor("features").numpy(), file.get_tensor("kept").numpy(), bad)
    except (
        OSError,
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:  # the latter of another file's metadata
        raise ValueError(f"{path} cannot be read: {error}; delete it, and it is computed anew") from None


def _extract(
    backbone: Backbone, pictures: Pictures, path: Path, skip_bad: bool, jobs: int | None, console: Console
) -> None:
    """Compute the parts that are not there yet, and join all parts to the file."""
    folder = path.with_suffix(f".parts-{PART}")
    folder.mkdir(exist_ok=True)
    parts = {folder / f"{start:08d}.safetensors": _places(start, pictures) for start in range(0, len(pictures), PART)}
    left = {part: places for part, places in parts.items() if not part.exists()}
    begin = time.monotonic()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(f"features of {len(pictures)} pictures", total=len(parts), completed=len(parts) - len(left))
        for _ in _computed(backbone, pictures, left, skip_bad, jobs):
            bar.advance(task)
    _save(path, _joined([load(part) for part in parts]))
    own_files.remove(folder, *(f"{part.name}*" for part in parts))
    seconds, done = time.monotonic() - begin, sum(map(len, left.values()))
    console.print(f"features of {done} pictures in {seconds:.1f} s, {done / seconds:.1f} a second: {path.name}")


def _computed(
    backbone: Backbone, pictures: Pictures, parts: dict[Path, NDArray[np.int64]], skip_bad: bool, jobs: int | None
) -> Iterator[None]:
    """Compute parts, spread over processes; yields after each."""
    spread = joblib.Parallel(
        n_jobs=jobs or (1 if torch.cuda.is_available() else joblib.cpu_count()),
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch="n_jobs",
    )
    tasks = (
        joblib.delayed(_compute)(backbone.source, pictures.take(places), places, part, skip_bad)
        for part, places in parts.items()
    )
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        yield from spread(tasks)


def _repaired(found: Features, pictures: Pictures) -> bool:
    """Whether a picture that could not be opened can be by now."""
    for place in set(range(len(pictures))).difference(found.kept.tolist()):
        try:
            open_picture(pictures.files[place], pictures.names[place])
        except BadPictureError:
            continue
        return True
    return False


def _places(start: int, pictures: Pictures) -> NDArray[np.int64]:
    return np.arange(start, min(start + PART, len(pictures)))


def _compute(source: str, pictures: Pictures, places: NDArray[np.int64], part: Path, skip_bad: bool) -> None:
    """Write the features of some pictures, in whichever process this is."""
    network, backbone = _network(source)
    kept, bad, found = [], [], []
    for start in range(0, len(pictures), BATCH):
        opened = []
        for i in range(start, min(start + BATCH, len(pictures))):
            try:
                opened.append(open_picture(pictures.files[i], pictures.names[i]))
                kept.append(places[i])
            except BadPictureError as error:
                if not skip_bad:
                    raise
                bad.append(str(error))
        if opened:
            with torch.inference_mode():
                found.append(features(network, backbone.pixels(opened).to(next(network.parameters()).device)).cpu())
    X = torch.cat(found).numpy() if found else np.zeros((0, backbone.size), np.float32)
    _save(part, Features(X, np.array(kept, np.int64), bad))


@lru_cache(maxsize=1)
def _network(source: str) -> tuple[nn.Module, Backbone]:
    """The network where it computes best, once for each process."""
    backbone = Backbone.load(source)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return backbone.network.to(device, memory_format=torch.channels_last), backbone


def _joined(several: list[Features]) -> Features:
    return Features(
        np.concatenate([one.X for one in several]),
        np.concatenate([one.kept for one in several]),
        [text for one in several for text in one.bad],
    )


def _save(path: Path, found: Features) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    tensors = {"features": torch.from_numpy(found.X), "kept": torch.from_numpy(found.kept)}
    save_file(tensors, unfinished, {"bad": json.dumps(found.bad)})
    os.replace(unfinished, path)
