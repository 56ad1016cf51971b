"""How a picture is opened: the only file that knows Pillow's errors. Needs ``pip install 'rsoftmax[images]'``."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

try:
    from PIL import Image, ImageOps, UnidentifiedImageError
except ImportError as missing:
    raise ImportError(f"rsoftmax.pictures needs {missing.name}: pip install 'rsoftmax[images]'") from missing

__all__ = ["ENDINGS", "BadPictureError", "File", "open_picture", "upright"]

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
File = Path | Callable[[], bytes]
"""Where a picture is: a path, or a function that gives its bytes."""


class BadPictureError(ValueError):
    """A picture that cannot be used; says which, and why."""


def open_picture(file: File, name: str) -> Image.Image:
    """The picture in RGB, turned as its camera says.

    Args:
        file: where it is.
        name: what to call it in an error.

    Returns:
        The picture; grey ones become RGB. Every other mode is refused, as there is more than one way to read it.

    Raises:
        BadPictureError: for a file that is missing, broken, too large or of another mode.
    """
    try:
        with Image.open(_stored(file)) as picture:
            if picture.mode not in ("RGB", "L"):
                raise BadPictureError(f"{name}: its mode is {picture.mode}; convert it to RGB, or leave it out")
            return upright(picture)
    except FileNotFoundError:
        raise BadPictureError(f"{name}: the file does not exist") from None
    except (BadPictureError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes Pillow raise errors of many kinds, struct.error and KeyError too
        reason = "it is not a picture" if isinstance(error, UnidentifiedImageError) else str(error)
        raise BadPictureError(f"{name}: cannot be read: {reason or type(error).__name__}") from None


def upright(picture: Image.Image) -> Image.Image:
    """The picture in RGB, turned as its camera says."""
    return ImageOps.exif_transpose(picture).convert("RGB")


def _stored(file: File) -> Path | BytesIO:
    """What Pillow can open. A pipe or a device, which may have no end, is none."""
    if not isinstance(file, Path):
        return BytesIO(file())
    if file.exists() and not file.is_file():
        raise OSError("it is not a file")
    return file
