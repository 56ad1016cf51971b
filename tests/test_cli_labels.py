"""rsoftmax train, evaluate, predict and export, as users type them; mistakes are answered with file, row and remedy."""

import csv
import gzip
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from encoders import LABELS, TEXTS
from PIL import Image
from typer.testing import CliRunner

from rsoftmax.cli import app, predict
from rsoftmax.cli.train import _digest
from rsoftmax.labels import LabelModel
from rsoftmax.labels.models.tables import read

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
ROWS = [(text, ";".join(labels), index % 3, index % 2) for index, (text, labels) in enumerate(zip(TEXTS, LABELS))] * 5  # noqa: B905


def rsoftmax(*words: object, code: int = 0, typed: str | bytes | None = None) -> str:
    done = CliRunner().invoke(app, list(map(str, words)), input=typed)
    assert done.exit_code == code, done.output
    return re.sub(r"[\s│]+", " ", done.output) if code else done.stdout


def write_csv(path: Path, rows: list[Any]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "rows.csv"
    write_csv(path, [("text", "labels", "u", "v"), *ROWS])
    return path


@pytest.fixture(scope="session")
def model(table: Path, text_encoder: Path) -> Path:
    out = table.parent / "model"
    said = rsoftmax(
        "train",
        table,
        "--text",
        "text",
        "--labels",
        "labels",
        "--encoder",
        text_encoder,
        "--out",
        out,
        "--average",
        "macro",
    )
    assert "3 labels; cross-validated on 30 rows" in said
    return out


def test_a_trained_model_is_evaluated_asked_and_exported(model: Path, table: Path, tmp_path: Path) -> None:
    said = rsoftmax("evaluate", model, table, "--plot", tmp_path / "scores.png")
    assert "micro F1" in said
    assert "anger" in said
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    scores = json.loads(rsoftmax("evaluate", model, table, "--json"))
    assert scores["num_samples"] == len(ROWS)
    assert {one["label"] for one in scores["labels"]} == {"anger", "joy", "love"}
    assert rsoftmax("export", model, "--onnx", tmp_path / "model.onnx") == (
        f"wrote {tmp_path / 'model.onnx'}: marginals and labels of 3 labels\n"
    )


def test_texts_come_as_words_lines_or_a_table_and_go_as_lines_json_or_csv(model: Path, table: Path) -> None:
    loaded = LabelModel.load(model)
    (found,) = loaded.predict(["I love it"])
    listed = ", ".join(f"{name} {p:.3f}" for name, p in found.items()) or "no label"
    assert rsoftmax("predict", model, "I love it", "so happy").splitlines()[0] == f"I love it: {listed}"
    line = json.loads(rsoftmax("predict", model, "-", "--json", typed="I love it\nso happy\n").splitlines()[0])
    assert line == {"item": "I love it", "labels": pytest.approx(found)}
    rows = list(csv.reader(io.StringIO(rsoftmax("predict", model, table, "--csv"))))
    assert rows[0] == ["text", "labels", "u", "v", "predicted_labels", "predicted_probabilities", "expected_f1"]
    assert [row[:2] for row in rows[1:]] == [[text, labels] for text, labels, *_ in ROWS]
    assert [row[4].split(";") if row[4] else [] for row in rows[1:]] == loaded.predict_labels([row[0] for row in ROWS])
    every = list(csv.reader(io.StringIO(rsoftmax("predict", model, table, "--csv", "--all"))))
    assert every[0] == ["text", "labels", "u", "v", "anger", "joy", "love", "expected_f1"]
    words = list(csv.reader(io.StringIO(rsoftmax("predict", model, "=1+1", "--csv"))))
    assert words[0] == ["item", "predicted_labels", "predicted_probabilities", "expected_f1"]
    assert words[1][0] == "'=1+1"
    assert len(every) == len(ROWS) + 1


def test_a_text_is_shown_in_a_file_and_several_in_a_folder(model: Path, tmp_path: Path) -> None:
    rsoftmax("predict", model, "I love it", "--show", tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    long = "so happy $x$ " * 400
    assert f"wrote {tmp_path / 'many'}" in rsoftmax("predict", model, "I love it", long, "--show", tmp_path / "many")
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) == ["1.png", "2.png"]


@pytest.mark.train
def test_a_table_of_numbers_is_learned_and_asked(table: Path, tmp_path: Path) -> None:
    rsoftmax("train", table, "--features", "u, v", "--labels", "labels", "--out", tmp_path / "model")
    assert "samples F1" in rsoftmax("evaluate", tmp_path / "model", table)
    assert len(rsoftmax("predict", tmp_path / "model", table).splitlines()) == len(ROWS)
    rsoftmax("export", tmp_path / "model", "--onnx", tmp_path / "model.onnx")
    assert "pass the rows as a table" in rsoftmax("predict", tmp_path / "model", "a text", code=2)
    shown = rsoftmax("predict", tmp_path / "model", table, "--show", tmp_path / "shown", code=2)
    assert "only images and texts can be shown" in shown


def test_categories_are_encoded_and_a_recall_is_guaranteed(tmp_path: Path) -> None:
    rows = [(("red", "blue")[index % 2], index % 3, ("warm", "cold;wet")[index % 2]) for index in range(100)]
    write_csv(tmp_path / "rows.csv", [("colour", "rain", "labels"), *rows])
    words: list[Any] = [tmp_path / "rows.csv", "--features", "rain,colour", "--labels", "labels", "--out"]
    said = rsoftmax("train", *words, tmp_path / "model", "--recall", 0.8)
    assert "guaranteed: recall of a sample at least 0.8, in expectation" in said
    assert "on 20 held-out rows" in said
    write_csv(tmp_path / "new.csv", [("colour", "rain"), ("red", 1), ("blue", 1)])
    red, blue = rsoftmax("predict", tmp_path / "model", tmp_path / "new.csv").splitlines()
    assert red.startswith("1: warm")
    assert {"cold", "wet"} <= set(re.findall("[a-z]+", blue))
    for wrong, message in (
        (["--recall", 0.99], "recall of 0.99 cannot be guaranteed with 20 held-out samples: it takes at least 99"),
        (["--precision", 0.8], "pass confidence=0.95"),
        (["--recall", 1.5], "must be in (0, 1), got 1.5"),
        (["--recall", 0.8, "--by", "rows"], "'rows' is not one of 'samples', 'micro', 'label'"),
        (["--recall", 0.8, "--precision", 0.8], "pass either recall or precision"),
        (["--confidence", 0.9], "has an effect only with --recall, --precision, --accept or --reject"),
    ):
        assert message in rsoftmax("train", *words, tmp_path / "other", *wrong, code=2), wrong
    assert not (tmp_path / "other").exists()


def test_a_table_is_reviewed_and_the_corrected_queue_is_trained_on(tmp_path: Path) -> None:
    """Rain tells "wet"; half of the rows have a wind that tells nothing about "cold"."""
    rows = [
        (index % 2, index // 2 % 2, ";".join(["wet"] * (index % 2) + ["cold"] * (index % 3 == 0)))
        for index in range(1200)
    ]
    write_csv(tmp_path / "rows.csv", [("rain", "wind", "labels"), *rows])
    write_csv(tmp_path / "new.csv", [("rain", "wind"), *(row[:2] for row in rows[:40])])
    words: list[Any] = [tmp_path / "rows.csv", "--features", "rain,wind", "--labels", "labels", "--out"]
    said = rsoftmax("train", *words, tmp_path / "model", "--accept", 0.9, "--reject", 0.9, "--lr", 0.01)
    assert "cross-validated on 960 rows" in said
    assert f"rsoftmax review {tmp_path / 'model'}" in said
    predicted = list(
        csv.DictReader(io.StringIO(rsoftmax("predict", tmp_path / "model", tmp_path / "new.csv", "--csv")))
    )
    assert {row["review"] for row in predicted} == {"cold"}
    review: list[Any] = ["review", tmp_path / "model", tmp_path / "new.csv", "--out", tmp_path / "review"]
    assert "trained with the levels" in rsoftmax(*review, "--accept", 0.8, code=2)
    said = rsoftmax(*review, "--accept", 0.9)
    assert "with confidence 0.95, of a row: precision of accepted labels at least 0.9" in said
    assert "to review: 40 labels in 40 of 40 rows (100.0%); expected corrections: 1" in said
    assert "exists; remove it" in rsoftmax(*review, code=2)
    with (tmp_path / "review" / "queue.csv").open(newline="") as file:
        queue = list(csv.DictReader(file))
    assert [row["labels"].replace("cold", "").strip(";") for row in queue] == [
        "wet" * (row["rain"] == "1") for row in queue
    ]
    gains = [float(row["expected_corrections"]) for row in queue]
    assert gains == sorted(gains, reverse=True)
    add = ["--add", tmp_path / "review" / "queue.csv"]
    assert "every row waits for a review; empty the cell 'review'" in rsoftmax(
        "train", *words, tmp_path / "m", *add, code=2
    )
    done = [row | {"review": "", "labels": "hot"} for row in queue[:10]]
    write_csv(
        tmp_path / "review" / "queue.csv", [list(queue[0]), *(list(row.values()) for row in (*done, *queue[10:]))]
    )
    ran = CliRunner().invoke(app, list(map(str, ["train", *words, tmp_path / "again", *add])))
    assert "30 of 40 rows wait for a review and are left out" in ran.stderr
    assert "3 labels; cross-validated on 1210 rows" in ran.stdout
    held_out = ["--held-out", tmp_path / "rows.csv", "--by", "label"]
    said = rsoftmax("review", tmp_path / "again", tmp_path / "new.csv", "--out", tmp_path / "other", *held_out)
    assert "of every label: precision of accepted labels at least 0.95" in said
    assert "has labels already" in rsoftmax(
        "review", tmp_path / "again", tmp_path / "rows.csv", "--out", tmp_path / "x", *held_out, code=2
    )
    assert not (tmp_path / "x").exists()


def test_a_folder_of_pictures_with_a_table_is_learned_and_shown(image_encoder: Path, tmp_path: Path) -> None:
    colours = {"red": (200, 0, 0), "blue": (0, 0, 200)}
    folder = tmp_path / "pictures"
    folder.mkdir()
    lines = []
    for index in range(12):
        name = list(colours)[index % 2]
        Image.new("RGB", (24, 24 + index), colours[name]).save(folder / f"{index}.png")
        lines.append({"file": f"{index}.png", "tags": [name]})
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["--image", "file", "--labels", "tags", "--encoder", image_encoder, "--out", tmp_path / "model"]
    rsoftmax("train", folder, *words)
    said = rsoftmax("predict", tmp_path / "model", folder, "--show", tmp_path / "shown").splitlines()
    assert said[0].startswith("0.png: ")
    assert len(list((tmp_path / "shown").iterdir())) == 12
    (folder / "bad.png").write_bytes(b"no image")
    shown = ("--skip-bad", "--show", tmp_path / "again")
    answers = rsoftmax("predict", tmp_path / "model", folder, "--json", *shown).splitlines()
    assert [json.loads(line)["item"] for line in answers] == sorted(f"{index}.png" for index in range(12))
    (folder / "bad.png").unlink()
    (folder / "3.png").write_bytes(b"no image")
    refused = rsoftmax("train", folder, *words[:-1], tmp_path / "other", code=2)
    assert "labels.jsonl, row 4: " in refused
    assert "it is not an image" in refused
    assert not (tmp_path / "other").exists()


def test_a_bad_table_is_refused_and_nothing_is_written(text_encoder: Path, tmp_path: Path) -> None:
    for file, content, message in (
        ("t.csv", "txt,labels\na,b\n", "no column 'text'; the columns are 'txt', 'labels'"),
        ("t.csv", "text,labels\na,\nb,\n", "the column 'labels' contains no labels"),
        ("t.jsonl", '{"text": "\\ud800", "labels": ["x"]}\n', "t.jsonl, row 1: '\\ud800' is not valid Unicode"),
    ):
        (tmp_path / file).write_text(content)
        words: list[Any] = ["--text", "text", "--labels", "labels", "--encoder", text_encoder]
        assert message in rsoftmax("train", tmp_path / file, *words, "--out", tmp_path / "out", code=2), content
        assert not (tmp_path / "out").exists()


def test_settings_of_training_and_sparse_attention_reach_the_model(
    table: Path, text_encoder: Path, tmp_path: Path
) -> None:
    words: list[Any] = ["--text", "text", "--labels", "labels", "--encoder", text_encoder, "--out", tmp_path / "model"]
    chosen = ["--lr", 0.01, "--batch-size", 16, "--validation", table, "--attention", "t_softmax", "--t", 2]
    said = rsoftmax("train", table, *words, "--finetune", "--epochs", 1, *chosen)
    assert f"on {len(ROWS)} held-out rows" in said
    attention = ["--model", tmp_path / "model", "--text", "I love it", "--out", tmp_path / "map.png"]
    assert "t_softmax, t = 2" in rsoftmax("attention-map", *attention)
    for wrong, message in (
        (["--t", 2], "Invalid value for --t: has an effect only with --attention"),
        (["--attention", "t_softmax"], "t_softmax needs t"),
        (["--lr", 0], "lr must be positive, got 0.0"),
    ):
        assert message in rsoftmax("train", table, *words[:-1], tmp_path / "other", *wrong, code=2), wrong
    assert not (tmp_path / "other").exists()


def test_options_that_would_have_no_effect_are_refused(
    model: Path, table: Path, text_encoder: Path, tmp_path: Path
) -> None:
    words: list[Any] = ["--labels", "labels", "--out", tmp_path / "out"]
    texts: list[Any] = ["--text", "text", "--encoder", text_encoder, *words]
    alone = rsoftmax("train", table, *texts, "--epochs", 2, code=2)
    assert "Invalid value for --epochs: has an effect only with --finetune" in alone
    for epochs in (0, -1, "nan", "inf"):
        refused = rsoftmax("train", table, *texts, "--finetune", f"--epochs={epochs}", code=2)
        assert "epochs and lr must be positive and batch_size at least 1, got epochs=" in refused
    assert "has an effect only with --text" in rsoftmax(
        "train", table, "--features", "u", *words, "--max-tokens", 9, code=2
    )
    assert "separator of labels is empty" in rsoftmax("train", table, *texts, "--separator", "", code=2)
    assert "separator of labels is empty" in rsoftmax("evaluate", model, table, "--separator", "", code=2)
    assert "for --plot" in rsoftmax("evaluate", model, table, "--plot", "scores.gif", code=2)
    assert "EncoderModel is not an encoder" in rsoftmax("train", table, *texts, "--encoder", model, code=2)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_after_all_is_told(table: Path, text_encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / f"{'x' * 256}"  # longer than a name may be
    for words in (["--text", "text", "--encoder", text_encoder], ["--features", "u"]):
        said = rsoftmax("train", table, *words, "--labels", "labels", "--out", out, code=2)
        assert "for --out" in said
    assert not list(tmp_path.iterdir())


def test_files_in_place_of_texts_and_bytes_that_are_no_text_are_refused(
    model: Path, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("so happy")
    assert "notes.txt is a file; pass a single table" in rsoftmax("predict", model, tmp_path / "notes.txt", code=2)
    os.mkfifo(tmp_path / "pipe")
    assert "pipe is a file; pass a single table" in rsoftmax("predict", model, tmp_path / "pipe", code=2)
    assert "rows.csv is a file; pass a single table" in rsoftmax("predict", model, table, table, code=2)
    assert "is a folder, but this model reads texts" in rsoftmax("predict", model, tmp_path, code=2)
    assert "cannot be combined with other texts" in rsoftmax(
        "predict", model, "-", "I love it", typed="so happy\n", code=2
    )
    assert "byte 8 is not valid UTF-8" in rsoftmax("predict", model, "-", typed=b"so happy\xff\n", code=2)
    assert "item 1: '\\udcff' is not valid Unicode" in rsoftmax("predict", model, "\udcff", code=2)
    assert len(rsoftmax("predict", model, "happy " * 1000).splitlines()) == 1
    command = f"{sys.executable} -m rsoftmax predict {model} - <&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "stdin is closed; pass the texts" in done.stderr) == (2, True)


def test_a_table_of_answers_separates_labels_as_the_table_of_training(table: Path, tmp_path: Path) -> None:
    rows = [(text, labels.replace(";", "|").replace("joy", "joy; bliss"), *rest) for text, labels, *rest in ROWS]
    write_csv(tmp_path / "t.csv", [("text", "labels", "u", "v"), *rows])
    words = ["--features", "u,v", "--labels", "labels", "--separator", "|", "--out", tmp_path / "model"]
    rsoftmax("train", tmp_path / "t.csv", *words)
    answers = list(csv.DictReader(io.StringIO(rsoftmax("predict", tmp_path / "model", tmp_path / "t.csv", "--csv"))))
    found = {name for row in answers for name in row["predicted_labels"].split("|") if name}
    assert found <= {"anger", "joy; bliss", "love"}


def test_a_table_of_answers_can_be_read_again_whatever_the_names_hold(table: Path, tmp_path: Path) -> None:
    strange = {"anger": "a,b", "joy": 'line\nend "q"', "love": "end\rless"}
    rows = [(text, [strange[name] for name in labels.split(";") if name], *rest) for text, labels, *rest in ROWS]
    lines = [json.dumps(dict(zip(("text", "labels", "u", "v"), row, strict=True))) for row in rows]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    rsoftmax("train", tmp_path / "t.jsonl", "--features", "u,v", "--labels", "labels", "--out", tmp_path / "model")
    said = rsoftmax("predict", tmp_path / "model", tmp_path / "t.jsonl", "--csv", "--all")
    header, *answers = csv.reader(io.StringIO(said, newline=""))
    assert header == ["text", "labels", "u", "v", *sorted(strange.values()), "expected_f1"]
    assert {len(row) for row in answers} == {8}
    assert len(answers) == len(ROWS)


def test_mistakes_in_options_are_answered(
    model: Path, table: Path, text_encoder: Path, image_encoder: Path, tmp_path: Path
) -> None:
    words: list[Any] = ["--labels", "labels", "--out", tmp_path / "out"]
    assert "pass exactly one of --text or --image or --features" in rsoftmax("train", table, *words, code=2)
    assert "'labels' is the column of labels" in rsoftmax("train", table, "--features", "u, labels", *words, code=2)
    assert "is not one of 'micro', 'macro', 'samples'" in rsoftmax(
        "train", table, "--text", "text", "--average", "weighted", *words, code=2
    )
    assert "Invalid value for --finetune: has an effect only with --encoder or --image" in rsoftmax(
        "train", table, "--features", "u", "--finetune", *words, code=2
    )
    assert "row 1: the file" in rsoftmax("train", table, "--image", "text", "--encoder", text_encoder, *words, code=2)
    assert "encodes images; pass their column as --image" in rsoftmax(
        "train", table, "--text", "text", "--encoder", image_encoder, *words, code=2
    )
    write_csv(tmp_path / "mixed.csv", [("u", "labels"), (1, "a"), ("two", "b")])
    assert "row 2: 'u' must be a number up to 3.4e+38, got 'two'" in rsoftmax(
        "train", tmp_path / "mixed.csv", "--features", "u", *words, code=2
    )
    assert "does not exist" in rsoftmax("evaluate", model, tmp_path / "none.csv", code=2)
    assert "belongs to another kind of model" in rsoftmax("predict", text_encoder, "a", code=2)
    assert "has no config.json" in rsoftmax("predict", tmp_path, "a", code=2)
    assert "choose one of --json and --csv" in rsoftmax("predict", model, "a", "--json", "--csv", code=2)
    assert "must end in one of" in rsoftmax("predict", model, "a", "--show", tmp_path / "b.txt", code=2)
    assert "is an input" in rsoftmax("predict", model, table, "--show", table, code=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    assert "holds mine.txt, which is not part of a saved LabelModel" in rsoftmax(
        "train", table, "--text", "text", "--labels", "labels", "--out", tmp_path / "full", code=2
    )


def test_labels_that_the_model_does_not_know_are_missed_and_named_or_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text,labels\na,joy\nb,joy;envy\nc,envy\n")
    done = CliRunner().invoke(app, ["evaluate", str(model), str(tmp_path / "new.csv"), "--json"])
    assert done.exit_code == 0, done.output
    assert "1 label unknown to the model, counted as missed: envy" in done.stderr
    envy = json.loads(done.stdout)["labels"][-1]
    assert (envy["label"], envy["recall"], envy["f1"], envy["support"]) == ("envy", 0, 0, 2)
    refused = rsoftmax("evaluate", model, tmp_path / "new.csv", "--strict", code=2)
    assert "new.csv, row 2: unknown label 'envy'; the labels are anger, joy, love" in refused


def test_a_text_is_truncated_if_asked_and_that_is_told(table: Path, text_encoder: Path, tmp_path: Path) -> None:
    words: list[Any] = ["--text", "text", "--labels", "labels", "--encoder", text_encoder, "--max-tokens", 24]
    rsoftmax("train", table, *words, "--out", tmp_path / "model")
    (tmp_path / "long.csv").write_text("text,labels\na,joy\n" + "love " * 20_000 + ",joy\n")
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 24 tokens and are truncated, the first is item"):
        said = rsoftmax("predict", tmp_path / "model", tmp_path / "long.csv")
    assert len(said.splitlines()) == 2


def test_fine_tuning_by_command_leaves_a_model_and_no_checkpoints(
    table: Path, text_encoder: Path, tmp_path: Path
) -> None:
    words: list[Any] = ["--text", "text", "--labels", "labels", "--encoder", text_encoder, "--finetune", "--epochs", 1]
    rsoftmax("train", table, *words, "--out", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert len(rsoftmax("predict", tmp_path / "model", "I love it").splitlines()) == 1


def test_fine_tuning_goes_on_after_ctrl_c_and_after_a_kill(table: Path, text_encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    words = f"train {table} --text text --labels labels --encoder {text_encoder} --finetune --epochs 400 --out {out}"
    before: set[int] = set()
    for stop, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        program = subprocess.Popen(
            [sys.executable, "-m", "rsoftmax", *words.split()], stderr=subprocess.PIPE, text=True
        )
        while not (new := checkpoints(tmp_path) - before):
            assert program.poll() is None, program.communicate()
            time.sleep(0.05)
        program.send_signal(stop)
        said = program.communicate()[1]
        assert program.returncode == code, said
        assert "Traceback" not in said
        assert ("rerun the command to resume from the last checkpoint" in said) == (stop == signal.SIGINT)
        assert min(new) > max(before, default=0)  # not from the first step again
        assert not out.exists()
        before = checkpoints(tmp_path)


def checkpoints(folder: Path) -> set[int]:
    """The steps after which fine-tuning has written one."""
    return {int(path.parent.name.split("-")[1]) for path in folder.glob(".*/checkpoint-*/trainer_state.json")}


@pytest.mark.process
@pytest.mark.train
@pytest.mark.parametrize(("num_labels", "stages"), [(1024, ["features", "tree-1"]), (300, ["features", "fold-"])])
def test_training_from_words_resumes_after_ctrl_c_and_a_kill_with_the_same_model(
    tmp_path: Path, num_labels: int, stages: list[str]
) -> None:
    rows = [
        (f"word{i} word{i * 7 % num_labels} again and again", f"a{i};a{i * 7 % num_labels}") for i in range(num_labels)
    ]
    table, out = tmp_path / "rows.csv", tmp_path / "model"
    write_csv(table, [("text", "labels"), *rows * (2000 // num_labels + 1)])
    words = [*f"train {table} --text text --labels labels --out".split(), str(out)]
    rsoftmax(*words[:-1], tmp_path / "whole")
    written: dict[Path, int] = {}
    for stage, stop in zip(stages, (signal.SIGINT, signal.SIGKILL), strict=True):
        program = subprocess.Popen([sys.executable, "-m", "rsoftmax", *words], stderr=subprocess.PIPE, text=True)
        while not any(name.startswith(stage) for name in (path.name for path in tmp_path.glob(".model*/*"))):
            assert program.poll() is None, program.communicate()
            time.sleep(0.01)
        program.send_signal(stop)
        said = program.communicate()[1]
        assert program.returncode == (130 if stop == signal.SIGINT else -stop), said
        assert ("rerun the command to resume" in said) == (stop == signal.SIGINT)
        assert not out.exists()
        assert all(path.stat().st_mtime_ns == at for path, at in written.items())  # not computed again
        written = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".model*/*.stage")}
    damaged = max(written)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.warns(UserWarning, match=f"{damaged.name} is damaged; this stage of the training is repeated"):
        rsoftmax(*words)
    for name in ("model.safetensors", "vocabulary.json", "config.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "model", "whole"}


@pytest.mark.process
@pytest.mark.train
@pytest.mark.parametrize("num_labels", [3, 1024])
def test_every_progress_bar_ends_at_100_percent(tmp_path: Path, num_labels: int) -> None:
    rows = [(f"word{i} again and again", f"a{i}") for i in range(num_labels)] * max(3, 60 // num_labels)
    table, out = tmp_path / "rows.csv", tmp_path / "model"
    write_csv(table, [("text", "labels"), *rows])
    words = ("train", table, "--text", "text", "--labels", "labels", "--out", out, "--validation", table)
    bars = last_states(CliRunner().invoke(app, list(map(str, words))).stderr)
    assert bars.keys() == {"reading words", "counting words", "learning" if num_labels == 1024 else ""}
    terminal, screen = pty.openpty()
    termios.tcsetwinsize(screen, (24, 100))
    command = [sys.executable, "-m", "rsoftmax", "predict", str(out), str(table), "--json"]
    with (tmp_path / "predicted.jsonl").open("w") as file:
        program = subprocess.Popen(command, stdout=file, stderr=screen)
        os.close(screen)
        shown = read_all(terminal)
        assert program.wait() == 0, shown
    bars |= last_states(shown)
    assert "predicting" in bars
    assert all(state.startswith("100%") for state in bars.values()), bars
    assert len((tmp_path / "predicted.jsonl").read_text().splitlines()) == len(rows)


def last_states(printed: str) -> dict[str, str]:
    """The last state of each progress bar, by its title."""
    states = re.findall(r"(?:([a-z ]+): )? *(\d+%[^\r\n]*)", printed)
    return dict(states)


def read_all(terminal: int) -> str:
    """What a program has written to a pseudo-terminal."""
    parts = []
    try:
        while part := os.read(terminal, 4096):
            parts.append(part)
    except OSError:  # Linux: the program has closed it
        pass
    os.close(terminal)
    return b"".join(parts).decode()


def test_checkpoints_belong_to_the_same_files_and_options(table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "rows.csv"
    copy.write_bytes(table.read_bytes())
    digest = _digest([read(table)], "text", 0)
    assert _digest([read(copy)], "text", 0) == digest
    assert _digest([read(table)], "text", 1) != digest
    with copy.open("a", newline="") as file:
        file.write("I love it,joy,0,0\r\n")
    assert _digest([read(copy)], "text", 0) != digest


def test_stages_belong_to_the_same_texts_labels_and_options(tmp_path: Path) -> None:
    for change in ("none", "texts", "labels", "options"):
        texts = TEXTS * 5 if change != "texts" else TEXTS[::-1] * 5
        y = LABELS * 5 if change != "labels" else LABELS[::-1] * 5
        options: Any = {} if change != "options" else {"average": "macro"}
        alone = LabelModel(**options).fit(texts, y)
        resumed = LabelModel(**options).fit(texts, y, checkpoints=tmp_path)
        assert resumed.predict(TEXTS, every_label=True) == alone.predict(TEXTS, every_label=True)
        assert len(list(tmp_path.glob("features*"))) == 1 + ("none", "texts", "labels", "options").index(change)


def test_without_a_place_for_stages_training_goes_on(table: Path, tmp_path: Path) -> None:
    (tmp_path / ".model.training").touch()
    with pytest.warns(UserWarning, match="the training could not resume if interrupted"):
        rsoftmax("train", table, "--text", "text", "--labels", "labels", "--out", tmp_path / "model")
    assert LabelModel.load(tmp_path / "model").predict_labels(TEXTS)


def test_a_training_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [("text", "labels"), ("a b", "x"), ("a b", "x")])
    words = ("train", tmp_path / "rows.csv", "--text", "text", "--labels", "labels", "--out", tmp_path / "model")
    assert "2 texts are too few to learn labels from" in rsoftmax(*words, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_without_an_encoder_texts_are_labelled_by_their_words(table: Path, tmp_path: Path) -> None:
    columns: list[Any] = ["--text", "text", "--labels", "labels"]
    said = rsoftmax("train", table, *columns, "--out", tmp_path / "words")
    assert "cross-validated on" in said
    (line,) = rsoftmax("predict", tmp_path / "words", TEXTS[0], "--json").splitlines()
    assert json.loads(line)["labels"] == LabelModel.load(tmp_path / "words").predict(TEXTS[:1])[0]
    assert json.loads(rsoftmax("evaluate", tmp_path / "words", table, "--json"))["num_samples"] == len(ROWS)
    assert "has an effect only with --encoder or --image" in rsoftmax(
        "train", table, *columns, "--out", tmp_path / "new", "--finetune", code=2
    )
    assert "train with --encoder" in rsoftmax("export", tmp_path / "words", "--onnx", tmp_path / "m.onnx", code=2)


def test_thresholds_are_adapted_to_the_texts_of_a_table(model: Path, table: Path, tmp_path: Path) -> None:
    words, new = tmp_path / "model", tmp_path / "new.csv"
    rsoftmax("train", table, "--text", "text", "--labels", "labels", "--out", words, "--average", "macro")
    texts, labels = [["a"], ["the the"], ["no known word"]], [["joy"], [""], ["love"]]
    write_csv(new, [("text", "labels"), *(text + names for text, names in zip(texts, labels, strict=True))])
    loaded = LabelModel.load(words)
    assert isinstance(loaded, LabelModel)
    expected = loaded.adapt([text for (text,) in texts])
    said = [json.loads(line)["labels"] for line in rsoftmax("predict", words, new, "--adapt", "--json").splitlines()]
    assert said == expected.predict([text for (text,) in texts])
    assert said != LabelModel.load(words).predict([text for (text,) in texts])
    scores = json.loads(rsoftmax("evaluate", words, new, "--adapt", "--json"))
    assert scores["macro"] == expected.evaluate([text for (text,) in texts], [["joy"], [], ["love"]]).macro
    assert "a model of words" in rsoftmax("predict", model, new, "--adapt", code=2)


def test_the_passages_behind_labels_are_printed_and_highlighted(model: Path, table: Path, tmp_path: Path) -> None:
    rsoftmax("train", table, "--text", "text", "--labels", "labels", "--out", tmp_path / "words")
    text = "I love it. So <b>happy</b>!"
    (explained,) = LabelModel.load(tmp_path / "words").explain([text])
    first, second, *lines = rsoftmax("predict", tmp_path / "words", text, "--explain").splitlines()
    (name, explanation), *_ = explained.items()
    assert first.startswith(f"{text}: {name} {explanation.marginal:.3f}")
    assert second == f"  {name} {explanation.marginal:.3f}"
    assert f"    {explanation.log_odds:>+6.2f}  log-odds" in lines
    rows = rsoftmax("predict", tmp_path / "words", table, "--explain", "--json", "--all").splitlines()
    assert len(rows) == len(ROWS)
    found = json.loads(rows[0])
    assert found["labels"].keys() == found["explanations"].keys() == {"anger", "joy", "love"}
    (passage, *_) = found["explanations"]["love"]["passages"]
    assert TEXTS[0][passage["start"] : passage["end"]] in TEXTS[0].split()
    for kind in (tmp_path / "words", model):
        said = rsoftmax("predict", kind, text, "--explain", "--all", "--show", tmp_path / "page.html")
        assert f"wrote {tmp_path / 'page.html'}" in said
        page = (tmp_path / "page.html").read_text()
        assert "&lt;" in page
        assert "<b>" not in page
    assert "100%  I love it. So" in said  # with an encoder, a short text is one window


def test_explanations_that_cannot_be_written_are_refused(model: Path, table: Path, tmp_path: Path) -> None:
    rsoftmax("train", table, "--features", "u", "--labels", "labels", "--out", tmp_path / "numbers")
    for words, message in (
        (["--explain", "--csv"], "not as CSV"),
        (["--explain", "--show", tmp_path / "a.png"], "must be an .html file in an existing folder"),
        (["--explain", "--show", tmp_path / "nowhere" / "a.html"], "must be an .html file in an existing folder"),
        (["--show", tmp_path / "a.html"], "pass --explain as well"),
    ):
        assert message in rsoftmax("predict", model, "so happy", *words, code=2), words
    assert "is an input" in rsoftmax("predict", model, table, "--explain", "--show", table, code=2)
    assert "only labels of texts" in rsoftmax("predict", tmp_path / "numbers", table, "--explain", code=2)
    assert {path.name for path in tmp_path.iterdir()} == {"numbers"}


@pytest.mark.train
def test_predictions_obey_the_rules_of_a_file(text_encoder: Path, tmp_path: Path) -> None:
    """With labels drawn at random, every kind of model would break the rules without them."""
    rows = [(f"{['grain', 'corn', 'buy', 'sell'][i % 4]} {i % 7} {i % 3}", i % 5, i % 3) for i in range(120)]
    label_sets = [["corn"], ["corn", "grain"], ["grain", "buy"], ["sell", "buy"], ["sell", "corn"], []]
    tagged = [(*row, ";".join(label_sets[i * i % 6])) for i, row in enumerate(rows)]
    table, rules = tmp_path / "rows.csv", tmp_path / "rules.json"
    write_csv(table, [("text", "u", "v", "tags"), *tagged])
    rules.write_text('{"implies": {"corn": "grain"}, "exclusive": [["buy", "sell"]]}')
    bounds = ("--min-labels", "1", "--max-labels", "3", "--beta", "2", "--rules", rules)
    sources: tuple[tuple[object, ...], ...] = (
        ("--text", "text"), ("--features", "u,v"), ("--features", "u,v", "--trees"),
        ("--text", "text", "--encoder", text_encoder),
    )  # fmt: skip
    for number, source in enumerate(sources):
        out = tmp_path / f"model{number}"
        rsoftmax("train", table, *source, "--labels", "tags", "--out", out, *bounds)
        for line in rsoftmax("predict", out, table, "--all", "--json").splitlines():
            marginals = json.loads(line)["labels"]
            assert marginals["grain"] >= marginals["corn"]
        for line in rsoftmax("predict", out, table, "--json").splitlines():
            predicted = set(json.loads(line)["labels"])
            assert 1 <= len(predicted) <= 3
            assert "corn" not in predicted or "grain" in predicted
            assert not predicted >= {"buy", "sell"}
    said = rsoftmax("export", tmp_path / "model1", "--onnx", tmp_path / "model.onnx", code=2)
    assert "without implies and exclusive" in said


def test_rules_that_cannot_be_kept_are_refused(table: Path, tmp_path: Path) -> None:
    rules, out = tmp_path / "rules.json", tmp_path / "out"
    words = ("train", table, "--text", "text", "--labels", "labels", "--out", out)
    for text, more, message in (
        ("{", (), "invalid JSON"),
        ('{"imply": {}}', (), 'expected an object with "implies", "exclusive" or both'),
        ('{"implies": {"joy": "envy"}}', (), "implies names 'envy', which is not a label"),
        ('{"implies": {"joy": "anger", "anger": "joy"}}', (), "imply each other in a circle"),
        ('{"exclusive": [["joy", "anger"]]}', ("--recall", "0.9"), "exclusive labels cannot keep a guarantee"),
        ('{"implies": {"joy": "anger"}}', ("--recall", "0.9", "--max-labels", "1"), "decides on the number of labels"),
        ('{"implies": {"joy": "anger"}}', ("--min-labels", "9"), "0 <= min_labels <= max_labels <="),
    ):
        rules.write_text(text)
        assert re.search(message, rsoftmax(*words, "--rules", rules, *more, code=2)), text
    assert not out.exists()


def test_a_likely_separator_is_named(tmp_path: Path) -> None:
    sets = [["acq"], ["corn", "grain"], ["acq", "corn", "grain"], ["corn"], ["acq", "corn"], ["grain", "acq"]]
    kept: dict[str, str] = {}
    table = tmp_path / "rows.csv"
    for separator in (" ", ",", ", "):
        rows = [(f"wheat {i % 6} price", separator.join(sets[i % 6])) for i in range(60)]
        write_csv(table, [("text", "tags"), *rows])
        words = ("train", table, "--text", "text", "--labels", "tags", "--out", tmp_path / f"out{len(kept)}")
        done = CliRunner().invoke(app, list(map(str, words)))
        kept[separator] = done.stderr
    assert (
        "4 of 6 labels contain ' ', such as 'acq corn'; if these are several labels, pass --separator ' '" in kept[" "]
    )
    assert all("pass --separator ','" in kept[separator] for separator in (",", ", "))
    rows = [
        (f"wheat {i}", f"{first} {second}") for i in range(60) for first, second in [("ab"[i % 2], "cd"[i // 2 % 2])]
    ]
    write_csv(table, [("text", "tags"), *rows])
    done = CliRunner().invoke(app, list(map(str, (*words[:-1], tmp_path / "last"))))
    assert "--separator" not in done.stderr


def test_numbers_can_be_categories(tmp_path: Path) -> None:
    """Codes in which neighbours have nothing in common; as text "07" differs from "7"."""
    codes = ["7", "07", "1", "12", "3", "99", "4", "50"]
    rows = [(codes[i % 8], i % 5, "odd" * (i % 2)) for i in range(160)]
    table, out = tmp_path / "rows.csv", tmp_path / "model"
    write_csv(table, [("code", "size", "tags"), *rows])
    words = ("train", table, "--features", "code,size", "--labels", "tags")
    rsoftmax(*words, "--categorical", "code", "--out", out)
    config = json.loads((out / "config.json").read_text())
    assert config["categories"] == {"code": sorted(codes)}
    predicted = [set(json.loads(line)["labels"]) for line in rsoftmax("predict", out, table, "--json").splitlines()]
    assert predicted == [{"odd"} if i % 2 else set() for i in range(160)]
    assert "'colour' is not one of the --features" in rsoftmax(*words, "--categorical", "colour", "--out", out, code=2)
    assert "only with --features" in rsoftmax(
        "train", table, "--text", "code", "--labels", "tags", "--categorical", "code", "--out", out, code=2
    )


def test_texts_come_compressed_and_labels_of_held_out_rows_alone_are_missed(tmp_path: Path) -> None:
    rows = [{"text": text, "labels": labels} for text, labels in zip(TEXTS, LABELS, strict=True)]
    for name, more in (("train", []), ("dev", [{"text": "whoever", "labels": ["new"]}])):
        lines = "".join(json.dumps(row) + "\n" for row in [*rows * 5, *more])
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    columns: list[Any] = ["--text", "text", "--labels", "labels", "--validation", tmp_path / "dev.jsonl.gz"]
    rsoftmax("train", tmp_path / "train.jsonl.gz", *columns, "--out", tmp_path / "model")
    scores = json.loads(rsoftmax("evaluate", tmp_path / "model", tmp_path / "dev.jsonl.gz", "--json"))
    assert {one["label"]: one["recall"] for one in scores["labels"]}["new"] == 0


def test_texts_are_labelled_some_at_a_time_with_the_same_output(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rsoftmax("train", table, "--text", "text", "--labels", "labels", "--out", tmp_path / "words")
    kinds: list[list[str]] = [[], ["--csv"], ["--csv", "--all"], ["--json"]]
    whole = [rsoftmax("predict", tmp_path / "words", table, *kind) for kind in kinds]
    monkeypatch.setattr(predict, "TEXTS_AT_ONCE", 7)
    assert [rsoftmax("predict", tmp_path / "words", table, *kind) for kind in kinds] == whole


def test_a_table_that_changes_while_its_texts_are_labelled_is_told(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, copy, outputs = tmp_path / "words", tmp_path / "rows.csv", LabelModel.outputs
    rsoftmax("train", table, "--text", "text", "--labels", "labels", "--out", words)
    copy.write_bytes(table.read_bytes())

    def outputs_meanwhile(self: LabelModel, *arguments: Any, **options: Any) -> Any:
        os.utime(copy, ns=(0, copy.stat().st_mtime_ns + 10**9))
        return outputs(self, *arguments, **options)

    monkeypatch.setattr(LabelModel, "outputs", outputs_meanwhile)
    monkeypatch.setattr(predict, "TEXTS_AT_ONCE", 7)
    said = rsoftmax("predict", words, copy, "--json", code=2)
    assert "rows.csv has changed since its rows were counted; run the command again" in said
    assert "Traceback" not in said
