"""Damages files at random and reads them: ``python tools/fuzz_files.py [--seconds N] [--seed N] [TARGET ...]``.

A reader may answer, or raise the errors that it declares. A finding is any other exception, or no answer for twenty
seconds. Each case follows from the seed, the target and its number, which are printed with a finding; the damaged file
is kept in ``fuzz-findings``.
"""

import argparse
import json
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

PATIENCE = 20  # seconds
MEMORY = 12 * 2**30  # bytes; what asks for more gets a MemoryError
KEPT = Path("fuzz-findings")

TOKENS = [
    b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1", b"0", b"9" * 30, b"9" * 5000, b"null", b"true", b'""', b"{}",
    b"[]", b"[" * 50, b"[" * 20000, b"{" * 100, b"<a>" * 2000, b"'", b'"', b"\\", b"%", b"?", b",", b"\t", b"\n", b"\r",
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", "\u202e".encode(), "\u2028".encode(), b"@data\n",
    b"@attribute", b"&amp;", b"<!ENTITY a 'b'>", b"../../x", b"/dev/zero", b"{1 1}", b"1 1,1 1", b"NUMERIC", b"STRING",
    b"1e-400", b"0.5",
]  # fmt: skip


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The bytes after one to four random changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        content = chance.choice(CHANGES)(content, chance)
    return content


def _span(content: bytes, chance: random.Random, most: int = 64) -> tuple[int, int]:
    start = chance.randrange(len(content) + 1)
    return start, min(len(content), start + chance.randint(1, most))


def _flip(content: bytes, chance: random.Random) -> bytes:
    start, stop = _span(content, chance, 1)
    return content[:start] + bytes([chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))]) + content[stop:]


def _delete(content: bytes, chance: random.Random) -> bytes:
    start, stop = _span(content, chance)
    return content[:start] + content[stop:]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    start, stop = _span(content, chance)
    return content[:stop] + content[start:stop] * chance.choice((1, 2, 50)) + content[stop:]


def _insert(content: bytes, chance: random.Random) -> bytes:
    start, stop = _span(content, chance, 8)
    return content[:start] + chance.choice(TOKENS) + content[chance.choice((start, stop)) :]


def _number(content: bytes, chance: random.Random) -> bytes:
    return _replaced(rb"-?\d+(\.\d+)?", content, chance)


def _value(content: bytes, chance: random.Random) -> bytes:
    return _replaced(rb'"[^"\n]*"|\w+', content, chance)


def _replaced(pattern: bytes, content: bytes, chance: random.Random) -> bytes:
    if not (found := list(re.finditer(pattern, content[:100_000]))):
        return content
    one = chance.choice(found)
    return content[: one.start()] + chance.choice(TOKENS) + content[one.end() :]


def _lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    chance.shuffle(lines)
    return b"\n".join(lines)


def _truncate(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _recode(content: bytes, chance: random.Random) -> bytes:
    return content.decode("latin-1").encode(chance.choice(("utf-16", "utf-32", "utf-7", "utf-8")))


CHANGES = [
    _flip,
    _flip,
    _flip,
    _delete,
    _repeat,
    _insert,
    _insert,
    _number,
    _number,
    _value,
    _lines,
    _truncate,
    _recode,
]


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        files: the undamaged folder: contents by path.
        harmed: which of these are damaged, one in each case.
        read: reads the folder.
        errors: what it may raise.
    """

    files: Callable[[], dict[str, bytes]]
    harmed: str
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...] = (ValueError, OSError)


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
    from rsoftmax_lab.experiments import mulan

    toys = folder.rename(folder.parent / "toys") if folder.name != "toys" else folder
    return mulan.names(toys.parent), mulan.read(toys)


def glue_files() -> dict[str, bytes]:
    rows = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tone "text\tand another\n0\t7\t8\tnaïve\tb\n'
    return {f"MRPC/{part}.tsv": rows.encode() for part in ("train", "dev")}


def read_glue(folder: Path) -> object:
    from rsoftmax_lab.experiments.glue import data

    data.read.cache_clear()
    return [data.read(str(folder), "MRPC", skip_bad) for skip_bad in (True, False)]


def voc_files() -> dict[str, bytes]:
    lists = {"cat": " 1 -1  0", "dog": "-1  1  1"}
    return {
        f"VOC2007/ImageSets/Main/{name}_{split}.txt": "".join(
            f"00000{i} {label}\n" for i, label in enumerate(labels.split())
        ).encode()
        for name, labels in lists.items()
        for split in ("train", "val")
    } | {"VOC2007/JPEGImages/000000.jpg": images()["exif.jpg"]}


def read_voc(folder: Path) -> object:
    from rsoftmax_lab.experiments.images import voc

    return [part.fingerprint() for part in voc.read(folder)[1:]]


def coco_files() -> dict[str, bytes]:
    entries = {
        "images": [{"id": 10 * n, "file_name": f"{n}.jpg"} for n in range(3)],
        "annotations": [{"id": n, "image_id": 10 * n, "category_id": 7, "segmentation": [[0.5, 1]]} for n in range(3)],
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
    }
    files = {f"annotations/instances_{split}.json": json.dumps(entries).encode() for split in ("train1", "val1")}
    return files | {f"{split}/0.jpg": images()["exif.jpg"] for split in ("train1", "val1")}


def read_coco(folder: Path) -> object:
    from rsoftmax_lab.experiments.images import coco

    return [part.fingerprint() for part in coco.read(folder)[1:]]


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
    found = {}
    for name, options in kinds.items():
        stream, kind = BytesIO(), Image.registered_extensions()[Path(name).suffix]
        (colours.convert("L") if name.startswith("grey") else colours).save(stream, kind, **options)
        found[name] = stream.getvalue()
    return found


def read_images(folder: Path) -> object:
    from rsoftmax.labels.models.images import BadImageError, open_image

    for path in sorted(folder.iterdir()):
        try:
            open_image(path, path.name)
        except BadImageError:
            continue
    return None


@cache
def classifier_files() -> dict[str, bytes]:
    import torch
    from transformers import ResNetConfig, ResNetModel, ViTImageProcessorPil

    from rsoftmax._transformers import quiet
    from rsoftmax.labels import LabelModel

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    with quiet(), tempfile.TemporaryDirectory() as place:
        ResNetModel(config).save_pretrained(Path(place, "encoder"))
        ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(Path(place, "encoder"))
        LabelModel.from_encoder(Path(place, "encoder"), ["cat", "dog"]).save_pretrained(Path(place, "model"))
        return {path.name: path.read_bytes() for path in Path(place, "model").iterdir()}


def read_classifier(folder: Path) -> object:
    from rsoftmax.labels import LabelModel

    return LabelModel.from_pretrained(folder)


@cache
def features_files() -> dict[str, bytes]:
    import numpy as np

    from rsoftmax_lab.experiments.images import extraction

    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "features.safetensors")
        extraction.save(path, extraction.Features(np.ones((4, 3), np.float32), np.arange(4), ["5.jpg: torn"]))
        return {path.name: path.read_bytes()}


def read_features(folder: Path) -> object:
    from rsoftmax_lab.experiments.images import extraction

    return extraction.load(folder / "features.safetensors")


def rows_files() -> dict[str, bytes]:
    from rsoftmax_lab.comparison import METHODS

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
    glue = [
        {"run": {"task": "MRPC", "mapping": mapping, "r": r, "lr": 1e-4, "model": "bert@1", "data": "glue@2"},
         "seconds": 60.0, "rows": {"train": 9, "validation": 3, "dev": 5}, "sparsity": 0.25,
         "validation": {"accuracy": 0.5, "f1": 0.5}, "dev": {"accuracy": 0.75, "f1": 0.8}}
        for mapping, r in (("softmax", None), ("r_softmax", 0.2))
    ]  # fmt: skip
    lines = {**comparison, "glue": glue}
    return {f"{name}.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows).encode() for name, rows in lines.items()}


def read_rows(folder: Path) -> object:
    from rsoftmax_lab.experiments import EXPERIMENTS

    notices: list[str] = []
    return [one.read(folder, notices.append) for one in EXPERIMENTS.values()]


def read_report(folder: Path) -> object:
    from rsoftmax_lab.experiments import EXPERIMENTS
    from rsoftmax_lab.report.write import write

    notices: list[str] = []
    return write(EXPERIMENTS, folder, folder / "report", notices.append)


def one_of_rows(name: str) -> dict[str, bytes]:
    return {f"{name}.jsonl": rows_files()[f"{name}.jsonl"]}


TARGETS = {
    "arff-dense": Target(partial(mulan_files, DENSE), r"\.arff$", read_mulan),
    "arff-sparse": Target(partial(mulan_files, SPARSE), r"\.arff$", read_mulan),
    "xml": Target(partial(mulan_files, DENSE), r"\.xml$", read_mulan),
    "tsv": Target(glue_files, r"\.tsv$", read_glue),
    "voc": Target(voc_files, r"\.txt$", read_voc),
    "coco": Target(coco_files, r"\.json$", read_coco),
    "images": Target(images, "", read_images, ()),
    "config": Target(classifier_files, r"config\.json$", read_classifier),
    "safetensors": Target(classifier_files, r"\.safetensors$", read_classifier),
    "features": Target(features_files, "", read_features),
    "rows": Target(rows_files, "", read_rows, ()),
    **{
        f"report-{name}": Target(partial(one_of_rows, name), "", read_report, (FileNotFoundError,))
        for name in ("synthetic", "tabular", "voc", "glue")
    },
}

# ------------------------------------------------------------------------------------------- cases


class Hang(BaseException):
    """No answer in time."""


def finding(name: str, seed: int, number: int) -> str | None:
    """What is wrong with the answer to a case, if anything is."""
    target, chance = TARGETS[name], random.Random(f"{seed} {name} {number}")
    files = target.files()
    harmed = chance.choice(sorted(path for path in files if re.search(target.harmed, path)))
    content = damaged(files[harmed], chance)
    try:
        read(target, files | {harmed: content})
    except target.errors:
        return None
    except (Exception, Hang):
        KEPT.mkdir(exist_ok=True)
        kept = KEPT / f"{name}-{seed}-{number}-{Path(harmed).name}"
        kept.write_bytes(content)
        return f"{name}, seed {seed}, case {number}, {harmed}, kept as {kept}:\n{traceback.format_exc()}"
    return None


def read(target: Target, files: dict[str, bytes]) -> None:
    """Let the reader read these files."""
    with tempfile.TemporaryDirectory() as place, patience(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place, "folder")
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        target.read(folder)


def check(name: str) -> None:
    """Raise if the undamaged files cannot be read: then the damaged ones would say nothing."""
    read(TARGETS[name], TARGETS[name].files())


@contextmanager
def patience() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang(f"no answer in {PATIENCE} seconds of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=int, help="this one of each target, and no other")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    given = parser.parse_args()
    names, spent, cases, found = given.targets or list(TARGETS), dict[str, float](), dict[str, int](), 0
    print(f"seed {given.seed}", flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for name in names:
        check(name)
    start = time.monotonic()
    while time.monotonic() < start + given.seconds:
        name = min(names, key=lambda one: spent.get(one, 0))  # each target has its share of the time
        number = cases.get(name, 0) if given.case is None else given.case
        begin = time.monotonic()
        if text := finding(name, given.seed, number):
            found += 1
            print(text, flush=True)
        spent[name] = spent.get(name, 0) + time.monotonic() - begin
        cases[name] = cases.get(name, 0) + 1
        if given.case is not None and all(one in cases for one in names):
            break
    for name in names:
        print(f"{name}: {cases.get(name, 0)} cases")
    print(f"{sum(cases.values())} cases, {found} findings, seed {given.seed}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
