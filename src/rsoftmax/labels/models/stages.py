"""Finished stages of a training on disk, so that an interrupted one resumes there."""

import hashlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from rsoftmax.labels.models.folders import remove, replacing

__all__ = ["Stages", "remove_stages"]

ENDING = ".stage"
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Stages:
    """The stages of one training, each a file with a digest and safetensors.

    Attributes:
        folder: where they are; None: nowhere, every stage is computed.
        training: what tells the files of this training from those of others.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = Stages(Path(folder))("mean", lambda: {"x": torch.ones(2)})
        ...     again = Stages(Path(folder))("mean", lambda: {"x": torch.zeros(2)})
        >>> again
        {'x': tensor([1., 1.])}
    """

    folder: Path | None = None
    training: str = ""

    def __call__(self, name: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors of a stage, from its file if there is one; otherwise they are computed and written."""
        if self.folder is None:
            return compute()
        path = self.folder / f"{name}{self.training}{ENDING}"
        with suppress(OSError):
            content = path.read_bytes()
            if hashlib.sha256(content[DIGEST:]).digest() == content[:DIGEST]:
                return load(content[DIGEST:])
            warnings.warn(f"{path} is damaged; this stage of the training is repeated", stacklevel=2)
        tensors = compute()
        data = save({key: tensor.contiguous() for key, tensor in tensors.items()})
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                unfinished.write_bytes(hashlib.sha256(data).digest() + data)
        except OSError as error:
            warnings.warn(f"the training could not resume if interrupted: {error}", stacklevel=2)
        return tensors


def remove_stages(folder: Path) -> None:
    """Delete the stages in a folder, and the folder if it is then empty."""
    remove(folder, f"*{ENDING}")
