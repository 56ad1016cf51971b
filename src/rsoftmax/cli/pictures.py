"""Pictures as arguments of a command, and drawings of their labels."""

from pathlib import Path
from typing import NamedTuple

import typer


class Openable(NamedTuple):
    """Pictures that can be opened, and what to call them."""

    items: list[Path]
    names: list[str]


def pictures(place: Path) -> list[Path]:
    """The picture, or those of a folder."""
    from rsoftmax.pictures import ENDINGS

    if not place.is_dir():
        return [place]
    paths = sorted(path for path in place.iterdir() if path.suffix.lower() in ENDINGS)
    if not paths:
        raise typer.BadParameter(f"{place} holds no pictures ({', '.join(ENDINGS)})", param_hint="PICTURES")
    return paths


def openable(paths: list[Path], skip_bad: bool) -> Openable:
    """Those that can be opened; without ``skip_bad``, the first one that cannot is an error."""
    from rsoftmax.pictures import BadPictureError, open_picture

    kept = []
    for path in paths:
        try:
            open_picture(path, str(path))
            kept.append(path)
        except BadPictureError as error:
            if not skip_bad:
                raise typer.BadParameter(f"{error}; --skip-bad goes on without it", param_hint="PICTURES") from None
    if len(kept) < len(paths):
        typer.echo(f"left out: {len(paths) - len(kept)} of {len(paths)} pictures, which cannot be opened", err=True)
    return Openable(kept, [path.name for path in kept])


def targets(given: list[str], paths: list[Path], show: Path) -> list[Path]:
    """Where the drawing of each picture goes."""
    from rsoftmax.plots.picture import endings

    if any(show.resolve() == Path(place).resolve() for place in given):
        raise typer.BadParameter(f"{show} is where the pictures are; name another place", param_hint="--show")
    if len(given) > 1 or Path(given[0]).is_dir():
        return [show / f"{path.name}.png" for path in paths]
    if show.suffix.lower() not in endings():
        raise typer.BadParameter(f"{show} does not end in {', '.join(endings())}", param_hint="--show")
    return [show for _ in paths]


def draw(paths: list[Path], found: list[dict[str, float]], places: list[Path]) -> None:
    """Each picture beside its labels."""
    from rsoftmax.pictures import open_picture
    from rsoftmax.plots import draw_labels

    for path, labels, place in zip(paths, found, places, strict=True):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            draw_labels(open_picture(path, str(path)), labels, path.name, place)
        except OSError as error:
            raise typer.BadParameter(str(error), param_hint="--show") from None
