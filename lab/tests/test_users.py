"""The users' comparison: every method as a user would call it, tuned thresholds, goals, and their image."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mulan_sets import save
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

from rsoftmax.cli import app
from rsoftmax.labels import AVERAGES, ExpectedF1Classifier, HeadOptions, SparseLabelClassifier
from rsoftmax_lab import records
from rsoftmax_lab.comparison import TUNE, Comparison, scores
from rsoftmax_lab.experiments import load_all, users
from rsoftmax_lab.experiments.users import (
    MEASURES,
    METHODS,
    PREDICTORS,
    Method,
    Run,
    goals,
    grid,
    load,
    run,
    title,
)
from rsoftmax_lab.records import differences, read_trials
from rsoftmax_lab.report import write

HEAD = "@relation plain\n" + "".join(f"@attribute x{i} numeric\n" for i in range(4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of 60 rows and three labels, of which the first has few positive rows."""
    random = np.random.default_rng(0)
    features = random.normal(size=(90, 4)).round(3)
    labels = (features[:, :3] + 0.3 * random.normal(size=(90, 3)) > [1.2, 0.3, 0.0]).astype(int)
    lines = [",".join(map(str, [*x, *y])) for x, y in zip(features.tolist(), labels.tolist(), strict=True)]
    head = HEAD + "".join(f"@attribute y{k} {{0,1}}\n" for k in range(3)) + "@data\n"
    save(tmp_path, "plain", ["y0", "y1", "y2"], head + "\n".join(lines[:60]), head + "\n".join(lines[60:]))
    return tmp_path


@pytest.mark.train
@pytest.mark.parametrize("method", ["net", "logistic", "forest", "extra_trees", "forest_oob", "logistic_tuned"])
def test_every_method_fills_its_row_with_what_a_user_gets(method: str, folder: Path) -> None:
    rules = run(folder, Run(method=method, dataset="plain"))["rules"]
    assert tuple(rules) == METHODS[method].rules
    for rule in rules.values():
        assert rule["test"].keys() == set(MEASURES)
        assert all(0 <= value <= 100 for value in rule["test"].values())
    train, test = load(folder, "plain")
    for average in AVERAGES if "expected_f1" in rules else ():
        model = METHODS[method].make(0)
        if isinstance(model, SparseLabelClassifier):
            model.set_params(average=average)
        else:
            model = ExpectedF1Classifier(model, average=average, random_state=0, cv=METHODS[method].cv)
        found = model.fit(train.X, train.Y).predict(test.X)
        assert rules["expected_f1"]["test"][average] == scores(test.Y, found)[average]


def test_every_rule_is_right_behind_a_model_that_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The features are the labels, so a tree is right on any rows, and so is every rule with its marginals."""
    rows = [",".join([f"{n & 1},{n >> 1 & 1},{n >> 2 & 1}"] * 2) for n in range(40)]
    names = [f"{kind}{i}" for kind in "xy" for i in range(3)]
    head = "\n".join(["@relation plain", *(f"@attribute {name} {{0,1}}" for name in names), "@data\n"])
    save(tmp_path, "plain", names[3:], head + "\n".join(rows), head + "\n".join(rows[:8]))
    tree = Method("tree", lambda seed: DecisionTreeClassifier(random_state=seed))
    monkeypatch.setitem(METHODS, "tree", tree)
    for rule, found in run(tmp_path, Run(method="tree", dataset="plain"))["rules"].items():
        assert {average: found["test"][average] for average in AVERAGES} == dict.fromkeys(AVERAGES, 100), rule


@pytest.mark.train
def test_a_forest_is_fitted_once_to_the_same_rows(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    fits: list[int] = []
    fit = RandomForestClassifier.fit

    def counted(self: Any, x: Any, y: Any, **rest: Any) -> Any:
        fits.append(len(x))
        return fit(self, x, y, **rest)

    monkeypatch.setattr(RandomForestClassifier, "fit", counted)
    monkeypatch.setattr(users, "_FITS", type(users._FITS)())
    run(folder, Run(method="forest", dataset="plain"))
    assert len(fits) == 5  # a cut at .5, tuned ones and three averages from the five fold models


def test_tuned_thresholds_are_the_best_for_their_f1() -> None:
    random = np.random.default_rng(0)
    pi = random.random((50, 4)).round(2)
    truth = random.random((50, 4)) < pi**2
    for average, tune in TUNE.items():
        best = f1_score(truth, pi >= tune(pi, truth), average=average, zero_division=1.0)
        others = [f1_score(truth, pi >= cut, average=average, zero_division=1.0) for cut in np.linspace(0.01, 0.99, 99)]
        assert best >= max(others) - 1e-12


def made_up(one: Run, f1: dict[str, float]) -> dict[str, Any]:
    """A row in which every rule has the score of its method, and a little for itself."""
    bonus = {"half": 0.0, "tuned": 1.0, "expected_f1": 2.0, "tuned_cv": 0.5}
    rules = {
        rule: {"test": dict.fromkeys(AVERAGES, f1[one.method] + bonus[rule]) | {"brier": 10 - bonus[rule], "ece": 1.0}}
        for rule in METHODS[one.method].rules
    }
    return {"run": differences(one), "seconds": 1.0, "rules": rules}


MODELS = {name: name.removesuffix("_tuned").removesuffix("_oob") for name in METHODS}
SCORES = {name: 60.0 + list(dict.fromkeys(MODELS.values())).index(model) for name, model in MODELS.items()}


def filled(path: Path, sets: list[str], f1: dict[str, float] = SCORES) -> Path:
    path.mkdir(exist_ok=True)
    for one in grid(sets, seeds=2):
        records.append(path / "users.jsonl", made_up(one, f1))
    return path


def comparison_of(path: Path) -> Comparison:
    return Comparison.of(read_trials(path / "users.jsonl", Run, pytest.fail).alike(pytest.fail))


def test_goals_are_weighed_by_the_numbers(tmp_path: Path) -> None:
    sets = [f"set{i}" for i in range(6)]
    found = goals(comparison_of(filled(tmp_path / "all", sets)))
    assert [claim.holds for claim in found] == [True] * 30
    assert found[0].numbers == ["+1.00 ± 0.00"] * 6


def test_a_goal_that_hangs_on_missing_sets_is_open(tmp_path: Path) -> None:
    path = filled(tmp_path, ["a", "b"])
    for dataset in ("c", "d"):
        records.append(path / "users.jsonl", made_up(Run(method="net", dataset=dataset), SCORES))
    found = goals(comparison_of(path))
    assert found[0].holds is True
    assert found[-1].holds is None
    assert found[-1].numbers[-2:] == ["", ""]


@pytest.mark.train
@pytest.mark.parametrize("method", ["net", "forest", "forest_oob"])
def test_all_decisions_rest_on_the_same_held_out_scores(method: str, folder: Path) -> None:
    train, test = load(folder, "plain")
    model = METHODS[method].make(0)
    if isinstance(model, SparseLabelClassifier):
        (held_out, _), _ = users._network(model.set_params(head=HeadOptions(calibration=None)), train, test)
    else:
        (held_out, _), _ = users._any(users.Once(model), METHODS[method].cv, 0, train, test)
        model = ExpectedF1Classifier(model, random_state=0, cv=METHODS[method].cv, calibration=None)
        model.fit(train.X, train.Y)
    brier = np.mean((held_out - train.Y) ** 2)
    assert model.evaluation_.brier == pytest.approx(brier, abs=0.003)  # marginals of 0 and 1 are clipped


def test_the_section_has_goals_ranks_tables_and_an_image(tmp_path: Path) -> None:
    filled(tmp_path, ["toys", "odd|name"])
    written = write(load_all(), tmp_path, tmp_path / "out", pytest.fail)
    assert [path.name for path in written.files] == ["users.png", "report.md", "report.html"]
    text = (tmp_path / "out" / "report.md").read_text()
    for one in PREDICTORS:
        assert f"| {title(one)} |" in text
    assert "| random forest, one fit, derived |" in text
    assert "Brier score, per cent" in text
    assert "odd\\|name" in text


@pytest.mark.train
def test_reproduce_users_runs_what_is_asked_for(folder: Path, tmp_path: Path) -> None:
    words = ["reproduce", "users", "--data", str(folder), "--jobs", "1", "--out", str(tmp_path / "new")]
    shown = CliRunner().invoke(app, [*words, "--seeds", "1", "--method", "logistic", "--method", "net"])
    assert shown.exit_code == 0, shown.output
    assert "2 of 2 runs finished" in shown.output
    assert "Micro-F1 on test" in shown.output
    shown = CliRunner().invoke(app, [*words, "--method", "nobody"])
    assert shown.exit_code == 2
    assert "unknown method 'nobody'" in shown.output
