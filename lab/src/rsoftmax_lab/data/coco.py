"""Reads COCO's layout: ``annotations/instances_<split>.json``, and images in ``images/<split>`` or ``<split>``.

A class is present if the image has an annotation of it, including crowds. Images without annotations are kept.
"""

import json
import reprlib
from pathlib import Path
from typing import Any

import numpy as np

from rsoftmax_lab.data.images import ImageSet, Splits


def read(folder: Path) -> Splits:
    """The splits ``train<year>`` and ``val<year>``; classes in the order of their ids."""
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {str(folder)!r} does not exist")
    (train_path, train), (val_path, val) = (_load(folder, split) for split in ("train", "val"))
    classes = _by_id(train_path, train["categories"], "name")
    if classes != _by_id(val_path, val["categories"], "name"):
        raise ValueError(f"{val_path}: its categories differ from those of {train_path.name}")
    ids = sorted(classes)
    names = [classes[category] for category in ids]
    return Splits(names, _split(folder, train_path, train, ids), _split(folder, val_path, val, ids))


def _by_id(path: Path, entries: list[dict[str, Any]], field: str) -> dict[int, str]:
    """A field of the entries of a list by their unique id."""
    found: dict[int, str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not {"id", field} <= entry.keys():
            raise ValueError(f"{path}: expected an id and a {field}, got {_shown(entry)}")
        number, text = entry["id"], entry[field]
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{path}: the id of {_shown(entry)} is not an integer")
        if number in found or not isinstance(text, str):
            raise ValueError(f"{path}: the id or the {field} of {_shown(entry)} is not unique, or not a string")
        found[number] = text
    if not found:
        raise ValueError(f"{path}: a list of entries with a {field} is empty")
    return found


def _load(folder: Path, split: str) -> tuple[Path, dict[str, Any]]:
    found = sorted((folder / "annotations").glob(f"instances_{split}*.json"))
    if len(found) != 1:
        what = f"found several: {', '.join(path.name for path in found)}; keep one" if found else "has none"
        raise FileNotFoundError(f"{folder / 'annotations'}: expected one file instances_{split}<year>.json; {what}")
    try:
        entries = json.loads(found[0].read_bytes())
        missing = [key for key in ("images", "annotations", "categories") if not isinstance(entries.get(key), list)]
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{found[0]}: not in COCO's JSON format: {error}") from None
    if missing:
        raise ValueError(f"{found[0]}: has no list {missing[0]!r}")
    return found[0], entries


def _split(folder: Path, path: Path, entries: dict[str, Any], classes: list[int]) -> ImageSet:
    split = path.stem.removeprefix("instances_")
    places = [place for place in (folder / "images" / split, folder / split) if place.is_dir()]
    if not places:
        raise FileNotFoundError(f"{folder} has neither images/{split} nor {split}, for the images")
    files = _by_id(path, entries["images"], "file_name")
    rows = {number: i for i, number in enumerate(files)}
    columns = {category: j for j, category in enumerate(classes)}
    Y = np.zeros((len(rows), len(columns)), dtype=bool)
    for entry in entries["annotations"]:
        try:
            Y[rows[entry["image_id"]], columns[entry["category_id"]]] = True
        except (KeyError, TypeError):
            raise ValueError(f"{path}: the annotation {_shown(entry)} refers to no listed image and category") from None
    names = list(files.values())
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{path}: the file_name {name!r} points outside the folder of images")
    return ImageSet(names, [places[0] / name for name in names], labels=Y, ignored=np.zeros_like(Y))


def _shown(entry: Any) -> str:
    """An entry in an error message: only strings and numbers, without long outlines."""
    if not isinstance(entry, dict):
        return reprlib.repr(entry)
    short = {name: value for name, value in entry.items() if isinstance(value, str | int | float)}
    return str(short)[:200]
