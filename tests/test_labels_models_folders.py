"""Folders of saved models: one whole version at any time, other people's files untouched, bad folders refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders import NAMES

from rsoftmax import __version__
from rsoftmax.labels import EncoderModel, TableModel
from rsoftmax.labels.models import folders, table
from rsoftmax.labels.models.base import REVIEW
from rsoftmax.labels.models.folders import LABELS, TABLE, check_writable, remove_model
from rsoftmax.labels.models.table import TableConfig

FILES = {"README.md", "config.json", "model.safetensors"}
SETTINGS = {"model_type": TABLE, "labels": ["a"], "features": ["u"]}


def versioned(number: int) -> TableModel:
    """A model whose labels, evaluation and weights all say its number."""
    model = TableModel.from_config(TableConfig(["u"], [f"a{number}", f"b{number}"], quantiles=3, hidden=4))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(number)
    return model.eval()


def number_of(model: TableModel) -> int:
    """The number, if the whole model agrees on it."""
    numbers = {float(value) for tensor in model.state_dict().values() for value in tensor.float().unique()}
    assert {f"a{int(number)}" for number in numbers} == {model.names[0]}
    return int(numbers.pop())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class KilledError(BaseException):
    """Stands for a kill: nothing that changes files works any more."""


CHANGES = ("replace", "rename", "link", "unlink", "rmdir", "mkdir", "chmod")


@contextmanager
def killed_after(changes: int) -> Iterator[list[str]]:
    """Let so many changes of the file system pass, and none after them."""
    done: list[str] = []

    def wrap(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **options: Any) -> Any:
            if len(done) == changes:
                raise KilledError
            done.append(name)
            return change(*args, **options)

        return checked

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        yield done


def test_a_kill_at_any_point_leaves_one_whole_version_and_the_next_save_tidies_up(tmp_path: Path) -> None:
    found = []
    for changes in range(100):
        folder = tmp_path / str(changes)
        versioned(1).save(folder)
        (folder / "notes.txt").write_text("mine")
        with killed_after(changes) as done, suppress(KilledError):
            versioned(2).save(folder)
        found.append(number_of(TableModel.load(folder)))
        versioned(3).save(folder)
        assert number_of(TableModel.load(folder)) == 3, done
        assert names(folder) == FILES | {"notes.txt"}, done
        if len(done) < changes:
            break
    assert found == sorted(found)
    assert set(found) == {1, 2}


def test_the_first_save_is_whole_or_not_there_at_all(tmp_path: Path) -> None:
    for changes in range(100):
        folder = tmp_path / str(changes)
        with killed_after(changes) as done, suppress(KilledError):
            versioned(1).save(folder)
        if (folder / folders.COMMITTED).exists() or (folder / "config.json").exists():
            assert number_of(TableModel.load(folder)) == 1, done
            assert names(folder) == FILES, done
        else:
            with pytest.raises(FileNotFoundError, match="rsoftmax train --out"):
                TableModel.load(folder)
        check_writable(folder, TABLE)
        if len(done) < changes:
            return
    pytest.fail("the save did not end")


def test_a_save_that_fails_leaves_no_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(table, "save", full)
    with pytest.raises(OSError, match="no space left"):
        versioned(1).save(tmp_path / "model")
    assert not names(tmp_path)


def test_a_disk_that_is_full_is_an_error_and_leaves_the_old_model(text_encoder: Path, tmp_path: Path) -> None:
    labels, table = EncoderModel.from_encoder(text_encoder, NAMES), versioned(1)
    for save in (labels.save_pretrained, table.save):
        save(tmp_path / save.__name__)
        before = {path.name: path.read_bytes() for path in (tmp_path / save.__name__).iterdir()}
        with largest_file(100), pytest.raises(OSError, match="File too large"):
            save(tmp_path / save.__name__)
        assert {path.name: path.read_bytes() for path in (tmp_path / save.__name__).iterdir()} == before
        with largest_file(100), pytest.raises(OSError, match="File too large"):
            save(tmp_path / "new")
        assert not (tmp_path / "new").exists()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system refuse to write more than so many bytes to a file."""
    resource = pytest.importorskip("resource")  # Windows has none
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.process
def test_a_process_that_is_killed_while_it_saves_leaves_one_whole_version(tmp_path: Path) -> None:
    code = """
import sys
from test_labels_models_folders import versioned
models, folder = [versioned(1), versioned(2)], sys.argv[1]
print("ready", flush=True)
for number in range(10**9):
    models[number % 2].save(folder)
"""
    folder, path = tmp_path / "model", os.pathsep.join(sys.path)
    versioned(1).save(folder)
    for delay in (0.0, 0.003, 0.005, 0.008):
        program = subprocess.Popen(
            [sys.executable, "-c", code, folder], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        time.sleep(delay)
        program.send_signal(signal.SIGKILL)
        program.communicate()
        assert number_of(TableModel.load(folder)) in {1, 2, 3}
        versioned(3).save(folder)
        assert number_of(TableModel.load(folder)) == 3
        assert names(folder) == FILES


def test_a_model_is_not_saved_over_another_kind_of_model_or_over_files_of_others(
    text_encoder: Path, tmp_path: Path
) -> None:
    labels, table = EncoderModel.from_encoder(text_encoder, NAMES), versioned(1)
    for save, other, expected in (
        (labels.save_pretrained, table.save, "holds a TableModel; choose another folder for a EncoderModel"),
        (table.save, labels.save_pretrained, "holds a EncoderModel; choose another folder for a TableModel"),
    ):
        folder = tmp_path / other.__name__
        other(folder)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(FileExistsError, match=expected):
            save(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, other
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(FileExistsError, match=f"holds {name}, which is not part of a saved EncoderModel"):
            labels.save_pretrained(folder)
        assert {path.name: path.read_text() for path in folder.iterdir()} == {name: "mine"}


def test_a_model_card_that_was_edited_is_kept(tmp_path: Path) -> None:
    versioned(1).save(tmp_path)
    written = (tmp_path / "README.md").read_text()
    assert "A multi-label classifier for tabular rows: 2 labels from 1 feature (u)." in written
    other = TableModel.from_config(TableConfig(["u", "v"], ["x"]))
    other.save(tmp_path)
    assert "1 label from 2 features (u, v)." in (tmp_path / "README.md").read_text()
    for card in (written.replace("tabular", "my"), "# Mine", "\udcff"):
        (tmp_path / "README.md").write_bytes(card.encode(errors="surrogateescape"))
        versioned(1).save(tmp_path)
        assert (tmp_path / "README.md").read_bytes() == card.encode(errors="surrogateescape")


def test_a_processor_that_was_saved_again_does_not_spoil_the_folder(text_encoder: Path, tmp_path: Path) -> None:
    model = EncoderModel.from_encoder(text_encoder, NAMES)
    model.save_pretrained(tmp_path)
    model.processor.add_tokens(["splendid"])
    model.processor.save_pretrained(tmp_path)
    again = EncoderModel.from_pretrained(tmp_path)
    assert "splendid" in again.processor.get_vocab()
    again.save_pretrained(tmp_path)


def test_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    for mask in (0o022, 0o027, 0o077):
        before = os.umask(mask)
        try:
            versioned(1).save(tmp_path / oct(mask))
        finally:
            os.umask(before)
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / oct(mask)).iterdir()}
        assert modes == dict.fromkeys(FILES, 0o666 & ~mask), oct(mask)


def test_places_that_cannot_be_saved_to_are_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    versioned(1).save(tmp_path / "table")
    for name, error in {
        "file": "is a file or a broken link",
        "broken": "is a file or a broken link",
        "file/below": "is not a folder, or not writable",
        "full": "holds notes.txt, which is not part of a saved EncoderModel",
        "table": "holds a TableModel; choose another folder for a EncoderModel",
    }.items():
        with pytest.raises(OSError, match=error):
            check_writable(tmp_path / name, LABELS)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new", "new/below"):
        check_writable(tmp_path / name, LABELS)
    check_writable(tmp_path / "table", TABLE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError, match="not writable"):
        check_writable(tmp_path / "model", TABLE)
    tmp_path.chmod(0o755)


def test_removing_a_model_leaves_the_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "thesis" / "optimizer.pt").touch()
    remove_model(tmp_path / "thesis", "optimizer.pt")
    assert names(tmp_path / "thesis") == {"config.json", "optimizer.pt"}
    versioned(1).save(tmp_path / "model")
    for name in ("notes.txt", "optimizer.pt"):
        (tmp_path / "model" / name).touch()
    remove_model(tmp_path / "model", "optimizer.pt")
    assert names(tmp_path / "model") == {"notes.txt"}
    versioned(1).save(tmp_path / "gone")
    remove_model(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def review(**levels: Any) -> dict[str, Any]:
    """The saved thresholds of a review, with other levels."""
    return {"levels": REVIEW | levels, "num_samples": 9, "thresholds": [[1.0], [-1.0]]}


def test_a_folder_that_is_no_saved_model_says_what_it_is(text_encoder: Path, tmp_path: Path) -> None:
    versioned(1).save(tmp_path / "model")
    settings = json.loads((tmp_path / "model/config.json").read_text())
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "newer": ({"rsoftmax_version": "99.1.0"}, f"saved by rsoftmax 99.1.0, this is {__version__}: pip install -U"),
        "twice": ({"labels": ["a", "a"]}, r"is damaged: labels must be distinct names .* got \['a', 'a'\]"),
        "features": ({"features": ["u", "u"]}, r"is damaged: features must be distinct names .* got \['u', 'u'\]"),
        "number": ({"labels": ["a", 1]}, r"is damaged: labels must be distinct names .* got \['a', 1\]"),
        "none": ({"labels": None}, "is damaged: "),
        "fewer": ({"labels": ["a"]}, "is damaged: "),
        "evaluation": (
            {"evaluation": {"micro": 0.5}},
            r"is damaged: 'evaluation' in config.json cannot be read \(KeyErr",
        ),
        "scores": ({"evaluation": "good"}, "is damaged: 'evaluation' in config.json cannot be read"),
        "review": ({"review": {"accept": 0.9}}, r"is damaged: 'review' in config.json cannot be read \(KeyError"),
        "level": ({"review": review(accept=95)}, r"accept must be in \(0, 1\), got 95"),
        "by": ({"review": review(by="row")}, "by must be one of samples, micro, label, got 'row'"),
        "thresholds": ({"review": review(by="label")}, r"thresholds must be two lists of numbers, \[2\], got"),
        "foreign": ({"model_type": "bert"}, "belongs to another kind of model"),
        "list": ({"model_type": []}, "belongs to another kind of model"),
        "missing": ({"files": [*FILES, "vocab.txt"]}, "is damaged: vocab.txt is missing"),
    }
    for name, (change, message) in changes.items():
        (tmp_path / "model/config.json").write_text(json.dumps(settings | change))
        with pytest.raises(ValueError, match=message):
            pytest.fail(f"{name}: {TableModel.load(tmp_path / 'model')}")
    (tmp_path / "model/config.json").write_text(json.dumps(settings | {"review": review()}))
    assert TableModel.load(tmp_path / "model").review_thresholds is not None
    for load in (EncoderModel.from_pretrained, TableModel.load, folders.load):
        for folder in (Path("/no/such/folder"), tmp_path):
            with pytest.raises(FileNotFoundError, match="`rsoftmax train --out"):
                load(folder)
        with pytest.raises(ValueError, match="rsoftmax train --encoder"):
            load(text_encoder)


def test_a_version_may_lack_a_file_that_an_older_and_a_newer_one_have(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for extra in (True, False, True):
        with folders.write(tmp_path) as staged:
            (staged / "config.json").write_text(json.dumps(SETTINGS))
            if extra:
                (staged / "extra.json").write_text("{}")
        assert names(tmp_path) == {"README.md", "config.json", "notes.txt", *(["extra.json"] if extra else [])}


def test_no_name_in_the_settings_leads_out_of_the_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "thesis.docx"
    outside.write_text("mine")
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    leading = ["../thesis.docx", str(outside), "a/../../thesis.docx", "link/thesis.docx"]
    settings = {"model_type": TABLE, "files": [*leading, "config.json"]}
    (folder / "config.json").write_text(json.dumps(settings))
    with folders.write(folder) as staged:
        (staged / "config.json").write_text(json.dumps(SETTINGS))
    remove_model(folder)
    assert outside.read_text() == "mine"


def test_a_link_in_place_of_a_committed_save_moves_no_files(tmp_path: Path) -> None:
    model, mine = tmp_path / "model", tmp_path / "mine"
    versioned(1).save(model)
    mine.mkdir()
    (mine / "thesis.docx").write_text("mine")
    for name in (folders.COMMITTED, f"{folders.UNFINISHED}1"):
        (model / name).symlink_to(mine)
    assert number_of(TableModel.load(model)) == 1
    with suppress(OSError):
        versioned(2).save(model)
    assert names(mine) == {"thesis.docx"}


def test_a_folder_in_the_place_of_a_file_is_left_alone(tmp_path: Path) -> None:
    versioned(1).save(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.unlink()
    weights.mkdir()
    (weights / "thesis.docx").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds model.safetensors, which is not part of a saved TableModel"):
        versioned(2).save(tmp_path / "model")
    with folders.write(tmp_path / "model") as staged:  # a version without the file
        (staged / "config.json").write_text(json.dumps(SETTINGS))
    assert (weights / "thesis.docx").read_text() == "mine"
    assert names(tmp_path / "model") == FILES
