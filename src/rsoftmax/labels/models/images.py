"""Opening images: the only module that knows Pillow's errors. Needs ``pip install 'rsoftmax[images]'``."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

try:
    from PIL import Image, ImageOps, UnidentifiedImageError
except ImportError as missing:
    raise ImportError(
        f"rsoftmax.labels.models.images needs {missing.name}: pip install 'rsoftmax[images]'"
    ) from missing

__all__ = ["ENDINGS", "BadImageError", "File", "open_image", "upright"]

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
File = Path | Callable[[], bytes]
"""Where an image is stored: a path, or a function that returns its bytes."""


class BadImageError(ValueError):
    """An image that cannot be used; names it and the reason."""


def open_image(file: File, name: str) -> Image.Image:
    """Open an image as RGB, rotated as its EXIF orientation says.

    Args:
        file: where it is stored.
        name: what errors call it.

    Returns:
        The image. Greyscale is converted to RGB; other modes are refused, as their conversion is ambiguous.

    Raises:
        BadImageError: if the file is missing, damaged, too large or of another mode.
    """
    try:
        with Image.open(_openable(file)) as image:
            if image.mode not in ("RGB", "L"):
                raise BadImageError(f"{name}: its mode is {image.mode}; convert it to RGB, or leave it out")
            return upright(image)
    except FileNotFoundError:
        raise BadImageError(f"{name}: the file does not exist") from None
    except (BadImageError, MemoryError):
        raise
    except Exception as error:  # for damaged files Pillow raises many kinds, struct.error and KeyError among them
        reason = "it is not an image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise BadImageError(f"{name}: cannot be read: {reason or type(error).__name__}") from None


def upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation and convert to RGB."""
    return ImageOps.exif_transpose(image).convert("RGB")


def _openable(file: File) -> Path | BytesIO:
    """Something Pillow can open. Pipes and devices are refused, as they may never end."""
    if not isinstance(file, Path):
        return BytesIO(file())
    if file.exists() and not file.is_file():
        raise OSError("it is not a file")
    return file
