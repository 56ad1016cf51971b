"""Damaged files of every kind that is read: a reader answers, or raises the errors that it declares, in time."""

import json
import re
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from strategies import Draw, examples
from transformers import ResNetConfig, ResNetModel, ViTImageProcessorPil

from rsoftmax._transformers import quiet
from rsoftmax.labels import EncoderModel
from rsoftmax.labels.models.images import BadImageError, open_image
from rsoftmax_lab.comparison import METHODS
from rsoftmax_lab.data import coco, features, glue, mulan, voc
from rsoftmax_lab.experiments import load, load_all
from rsoftmax_lab.records import read_trials
from rsoftmax_lab.report import write

PATIENCE = 20  # seconds of processor time
TOKENS = [
    b"0", b"NaN", b"Infinity", b"-Infinity", b"1e400", b"1e-400", b"0.5", b"-1", b"9" * 30, b"9" * 5000, b"null",
    b"true", b'""', b"{}", b"[]", b"[" * 50, b"[" * 20000, b"{" * 100, b"<a>" * 2000, b"'", b'"', b"\\", b"%", b"?",
    b",", b"\t", b"\n", b"\r", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", "\u202e".encode(),
    "\u2028".encode(), b"@data\n", b"@attribute", b"&amp;", b"<!ENTITY a 'b'>", b"../../x", b"/dev/zero", b"{1 1}",
    b"1 1,1 1", b"NUMERIC", b"STRING",
]  # fmt: skip


def damaged(content: bytes, draw: Draw) -> bytes:
    """The bytes after a random change."""
    start = draw.integer(0, len(content))
    stop = min(len(content), start + draw.integer(1, 64))
    token = draw.one_of(*TOKENS)
    match draw.one_of("flip", "insert", "number", "value", "delete", "repeat", "truncate", "lines", "encoding"):
        case "flip":
            return content[:start] + bytes([draw.integer(0, 255)]) + content[start + 1 :]
        case "insert":
            return content[:start] + token + content[draw.one_of(start, stop) :]
        case "number":
            return replaced(rb"-?\d+(\.\d+)?", content, token, draw)
        case "value":
            return replaced(rb'"[^"\n]*"|\w+', content, token, draw)
        case "delete":
            return content[:start] + content[stop:]
        case "repeat":
            return content[:stop] + content[start:stop] * draw.one_of(1, 2, 50) + content[stop:]
        case "truncate":
            return content[:start]
        case "lines":
            lines = content.split(b"\n")
            turn = draw.integer(0, len(lines))
            return b"\n".join(lines[turn:] + lines[:turn])
    return content.decode("latin-1").encode(draw.one_of("utf-16", "utf-32", "utf-7", "utf-8"))


def replaced(pattern: bytes, content: bytes, token: bytes, draw: Draw) -> bytes:
    matches = list(re.finditer(pattern, content[:100_000]))
    if not matches:
        return content
    match = matches[draw.integer(0, len(matches) - 1)]
    return content[: match.start()] + token + content[match.end() :]


class Reader(NamedTuple):
    files: Callable[[], dict[str, bytes]]  # an undamaged folder: contents by path
    harmed: str  # which of these are damaged, one in each case
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...] = (ValueError, OSError)  # that it may raise


# ------------------------------------------------------------------------------------------- undamaged files

ARFF = """% toys
@relation 'toys: -C 2'

@attribute size numeric
@attribute round {0,1}
@attribute colour {red,green,'light blue'}
@attribute 'Child\\'s' {1,0}
@attribute loud {0,1}
@data
"""
DENSE = "1.5,0,red,0,1\n2.5,1,'light blue',1,1\n0.5,1,green,1,0\n9,0,red,0,0\n"
SPARSE = "{0 1.5,3 0,4 1}\n{1 1,2 'light blue'}\n{}\n{0 9,2 green}\n"
XML = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="loud"></label>
<label name="Child's"><label name="round"/></label>
</labels>"""


def mulan_files(rows: str) -> dict[str, bytes]:
    return {"toys.xml": XML.encode()} | {f"toys-{part}.arff": (ARFF + rows).encode() for part in ("train", "test")}


def read_mulan(folder: Path) -> object:
    toys = folder.rename(folder.parent / "toys")
    return mulan.names(toys.parent), mulan.read(toys)


def glue_files() -> dict[str, bytes]:
    rows = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tone "text\tand another\n0\t7\t8\tnaïve\tb\n'
    return {f"MRPC/{part}.tsv": rows.encode() for part in ("train", "dev")}


def read_glue(folder: Path) -> object:
    glue.read.cache_clear()
    return [glue.read(str(folder), "MRPC", skip_bad) for skip_bad in (True, False)]


def voc_files() -> dict[str, bytes]:
    lists = {"cat": " 1 -1  0", "dog": "-1  1  1"}
    return {
        f"VOC2007/ImageSets/Main/{name}_{split}.txt": "".join(
            f"00000{i} {label}\n" for i, label in enumerate(labels.split())
        ).encode()
        for name, labels in lists.items()
        for split in ("train", "val")
    } | {"VOC2007/JPEGImages/000000.jpg": images()["exif.jpg"]}


def coco_files() -> dict[str, bytes]:
    entries = {
        "images": [{"id": 10 * n, "file_name": f"{n}.jpg"} for n in range(3)],
        "annotations": [{"id": n, "image_id": 10 * n, "category_id": 7, "segmentation": [[0.5, 1]]} for n in range(3)],
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
    }
    files = {f"annotations/instances_{split}.json": json.dumps(entries).encode() for split in ("train1", "val1")}
    return files | {f"{split}/0.jpg": images()["exif.jpg"] for split in ("train1", "val1")}


@cache
def images() -> dict[str, bytes]:
    exif = Image.Exif()
    exif.update({0x0112: 6, 0x010F: "maker", 0x011A: 72.0, 0x9286: b"xx"})
    exif.get_ifd(0x8825)[1] = "N"
    exif.get_ifd(0x8769).update({0x9003: "2020:01:01", 0x829A: 0.5})
    colours = Image.effect_noise((19, 13), 80).convert("RGB")
    kinds: dict[str, dict[str, Any]] = {
        "exif.jpg": {"exif": exif}, "progressive.jpg": {"progressive": True}, "exif.png": {"exif": exif},
        "plain.bmp": {}, "exif.webp": {"exif": exif}, "lossless.webp": {"lossless": True}, "grey.png": {},
    }  # fmt: skip
    files = {}
    for name, options in kinds.items():
        stream, kind = BytesIO(), Image.registered_extensions()[Path(name).suffix]
        (colours.convert("L") if name.startswith("grey") else colours).save(stream, kind, **options)
        files[name] = stream.getvalue()
    return files


def read_images(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        try:
            open_image(path, path.name)
        except BadImageError:
            continue


@cache
def classifier_files() -> dict[str, bytes]:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    with quiet(), tempfile.TemporaryDirectory() as folder:
        encoder, model = Path(folder, "encoder"), Path(folder, "model")
        ResNetModel(config).save_pretrained(encoder)
        ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(encoder)
        EncoderModel.from_encoder(encoder, ["cat", "dog"]).save_pretrained(model)
        return {path.name: path.read_bytes() for path in model.iterdir()}


@cache
def features_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "features.safetensors")
        features.save(path, features.Features(np.ones((4, 3), np.float32), np.arange(4), ["5.jpg: torn"]))
        return {path.name: path.read_bytes()}


def records_files(*names: str) -> dict[str, bytes]:
    runs: dict[str, dict[str, Any]] = {
        "synthetic": {"classes": 20, "labels": 5},
        "tabular": {"dataset": "toys"},
        "voc": {"model": "resnet", "data": "abc", "lr": 0.01, "selection_share": 0.0},
    }
    scores = {"micro": 51.25, "macro": 40.0, "samples": 30.0}
    rule = {"epoch": 2, "validation": scores, "test": scores, "test_last": scores, "curve": [40.0, 51.2]}
    comparison = {
        name: [
            {"run": {**run, "method": method, "epochs": 2}, "seconds": 1.5, "epoch_seconds": 0.7, "rules": rules}
            for method in ("bce", "r_softmax_count")
            for rules in [dict.fromkeys(METHODS[method].rules, rule)]
        ]
        for name, run in runs.items()
    }
    glue_records = [
        {"run": {"task": "MRPC", "mapping": mapping, "r": r, "lr": 1e-4, "model": "bert@1", "data": "glue@2"},
         "seconds": 60.0, "rows": {"train": 9, "validation": 3, "dev": 5}, "sparsity": 0.25,
         "validation": {"accuracy": 0.5, "f1": 0.5}, "dev": {"accuracy": 0.75, "f1": 0.8}}
        for mapping, r in (("softmax", None), ("r_softmax", 0.2))
    ]  # fmt: skip
    records = {**comparison, "glue": glue_records}
    return {f"{name}.jsonl": "".join(f"{json.dumps(r)}\n" for r in records[name]).encode() for name in names or records}


def read_records(folder: Path) -> object:
    return [read_trials(path, load(path.stem).Run, lambda notice: None) for path in folder.glob("*.jsonl")]


def read_report(folder: Path) -> object:
    return write(load_all(), folder, folder / "report", lambda notice: None)


READERS = {
    "arff-dense": Reader(partial(mulan_files, DENSE), r"\.arff$", read_mulan),
    "arff-sparse": Reader(partial(mulan_files, SPARSE), r"\.arff$", read_mulan),
    "xml": Reader(partial(mulan_files, DENSE), r"\.xml$", read_mulan),
    "tsv": Reader(glue_files, r"\.tsv$", read_glue),
    "voc": Reader(voc_files, r"\.txt$", lambda folder: [part.fingerprint() for part in voc.read(folder)[1:]]),
    "coco": Reader(coco_files, r"\.json$", lambda folder: [part.fingerprint() for part in coco.read(folder)[1:]]),
    "images": Reader(images, "", read_images, ()),
    "config": Reader(classifier_files, r"config\.json$", EncoderModel.from_pretrained),
    "safetensors": Reader(classifier_files, r"\.safetensors$", EncoderModel.from_pretrained),
    "features": Reader(features_files, "", lambda folder: features.load(folder / "features.safetensors")),
    "records": Reader(records_files, "", read_records, ()),
    **{
        f"report-{name}": Reader(partial(records_files, name), "", read_report, (FileNotFoundError,))
        for name in ("synthetic", "tabular", "voc", "glue")
    },
}

# ------------------------------------------------------------------------------------------- the tests


@contextmanager
def patience() -> Iterator[None]:
    def stop(*_: object) -> None:
        pytest.fail(f"no answer in {PATIENCE} seconds of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def read(reader: Reader, files: dict[str, bytes]) -> None:
    """Let the reader read these files."""
    with tempfile.TemporaryDirectory() as parent, patience(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(parent, "folder")
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        reader.read(folder)


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_ends_in_an_answer_or_a_declared_error(name: str) -> None:
    reader = READERS[name]
    files = reader.files()
    read(reader, files)  # undamaged

    @examples(1 if name.startswith("report") else 20)
    def damage_and_read(draw: Draw) -> None:
        harmed = draw.one_of(*sorted(path for path in files if re.search(reader.harmed, path)))
        content = files[harmed]
        for _ in range(draw.one_of(1, 1, 2, 4)):
            content = damaged(content, draw)
        with suppress(*reader.errors):
            read(reader, files | {harmed: content})

    damage_and_read()
