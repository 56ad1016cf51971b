"""Reads VOCdevkit's layout: ``VOC2007/JPEGImages`` and ``VOC2007/ImageSets/Main/<class>_<split>.txt``.

Lists contain 1 for present, -1 for absent, and 0 where all instances are "difficult". As in VOC's own evaluation,
difficult labels are excluded from the scores; in training they count as absent.
"""

from pathlib import Path

import numpy as np

from rsoftmax_lab.data.images import ImageSet, Splits


def read(folder: Path) -> Splits:
    """The splits train and val of a folder ``VOC<year>``, or of its only such subfolder."""
    root = _root(folder)
    lists = root / "ImageSets" / "Main"
    classes = sorted({path.name.rsplit("_", 1)[0] for path in (*lists.glob("*_train.txt"), *lists.glob("*_val.txt"))})
    if not classes:
        raise FileNotFoundError(f"{lists} contains no lists <class>_train.txt and <class>_val.txt")
    return Splits(classes, _split(root, classes, "train"), _split(root, classes, "val"))


def _root(folder: Path) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {str(folder)!r} does not exist")
    found = [path.parents[1] for path in (folder / "ImageSets/Main", *sorted(folder.glob("VOC*/ImageSets/Main")))
             if path.is_dir()]  # fmt: skip
    if len(found) != 1:
        what = f"found several: {', '.join(path.name for path in found)}; name one" if found else "has none"
        raise FileNotFoundError(f"{folder}: expected a folder with ImageSets/Main and JPEGImages; {what}")
    return found[0]


def _split(root: Path, classes: list[str], split: str) -> ImageSet:
    lists = [_list(root / "ImageSets" / "Main" / f"{name}_{split}.txt") for name in classes]
    ids = list(lists[0])
    for name, labels in zip(classes, lists, strict=True):
        if labels.keys() != lists[0].keys():
            other = min(labels.keys() ^ lists[0].keys())
            raise ValueError(f"{name}_{split}.txt and {classes[0]}_{split}.txt differ in the image {other}")
    Y = np.array([[labels[image] for labels in lists] for image in ids])
    names = [f"{image}.jpg" for image in ids]
    return ImageSet(names, [root / "JPEGImages" / name for name in names], labels=Y == 1, ignored=Y == 0)


def _list(path: Path) -> dict[str, int]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; each class needs a list for train and one for val")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}; save it as UTF-8") from None
    labels: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        match line.split():
            case [image, ("1" | "-1" | "0") as label]:
                if labels.setdefault(image, int(label)) != int(label):
                    raise ValueError(f"{path}, line {number}: contradicts an earlier line about {image}")
            case []:
                pass
            case _:
                raise ValueError(f"{path}, line {number}: expected an image and 1, -1 or 0, got {line!r}")
    if not labels:
        raise ValueError(f"{path}: is empty")
    return labels
