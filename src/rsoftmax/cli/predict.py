"""``rsoftmax predict``."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
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
    from rsoftmax.pictures import ENDINGS, BadPictureError, open_picture
    from rsoftmax.plots import picture as drawing

    try:
        classifier, backbone = PictureClassifier.load(model)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from None
    paths = (
        sorted(path for path in pictures.iterdir() if path.suffix.lower() in ENDINGS)
        if pictures.is_dir()
        else [pictures]
    )
    if not paths:
        raise typer.BadParameter(f"{pictures} holds no pictures ({', '.join(ENDINGS)})", param_hint="PICTURES")
    targets = dict.fromkeys(paths, show)
    if show is not None and pictures.is_dir():
        targets = {path: show / f"{path.name}.png" for path in paths}
    elif show is not None and show.suffix.lower() not in drawing.endings():
        raise typer.BadParameter(f"{show} does not end in {', '.join(drawing.endings())}", param_hint="--show")
    if show is not None and show.resolve() == pictures.resolve():
        raise typer.BadParameter(f"{show} is where the pictures are; name another place", param_hint="--show")
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
        typer.echo(f"{path.name}: {', '.join(map(str, found)) or 'no label'}")
        if (target := targets[path]) is not None:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                drawing.draw_labels(picture, found, path.name, target)
            except OSError as error:
                raise typer.BadParameter(str(error), param_hint="--show") from None
    if bad:
        typer.echo(f"left out: {bad} of {len(paths)} pictures, which cannot be opened")
    if show is not None and bad < len(paths):
        typer.echo(f"wrote {show}")
