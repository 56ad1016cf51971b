"""Five GLUE tasks: from the official files, ``TASK/train.tsv`` and ``TASK/dev.tsv``, or from the hub."""

import codecs
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from rsoftmax_lab.data import load_hub

HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class Task:
    """The storage format of a task.

    Attributes:
        columns: the columns of the one or two texts in the TSV files.
        label: the label column.
        labels: the values of the label, in the order of the class indices, as on the hub.
        hub: the task's name on the hub.
        hub_columns: the columns of the texts on the hub.
        f1: whether GLUE reports F1 as well.
    """

    columns: tuple[str, ...]
    label: str
    labels: tuple[str, str]
    hub: str
    hub_columns: tuple[str, ...]
    f1: bool = False


TASKS = {
    "MRPC": Task(("#1 String", "#2 String"), "Quality", ("0", "1"), "mrpc", ("sentence1", "sentence2"), f1=True),
    "RTE": Task(
        ("sentence1", "sentence2"), "label", ("entailment", "not_entailment"), "rte", ("sentence1", "sentence2")
    ),
    "SST-2": Task(("sentence",), "label", ("0", "1"), "sst2", ("sentence",)),
    "QNLI": Task(("question", "sentence"), "label", ("entailment", "not_entailment"), "qnli", ("question", "sentence")),
    "QQP": Task(("question1", "question2"), "is_duplicate", ("0", "1"), "qqp", ("question1", "question2"), f1=True),
}


class Example(NamedTuple):
    """One or two texts, and the class index."""

    texts: tuple[str, ...]
    label: int


class Examples(NamedTuple):
    """The examples of a task, and the number of skipped lines; the official test sets have no labels."""

    train: list[Example]
    dev: list[Example]
    skipped: int = 0


@lru_cache(maxsize=1)  # consecutive runs use the same task
def read(data: str, task: str, skip_bad: bool = False) -> Examples:
    """The examples of a task.

    Args:
        data: a folder or hub id.
        task: a key of ``TASKS``.
        skip_bad: skip lines with a wrong number of cells or an unknown label, which the official QQP files contain,
            and lines that are not UTF-8.

    Errors name the file and the line.
    """
    if not Path(data).is_dir():
        splits = load_hub(data, TASKS[task].hub)
        return Examples(_hub_split(splits["train"], TASKS[task]), _hub_split(splits["validation"], TASKS[task]))
    train, dev = (_tsv(Path(data) / task / f"{split}.tsv", TASKS[task], skip_bad) for split in ("train", "dev"))
    return Examples(train[0], dev[0], train[1] + dev[1])


def _hub_split(split: "dict[str, list[str]]", task: Task) -> list[Example]:
    texts = zip(*(split[column] for column in task.hub_columns), strict=True)
    return [Example(tuple(pair), int(label)) for pair, label in zip(texts, split["label"], strict=True)]


def _tsv(path: Path, task: Task, skip_bad: bool) -> tuple[list[Example], int]:
    """The examples of a file, and the number of skipped lines."""
    if not path.is_file():
        raise FileNotFoundError(f"the file {str(path)!r} does not exist; expected TASK/train.tsv and TASK/dev.tsv")
    examples, bad, number = [], 0, 1
    with path.open("rb") as file:
        header = _header(path, next(file, b""), task)
        for number, line in enumerate(file, 2):
            try:
                examples.append(_example(header, _cells(line), task))
            except ValueError as error:
                if not skip_bad:
                    raise ValueError(f"{path}, line {number}: {error}; pass --skip-bad to skip such lines") from None
                bad += 1
    if not examples:
        raise ValueError(f"{path}, line {number}: the file has no examples")
    return examples, bad


def _header(path: Path, line: bytes, task: Task) -> list[str]:
    try:
        header = _cells(line.removeprefix(codecs.BOM_UTF8))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line 1: {error}; save the file as UTF-8") from None
    for column in (*task.columns, task.label):
        if column not in header:
            columns = ", ".join(header) or "nothing"
            raise ValueError(f"{path}, line 1: no column {column!r}; the header has {columns}")
    return header


def _cells(line: bytes) -> list[str]:
    return line.decode().rstrip("\r\n").split("\t")  # quotation marks belong to the texts


def _example(header: list[str], cells: list[str], task: Task) -> Example:
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells, but the header has {len(header)}")
    named = dict(zip(header, cells, strict=True))
    if named[task.label] not in task.labels:
        raise ValueError(f"{task.label} must be {' or '.join(task.labels)}, got {named[task.label]!r}")
    return Example(tuple(named[column] for column in task.columns), task.labels.index(named[task.label]))
