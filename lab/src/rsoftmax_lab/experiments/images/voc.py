"""Reads the layout of VOCdevkit: ``VOC2007/JPEGImages`` and ``VOC2007/ImageSets/Main/<class>_<split>.txt``.

A list says 1 for present, -1 for absent, and 0 where all instances are "difficult". As in VOC's own evaluation, the
latter count neither as right nor as wrong; in training, where every label has to be something, they are absent.
"""

from pathlib import Path

import numpy as np

from rsoftmax_lab.experiments.images.pictures import Pictures, Splits


def read(folder: Path) -> Splits:
    """The splits train and val of a folder ``VOC<year>``, or of the one that it holds."""
    root = _root(folder)
    lists = root / "ImageSets" / "Main"
    classes = sorted({path.name.rsplit("_", 1)[0] for path in (*lists.glob("*_train.txt"), *lists.glob("*_val.txt"))})
    if not classes:
        raise FileNotFoundError(f"{lists} holds no lists <class>_train.txt and <class>_val.txt")
    return Splits(classes, _split(root, classes, "train"), _split(root, classes, "val"))


def _root(folder: Path) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {str(folder)!r} does not exist")
    found = [path.parents[1] for path in (folder / "ImageSets/Main", *sorted(folder.glob("VOC*/ImageSets/Main")))
             if path.is_dir()]  # fmt: skip
    if len(found) != 1:
        what = f"has several: {', '.join(path.name for path in found)}; name one" if found else "has none"
        raise FileNotFoundError(f"{folder}: wanted a folder with ImageSets/Main and JPEGImages, and it {what}")
    return found[0]


def _split(root: Path, classes: list[str], split: str) -> Pictures:
    lists = [_list(root / "ImageSets" / "Main" / f"{name}_{split}.txt") for name in classes]
    ids = list(lists[0])
    for name, labels in zip(classes, lists, strict=True):
        if labels.keys() != lists[0].keys():
            other = min(labels.keys() ^ lists[0].keys())
            raise ValueError(f"{name}_{split}.txt and {classes[0]}_{split}.txt differ in the picture {other}")
    Y = np.array([[labels[picture] for labels in lists] for picture in ids])
    names = [f"{picture}.jpg" for picture in ids]
    return Pictures(names, [root / "JPEGImages" / name for name in names], labels=Y == 1, ignored=Y == 0)


def _list(path: Path) -> dict[str, int]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; each class has a list for train and one for val")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}; save it as UTF-8") from None
    labels: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        match line.split():
            case [picture, ("1" | "-1" | "0") as label]:
                if labels.setdefault(picture, int(label)) != int(label):
                    raise ValueError(f"{path}, line {number}: says otherwise of {picture} than a line before")
            case []:
                pass
            case _:
                raise ValueError(f"{path}, line {number}: wanted a picture and 1, -1 or 0, got {line!r}")
    if not labels:
        raise ValueError(f"{path}: has no lines")
    return labels
