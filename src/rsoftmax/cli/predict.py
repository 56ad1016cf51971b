"""``rsoftmax predict``."""

from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[Path, typer.Argument(help="What `rsoftmax reproduce voc --save` wrote.")],
    pictures: Annotated[Path, typer.Argument(help="A picture, or a folder of them.")],
    show: Annotated[
        Path | None, typer.Option(help="Write the picture with its labels and a bar chart here; a folder for a folder.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count and leave out pictures that cannot be opened.")
    ] = False,
) -> None:
    """Say what is in pictures: the labels with their probabilities, exact zeros left out."""
    from rsoftmax.huggingface.picture_classifier import PictureClassifier
    from rsoftmax.huggingface.picture_classifier import predict as labels_of
    from rsoftmax.pictures import BadPictureError, open_picture
    from rsoftmax.plots import draw_labels
    from rsoftmax.printable import printable

    try:
        classifier, backbone = PictureClassifier.load(model)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from None
    paths = _pictures(pictures)
    targets = _targets(pictures, paths, show)
    bad = 0
    for path in paths:
        try:
            picture = open_picture(path, str(path))
        except BadPictureError as error:
            if not skip_bad:
                raise typer.BadParameter(f"{error}; --skip-bad goes on without it", param_hint="PICTURES") from None
            bad += 1
            continue
        found = labels_of(classifier, backbone, [picture])[0]
        typer.echo(f"{printable(path.name)}: {', '.join(map(str, found)) or 'no label'}")
        if (target := targets.get(path)) is not None:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                draw_labels(picture, found, path.name, target)
            except OSError as error:
                raise typer.BadParameter(str(error), param_hint="--show") from None
    if bad:
        typer.echo(f"left out: {bad} of {len(paths)} pictures, which cannot be opened")
    if show is not None and bad < len(paths):
        typer.echo(f"wrote {show}")


def _pictures(place: Path) -> list[Path]:
    """The picture, or those of a folder."""
    from rsoftmax.pictures import ENDINGS

    if not place.is_dir():
        return [place]
    paths = sorted(path for path in place.iterdir() if path.suffix.lower() in ENDINGS)
    if not paths:
        raise typer.BadParameter(f"{place} holds no pictures ({', '.join(ENDINGS)})", param_hint="PICTURES")
    return paths


def _targets(place: Path, paths: list[Path], show: Path | None) -> dict[Path, Path]:
    """Where the drawing of each picture goes, if drawings are wanted."""
    from rsoftmax.plots.picture import endings

    if show is None:
        return {}
    if show.resolve() == place.resolve():
        raise typer.BadParameter(f"{show} is where the pictures are; name another place", param_hint="--show")
    if place.is_dir():
        return {path: show / f"{path.name}.png" for path in paths}
    if show.suffix.lower() not in endings():
        raise typer.BadParameter(f"{show} does not end in {', '.join(endings())}", param_hint="--show")
    return {place: show}
