"""The grid of Table 1, and what its rows say.

Each run comes in two ways. ``selection_share=0`` is the paper's: all training pictures, and the epoch and the learning
rate are those that are best on the pictures of val, which are the ones reported. Otherwise that share of the training
pictures, drawn by the seed, is held out to choose them, and val is asked only afterwards.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rsoftmax_lab.contest.play import METHODS, Training
from rsoftmax_lab.contest.results import Contest
from rsoftmax_lab.experiments.images.pictures import Pictures, Splits
from rsoftmax_lab.running import journal
from rsoftmax_lab.running.sweep import differences, finished, key

if TYPE_CHECKING:  # a report needs no transformers
    from rsoftmax.huggingface.backbone import Backbone

LEARNING_RATES = (1e-3, 1e-4, 1e-5)
SHARES = (0.2, 0.0)  # held out, and the paper's way
DATASETS = ("voc", "coco")


@dataclass(frozen=True)
class Run(Training):
    """One method on one set.

    ``model`` and ``data`` name the network and what it was shown, so that runs on others do not mix; ``pictures`` is
    how many of each split are taken, all if 0.
    """

    PLACE = ("dataset",)

    epochs: int = 100
    hidden: int = 0
    dataset: str = "voc"
    selection_share: float = SHARES[0]
    finetune: bool = False
    augment: bool = False
    pictures: int = 0
    model: str = ""
    data: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"a learning rate must be above 0, got {self.lr}")

    @property
    def point(self) -> str:
        """On what the contest is held."""
        return self.dataset


def grid(
    methods: Sequence[str] = tuple(METHODS),
    seeds: int = 3,
    rates: Sequence[float] = LEARNING_RATES,
    shares: Sequence[float] = SHARES,
    **rest: Any,
) -> list[Run]:
    """Table 1: every method, in both ways."""
    return [
        Run(method=method, seed=seed, lr=lr, selection_share=share, **rest)
        for seed in range(seeds)
        for share in shares
        for lr in rates
        for method in methods
    ]


def cut(n: int, run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the pictures to learn from, and of those to select on."""
    order = np.random.default_rng(run.seed).permutation(n)
    aside = round(run.selection_share * n)
    return order[aside:], order[:aside]


def check(splits: Splits, runs: Iterable[Run]) -> None:
    """Refuse what no run could be made of."""
    if len(splits.classes) < 2:
        raise ValueError(f"a set needs two classes or more, got {', '.join(splits.classes)}")
    if not len(splits.val):
        raise ValueError("no picture of val is left to be judged on")
    for run in {run.selection_share: run for run in runs}.values():
        learn, select = cut(len(splits.train), run)
        if not len(learn) or (run.selection_share and not len(select)):
            held = f"with a share of {run.selection_share} held out to choose on"
            raise ValueError(f"{len(splits.train)} training pictures are too few {held}; take more, or --share 0")


def some(splits: Splits, n: int) -> Splits:
    """n pictures of each split, always the same ones; all if n is 0."""
    if not n:
        return splits

    def taken(pictures: Pictures) -> Pictures:
        return pictures.take(np.sort(np.random.default_rng(0).permutation(len(pictures))[:n]))

    return Splits(splits.classes, taken(splits.train), taken(splits.val))


def fingerprint(backbone: "Backbone", splits: Splits) -> str:
    """Changes with the network, the pictures and their labels."""
    digest = hashlib.sha256(backbone.fingerprint().encode())
    for part in (splits.train, splits.val):
        digest.update(part.fingerprint().encode() + part.labels.tobytes() + part.ignored.tobytes())
    return digest.hexdigest()[:12]


class Table1(NamedTuple):
    """What the rows say, the best learning rate taken for each rule.

    Attributes:
        settings: what all runs of a set have in common beside the defaults, for each set.
        shares: of the training pictures, held out to choose on, for each set.
        paper: chosen on val, the pictures that are reported; its "validation" is the paper's number.
        held_out: chosen on training pictures; its "test" is on val, on which nothing was chosen.
    """

    settings: dict[str, dict[str, Any]]
    shares: dict[str, float]
    paper: Contest
    held_out: Contest


def read(folder: Path, notice: Callable[[str], None], *, finetune: bool = False) -> Table1 | None:
    """The rows of a folder of results; of each set those settings that have most."""
    table = Table1({}, {}, Contest({}, {}), Contest({}, {}))
    for name in DATASETS:
        _add(table, name, folder / f"{name}.jsonl", finetune, notice)
    return table if table.settings else None


def chosen(path: Path, runs: Iterable[Run]) -> tuple[Run, int]:
    """Of one method's runs with the first seed, held out if there are any: the best one, and its best epoch."""
    first = [run for run in runs if run.seed == 0]
    named = {key(differences(run)): run for run in [run for run in first if run.selection_share] or first}
    done = finished(journal.read(path, print))
    rows = {name: done[name] for name in named if name in done}  # of equals the first of the grid
    rule = "labels" if "labels" in METHODS[first[0].method].rules else "tuned"
    best = max(rows, key=lambda name: float(rows[name]["rules"][rule]["validation"]["micro"]))
    return named[best], int(rows[best]["rules"][rule]["epoch"])


def _add(table: Table1, name: str, path: Path, finetune: bool, notice: Callable[[str], None]) -> None:
    """Add what the rows of a set say."""
    groups: dict[str, list[dict[str, Any]]] = {}
    free = ("method", "seed", "lr", "dataset", "selection_share")
    foreign = 0
    for row in finished(journal.read(path, notice)).values():
        try:
            run = Run(**row["run"])
        except (TypeError, ValueError):  # fields, or values of them, of a later version
            foreign += 1
            continue
        if run.finetune == finetune:
            settings = {field: value for field, value in row["run"].items() if field not in free}
            groups.setdefault(repr(settings), []).append(row | {"settings": settings, "of": run})
    if foreign:
        notice(f"{path}: {foreign} rows are no runs that this version knows; they are left out")
    if not groups:
        return
    rows = max(groups.values(), key=len)
    if len(groups) > 1:
        notice(f"{path} mixes runs of different settings; shown are those with {rows[0]['settings']}")
    rows.sort(key=lambda row: -row["of"].lr)  # of equals the highest rate, in whatever order they were done
    shares = Counter(row["of"].selection_share for row in rows if row["of"].selection_share).most_common()
    if len(shares) > 1:
        notice(f"{path} mixes runs that hold out different shares; shown are those with {shares[0][0]}")
    table.settings[name] = rows[0]["settings"]
    table.shares[name] = shares[0][0] if shares else 0.0
    for contest, share in ((table.paper, 0.0), (table.held_out, table.shares[name] or None)):
        contest.rows.update(_contest(row for row in rows if row["of"].selection_share == share).rows)


def _contest(rows: Iterable[dict[str, Any]]) -> Contest:
    contest = Contest({}, {})
    for row in rows:
        run = row["of"]
        methods = contest.rows.setdefault(run.point, {}).setdefault(run.seed, {})
        methods[run.method] = better(methods.get(run.method), row)
    return contest


def better(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """Two rows of a method at different learning rates as one: for each rule, that which is better on validation."""
    rules = {name: rule | {"lr": other["of"].lr} for name, rule in other["rules"].items()}
    for name, rule in (one["rules"] if one else {}).items():
        if rule["validation"]["micro"] >= rules[name]["validation"]["micro"]:
            rules[name] = rule
    return other | {"rules": rules}
