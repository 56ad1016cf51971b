"""Classifiers with default settings on real datasets, including strong baselines from scikit-learn.

A run is one model on one dataset. One fit is evaluated with several decision rules: a threshold of one half,
thresholds tuned on validation samples, and the expected F1 under calibrated marginals. Scores are measured on the
predefined test samples, which are not used for any selection.
"""

import math
import statistics
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import joblib
import numpy as np
import scipy.sparse as sp
import torch
import typer
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.multioutput import ClassifierChain
from sklearn.utils import Tags, check_random_state, get_tags

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels import AVERAGES, ExpectedF1Classifier, HeadOptions, SparseLabelClassifier, calibration_curve
from rsoftmax.labels.estimators.meta import FoldModel
from rsoftmax.labels.estimators.splits import stratified_parts
from rsoftmax.labels.models.card import count_of
from rsoftmax_lab.comparison import (
    TUNE,
    Comparison,
    Labels,
    Marginals,
    Matrix,
    Predictor,
    Samples,
    check_method,
    scores,
)
from rsoftmax_lab.data import mulan
from rsoftmax_lab.records import BaseRun, Notice, Record, number, read_trials
from rsoftmax_lab.report import (
    Claim,
    Section,
    Table,
    best_in_bold,
    claims_table,
    escape,
    panels,
    paragraphs,
    save_figure,
    signed,
)
from rsoftmax_lab.sweep import Address, Engine, Jobs, MulanFolder, Only, Out, Quick, Seeds, Sweep

CALIBRATION = {"brier": "Brier score", "ece": "expected calibration error"}
MEASURES = (*AVERAGES, *CALIBRATION)
FOLDS = 5
HELD_OUT = 1 / FOLDS  # from a single fit: the same samples as the first of five folds

HALF, TUNED, EXPECTED_F1, ONE_FIT, OUT_OF_BAG, TUNED_CV = "half", "tuned", "expected_f1", "one_fit", "oob", "tuned_cv"
RULES = {
    HALF: "at .5",
    TUNED: "threshold tuned",
    EXPECTED_F1: "expected F1",
    ONE_FIT: "expected F1 from one fit",
    OUT_OF_BAG: "expected F1 out of bag",
    TUNED_CV: "TunedThresholdClassifierCV",
}


# ---------------------------------------------------------------------------------------------- models and runs


@dataclass(frozen=True)
class Method:
    """A model and its decision rules.

    Attributes:
        title: its name in tables and figures.
        make: creates an estimator, or a list of them, from a seed.
        rules: its decision rules, names of ``RULES``.
    """

    title: str
    make: Callable[[int], Any]
    rules: tuple[str, ...] = (HALF, TUNED, EXPECTED_F1, ONE_FIT)


def _network(seed: int, **settings: Any) -> SparseLabelClassifier:
    return SparseLabelClassifier(random_state=seed, **settings)


def _bce(seed: int, **settings: Any) -> SparseLabelClassifier:
    """The same network with binary cross-entropy and without calibration."""
    return _network(seed, head=HeadOptions(rule="zero", calibration=None), **settings)


def _logistic(seed: int = 0) -> LogisticRegression:
    return LogisticRegression(max_iter=1000)  # the default of 100 does not converge


def _forest(seed: int) -> RandomForestClassifier:
    return RandomForestClassifier(random_state=seed)


METHODS: dict[str, Method] = {
    "net": Method("SparseLabelClassifier", _network, (EXPECTED_F1,)),
    "bce": Method("BCE, one network", partial(_bce, n_estimators=1), (HALF, TUNED)),
    "bce_nets": Method("BCE, five networks", _bce, (HALF, TUNED)),
    "logistic": Method("logistic regression", _logistic),
    "chain": Method("classifier chain", lambda seed: ClassifierChain(_logistic())),
    "extra_trees": Method("extra trees", lambda seed: ExtraTreesClassifier(random_state=seed)),
    "forest": Method("random forest", _forest),
    "logistic_tuned": Method("logistic regression", _logistic, (TUNED_CV,)),
    "forest_oob": Method("random forest", _forest, (OUT_OF_BAG,)),
    "forest_tuned": Method("random forest", _forest, (TUNED_CV,)),
    "net_forest": Method("network + forest", lambda seed: [_network(seed), _forest(seed)], (EXPECTED_F1,)),
}
QUICK = ("net", "bce", "logistic", "forest")


@dataclass(frozen=True)
class Run(BaseRun):
    """One model on one dataset; ``rows`` is the number of training samples, 0 for all."""

    DATA: ClassVar[tuple[str, ...]] = ("dataset",)
    VARIED: ClassVar[tuple[str, ...]] = ("method", "seed")
    SCHEMA: ClassVar[dict[str, Any]] = {"rules": [{"test": dict.fromkeys(MEASURES, number)}]}

    method: str = "net"
    seed: int = 0
    dataset: str = "emotions"
    rows: int = 0  # the name of the field in saved records

    def __post_init__(self) -> None:
        check_method(self.method, METHODS)

    @property
    def point(self) -> str:
        """The data of the comparison."""
        return self.dataset


def main(
    data: MulanFolder,
    only: Only = None,
    method: Annotated[list[str] | None, typer.Option(help="A method; repeatable. Default: all.")] = None,
    seeds: Seeds = 3, quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local",
    address: Address = None,
) -> Path:  # fmt: skip
    """Do the runs on the datasets of a folder."""
    with usage_errors("--data"):
        names = mulan.names(data, only)
    with usage_errors("--method"):
        runs = grid(names, 1, method or QUICK, rows=200) if quick else grid(names, seeds, method)
    return Sweep(quick, out, jobs, engine, address).do("users", runs, partial(run, data.resolve()))


def grid(datasets: Sequence[str], seeds: int = 3, methods: Iterable[str] | None = None, **settings: Any) -> list[Run]:
    """Every model, or the requested ones, on every dataset."""
    return [
        Run(method=method, seed=seed, dataset=dataset, **settings)
        for dataset in datasets
        for seed in range(seeds)
        for method in methods or METHODS
    ]


def run(folder: Path, run: Run) -> Record:
    """Fit and score a model on a dataset of the folder."""
    train, test = load(folder, run.dataset, run.rows)
    estimator, rules = METHODS[run.method].make(run.seed), METHODS[run.method].rules
    results: dict[str, dict[str, float]] = {}
    _FITS.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels too rare for the folds; fits without convergence
        if HALF in rules:
            results |= _thresholds(estimator, run.seed, train, test)
        for rule, cv in ((EXPECTED_F1, FOLDS), (ONE_FIT, HELD_OUT), (OUT_OF_BAG, "oob")):
            if rule in rules:
                results[rule] = _expected_f1(estimator, run.seed, train, test, cv)
        if TUNED_CV in rules:
            results[TUNED_CV] = _tuned_cv(estimator, train, test)
    return {"rules": {rule: {"test": results[rule]} for rule in rules}}


def load(folder: Path, dataset: str, count: int = 0) -> tuple[Samples, Samples]:
    """The first training samples (all if the count is 0) and the test samples, standardized by the former."""
    train, test = mulan.read_cached(folder / dataset)
    first = slice(count or None)
    splits = [Samples(train.X[first], train.Y[first]), Samples(test.X, test.Y)]
    train_samples, test_samples = (
        Samples(_int32(samples.X), samples.Y) for samples in mulan.standardized(splits, train.numeric)
    )
    return train_samples, test_samples


def _int32(X: Matrix) -> Matrix:
    """Sparse features with the index type that scikit-learn's trees need."""
    if not sp.issparse(X):
        return X
    X = sp.csr_array(X)
    return sp.csr_array((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)


def _thresholds(estimator: Any, seed: int, train: Samples, test: Samples) -> dict[str, dict[str, float]]:
    """One fit on four of the five folds of :class:`ExpectedF1Classifier`; thresholds are tuned on the fifth."""
    fold = stratified_parts(train.Y, [1 / FOLDS] * FOLDS, check_random_state(seed))
    fitted, validation = (Samples(train.X[part], train.Y[part]) for part in (fold != 0, fold == 0))
    if isinstance(estimator, SparseLabelClassifier):  # networks stop early on the validation samples
        estimator.fit(fitted.X, fitted.Y, validation=(validation.X, validation.Y))
        on_validation, pi = (estimator.predict_proba(X).astype(np.float64) for X in (validation.X, test.X))
    else:
        model = FoldModel(Once(estimator)).fit(fitted.X, fitted.Y.astype(np.int64))
        on_validation, pi = (np.nan_to_num(expit(model.log_odds(X))) for X in (validation.X, test.X))  # unseen: 0
    tuned = {average: pi >= TUNE[average](on_validation, validation.Y) for average in AVERAGES}
    return {HALF: _scores(dict.fromkeys(AVERAGES, pi > 0.5), pi, test.Y), TUNED: _scores(tuned, pi, test.Y)}


def _expected_f1(estimator: Any, seed: int, train: Samples, test: Samples, cv: Any) -> dict[str, float]:
    """Networks decide themselves; other models, and ensembles, through :class:`ExpectedF1Classifier`."""
    labels: dict[str, Labels] = {}
    for average in AVERAGES:
        if isinstance(estimator, SparseLabelClassifier):
            model = estimator.set_params(average=average)
        else:
            once = [Once(one) for one in estimator] if isinstance(estimator, list) else Once(estimator)
            model = ExpectedF1Classifier(once, average=average, random_state=seed, cv=cv)
        labels[average] = model.fit(train.X, train.Y).predict(test.X).astype(bool)
    return _scores(labels, model.predict_proba(test.X).astype(np.float64), test.Y)  # the same for all averages


def _tuned_cv(estimator: Any, train: Samples, test: Samples) -> dict[str, float]:
    """scikit-learn's own tuning of thresholds for F1, label by label: five fits and one more for each."""
    tuned = TunedThresholdClassifierCV(estimator, scoring="f1")
    model = FoldModel(tuned).fit(train.X, train.Y.astype(np.int64))
    labels = np.zeros(test.Y.shape, dtype=bool)
    labels[:, model.varying_] = np.stack([one.predict(test.X) for one in model.models_], axis=1)
    return _scores(dict.fromkeys(AVERAGES, labels), np.nan_to_num(expit(model.log_odds(test.X))), test.Y)


def _scores(labels: Mapping[Any, Labels], pi: Marginals, Y: Labels) -> dict[str, float]:
    """Each F1 of the labels predicted for it, in per cent; Brier score and calibration error of the marginals."""
    f1 = {average: scores(Y, labels[average])[average] for average in AVERAGES}
    curve = calibration_curve(torch.from_numpy(pi), torch.from_numpy(Y))
    return f1 | {"brier": round(100 * curve.brier, 4), "ece": round(100 * curve.error, 4)}


MAX_FITS = 10  # two estimators of five folds; forests with many labels take gigabytes
_FITS: OrderedDict[str, Any] = OrderedDict()


class Once(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator with a seed whose last fits are cached, because all averages need the same ones.

    Args:
        estimator: any classifier whose fit depends only on its settings and the samples.
        oob_score: whether a forest stores its out-of-bag predictions.
    """

    def __init__(self, estimator: Any, oob_score: bool = False) -> None:
        self.estimator = estimator
        self.oob_score = oob_score

    def fit(self, X: Matrix, y: NDArray[Any]) -> Self:
        """Fit, or reuse the cached fit to the same samples."""
        estimator = clone(self.estimator)
        if self.oob_score:
            estimator.set_params(oob_score=True)
        name = joblib.hash((estimator, X, y))
        if name not in _FITS:
            _FITS[name] = estimator.fit(X, y)
        _FITS.move_to_end(name)
        while len(_FITS) > MAX_FITS:
            _FITS.popitem(last=False)
        self.model_ = _FITS[name]
        self.classes_ = getattr(self.model_, "classes_", None)
        return self

    @property
    def oob_decision_function_(self) -> Any:
        """The out-of-bag probabilities of the fitted model."""
        return self.model_.oob_decision_function_

    def predict_proba(self, X: Matrix) -> Any:
        """The probabilities of the fitted model."""
        return self.model_.predict_proba(X)

    def __sklearn_tags__(self) -> Tags:
        return get_tags(self.estimator)


# ---------------------------------------------------------------------------------------------- goals

PREDICTORS = tuple(Predictor(name, rule) for name, method in METHODS.items() for rule in method.rules)
UNRANKED = (ONE_FIT, OUT_OF_BAG, TUNED_CV)  # variants; TunedThresholdClassifierCV takes hours on some datasets
RANKED = tuple(predictor for predictor in PREDICTORS if predictor.rule not in UNRANKED)
NETWORK, BOTH = Predictor("net", EXPECTED_F1), Predictor("net_forest", EXPECTED_F1)
BCE = Predictor("bce", TUNED)
LEADS = {"micro": 0.5, "macro": 1.0, "samples": 2.0}  # the required median over datasets
WORST = -0.3  # on any dataset


def title(predictor: Predictor) -> str:
    """Its name in tables and figures."""
    model = METHODS[predictor.method]
    return model.title if predictor == NETWORK else f"{model.title}, {RULES[predictor.rule]}"


def goals(comparison: Comparison) -> list[Claim]:
    """The goals, with a number for each dataset."""
    sets = comparison.points()

    def claim(
        text: str,
        predictor: Predictor,
        rivals: Sequence[Predictor],
        measure: str,
        holds: Callable[[list[float], int], bool | None],
    ) -> Claim:
        """``holds`` is given the existing leads, and the number of datasets."""
        leads = [comparison.lead(predictor, rivals, [point], "test", measure) for point in sets]
        values = [lead.value for lead in leads if lead is not None]
        return Claim(text, list(map(signed, leads)), holds(values, len(sets)))

    tuned = [("micro", "within 0.2 of", -0.2), ("macro", "above", 0.0), ("samples", "above", 0.0)]
    against = [(TUNED, average, f"{where} the same with tuned thresholds", least) for average, where, least in tuned]
    against += [(HALF, "micro", "a point above the same at threshold .5", 1.0)]
    against += [(TUNED_CV, "macro", "above the same with TunedThresholdClassifierCV", 0.0)]
    single = {Predictor("forest_oob", OUT_OF_BAG): "forest"}
    single |= {Predictor(model, ONE_FIT): model for model in ("forest", "logistic")}
    others = [predictor for predictor in RANKED if predictor != BOTH]
    found = []
    for average, least in LEADS.items():
        text = (
            f"{title(NETWORK)} is ahead of {title(BCE)} in {average}-F1 by {least} in the median, and never behind by"
        )
        text += f" more than {-WORST}"
        found.append(claim(text, NETWORK, [BCE], average, _median_and_worst(least)))
    for model in ("forest", "logistic"):
        ours = Predictor(model, EXPECTED_F1)
        for rule, average, where, least in against:
            text = f"{title(ours)} is {where} in {average}-F1, on all but one dataset"
            rival = Predictor(f"{model}_tuned" if rule == TUNED_CV else model, rule)
            found.append(claim(text, ours, [rival], average, _on_all_but(1, least)))
    for predictor, model in single.items():
        for average in LEADS:
            text = f"{title(predictor)} is within 0.5 of five fits in {average}-F1, on all but one dataset"
            found.append(claim(text, predictor, [Predictor(model, EXPECTED_F1)], average, _on_all_but(1, -0.5)))
    text = f"{title(BOTH)} is within 1.0 of the best in micro-F1, on all datasets"
    found.append(claim(text, BOTH, others, "micro", _on_all_but(0, -1.0)))
    text = f"{title(BOTH)} is the best in samples-F1, on all but two datasets"
    found.append(claim(text, BOTH, others, "samples", _on_all_but(2, 0.0)))
    for measure, name in CALIBRATION.items():
        text = f"the {name} of {title(NETWORK)}'s marginals is at most that of BCE, on all but one dataset (here: BCE's"
        text += " minus ours, in per cent)"
        found.append(claim(text, BCE, [NETWORK], measure, _on_all_but(1, 0.0)))
    return found


def _on_all_but(exceptions: int, least: float) -> Callable[[list[float], int], bool | None]:
    """Whether the leads are high enough; None if that depends on missing datasets."""

    def holds(leads: list[float], sets: int) -> bool | None:
        high = sum(lead >= least for lead in leads)
        if high >= sets - exceptions:
            return True
        return False if len(leads) - high > exceptions else None

    return holds


def _median_and_worst(least: float) -> Callable[[list[float], int], bool | None]:
    def holds(leads: list[float], sets: int) -> bool | None:
        return statistics.median(leads) >= least and min(leads) >= WORST if len(leads) == sets else None

    return holds


# ---------------------------------------------------------------------------------------------- mean ranks


class Ranks(NamedTuple):
    """Mean ranks over datasets, and which differences are significant (Demšar 2006).

    Attributes:
        means: by name, the best first.
        sets: the number of datasets.
        p_value: of Friedman's test of the hypothesis that all methods are equal.
        critical: Nemenyi's critical difference at the 5 % level: smaller differences are not significant.
    """

    means: dict[str, float]
    sets: int
    p_value: float
    critical: float

    def groups(self) -> list[tuple[str, str]]:
        """The first and last name of each maximal group without significant differences."""
        names, ranks = list(self.means), list(self.means.values())
        last = [max(j for j in range(len(ranks)) if ranks[j] - rank <= self.critical) for rank in ranks]
        longest = [(0, last[0]), *((i, end) for i, (before, end) in enumerate(pairwise(last), 1) if end > before)]
        return [(names[i], names[end]) for i, end in longest if end > i]


def mean_ranks(scores: Mapping[str, Sequence[float]]) -> Ranks:
    """The mean ranks of names by their scores, one per dataset; the highest score has rank 1, ties share ranks.

    Example:
        >>> ranks = mean_ranks({"a": [3.0, 5.0, 4.0], "b": [2.0, 6.0, 3.0], "c": [1.0, 1.0, 1.0]})
        >>> {name: round(rank, 2) for name, rank in ranks.means.items()}
        {'a': 1.33, 'b': 1.67, 'c': 3.0}
        >>> round(ranks.critical, 3), ranks.groups()
        (1.914, [('a', 'c')])
    """
    table = np.array(list(scores.values()))
    names, (methods, sets) = list(scores), table.shape
    means = stats.rankdata(-table, axis=0).mean(1)
    critical = stats.studentized_range.ppf(0.95, methods, math.inf) / math.sqrt(2)
    return Ranks(
        {names[i]: float(means[i]) for i in np.argsort(means, kind="stable")},
        sets,
        float(stats.friedmanchisquare(*table).pvalue) if methods > 2 else math.nan,
        float(critical * math.sqrt(methods * (methods + 1) / (6 * sets))),
    )


def ranks(comparison: Comparison, average: str) -> Ranks | None:
    """Mean ranks over the datasets on which all predictors have a score; None for a single dataset."""
    means = {p: [comparison.mean(p, [point], "test", average) for point in comparison.points()] for p in RANKED}
    complete = [i for i, column in enumerate(zip(*means.values(), strict=True)) if all(column)]
    table = {title(p): [mean.value for i in complete if (mean := line[i])] for p, line in means.items()}
    return mean_ranks(table) if len(complete) > 1 else None


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """Tables, goals, and mean ranks with their figure."""
    trials = read_trials(results / "users.jsonl", Run, notice)
    if not trials:
        return None
    comparison = Comparison.of(trials.alike(notice))
    by_average = {average: found for average in AVERAGES if (found := ranks(comparison, average)) is not None}
    if by_average:
        figure(by_average, out / "users-ranks.png")
    p_values = ", ".join(f"p = {found.p_value:.1g} in {average}-F1" for average, found in by_average.items())
    seeds = ", ".join(
        f"{escape(point)}: {count_of(len(comparison.records[point]), 'seed')}" for point in comparison.points()
    )
    text = paragraphs(
        "## Real datasets, default settings",
        f"""
            Only the seed is set. `SparseLabelClassifier(average=...)`; the same network with binary cross-entropy and
            early stopping on validation samples; scikit-learn's logistic regression, classifier chain, extra trees and
            random forest. "at .5" and "threshold tuned": one fit on four of five folds, thresholds tuned on the fifth:
            one for micro-F1, one for samples-F1, and one per label for macro-F1. "expected F1": on top of the model,
            `ExpectedF1Classifier(average=...)`; "from one fit": the same with `cv=0.2`; "out of bag": with `cv="oob"`.
            "TunedThresholdClassifierCV": scikit-learn's tuning of each label's threshold for F1, with default settings.
            Each F1 is computed for the labels that were predicted to maximize it. {comparison.describe()} {seeds}.
        """,
        "### Goals",
        "Leads on test samples: differences of means over seeds.",
        claims_table(goals(comparison), comparison.points()),
        *_ranks_text(by_average, p_values),
        *(part for average in AVERAGES for part in (f"### Test, {average}-F1", _table(comparison, average))),
        *(
            part
            for measure, name in CALIBRATION.items()
            for part in (f"### {name.capitalize()} of the marginals", _table(comparison, measure))
        ),
    )
    summary = _table(comparison, "micro").rich("Micro-F1 on test, default settings")
    return Section(text, summary, [out / "users-ranks.png"] if by_average else [])


def _ranks_text(by_average: Mapping[Any, Ranks], p_values: str) -> list[object]:
    if not by_average:
        return []
    names = next(iter(by_average.values())).means  # sorted by micro-F1
    lines = [[name, *(f"{found.means[name]:.1f}" for found in by_average.values())] for name in names]
    return [
        "### Mean ranks",
        f"""
            Over the datasets on which all methods have a score. Bars join groups without significant differences
            (Nemenyi, 5 % level); Friedman's test of equality: {p_values}.
        """,
        "![Mean ranks and critical differences](users-ranks.png)",
        Table(["mean rank", *(f"{average}-F1" for average in by_average)], lines),
    ]


def _table(comparison: Comparison, measure: str) -> Table:
    """A line for each predictor, a column for each dataset; rules with the same marginals share a line."""
    named = {title(p): p for p in PREDICTORS if measure in AVERAGES or p.rule not in (TUNED, TUNED_CV)}
    means = {
        name: [comparison.mean(predictor, [point], "test", measure) for point in comparison.points()]
        for name, predictor in named.items()
    }
    heading = f"{measure}-F1" if measure in AVERAGES else f"{CALIBRATION[measure]}, per cent"
    return Table([heading, *comparison.points()], best_in_bold(means, lowest=measure not in AVERAGES))


def figure(by_average: Mapping[Any, Ranks], path: Path) -> None:
    """Critical difference diagrams: mean ranks on a line, with bars over groups without significant differences."""
    figure, rows = panels(len(by_average), 1, width=10.5, height=4.2 * len(by_average))
    for (axis,), (average, found) in zip(rows, by_average.items(), strict=True):
        _panel(axis, found)
        axis.set_title(f"{average}-F1: mean rank over {found.sets} datasets (1 is best)", fontsize=11, pad=14)
    save_figure(figure, path)


def _panel(axis: Axes, found: Ranks, step: float = 0.05) -> None:
    """Draw ranks from left to right, with the names of the better half on the left and of the others on the right.

    ``step`` is the distance between two names, as a fraction of the panel's height.
    """
    ours = {title(predictor) for predictor in PREDICTORS if predictor.rule == EXPECTED_F1}
    count = len(found.means)
    half = -(-count // 2)
    axis.set_axis_off()
    axis.set(xlim=(1 - 0.45 * count, count + 0.45 * count), ylim=(-step * (half + 7), 0.12))
    axis.plot([1, count], [0, 0], color="black", linewidth=1)
    for tick in range(1, count + 1):
        axis.plot([tick, tick], [0, 0.02], color="black", linewidth=1)
        axis.text(tick, 0.035, str(tick), ha="center", fontsize=8)
    low = -step * (len(found.groups()) + 1.5)
    for i, (name, rank) in enumerate(found.means.items()):
        left = i < half
        level = low - step * (i if left else count - 1 - i)
        side, colour = 0.98 if left else 1.02 * count, "#c1121f" if name in ours else "#444444"
        axis.plot([rank, rank, side], [0, level, level], color=colour, linewidth=1)
        text = f"{name}  {rank:.1f} " if left else f" {rank:.1f}  {name}"
        axis.text(side, level, text, ha="right" if left else "left", va="center", fontsize=9, color=colour)
    for i, (first, last) in enumerate(found.groups()):
        level = -step * (i + 0.8)
        ends = [found.means[first] - 0.1, found.means[last] + 0.1]
        axis.plot(ends, [level, level], color="black", linewidth=3.5, solid_capstyle="round", zorder=3)
    axis.plot([1, 1 + found.critical], [0.1, 0.1], color="black", linewidth=1.5, marker="|")
    axis.text(1 + found.critical, 0.1, f"  critical difference {found.critical:.1f}", fontsize=9, va="center")
