"""Reads the layout of COCO: ``annotations/instances_<split>.json``, and pictures in ``images/<split>`` or ``<split>``.

A class is present if the picture has an annotation of it, crowds included. Pictures without any annotation stay.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rsoftmax.experiments.images.pictures import Pictures, Splits


def read(folder: Path) -> Splits:
    """The splits ``train<year>`` and ``val<year>``; classes in the order of their ids."""
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {str(folder)!r} does not exist")
    (train_path, train), (val_path, val) = (_load(folder, split) for split in ("train", "val"))
    classes = {entry["id"]: entry["name"] for entry in sorted(train["categories"], key=lambda entry: entry["id"])}
    if classes != {entry["id"]: entry["name"] for entry in val["categories"]}:
        raise ValueError(f"{val_path}: its categories are not those of {train_path.name}")
    ids = list(classes)
    return Splits(list(classes.values()), _split(folder, train_path, train, ids), _split(folder, val_path, val, ids))


def _load(folder: Path, split: str) -> tuple[Path, dict[str, Any]]:
    found = sorted((folder / "annotations").glob(f"instances_{split}*.json"))
    if len(found) != 1:
        what = f"has several: {', '.join(path.name for path in found)}; leave one" if found else "has none"
        raise FileNotFoundError(f"{folder / 'annotations'}: wanted a file instances_{split}<year>.json, and it {what}")
    try:
        entries = json.loads(found[0].read_bytes())
        missing = [key for key in ("images", "annotations", "categories") if key not in entries]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{found[0]}: not JSON of COCO's kind: {error}") from None
    if missing:
        raise ValueError(f"{found[0]}: has no {missing[0]!r}")
    return found[0], entries


def _split(folder: Path, path: Path, entries: dict[str, Any], classes: list[int]) -> Pictures:
    split = path.stem.removeprefix("instances_")
    places = [place for place in (folder / "images" / split, folder / split) if place.is_dir()]
    if not places:
        raise FileNotFoundError(f"{folder} has neither images/{split} nor {split}, where the pictures should be")
    rows = {entry["id"]: i for i, entry in enumerate(entries["images"])}
    columns = {category: j for j, category in enumerate(classes)}
    Y = np.zeros((len(rows), len(columns)), dtype=bool)
    for entry in entries["annotations"]:
        try:
            Y[rows[entry["image_id"]], columns[entry["category_id"]]] = True
        except KeyError as unknown:
            raise ValueError(f"{path}: annotation {entry.get('id')} speaks of {unknown}, which is not listed") from None
    names = [entry["file_name"] for entry in entries["images"]]
    return Pictures(names, [places[0] / name for name in names], labels=Y, ignored=np.zeros_like(Y))
