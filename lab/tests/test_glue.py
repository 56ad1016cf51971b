"""GLUE: its files, fine-tuning a tiny random encoder, and Table 2 in the report."""

import json
import math
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel, BertTokenizer, TrainerState
from typer.testing import CliRunner, Result

import rsoftmax
from rsoftmax.attention import set_attention
from rsoftmax.cli import app
from rsoftmax_lab import records
from rsoftmax_lab.commands import write_report
from rsoftmax_lab.data import glue as glue_data
from rsoftmax_lab.experiments import glue, load_all, rates
from rsoftmax_lab.experiments.glue import PAPER, Difference, EdgeSchedule, Run, by_task, select, step_time
from rsoftmax_lab.records import differences, key, read_trials, settings
from rsoftmax_lab.report import write

WORDS = [f"word{number}" for number in range(40)]
HEADERS = {
    "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "RTE": "index\tsentence1\tsentence2\tlabel",
    "SST-2": "sentence\tlabel",
    "QNLI": "index\tquestion\tsentence\tlabel",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT without dropout, so that it trains the same way however its batches are shared."""
    folder = tmp_path_factory.mktemp("models")
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = BertConfig(
        vocab_size=45, initializer_range=0.2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes
    )
    BertModel(config).save_pretrained(folder / "tiny-bert")
    BertTokenizer(str(vocabulary)).save_pretrained(folder / "tiny-bert")
    return folder / "tiny-bert"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every task, with rows of which the first word tells the label; some cells hold quotes."""
    folder = tmp_path_factory.mktemp("data") / "tiny-glue"
    chance = random.Random(0)
    for task, header in HEADERS.items():
        (folder / task).mkdir(parents=True)
        for part, count in (("train", 72), ("dev", 30)):
            rows = [line(task, chance, label) for label in chance.choices((0, 1), k=count)]
            (folder / task / f"{part}.tsv").write_text("\n".join([header, *rows, ""]))
    return folder


def line(task: str, chance: random.Random, label: int) -> str:
    first, second = (" ".join(chance.choices(WORDS, k=chance.randint(2, 12))) for _ in range(2))
    mark = "word0" if label else "word1"
    first = f'{mark} "{first} {mark} {mark}'
    name = glue_data.TASKS[task].labels[label]
    match task:
        case "MRPC":
            return f"{name}\t7\t8\t{first}\t{second}"
        case "SST-2":
            return f"{first}\t{name}"
        case "QQP":
            return f"1\t\t\t{first}\t{second}\t{name}"
    return f"1\t{first}\t{second}\t{name}"


def reproduce(*options: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", "glue", "--jobs", "1", *map(str, options)])


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return records.read(folder / "glue.jsonl", pytest.fail)


def plain(text: str) -> str:
    """What an error says, without its box."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("task", HEADERS)
def test_every_official_layout_is_read(task: str, data: Path) -> None:
    found = glue_data.read(str(data), task)
    assert (len(found.train), len(found.dev), found.skipped) == (72, 30, 0)
    assert {len(row.texts) for row in found.train} == {len(glue_data.TASKS[task].columns)}
    for texts, label in found.dev:
        assert texts[0].startswith('word0 "' if label else 'word1 "')


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path, data: Path) -> None:
    (tmp_path / "MRPC").mkdir()
    for part in ("train", "dev"):
        text = (data / "MRPC" / f"{part}.tsv").read_bytes()
        (tmp_path / "MRPC" / f"{part}.tsv").write_bytes(b"\xef\xbb\xbf" + text)
    assert glue_data.read(str(tmp_path), "MRPC") == glue_data.read(str(data), "MRPC")


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        (None, "the file '.*RTE/dev.tsv' does not exist"),
        (b"", "dev.tsv, line 1: no column 'sentence1'; the header has nothing"),
        (
            b"index\tsentence1\tlabel\n",
            "dev.tsv, line 1: no column 'sentence2'; the header has index, sentence1, label",
        ),
        (b"sentence1\tsentence2\tlabel\n", "dev.tsv, line 1: the file has no examples"),
        (
            b"sentence1\tsentence2\tlabel\na\tb\tentailment\na\tentailment\n",
            "dev.tsv, line 3: 2 cells, but the header has 3; pass --skip-bad to skip such lines",
        ),
        (
            b"sentence1\tsentence2\tlabel\na\tb\tmaybe\n",
            "dev.tsv, line 2: label must be entailment or not_entailment, got 'maybe'",
        ),
        (
            b"sentence1\tsentence2\tlabel\na\tb\tentailment\na\xff\tb\tentailment\n",
            "dev.tsv, line 3: 'utf-8' codec can't decode byte 0xff in position 1: invalid start byte; pass --skip-bad",
        ),
        (
            "sentence1\tsentence2\tlabel\na\tb\tentailment\n".encode("utf-16"),
            "dev.tsv, line 1: .*; save the file as UTF-8",
        ),
        (b"sentence1\tsentence2\tlabel\ra\tb\tentailment\r", "dev.tsv, line 1: no column 'label'"),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_line(
    dev: bytes | None, message: str, tmp_path: Path, data: Path
) -> None:
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.tsv").write_bytes((data / "RTE" / "train.tsv").read_bytes())
    if dev is not None:
        (tmp_path / "RTE" / "dev.tsv").write_bytes(dev)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        glue_data.read(str(tmp_path), "RTE")


def test_bad_lines_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "train.tsv").write_text("sentence\tlabel\ngood\t1\nhalf\nbad\t0\nodd\t2\n")
    (tmp_path / "SST-2" / "dev.tsv").write_text("sentence\tlabel\ngood\t1\n\n")
    found = glue_data.read(str(tmp_path), "SST-2", skip_bad=True)
    assert [row.texts for row in found.train] == [("good",), ("bad",)]
    assert found.skipped == 3


def test_without_datasets_a_name_on_the_hub_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"'nyu-mll/glue' is not a folder.* pip install 'rsoftmax-lab\[hub\]'"
    ):
        glue_data.read("nyu-mll/glue", "RTE")


def test_the_grid_is_the_papers() -> None:
    runs = glue.grid()
    assert len(runs) == 5 * 5 * (3 + 5)
    assert {(run.task, run.num_epochs) for run in runs} == {(task, 5 if task == "MRPC" else 3) for task in HEADERS}
    assert {run.r for run in runs if run.mapping == "r_softmax"} == {0.05, 0.1, 0.15, 0.2, 0.5}
    assert {run.r for run in runs if run.mapping != "r_softmax"} == {None}
    assert {run.lr for run in runs} == {1e-5, 2e-5, 5e-5, 1e-4, 5e-4}
    assert glue.grid(["RTE"], epochs=3) == glue.grid(["RTE"])
    assert {run.epochs for run in glue.grid(["MRPC"], epochs=3)} == {3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "CoLA"}, "task must be one of MRPC, RTE, SST-2, QNLI, QQP, got 'CoLA'"),
        ({"mapping": "hardmax"}, "mapping must be one of softmax, .*, got 'hardmax'"),
        ({"schedule": "jumps"}, "schedule must be one of linear, .*, got 'jumps'"),
        ({"mapping": "r_softmax", "r": 1.5}, r"r must be in \[0, 1\] with r_softmax, got 1.5"),
        ({"mapping": "r_softmax"}, r"r must be in \[0, 1\] with r_softmax, got None"),
        ({"r": 0.5}, "r must not be given with softmax, got 0.5"),
        ({"mapping": "r_softmax", "r": 0.5, "edge": 1.0, "schedule": "edge"}, "edge must not be given, got 1.0"),
        ({"mapping": "t_softmax", "edge": math.inf}, "edge must be finite, .*, got inf with t_softmax"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run(**{"task": "RTE", **settings})


@pytest.mark.train
def test_same_seed_same_numbers_and_steps_lower_the_loss(encoder: Path, data: Path) -> None:
    run = Run("MRPC", "r_softmax", r=0.5, lr=2e-3, epochs=8, max_train_samples=32, validation_samples=7)  # one batch
    first, again, still, other = (
        glue.run(str(encoder), str(data), False, one)
        for one in (run, run, replace(run, lr=1e-12), replace(run, seed=1))
    )
    for row in (first, again):
        assert row.pop("train_seconds") >= 0
        assert row.pop("step")["ratio"] > 0
    assert first == again
    assert first["rows"] == {"train": 32, "validation": 7, "dev": 30}
    assert first["dev"].keys() == first["validation"].keys() == {"accuracy", "f1"}
    assert 0.5 <= first["sparsity"] < 0.56  # rates are reached exactly, and rounded up to a whole number of keys
    assert first["train_loss"] < still["train_loss"]
    assert other["train_loss"] != first["train_loss"]


def test_the_edge_grows_from_softmax_to_the_papers_weights(encoder: Path) -> None:
    network = AutoModelForSequenceClassification.from_pretrained(encoder)
    batch = {"input_ids": torch.randint(45, (4, 9), generator=torch.Generator().manual_seed(0))}

    def answers(edge: float | None) -> torch.Tensor:
        set_attention(network, "r_softmax", r=0.5, edge=edge)
        logits: torch.Tensor = network.eval()(**batch).logits
        return logits

    schedule, found = EdgeSchedule(0.5), []
    for step in range(4):
        schedule.on_step_begin(None, TrainerState(global_step=step, max_steps=4), None, model=network)
        found.append(network.eval()(**batch).logits)
    for got, edge in zip(found, (4 / 3, 4.0, 12.0, None), strict=True):
        torch.testing.assert_close(got, answers(edge))
    assert not torch.allclose(found[0], found[3])


def test_one_text_is_enough_and_nothing_need_be_set_aside(encoder: Path, data: Path) -> None:
    run = Run("SST-2", epochs=1, max_train_samples=20, max_eval_samples=5, validation_samples=0, bf16=True)
    row = glue.run(str(encoder), str(data), False, run)
    assert row["rows"] == {"train": 20, "validation": 0, "dev": 5}
    assert row["validation"] is None
    assert row["sparsity"] == 0
    assert row["dev"].keys() == {"accuracy"}


def test_seeds_draw_their_own_rows_to_select_on_and_share_dev(data: Path) -> None:
    examples = glue_data.read(str(data), "RTE")
    zero, same, one = (
        glue.split(examples, Run("RTE", "r_softmax", r, seed=seed, max_eval_samples=9))
        for r, seed in ((0.1, 0), (0.2, 0), (0.1, 1))
    )
    assert zero == same
    assert zero["dev"] == one["dev"]
    assert zero["validation"] != one["validation"]
    assert len(zero["validation"]) == 7  # a tenth
    assert sorted(zero["validation"] + zero["train"]) == sorted(examples.train)


@pytest.mark.train
def test_reproduce_glue_resumes_where_it_stopped(encoder: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [
        "--quick",
        "--epochs",
        "1",
        "--task",
        "rte",
        "--mapping",
        "softmax",
        "--mapping",
        "r_softmax",
        "--lr",
        "1e-2",
        "--lr",
        "2e-2",
    ]
    words += [
        "--max-train-samples",
        "64",
        "--r",
        "0.2",
        "--model",
        str(encoder),
        "--data",
        str(data),
        "--out",
        str(out),
    ]
    shown = reproduce(*words)
    assert shown.exit_code == 0, shown.output
    lines = (out / "glue.jsonl").read_text().splitlines()
    (out / "glue.jsonl").write_text("\n".join([*lines[:2], ""]))
    answer = reproduce(*words)
    assert answer.exit_code == 0, answer.output
    assert "2 of 4 runs are already in" in plain(answer.output)
    assert len(rows_of(out)) == 4
    assert "r-softmax, selected on validation" in answer.output
    assert str(tmp_path) not in (out / "glue.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "CoLA"], "task must be one of MRPC, RTE, SST-2, QNLI, QQP, got 'COLA'"),
        (["--task", "RTE", "--mapping", "r_softmax", "--r", "2"], "r must be in [0, 1] with r_softmax, got 2.0"),
        (["--task", "RTE", "--mapping", "softmax", "--r", "0.1"], "no mapping takes r, got softmax"),
        (["--task", "RTE", "--t", "4"], "no mapping takes t, got softmax, sparsemax, sparsehourglass, r_softmax"),
        (["--task", "RTE", "--mapping", "softmacs"], "mapping must be one of softmax, "),
        (["--task", "RTE", "--epochs", "0"], "epochs must be above 0, got 0.0"),
        (["--task", "RTE", "--lr", "-1"], "lr must be above 0, got -1.0"),
        (["--model", "no/such/model", "--task", "RTE"], "the model 'no/such/model'"),
        (["--data", "no/such/folder", "--task", "RTE"], "'no/such/folder' is not a folder"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(
    options: list[str], message: str, encoder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    answer = reproduce("--model", encoder, "--data", data, "--out", tmp_path / "out", *options)
    assert answer.exit_code == 2
    assert message in plain(answer.output)
    assert not (tmp_path / "out").exists()


def trial(task: str, mapping: str, r: float | None, lr: float, seed: int, validation: float, dev: float) -> str:
    sizes = {"train": 100, "validation": 10, "dev": 50}
    scores = {"validation": {"accuracy": validation}, "dev": {"accuracy": dev, "f1": dev}}
    run = differences(Run(task, mapping, r, lr, seed=seed))
    return json.dumps({"run": run, "seconds": 60.0, "rows": sizes, **scores, "sparsity": r or 0.0, "train_loss": 0.5})


def test_the_report_selects_on_dev_and_on_validation(tmp_path: Path) -> None:
    lines = [
        trial("MRPC", "softmax", None, 1e-5, 0, 0.70, 0.80),
        trial("MRPC", "softmax", None, 1e-4, 0, 0.90, 0.75),
        trial("MRPC", "r_softmax", 0.1, 1e-5, 0, 0.80, 0.82),
        trial("MRPC", "r_softmax", 0.1, 1e-5, 1, 0.80, 0.78),
        trial("MRPC", "r_softmax", 0.2, 1e-4, 0, 0.60, 0.90),
        trial("MRPC", "sparsemax", None, 1e-5, 0, 0.50, 0.60),
    ]
    (tmp_path / "glue.jsonl").write_text("\n".join([*lines, ""]))
    written = write(load_all(), tmp_path, tmp_path / "report", pytest.fail)
    text = (tmp_path / "report" / "report.md").read_text()
    for cells in (
        f"| r-softmax, paper, BERT | **{PAPER['r_softmax']['MRPC']}** |",
        "| softmax, selected on dev, as in the paper | 80.00 |",
        "| r-softmax, selected on dev, as in the paper | **84.00 ± 8.49** |",
        "| softmax, selected on validation | 75.00 |",
        "| r-softmax, selected on validation | **80.00 ± 2.83** |",
        "| paper, BERT | +0.98 |",
        "| selected on dev, as in the paper | +10.00 |",
        "| selected on validation | +7.00 |",
        "| r-softmax | r 0.2, lr 0.0001; r 0.1, lr 1e-05 |",
        "| r = 0.2 | 90.00 |",
        "| MRPC | google-bert/bert-base-uncased | 100 | 10 | 50 | 5 | 2 | 6 | 1.0 | 5.9 |",
    ):
        assert cells in text
    assert tmp_path / "report" / "glue-rates.png" in written.files


def test_the_report_pairs_methods_with_softmax_by_seed(tmp_path: Path) -> None:
    def edged(seed: int, dev: float) -> str:
        row = json.loads(trial("RTE", "t_softmax", None, 1e-4, seed, 0.5, dev))
        return json.dumps({**row, "run": {**row["run"], "t": 4.0, "edge": 1.0}, "sparsity": 0.38})

    lines = [trial("RTE", "softmax", None, 1e-4, seed, 0.5, dev) for seed, dev in enumerate((0.6, 0.62, 0.9))]
    lines += [edged(0, 0.61), edged(1, 0.65), trial("RTE", "r_softmax", 0.1, 1e-4, 0, 0.5, 0.5)]
    (tmp_path / "glue.jsonl").write_text("\n".join([*lines, ""]))
    write(load_all(), tmp_path, tmp_path / "report", pytest.fail)
    text = (tmp_path / "report" / "report.md").read_text()
    half = 12.706 * 1.0  # Student's t with one degree of freedom, times the standard error of 1 and 3
    for cells in (
        "| RTE | softmax | 3 | 70.67 ± 16.77 |  | 0.0 |  |",
        "| RTE | r-softmax, r = 0.1 | 1 | 50.00 | -10.00 | 10.0 |  |",
        f"| RTE | t-softmax, t = 4, edge = 1 | 2 | 63.00 ± 2.83 | +2.00 ± {half:.2f} | 38.0 |  |",
    ):
        assert cells in text
    assert "| t-softmax, selected" not in text  # the paper's table has the paper's mappings


def test_the_mean_difference_over_tasks_adds_independent_errors() -> None:
    mean = Difference.over_tasks([Difference.of([1.0, 3.0]), Difference.of([0.0, 0.0])])
    assert (mean.value, mean.error, mean.freedom) == (1.0, 0.5, 1)  # by Welch and Satterthwaite
    assert Difference.over_tasks([Difference.of([1.0, 3.0])] * 2).freedom == pytest.approx(2)
    assert Difference.over_tasks([mean, Difference.of([1.0])]).half is None


def test_edge_and_t_go_to_the_mappings_that_have_them() -> None:
    mappings = ("softmax", "t_softmax", "k_softmax", "r_softmax")
    runs = glue.grid(("RTE",), mappings, (1e-4,), (0.5,), t=4.0, k=8.0, edge=1.0)
    assert [(run.r, run.t, run.k, run.edge) for run in runs] == [
        (None, None, None, None), (None, 4.0, None, 1.0), (None, None, 8.0, 1.0), (0.5, None, None, 1.0),
    ]  # fmt: skip
    softmax = Run("RTE", "softmax")
    wrong: list[dict[str, Any]] = [{"t": 4.0}, {"k": 8.0}, {"edge": 1.0}]
    for setting in wrong:
        with pytest.raises(ValueError, match="needs"):
            replace(softmax, **setting)


def step_trial(r: float | None, seed: int, dev: float, ratio: float) -> str:
    run = Run("RTE", "softmax" if r is None else "r_softmax", r, seed=seed)
    row = json.loads(trial(run.task, run.mapping, r, run.lr, seed, 0.5, dev))
    step = {"seconds": ratio, "sdpa_seconds": 1.0, "ratio": ratio}
    return json.dumps({**row, "validation": None, "step": step, "version": "0.2.0"})


def test_the_report_shows_accuracy_beside_the_time_of_a_step_at_growing_rates(tmp_path: Path) -> None:
    lines = [step_trial(0.5, 0, 0.5, 0.9), step_trial(None, 0, 0.6, 1.0), step_trial(0.9, 0, 0.5, 0.8)]
    lines += [trial("RTE", "r_softmax", 0.9, 2e-5, 1, 0.5, 0.6)]  # another seed, which is not timed
    untimed = trial("RTE", "r_softmax", 0.3, 2e-5, 0, 0.5, 0.5)
    of_another_learning_rate = step_trial(0.9, 0, 0.1, 0.1).replace('"mapping"', '"lr": 0.001, "mapping"')
    of_another_mapping = step_trial(0.9, 0, 0.1, 0.1).replace('"r_softmax", "r": 0.9', '"sparsemax"')
    lines += [untimed, of_another_learning_rate, of_another_mapping.replace("0.1", "0.3")]
    lines += [step_trial(0.5, 0, 0.5, 0.9).replace("RTE", "MRPC")]  # a task with a single rate
    (tmp_path / "glue.jsonl").write_text("\n".join([*lines, ""]))
    written = write(load_all(), tmp_path, tmp_path / "report", pytest.fail)
    text = written.sections["rates"].text
    assert "| attention | RTE: accuracy | RTE: difference | RTE: time | RTE: zeros, % |" in text
    for cells in (
        "| softmax | 60.00 |  | 1.00 | 0.0 |",
        "| sparsemax | 30.00 | -30.00 | 0.30 | 90.0 |",
        "| r-softmax, r = 0.9 | 55.00 ± 7.07 | -10.00 | 0.80 | 90.0 |",
    ):
        assert cells in text
    assert "r = 0.3" not in text
    assert "MRPC" not in text
    assert "rates.png" in {path.name for path in written.files}


def test_the_report_says_which_rows_of_table_2_were_written_by_an_earlier_version(tmp_path: Path) -> None:
    lines = [trial("RTE", "softmax", None, 1e-5, 0, 0.7, 0.8), step_trial(0.1, 0, 0.5, 1.0)]
    (tmp_path / "glue.jsonl").write_text("\n".join([*lines, ""]))
    write(load_all(), tmp_path, tmp_path / "report", pytest.fail)
    assert "1 of 2 records were written before version 0.2.0" in (tmp_path / "report" / "report.md").read_text()
    (tmp_path / "glue.jsonl").write_text(f"{lines[1]}\n")
    write(load_all(), tmp_path, tmp_path / "report", pytest.fail)
    assert "before version" not in (tmp_path / "report" / "report.md").read_text()


def test_a_single_rate_has_no_summary_of_rates(tmp_path: Path) -> None:
    (tmp_path / "glue.jsonl").write_text(trial("RTE", "softmax", None, 1e-4, 0, 0.5, 0.5) + "\n")
    write_report(tmp_path, tmp_path / "report", hint="--out", summary="rates")
    assert (tmp_path / "report" / "report.md").exists()


def test_the_grid_of_rates_is_a_part_of_table_2_with_one_recipe() -> None:
    runs = rates.grid(seeds=2, epochs=2)
    assert len(runs) == len(set(runs)) == 2 * 2 * 6
    assert [(run.seed, run.task, run.r, run.t, run.k, run.edge) for run in runs[:9] if run.task == "RTE"] == [
        *((0, "RTE", r, None, None, None) for r in (None, 0.2, 0.5, 0.9)),
    ]
    assert [(run.t, run.k, run.edge) for run in runs[8:10]] == [(4.12, None, 1.0), (None, 8.0, 1.0)]
    assert [run.seed for run in runs] == [0] * 12 + [1] * 12
    assert len({key(settings(run) | {"lr": run.lr}) for run in runs}) == 1
    recipe = {"max_train_samples": 2000, "max_eval_samples": 1000, "validation_samples": 0}
    assert set(glue.grid(("RTE",), ("softmax",), (1e-4,), epochs=2, **recipe)) < set(runs)  # type: ignore[arg-type]


@pytest.mark.train
def test_reproduce_rates_shares_rows_with_table_2_and_times_the_first_seed(
    encoder: Path, data: Path, tmp_path: Path
) -> None:
    common = ["--quick", "--jobs", "1", "--max-train-samples", "40", "--seeds", "2", "--validation-samples", "0"]
    common += ["--max-eval-samples", "30", "--epochs", "1"]
    common += ["--model", str(encoder), "--data", str(data), "--out", str(tmp_path)]
    table2 = reproduce(*common, "--task", "RTE", "--mapping", "softmax", "--lr", "1e-4")
    assert table2.exit_code == 0, table2.output
    answer = CliRunner().invoke(
        app, ["reproduce", "rates", *common, "--task", "RTE", "--r", "0.5", "--r", "0.9"], catch_exceptions=False
    )
    assert answer.exit_code == 0, answer.output
    assert "2 of 10 runs are already in" in plain(answer.output)
    assert "Speed and quality" in answer.output
    found = read_trials(tmp_path / "glue.jsonl", Run, pytest.fail)
    methods = [("softmax", None), ("r_softmax", 0.5), ("r_softmax", 0.9), ("t_softmax", None), ("k_softmax", None)]
    assert {(run.mapping, run.r, run.seed) for run, _ in found} == {(*one, seed) for seed in (0, 1) for one in methods}
    for run, row in found:
        assert row["rows"] == {"train": 40, "validation": 0, "dev": 30}
        assert row["version"] == rsoftmax.__version__
        assert ("step" in row) == (run.seed == 0)
        assert min(row.get("step", {"none": 1}).values()) > 0


def test_timing_a_step_leaves_the_network_as_it_is(encoder: Path) -> None:
    network = AutoModelForSequenceClassification.from_pretrained(encoder)
    set_attention(network, "r_softmax", r=0.5)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    batch = {"input_ids": torch.randint(45, (4, 9)), "labels": torch.tensor([0, 1, 1, 0])}
    step_time(network.eval(), [batch] * 20, bf16=True)
    assert not network.training
    assert network.config._attn_implementation == "r_softmax"
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_runs_of_other_settings_do_not_mix(tmp_path: Path) -> None:
    lines = [trial("RTE", "softmax", None, lr, 0, 0.5, 0.5) for lr in (1e-5, 2e-5)]
    other = json.loads(trial("RTE", "softmax", None, 1e-5, 0, 0.9, 0.9))
    later = json.dumps({**other, "run": {**other["run"], "warmup": 0.1}})
    other["run"]["epochs"] = 1
    (tmp_path / "glue.jsonl").write_text("\n".join([*lines, later, json.dumps(other), ""]))
    notices: list[str] = []
    found = by_task(read_trials(tmp_path / "glue.jsonl", Run, notices.append), notices.append)
    (best,) = select(found["RTE"], "softmax", "dev")
    assert (best.run.lr, best.run.num_epochs) == (1e-5, 3)
    assert len(notices) == 2
    assert "1 records are not runs known to this version" in notices[0]
    assert "mixes runs with different settings of RTE" in notices[1]
