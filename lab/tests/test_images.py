"""Images: small drawn ones in the real layouts, a tiny random network, and everything that is done with them."""

import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import ResNetConfig, ResNetModel, ViTImageProcessorPil
from typer.testing import CliRunner

from rsoftmax._transformers import quiet
from rsoftmax.cli import app
from rsoftmax.labels import AVERAGES, EncoderModel
from rsoftmax.labels.models.images import BadImageError, File, open_image
from rsoftmax_lab import records
from rsoftmax_lab.comparison import METHODS, Outputs, at_least, nonzero, scores, true_count, tuned
from rsoftmax_lab.data import coco, features, voc
from rsoftmax_lab.data.features import Backbone, View, begins_with_last, remove_last
from rsoftmax_lab.data.images import ImageSet, read_hub
from rsoftmax_lab.experiments import images as images_experiment
from rsoftmax_lab.experiments import load_all
from rsoftmax_lab.experiments.images import Frozen, Run, Table1, grid, prepare, quick_grid, table1
from rsoftmax_lab.experiments.images_finetune import Finetuning, States, augmented
from rsoftmax_lab.records import differences
from rsoftmax_lab.report import write

CLASSES = ["bird", "cat", "train"]
LABELS = [[1, 0, 0], [0, 1, 0], [-1, 1, 1], [1, 0, 1], [1, -1, 0], [0, 1, 1], [0, 0, 1], [1, 1, 0]]  # -1: difficult
TRAIN, VAL = 16, 8
QUIET = Console(quiet=True)


def name_of(backbone: Backbone, images: ImageSet) -> str:
    """The name of the file of features."""
    return View("tiny").path(backbone, images, Path()).stem


def draw(path: Path, labels: list[int], number: int) -> None:
    """A bright stripe for each label, on noise."""
    pixels = np.random.default_rng(number).integers(0, 60, (24, 36, 3)).astype(np.uint8)
    for k, label in enumerate(labels):
        if label == 1:
            pixels[:, 12 * k : 12 * k + 12, k] = 230
    Image.fromarray(pixels).save(path, quality=90)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """VOCdevkit."""
    lists, jpegs = tmp_path / "kit/VOC2007/ImageSets/Main", tmp_path / "kit/VOC2007/JPEGImages"
    lists.mkdir(parents=True)
    jpegs.mkdir()
    for split, numbers in (("train", range(TRAIN)), ("val", range(TRAIN, TRAIN + VAL))):
        for number in numbers:
            draw(jpegs / f"{number:06d}.jpg", LABELS[number % 8], number)
        for k, name in enumerate(CLASSES):
            words = {1: " 1", 0: "-1", -1: " 0"}
            lines = [f"{number:06d} {words[LABELS[number % 8][k]]}\n" for number in numbers]
            (lists / f"{name}_{split}.txt").write_text("".join(lines))
        (lists / f"{split}.txt").write_text("".join(f"{number:06d}\n" for number in numbers))
    return tmp_path / "kit"


@pytest.fixture
def coco_folder(tmp_path: Path) -> Path:
    """COCO; ids have gaps, and one image has no annotation."""
    folder = tmp_path / "coco"
    (folder / "annotations").mkdir(parents=True)
    for split, place in (("train2017", "images/train2017"), ("val2017", "val2017")):
        (folder / place).mkdir(parents=True)
        for number in range(4):
            draw(folder / place / f"{number}.jpg", LABELS[number], number)
        seen = [(n, k) for n in range(3) for k in range(3) if LABELS[n][k] == 1]
        entries = {
            "images": [{"id": 10 * n, "file_name": f"{n}.jpg"} for n in range(4)],
            "annotations": [{"id": i, "image_id": 10 * n, "category_id": 7 * k} for i, (n, k) in enumerate(seen * 2)],
            "categories": [{"id": 7 * k, "name": CLASSES[k]} for k in (2, 0, 1)],
        }
        (folder / f"annotations/instances_{split}.json").write_text(json.dumps(entries))
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random network in Hugging Face's format."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    with quiet():
        ResNetModel(config).save_pretrained(folder)
        ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def rsoftmax(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "250"})
    assert done.exit_code == code, done.output
    return re.sub(r"[│\s]+", " ", done.output)


def damage(kit: Path, number: int) -> str:
    path = kit / f"VOC2007/JPEGImages/{number:06d}.jpg"
    path.write_bytes(path.read_bytes()[:400])
    return path.name


def interrupted(images: ImageSet, after: int) -> ImageSet:
    """The same images; Ctrl-C comes when so many have been opened."""
    opened = []

    def file(path: File) -> Callable[[], bytes]:
        def read() -> bytes:
            opened.append(path)
            if len(opened) > after:
                raise KeyboardInterrupt
            assert isinstance(path, Path)
            return path.read_bytes()

        return read

    return replace(images, files=[file(path) for path in images.files])


def test_voc_is_read_from_its_lists(kit: Path) -> None:
    classes, train, val = voc.read(kit)
    assert classes == CLASSES  # of which one is called as a split is
    assert (len(train), len(val)) == (TRAIN, VAL)
    assert train.names[2] == "000002.jpg"
    assert train.labels[:4].tolist() == [[y == 1 for y in row] for row in LABELS[:4]]
    assert np.argwhere(val.ignored).tolist() == [[2, 0], [4, 1]]
    assert voc.read(kit / "VOC2007").classes == CLASSES


def test_coco_is_read_from_its_annotations(coco_folder: Path) -> None:
    classes, train, val = coco.read(coco_folder)
    assert classes == CLASSES
    assert train.labels.tolist() == [[y == 1 for y in row] for row in LABELS[:3]] + [[False] * 3]
    assert not train.ignored.any()
    assert [open_image(file, "").size for file in (train.files[0], val.files[3])] == [(36, 24)] * 2


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "cat_val.txt",
            "000016 -1",
            "000016 yes",
            r"cat_val.txt, line 1: expected an image and 1, -1 or 0, got '000016 y",
        ),
        ("cat_val.txt", "000016 -1\n", "", r"cat_val.txt and bird_val.txt differ in the image 000016"),
        ("cat_val.txt", None, "", r"cat_val.txt: is empty"),
        (
            "cat_val.txt",
            "000016 -1",
            "000016 -1\n000016 1",
            r"cat_val.txt, line 2: contradicts an earlier line about 000016",
        ),
    ],
)
def test_a_broken_list_is_named(file: str, old: str | None, new: str, message: str, kit: Path) -> None:
    path = kit / "VOC2007/ImageSets/Main" / file
    path.write_text(path.read_text().replace(old, new) if old else new)
    with pytest.raises(ValueError, match=message):
        voc.read(kit)


def test_what_is_missing_is_named(kit: Path, coco_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="the folder 'nowhere' does not exist"):
        voc.read(Path("nowhere"))
    with pytest.raises(FileNotFoundError, match="expected a folder with ImageSets/Main and JPEGImages; "):
        voc.read(coco_folder)
    for split in ("val", "train"):
        path = kit / f"VOC2007/ImageSets/Main/cat_{split}.txt"
        text = path.read_text()
        path.unlink()
        with pytest.raises(FileNotFoundError, match=rf"cat_{split}.txt does not exist"):
            voc.read(kit)
        path.write_text(text)
    with pytest.raises(FileNotFoundError, match=r"expected one file instances_train<year>.json; has none"):
        coco.read(kit)
    (coco_folder / "val2017").rename(coco_folder / "elsewhere")
    with pytest.raises(FileNotFoundError, match="has neither images/val2017 nor val2017"):
        coco.read(coco_folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"images"', '"photos"', r"instances_val2017.json: has no list 'images'"),
        (
            '"image_id": 0',
            '"image_id": 5',
            r"val2017.json: the annotation {'id': 0,",
        ),
        ('"file_name": ', '"name": ', r"instances_val2017.json: expected an id and a file_name, got {'id': 0"),
        (
            '"id": 10, "file_name"',
            '"id": 0, "file_name"',
            r"instances_val2017.json: the id or the file_name of {'id': 0",
        ),
        ('"cat"', '"dog"', r"instances_val2017.json: its categories differ from those of instances_train2017.json"),
        ("}", "", r"instances_val2017.json: not in COCO's JSON format"),
        ('"id": 10,', '"id": Infinity,', r"instances_val2017.json: the id of {'id': inf, .* is not an integer"),
        ('"id": 10,', '"id": NaN,', r"instances_val2017.json: the id of {'id': nan, .* is not an integer"),
        ('"id": 10,', '"id": 1e400,', r"instances_val2017.json: the id of {'id': inf, .* is not an integer"),
        ('"id": 10,', '"id": 1.5,', r"instances_val2017.json: the id of {'id': 1.5, .* is not an integer"),
        ('"id": 10,', f'"id": {"9" * 5000},', r"instances_val2017.json: not in COCO's JSON format"),
        ('"id": 10,', '"id": ' + "[" * 100_000, r"instances_val2017.json: not in COCO's JSON format"),
        ('"id": 10,', '"id": ' + "[" * 900 + "]" * 900 + ",", r"instances_val2017.json: the id of {'file_name'"),
        ('"1.jpg"', '"../1.jpg"', r"instances_val2017.json: the file_name '../1.jpg' points outside the folder"),
    ],
)
def test_broken_annotations_are_named(old: str, new: str, message: str, coco_folder: Path) -> None:
    path = coco_folder / "annotations/instances_val2017.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        coco.read(coco_folder)


def test_grey_images_become_rgb_and_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    Image.new("L", (4, 3), 7).save(tmp_path / "grey.png")
    assert open_image(tmp_path / "grey.png", "grey").getpixel((0, 0)) == (7, 7, 7)
    Image.new("CMYK", (4, 3)).save(tmp_path / "print.jpg")
    (tmp_path / "text.jpg").write_text("text")
    draw(tmp_path / "torn.jpg", [1, 1, 1], 0)
    (tmp_path / "torn.jpg").write_bytes((tmp_path / "torn.jpg").read_bytes()[:-200])
    for name, reason in {
        "print.jpg": "its mode is CMYK; convert it to RGB",
        "text.jpg": "cannot be read: it is not an image",
        "torn.jpg": "cannot be read: image file is truncated",
        "none.jpg": "the file does not exist",
    }.items():
        with pytest.raises(BadImageError, match=f"{name}: {reason}"):
            open_image(tmp_path / name, name)


def damaged_exif() -> bytes:
    """An image that lies on its side, with a text in its EXIF where Pillow wants to write a number back."""
    exif, stream = Image.Exif(), BytesIO()
    exif.update({0x0112: 6, 0x010F: "maker"})
    Image.new("RGB", (4, 3)).save(stream, "JPEG", exif=exif)
    return stream.getvalue().replace(b"\x01\x0f\x00\x02", b"\x01\x08\x00\x02")


def test_whatever_goes_wrong_with_a_image_has_one_name(tmp_path: Path) -> None:
    with pytest.raises(BadImageError, match="side: cannot be read: "):
        open_image(damaged_exif, "side")
    for error in (KeyError(7), struct.error("too short"), RecursionError(), OverflowError(), Warning("w")):

        def failing(error: Exception = error) -> bytes:
            raise error

        with pytest.raises(BadImageError, match=r"it: cannot be read: ."):
            open_image(failing, "it")
    os.mkfifo(tmp_path / "pipe.jpg")
    for name in ("pipe.jpg", "."):
        with pytest.raises(BadImageError, match="cannot be read: it is not a file"):
            open_image(tmp_path / name, name)
    for fatal in (MemoryError, KeyboardInterrupt):

        def fails(fatal: type[BaseException] = fatal) -> bytes:
            raise fatal

        with pytest.raises(fatal):
            open_image(fails, "it")


def test_features_are_the_networks_and_are_computed_once(kit: Path, tiny: Path, tmp_path: Path) -> None:
    backbone, train = Backbone.load(str(tiny)), voc.read(kit).train
    path = features.extract(backbone, train, tmp_path / "cache", jobs=1, console=QUIET)
    found = features.load(path)
    pixels = backbone.pixels([open_image(file, "") for file in train.files])
    with torch.no_grad():
        direct = backbone.network(pixels).pooler_output.flatten(1)
    torch.testing.assert_close(torch.from_numpy(found.X), direct, rtol=1e-5, atol=1e-6)
    assert found.good.tolist() == list(range(TRAIN))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    untouched = interrupted(train, after=0)
    assert name_of(backbone, untouched) != name_of(backbone, train)  # sizes are not known
    written = path.stat().st_mtime_ns
    assert features.extract(backbone, train, tmp_path / "cache", jobs=1, console=QUIET) == path
    assert path.stat().st_mtime_ns == written


def test_the_name_of_features_follows_network_processor_and_images(kit: Path, tiny: Path) -> None:
    backbone, train = Backbone.load(str(tiny)), voc.read(kit).train
    names = {name_of(backbone, train), name_of(backbone, train.take(np.arange(3)))}
    other = Backbone.load(str(tiny))
    other.processor.image_mean = [0.4, 0.4, 0.4]
    names.add(name_of(other, train))
    other = Backbone.load(str(tiny))
    with torch.no_grad():
        next(other.network.parameters()).flatten()[0] += 1
    names.add(name_of(other, train))
    damage(kit, 3)
    names.add(name_of(backbone, train))
    assert len(names) == 5
    assert name_of(Backbone.load(str(tiny)), train) in names


def test_a_killed_extraction_goes_on_where_it_was(
    kit: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "PART", 4)
    backbone, train = Backbone.load(str(tiny)), interrupted(voc.read(kit).train, after=1000)
    whole = features.load(features.extract(backbone, train, tmp_path / "whole", jobs=1, console=QUIET))
    with pytest.raises(KeyboardInterrupt):
        features.extract(backbone, interrupted(voc.read(kit).train, 9), tmp_path / "cache", jobs=1, console=QUIET)
    parts = sorted((tmp_path / "cache").glob("*.parts-4/*"))
    assert [part.name for part in parts] == ["00000000.safetensors", "00000004.safetensors"]
    rest = interrupted(voc.read(kit).train, after=TRAIN - 8)
    resumed = features.load(features.extract(backbone, rest, tmp_path / "cache", jobs=1, console=QUIET))
    np.testing.assert_array_equal(resumed.X, whole.X)
    np.testing.assert_array_equal(resumed.good, whole.good)
    assert not list((tmp_path / "cache").glob("*.parts*"))


def test_bad_images_stop_everything_or_are_counted(kit: Path, tiny: Path, tmp_path: Path) -> None:
    names = [damage(kit, 5), damage(kit, 9)]
    (kit / "VOC2007/JPEGImages/000020.jpg").unlink()
    backbone, splits = Backbone.load(str(tiny)), voc.read(kit)
    with pytest.raises(BadImageError, match=r"000005.jpg: cannot be read"):
        features.extract(backbone, splits.train, tmp_path, jobs=1, console=QUIET)
    console = Console(record=True, quiet=True)
    frozen = Frozen.of(backbone, splits, tmp_path, True, 1, console)
    kept = [i for i in range(TRAIN) if i not in (5, 9)]
    np.testing.assert_array_equal(frozen.splits.train.labels, splits.train.labels[kept])
    assert len(frozen.splits.val) == VAL - 1
    bad = features.load(frozen.train.file).bad
    assert [text.split(":")[0] for text in bad] == names
    with pytest.raises(BadImageError, match=r"000005.jpg"):  # from the cache, too
        features.extract(backbone, splits.train, tmp_path, jobs=1, console=QUIET)
    with pytest.raises(BadImageError, match=r"000005.jpg"):
        Finetuning.of(str(tiny), tmp_path, splits, False, QUIET)
    assert len(Finetuning.of(str(tiny), tmp_path, splits, True, QUIET).splits.train) == TRAIN - 2


def test_ignored_labels_count_nowhere() -> None:
    truth = np.array([[True, False, False], [False, True, False]])
    ignored = np.array([[False, True, False], [False, False, True]])
    p = np.array([[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]], dtype=np.float32)
    judged = Outputs.of(p, p, truth, ignored)
    for rule in (
        at_least(0.3),
        tuned("logits"),
        tuned("probs"),
        true_count,
    ):
        assert scores(judged.Y, rule(judged)(judged))["micro"] == 100
    assert nonzero(judged)(judged).tolist() == [[True, False, True], [True, True, False]]


@pytest.fixture
def frozen(kit: Path, tiny: Path, tmp_path: Path) -> Frozen:
    return Frozen.of(Backbone.load(str(tiny)), voc.read(kit), tmp_path / "cache", False, 1, QUIET)


def test_the_papers_way_chooses_on_val_and_the_other_on_training_images(frozen: Frozen) -> None:
    paper, held_out = (frozen.data(Run(selection_share=share)) for share in (0.0, 0.25))
    assert paper.validation is paper.test
    assert [len(rows.Y) for rows in paper] == [TRAIN, VAL, VAL]
    assert [len(rows.Y) for rows in held_out] == [12, 4, VAL]
    assert paper.train.ignored is None
    both = np.concatenate([held_out.train.X, held_out.validation.X])
    assert np.unique(both, axis=0).shape == np.unique(paper.train.X, axis=0).shape


def test_the_same_seed_gives_the_same_row(frozen: Frozen) -> None:
    run = Run(method="r_softmax_count", epochs=3, selection_share=0.0)
    rows = [frozen.run(run)["rules"] for _ in range(2)]
    assert rows[0] == rows[1]
    curve = rows[0]["labels"]["curve"]
    assert len(curve) == 3
    assert max(curve) == pytest.approx(rows[0]["labels"]["validation"]["micro"], abs=0.06)
    assert "curve" not in frozen.run(replace(run, selection_share=0.2))["rules"]["labels"]


def test_the_grid_is_table_1() -> None:
    runs = grid(dataset="coco", model="m", data="d")
    assert len(runs) == len(set(runs)) == 3 * 2 * 3 * len(METHODS)
    assert {run.lr for run in runs} == {1e-3, 1e-4, 1e-5}
    assert {(run.epochs, run.hidden, run.dataset) for run in runs} == {(100, 0, "coco")}


def test_the_quick_grid_is_one_of_the_full_runs_of_a_method_or_has_the_learning_rates_that_are_asked_for() -> None:
    (run,) = quick_grid(["bce"], seeds=3, epochs=100, dataset="voc")
    assert (run.seed, run.lr, run.epochs, run.selection_share) == (0, 1e-3, 100, 0.2)
    assert run in grid(["bce"], dataset="voc")
    assert {run.lr for run in quick_grid(learning_rates=[1e-2, 1e-4])} == {1e-2, 1e-4}


def test_some_images_are_always_the_same(kit: Path) -> None:
    splits = voc.read(kit)
    few = splits.subset(5)
    assert few.train.names == splits.subset(5).train.names
    assert set(few.train.names) < set(splits.train.names)
    assert splits.subset(0) is splits


FINE = Run(method="r_softmax_count", epochs=3, batch_size=4, finetune=True, augment=True)


@pytest.mark.train
def test_a_killed_fine_tuning_goes_on_to_the_same_row(kit: Path, tiny: Path, tmp_path: Path) -> None:
    splits = voc.read(kit)
    row = Finetuning(str(tiny), tmp_path / "whole", splits).run(FINE)
    assert len(row["rules"]["labels"]["curve"]) == 3
    killed = Finetuning(str(tiny), tmp_path / "killed", splits._replace(train=interrupted(splits.train, after=40)))
    with pytest.raises(KeyboardInterrupt):  # an epoch opens 13 + 3 images of train
        killed.run(FINE)
    folder = killed.folder(FINE)
    assert len(list(folder.glob("checkpoint-*"))) == 2
    (folder / "checkpoint-999").mkdir()  # torn: the Trainer's state, which is written last, is not there
    resumed = replace(killed, splits=splits).run(FINE)
    assert resumed["rules"] == row["rules"]
    assert [path.name for path in folder.iterdir()] == ["model"]
    states = [load_file(place.folder(FINE) / "model/model.safetensors")
              for place in (killed, Finetuning(str(tiny), tmp_path / "whole", splits))]  # fmt: skip
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name])


def test_fine_tuning_moves_the_network_but_not_its_statistics(kit: Path, tiny: Path, tmp_path: Path) -> None:
    whole = Finetuning(str(tiny), tmp_path, voc.read(kit))
    run = replace(FINE, method="softmax", epochs=1, selection_share=0.0, augment=False)
    whole.run(run)
    after, before = (load_file(path / "model.safetensors") for path in (whole.folder(run) / "model", tiny))
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[f"encoder.{name}"])}
    assert any("convolution" in name for name in moved)
    assert not any("running" in name for name in moved)


LAST = replace(FINE, train_last=1)


def last_stage(kit: Path, tiny: Path, folder: Path) -> Finetuning:
    """The last stage to be trained, on states that are computed or read; as the command prepares it."""
    backbone, splits = Backbone.load(str(tiny)), voc.read(kit)
    way = prepare(backbone, splits, folder, finetune=True, train_last=1, augment=True, jobs=1)
    assert isinstance(way, Finetuning)
    return way


def test_the_last_stages_read_from_the_cache_what_they_read_in_the_whole_network(
    kit: Path, tiny: Path, tmp_path: Path
) -> None:
    cached, train = last_stage(kit, tiny, tmp_path).cached, voc.read(kit).train
    assert cached is not None
    backbone = Backbone.load(str(tiny))
    images = [open_image(file, "") for file in train.files]
    for shown, files in ((images, cached.train.files), ([*map(ImageOps.mirror, images)], cached.train.mirrored)):
        states = replace(cached.train, files=files)
        x = torch.stack([states.read(*image, False) for image in zip(train.files, train.names, strict=True)])
        with torch.no_grad():
            direct = backbone.network(backbone.pixels(shown)).pooler_output
            with begins_with_last(backbone.network, 1):
                torch.testing.assert_close(backbone.network(x).pooler_output, direct, rtol=1e-2, atol=1e-3)
    assert not cached.val.mirrored
    assert cached.val.about() == {"type": "F16", "shape": list(x.shape[1:])}


def test_states_are_those_of_the_mirrored_image_every_other_time(kit: Path, tiny: Path, tmp_path: Path) -> None:
    cached, train = last_stage(kit, tiny, tmp_path).cached, voc.read(kit).train
    assert cached is not None
    torch.manual_seed(0)
    plain, found = (
        [cached.train.read(train.files[0], train.names[0], augment) for _ in range(40)] for augment in (False, True)
    )
    same = [torch.equal(one, plain[0]) for one in found]
    assert 5 < sum(same) < 35
    mirrored = replace(cached.train, files=cached.train.mirrored).read(train.files[0], train.names[0], False)
    assert all(torch.equal(one, plain[0] if is_same else mirrored) for one, is_same in zip(found, same, strict=True))


def test_training_the_last_stage_moves_it_and_the_head_and_nothing_else(kit: Path, tiny: Path, tmp_path: Path) -> None:
    last = last_stage(kit, tiny, tmp_path)
    run = replace(LAST, method="softmax", epochs=1)
    row = last.run(run)
    assert row["states"]["type"] == "F16"
    after, before = (load_file(path / "model.safetensors") for path in (last.folder(run) / "model", tiny))
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[f"encoder.{name}"])}
    assert any("convolution" in name for name in moved)
    assert any("normalization.weight" in name for name in moved)
    assert all(name.startswith("encoder.stages.1.") and "running" not in name for name in moved)
    assert len(EncoderModel.from_pretrained(last.folder(run) / "model").predict([Image.new("RGB", (30, 30))])) == 1


def kill_after(reads: int, read: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; the process that calls it once too often is killed."""
    calls = itertools.count()

    def killing(*args: Any) -> Any:
        if next(calls) == reads:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(*args)

    return killing


def train_until_killed(kit: Path, tiny: Path, folder: Path, images: int, states: int) -> None:
    """Killed when so many images have been opened for the cache, or so many states read in training."""
    features.PART = 4
    features.open_image = kill_after(images, features.open_image)  # type: ignore[attr-defined]
    States.read = kill_after(states, States.read)  # type: ignore[method-assign]
    last_stage(kit, tiny, folder).run(LAST)


@pytest.mark.process
def test_a_killed_training_of_the_last_stage_goes_on_to_the_same_row(
    kit: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "PART", 4)
    unbroken = last_stage(kit, tiny, tmp_path / "unbroken")
    row = unbroken.run(LAST)
    killed = tmp_path / "killed"
    left = []
    for images, states in ((TRAIN + 9, 1000), (1000, 60)):  # in the mirrored images; in the third epoch
        process = multiprocessing.get_context("spawn").Process(
            target=train_until_killed, args=(kit, tiny, killed, images, states)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        left.append((len(list(killed.rglob("*.safetensors"))), len(list(killed.rglob("checkpoint-*")))))
    assert left == [(TRAIN // 4 + 2, 0), (2 * TRAIN // 4 + VAL // 4 + 2, 2)]  # the weights of two checkpoints too
    resumed = last_stage(kit, tiny, killed)
    assert resumed.run(LAST)["rules"] == row["rules"]
    weights = [load_file(way.folder(LAST) / "model/model.safetensors") for way in (resumed, unbroken)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_a_torn_file_of_states_is_named(kit: Path, tiny: Path, tmp_path: Path) -> None:
    cached = last_stage(kit, tiny, tmp_path).cached
    assert cached is not None
    cached.val.files[0].write_bytes(cached.val.files[0].read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"cannot be read: .*; delete it to recompute it"):
        cached.val.about()


def test_a_network_without_stages_has_no_last_ones() -> None:
    with pytest.raises(ValueError, match="Linear has no stages; use a network like ResNetModel, or --finetune"):
        remove_last(nn.Linear(2, 2), 1)


def test_augmentation_crops_and_mirrors_and_follows_the_seed() -> None:
    image = Image.fromarray(np.arange(3 * 50 * 40, dtype=np.uint8).reshape(50, 40, 3))
    torch.manual_seed(0)
    found = [augmented(image) for _ in range(30)]
    assert all(32 <= one.width <= 40 and 40 <= one.height <= 50 for one in found)
    torch.manual_seed(0)
    assert [one.tobytes() for one in found] == [augmented(image).tobytes() for _ in range(30)]
    assert len({one.tobytes() for one in found}) > 20


def test_a_saved_model_predicts_the_same(tiny: Path, tmp_path: Path) -> None:
    model = EncoderModel.from_encoder(tiny, CLASSES, "samples", **METHODS["r_softmax_expected_f1"].head)
    model.save_pretrained(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "README.md", "config.json", "model.safetensors", "preprocessor_config.json"
    }  # fmt: skip
    again = EncoderModel.from_pretrained(tmp_path / "model")
    images = [Image.new("RGB", (30, 30), (40 * i, 0, 90)) for i in range(4)]
    found = model.predict(images)
    assert found == again.predict(images)
    assert all(0 < marginal < 1 for labels in found for marginal in labels.values())
    assert [list(labels) for labels in found] == model.predict_labels(images)
    p = model(**model.inputs.batch(images)).probs
    assert p.sum(-1).tolist() == pytest.approx([1.0 if labels else 0.0 for labels in found], abs=1e-6)
    with pytest.raises(FileNotFoundError, match=r"has no config.json; `rsoftmax train --out"):
        EncoderModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="belongs to another kind of model"):
        EncoderModel.from_pretrained(tiny)


def classifier(tiny: Path, classes: list[str]) -> EncoderModel:
    return EncoderModel.from_encoder(tiny, classes, mapping="softmax")


def test_saving_again_keeps_what_a_user_has_put_into_the_folder(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = classifier(tiny, CLASSES)
    model.save_pretrained(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "more").mkdir()
    model = classifier(tiny, [*CLASSES, "dog"])
    model.save_pretrained(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "config.json", "model.safetensors", "preprocessor_config.json", "notes.txt", "more"
    }  # fmt: skip
    assert EncoderModel.from_pretrained(folder).names == [*CLASSES, "dog"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_is_saved_through_a_link_and_into_an_empty_folder(tiny: Path, tmp_path: Path) -> None:
    model = classifier(tiny, CLASSES)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    model.save_pretrained(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert EncoderModel.from_pretrained(tmp_path / "real").names == CLASSES


@pytest.mark.parametrize("place", ["file", "dangling", "file/below", "full"])
def test_a_place_that_cannot_be_saved_to_is_refused_before_the_training(
    place: str, kit: Path, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    out = tmp_path / "out"
    words = ["--data", str(kit), "--model", str(tiny), "--out", str(out), "--save", str(tmp_path / place)]
    rsoftmax("reproduce", "voc", *words, code=2)
    assert not out.exists()


def test_a_save_that_is_stopped_leaves_the_model_of_before(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    model = classifier(tiny, CLASSES)
    model.save_pretrained(folder)
    other = classifier(tiny, CLASSES[::-1])

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(other.processor), "save_pretrained", full)
        with pytest.raises(OSError, match="no space left"):
            other.save_pretrained(folder)
    assert EncoderModel.from_pretrained(folder).names == CLASSES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": 10**12}, r"head\.\S+ is \[3, 16\] in model.safetensors but \[3, 1000000000000\] in config.json"),
        ({"encoder": {"depths": [10**9, 1]}}, "describes more layers than model.safetensors has tensors for"),
        ({"encoder": {"hidden_sizes": [8, 10**6]}}, r"but \[.*\] in config.json"),
        ({"model_type": "abc"}, "is damaged or belongs to another kind of model"),
        ({"id2label": "abc"}, "is damaged"),
        ({"id2label": [[]] * 3}, "is damaged"),
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused_before_memory_is_taken(
    changes: dict[str, Any], message: str, tiny: Path, tmp_path: Path
) -> None:
    model = classifier(tiny, CLASSES)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    settings = json.loads(path.read_bytes())
    for name, value in changes.items():
        settings[name] = settings[name] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        EncoderModel.from_pretrained(tmp_path / "model")


@pytest.mark.train
def test_fine_tuning_keeps_what_a_user_has_put_into_its_folders(kit: Path, tiny: Path, tmp_path: Path) -> None:
    whole = Finetuning(str(tiny), tmp_path, voc.read(kit))
    run = replace(FINE, method="softmax", augment=False)
    notes = [whole.folder(run) / name / "notes.txt" for name in ("checkpoint-4", "checkpoint-8", "checkpoint-old")]
    for path in notes:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    whole.run(run)
    assert [path.read_text() for path in notes] == ["mine"] * 3
    assert [len(list(path.parent.iterdir())) for path in notes] == [1] * 3
    (whole.folder(run) / "model" / "notes.txt").write_text("mine")
    whole.run(run)
    assert (whole.folder(run) / "model" / "notes.txt").read_text() == "mine"


def test_features_keep_what_a_user_has_put_beside_their_parts(kit: Path, tiny: Path, tmp_path: Path) -> None:
    backbone, train = Backbone.load(str(tiny)), voc.read(kit).train
    notes = tmp_path / f"{name_of(backbone, train)}.parts-{features.PART}" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    features.extract(backbone, train, tmp_path, jobs=1, console=QUIET)
    assert [path.read_text() for path in notes.parent.iterdir()] == ["mine"]


def extract_in_parts(kit: Path, tiny: Path, cache: Path) -> None:
    features.PART = 2
    features.extract(Backbone.load(str(tiny)), voc.read(kit).train, cache, jobs=1, console=QUIET)


@pytest.mark.process
def test_extractions_of_the_same_features_at_one_time_do_not_disturb_each_other(
    kit: Path, tiny: Path, tmp_path: Path
) -> None:
    fresh = multiprocessing.get_context("spawn")
    several = [fresh.Process(target=extract_in_parts, args=(kit, tiny, tmp_path / "cache")) for _ in range(3)]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0, 0, 0]
    (path,) = (tmp_path / "cache").iterdir()
    assert features.load(path).good.tolist() == list(range(TRAIN))


@pytest.mark.train
def test_reproduce_trains_saves_and_reports_and_predict_uses_it(kit: Path, tiny: Path, tmp_path: Path) -> None:
    out, saved = tmp_path / "out", tmp_path / "saved"
    words = ["reproduce", "voc", "--data", str(kit), "--model", str(tiny), "--jobs", "1", "--out", str(out),
             "--seeds", "1", "--epochs", "2", "--lr", "1e-3", "--lr", "1e-2", "--only", "softmax"]  # fmt: skip
    shown = rsoftmax(*words, "--save", str(saved))
    assert "features of 16 images" in shown
    assert "8 of 8 runs finished" in shown
    assert "wrote" in shown
    assert "VOC: paper" in shown
    rows = records.read(out / "voc.jsonl", pytest.fail)
    assert {row["run"]["model"] for row in rows} == {"tiny"}
    text = (out / "report/report.md").read_text()
    assert "| softmax, p0 = 0.05 | 75.05 | " in text
    (saved / "notes.txt").write_text("mine")
    again = rsoftmax(*words, "--lr", "1e-2", "--save", str(saved))  # a learning rate that is given twice
    assert (saved / "notes.txt").read_text() == "mine"
    assert "features of" not in again
    assert "8 of 8 runs are already in" in again
    assert "choose another folder" in rsoftmax(*words, "--save", str(tiny), code=2)

    few = tmp_path / "few"
    few.mkdir()
    for number in range(3):
        shutil.copy(kit / f"VOC2007/JPEGImages/{number:06d}.jpg", few)
    shown = rsoftmax("predict", str(saved), str(few), "--show", str(tmp_path / "shown"))
    assert re.search(r"000000.jpg: (\w+ [\d.]+,? ?)+ 000001.jpg", shown)
    assert "0.000" not in shown
    assert len(list((tmp_path / "shown").iterdir())) == 3
    one = kit / "VOC2007/JPEGImages" / damage(kit, 0)
    assert "000000.jpg: cannot be read" in rsoftmax("predict", str(saved), str(one), code=2)
    assert "skipped 1 of 24" in rsoftmax("predict", str(saved), str(one.parent), "--skip-bad")
    one = one.with_name("000001.jpg")
    rsoftmax("predict", str(saved), str(one), "--show", str(tmp_path / "one.png"))
    with Image.open(tmp_path / "one.png") as image:
        assert image.size[0] > 800
    before = one.read_bytes()
    for place, message in (
        (one, "is an input"),
        (tmp_path / "one.xyz", "must end in one of "),
    ):
        assert message in rsoftmax("predict", str(saved), str(one), "--show", str(place), code=2)
    assert one.read_bytes() == before
    dollars = one.rename(one.with_name(r"a_$\frac$.jpg"))
    rsoftmax("predict", str(saved), str(dollars), "--show", str(tmp_path / "dollars.png"))
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "saved is damaged: " in rsoftmax("predict", str(saved), str(dollars), code=2)


@pytest.mark.train
def test_reproduce_can_train_the_whole_network(coco_folder: Path, tiny: Path, tmp_path: Path) -> None:
    shown = rsoftmax(
        "reproduce", "coco", "--data", str(coco_folder), "--model", str(tiny), "--finetune", "--jobs", "1",
        "--out", str(tmp_path / "out"), "--seeds", "1", "--epochs", "1", "--lr", "1e-3", "--only", "softmax",
        "--images", "3", "--save", str(tmp_path / "saved"), "--save-method", "softmax",
    )  # fmt: skip
    assert "coco, softmax, lr=0.001, seed 0: epoch 1 of 1" in shown
    assert "2 of 2 runs finished" in shown
    assert "Fully trained network. COCO: 1 seed" in (tmp_path / "out/report/report.md").read_text()
    assert "0.jpg: " in rsoftmax("predict", str(tmp_path / "saved"), str(coco_folder / "val2017"))


@pytest.mark.train
def test_reproduce_can_train_the_last_stages(kit: Path, tiny: Path, tmp_path: Path) -> None:
    words = ["reproduce", "voc", "--data", str(kit), "--model", str(tiny), "--out", str(tmp_path / "out"),
             "--jobs", "1", "--epochs", "2", "--seeds", "1", "--lr", "1e-3", "--only", "softmax",
             "--share", "0"]  # fmt: skip
    rsoftmax(*words)
    shown = rsoftmax(*words, "--train-last", "1", "--augment", "--save", str(tmp_path / "saved"))
    assert shown.count("states of 16 images") == 2  # as they are, and mirrored
    assert shown.count("states of 8 images") == 1
    rows = records.read(tmp_path / "out/voc.jsonl", pytest.fail)
    assert [row["run"].get("train_last") for row in rows] == [None, 1, 1]
    assert [row.get("states", {}).get("type") for row in rows] == [None, "F16", "F16"]
    assert "states of" not in rsoftmax(*words, "--train-last", "1", "--augment")
    text = (tmp_path / "out/report/report.md").read_text()
    assert "### Trained last stages\n\nVOC: 1 seed, nothing held out, epochs = 2" in text
    table = text.partition("### Trained last stages")[2]
    assert "| micro-F1 | VOC: paper | here, its protocol | after the last epoch |" in table
    assert "| softmax, p0 = 0.05 | 75.05 | " in table
    assert {path.name for path in (tmp_path / "out/report").glob("*.png")} == {"figure3.png", "figure3-last.png"}
    assert "000000.jpg: " in rsoftmax("predict", str(tmp_path / "saved"), str(kit / "VOC2007/JPEGImages"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "nowhere"], "nowhere' does not exist"),
        (["--model", "nowhere"], "cannot load a model from 'nowhere'"),
        (["--only", "hardmax"], "unknown method 'hardmax'; expected one of softmax"),
        (["--augment"], "--frozen processes each image once; use --finetune or --train-last"),
        (["--train-last", "3"], "ResNetModel has 2 stages; the last 3 of them cannot be trained"),
        (["--lr", "-1"], "a learning rate must be above 0, got -1.0"),
        (["--images", "2"], "2 training images are too few with a fraction of 0.2 held out"),
    ],
)
def test_options_that_make_no_sense_are_refused(words: list[str], message: str, kit: Path, tiny: Path) -> None:
    usual = ["--data", str(kit), "--model", str(tiny)]  # of an option that is given twice, the last counts
    usual += ["--cache", str(kit / "cache"), "--jobs", "1"]
    assert message in rsoftmax("reproduce", "voc", *usual, *words, code=2)


def test_a_model_file_that_lacks_weights_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "part"))
    weights = load_file(folder / "model.safetensors")
    lost = max(weights)
    del weights[lost]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"its weights lack {lost}, which would be initialized at random"):
        Backbone.load(str(folder))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"cannot load a model from .*part"):
        Backbone.load(str(folder))


def test_code_of_a_model_folder_is_not_run(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "evil"))
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings |= {"auto_map": {"AutoImageProcessor": "evil.Evil"}, "image_processor_type": "Evil"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(ValueError, match="cannot load a model from"):
        Backbone.load(str(folder))
    assert not (tmp_path / "ran").exists()


def test_features_are_computed_anew_when_an_image_is_repaired(kit: Path, tiny: Path, tmp_path: Path) -> None:
    path = kit / "VOC2007/JPEGImages/000005.jpg"
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))  # as large as before, so the features have the same name
    backbone, train = Backbone.load(str(tiny)), voc.read(kit).train
    first = features.extract(backbone, train, tmp_path, skip_bad=True, jobs=1, console=QUIET)
    assert len(features.load(first).bad) == 1
    path.write_bytes(whole)
    assert features.extract(backbone, train, tmp_path, jobs=1, console=QUIET) == first
    assert not features.load(first).bad
    first.write_bytes(b"")
    with pytest.raises(ValueError, match=r"cannot be read: .*; delete it to recompute it"):
        features.extract(backbone, train, tmp_path, jobs=1, console=QUIET)


def test_without_datasets_a_hub_id_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"is not a folder.*pip install 'rsoftmax-lab\[hub\]'"):
        read_hub("some/images")


F1 = {"softmax": 70.0, "sparsemax_huber": 60.0, "sparsemax_hinge": 61.0, "sparsehourglass": 62.0,
      "r_softmax_rate": 68.5, "r_softmax_count": 69.0, "t_softmax_threshold": 72.0, "r_softmax_expected_f1": 73.0,
      "bce": 71.0, "zlpr": 71.0}  # fmt: skip


def made_up(run: Run) -> dict[str, Any]:
    """Better at 1e-4; the same on every split."""

    def made_up_scores(rule: str) -> dict[str, float]:
        loss = 10 * float(rule[3:]) if rule.startswith("p0=") else 0
        return dict.fromkeys(AVERAGES, F1[run.method] + run.seed + (run.lr == 1e-4) - loss)

    rules = {
        rule: {"epoch": 7, "curve": [40.0, 50.0]}
        | dict.fromkeys(("validation", "test", "test_last"), made_up_scores(rule))
        for rule in METHODS[run.method].rules
    }
    return {"run": differences(run), "seconds": 1.0, "epoch_seconds": 0.1, "rules": rules}


def table_of(folder: Path, notice: Callable[[str], None]) -> Table1:
    return table1(folder, notice, ["frozen"])["frozen"]


def test_the_report_has_table_1_beside_the_papers_numbers(tmp_path: Path) -> None:
    for dataset in ("voc", "coco"):
        for run in grid(seeds=2, dataset=dataset, model="m", data="d"):
            records.append(tmp_path / f"{dataset}.jsonl", made_up(run))
    fine = Run(finetune=True, epochs=2, pictures=300, dataset="voc", model="m")
    records.append(tmp_path / "voc.jsonl", made_up(fine))
    for run in grid(seeds=2, dataset="voc", model="m", finetune=True, train_last=1, shares=[0.0]):
        records.append(tmp_path / "voc.jsonl", made_up(run))
    written = write(load_all(), tmp_path, tmp_path / "out", pytest.fail)
    text = (tmp_path / "out/report.md").read_text()
    assert "| softmax, p0 = 0.1 | 78.87 | 70.50 ± 0.71 | 70.50 ± 0.71 | 72.29 | 70.50 ± 0.71 | 70.50 ± 0.71 |" in text
    assert "| r-softmax, count | 77.90 | 70.50 ± 0.71 |" in text
    assert "| r-softmax, count | 0.0001 (7), 0.0001 (7) | 0.0001 (7), 0.0001 (7) |" in text
    assert "pictures = 300" in text
    assert [path.name for path in written.files] == ["figure3.png", "figure3-last.png", "report.md", "report.html"]
    last = text.partition("### Trained last stages")[2].partition("### Fully trained network")[0]
    assert "| softmax, p0 = 0.05 | 75.05 | 71.00 ± 0.71 | 71.00 ± 0.71 |" in last
    assert "| r-softmax, count, lead over the best other sparse mapping | 5.99 | 7.00 ± 0.00 | 7.00 ± 0.00 |" in last
    assert "| r-softmax, count, lead over the best softmax threshold | -1.53 | -0.50 ± 0.00 | -0.50 ± 0.00 |" in last
    assert "| r-softmax, expected F1 (ours), lead over the best softmax threshold |  | 3.50 ± 0.00 |" in last
    html = (tmp_path / "out/report.html").read_text()
    assert html.count("<table>") == text.count("\n| --- ")
    claims = images_experiment.claims(table_of(tmp_path, pytest.fail))
    assert [claim.holds for claim in claims] == [True, True, False, False, True, True, True]
    assert claims[2].numbers == ["-0.50 ± 0.00"] * 2  # enough on VOC, too little on COCO


def test_other_shares_and_rows_of_other_versions_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "voc.jsonl"
    runs = grid(["bce"], seeds=1, model="m", data="d")
    for run in (*runs, replace(runs[0], selection_share=0.4)):
        records.append(path, made_up(run))
    records.append(path, {**made_up(runs[0]), "run": {"flavour": "sweet"}})
    notices: list[str] = []
    found = table_of(tmp_path, notices.append)
    assert found.shares == {"voc": 0.2}
    assert len(notices) == 2
    assert "1 records are not runs known to this version" in notices[0]
    assert "mixes runs with different held-out fractions; showing those with 0.2" in notices[1]
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*reversed(lines), ""]))
    assert table_of(tmp_path, notices.append) == found
