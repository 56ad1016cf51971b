"""Classifiers on real datasets with three ways to decide: at .5, thresholds tuned on labels, thresholds derived.

A run is one model on one dataset. All three decide from the same fitted models, which use all training samples: five
fold models, whose probabilities or log-odds are averaged on test samples, or one forest with out-of-bag scores. Tuned
thresholds are those with the best F1 on held-out scores of these models; derived ones are what this library computes
from their calibrated probabilities. Scores are measured on the predefined test samples, which are not used for any
selection.
"""

import statistics
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import joblib
import numpy as np
import scipy.sparse as sp
import torch
import typer
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.utils import Tags, check_random_state, get_tags

from rsoftmax.cli.arguments import usage_errors
from rsoftmax.labels import AVERAGES, ExpectedF1Classifier, SparseLabelClassifier, calibration_curve
from rsoftmax.labels.estimators.meta import OOB, FoldModel
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
    legend,
    panels,
    paragraphs,
    save_figure,
    signed,
    tidy,
)
from rsoftmax_lab.sweep import Address, Engine, Jobs, MulanFolder, Only, Out, Quick, Seeds, Sweep

CALIBRATION = {"brier": "Brier score", "ece": "calibration error"}
MEASURES = (*AVERAGES, *CALIBRATION)
FOLDS = 5

HALF, TUNED, DERIVED, TUNED_CV = "half", "tuned", "expected_f1", "tuned_cv"
RULES = {
    HALF: "at .5",
    TUNED: "tuned on labels",
    DERIVED: "derived",
    TUNED_CV: "TunedThresholdClassifierCV",
}


# ---------------------------------------------------------------------------------------------- models and runs


@dataclass(frozen=True)
class Method:
    """A model and its decision rules.

    Attributes:
        title: its name in tables and figures.
        make: creates an estimator from a seed.
        rules: its decision rules, names of ``RULES``.
        cv: the number of folds, or "oob".
    """

    title: str
    make: Callable[[int], Any]
    rules: tuple[str, ...] = (HALF, TUNED, DERIVED)
    cv: Any = FOLDS


def _logistic(seed: int) -> LogisticRegression:
    return LogisticRegression(max_iter=1000)  # the default of 100 does not converge


def _forest(seed: int) -> RandomForestClassifier:
    return RandomForestClassifier(random_state=seed)


METHODS: dict[str, Method] = {
    "net": Method("SparseLabelClassifier", lambda seed: SparseLabelClassifier(verbose=0, random_state=seed)),
    "logistic": Method("logistic regression", _logistic),
    "forest": Method("random forest", _forest),
    "extra_trees": Method("extra trees", lambda seed: ExtraTreesClassifier(random_state=seed)),
    "forest_oob": Method("random forest, one fit", _forest, cv=OOB),
    "logistic_tuned": Method("logistic regression", _logistic, (TUNED_CV,)),
    "forest_tuned": Method("random forest", _forest, (TUNED_CV,)),
}
MODELS = tuple(name for name, method in METHODS.items() if DERIVED in method.rules)
QUICK = ("net", "logistic", "forest")


@dataclass(frozen=True)
class Run(BaseRun):
    """One model on one dataset."""

    DATA: ClassVar[tuple[str, ...]] = ("dataset",)
    VARIED: ClassVar[tuple[str, ...]] = ("method", "seed")
    SCHEMA: ClassVar[dict[str, Any]] = {"rules": [{"test": dict.fromkeys(MEASURES, number)}]}

    method: str = "net"
    seed: int = 0
    dataset: str = "emotions"

    def __post_init__(self) -> None:
        check_method(self.method, METHODS)

    @property
    def point(self) -> str:
        """The data of the comparison."""
        return self.dataset


def main(
    data: MulanFolder,
    only: Only = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method; repeatable. Default: all, three of them with --quick.")
    ] = None,
    seeds: Seeds = 3, quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local",
    address: Address = None,
) -> Path:  # fmt: skip
    """Do the runs on the datasets of a folder."""
    with usage_errors("--data"):
        names = mulan.names(data, only, quick=quick)
    with usage_errors("--method"):
        runs = grid(names, 1, method or QUICK) if quick else grid(names, seeds, method)
    return Sweep(quick, out, jobs, engine, address).do("users", runs, partial(run, data.resolve()))


def grid(datasets: Sequence[str], seeds: int = 3, methods: Iterable[str] | None = None) -> list[Run]:
    """Every model, or the requested ones, on every dataset."""
    return [
        Run(method=method, seed=seed, dataset=dataset)
        for dataset in datasets
        for seed in range(seeds)
        for method in methods or METHODS
    ]


def run(folder: Path, run: Run) -> Record:
    """Fit and score a model on a dataset of the folder."""
    train, test = load(folder, run.dataset)
    method = METHODS[run.method]
    estimator = method.make(run.seed)
    _FITS.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels too rare for the folds; fits without convergence
        if method.rules == (TUNED_CV,):
            return {"rules": {TUNED_CV: {"test": _tuned_cv(estimator, train, test)}}}
        held_out_and_test, derived = (
            _network(estimator, train, test)
            if isinstance(estimator, SparseLabelClassifier)
            else _any(Once(estimator), method.cv, run.seed, train, test)
        )
    held_out, pi = held_out_and_test
    tuned = {average: pi >= TUNE[average](held_out, train.Y) for average in AVERAGES}
    results = {
        HALF: _scores(dict.fromkeys(AVERAGES, pi > 0.5), pi, test.Y),
        TUNED: _scores(tuned, pi, test.Y),
        DERIVED: derived,
    }
    return {"rules": {rule: {"test": results[rule]} for rule in method.rules}}


def load(folder: Path, dataset: str) -> tuple[Samples, Samples]:
    """The training and test samples, standardized by the former."""
    train, test = mulan.read_cached(folder / dataset)
    splits = [Samples(train.X, train.Y), Samples(test.X, test.Y)]
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


Fitted = tuple[tuple[Marginals, Marginals], dict[str, float]]  # held-out and test probabilities; scores if derived


def _any(estimator: Any, cv: Any, seed: int, train: Samples, test: Samples) -> Fitted:
    """Any classifier: the folds are those of :class:`ExpectedF1Classifier`, and so are their models."""
    fold = stratified_parts(train.Y, [1 / FOLDS] * FOLDS, check_random_state(seed))
    parts = [fold != i for i in range(FOLDS)] if cv == FOLDS else [np.full(len(fold), True)]
    if cv == OOB:
        estimator.oob_score = True
    held_out, pi = np.empty(train.Y.shape), []
    for part in parts:
        model = FoldModel(estimator).fit(train.X[part], train.Y[part].astype(np.int64))
        rest = part if cv == OOB else ~part
        u = model.oob_log_odds(train.Y.astype(np.int64)) if cv == OOB else model.log_odds(train.X[rest])
        held_out[rest] = _probabilities(u)
        pi.append(_probabilities(model.log_odds(test.X)))
    labels: dict[str, Labels] = {}
    for average in AVERAGES:
        derived = ExpectedF1Classifier(estimator, average=average, random_state=seed, cv=cv).fit(train.X, train.Y)
        labels[average] = derived.predict(test.X).astype(bool)
    return (held_out, np.mean(pi, axis=0)), _scores(labels, derived.predict_proba(test.X), test.Y)


def _network(model: SparseLabelClassifier, train: Samples, test: Samples) -> Fitted:
    """The networks of a :class:`SparseLabelClassifier`, which are the same for every average."""
    labels: dict[str, Labels] = {}
    for average in AVERAGES:
        labels[average] = model.set_params(average=average).fit(train.X, train.Y).predict(test.X).astype(bool)
    fold, seen, unseen = model._split, model._held_out(train.X, train.Y), model._held_out(test.X, test.Y)
    held_out, pi = np.empty(train.Y.shape), []
    for i, network in enumerate(model.estimators_):
        part = (fold == i).nonzero()[:, 0]  # type: ignore[union-attr]
        margins = [
            torch.cat([batch.margins for batch in model._scores(samples, [network])])
            for samples in (seen.take(part), unseen)
        ]
        held_out[part], on_test = (u.detach().double().sigmoid().numpy() for u in margins)
        pi.append(on_test)
    return (held_out, np.mean(pi, axis=0)), _scores(labels, model.predict_proba(test.X).astype(np.float64), test.Y)


def _probabilities(log_odds: Marginals) -> Marginals:
    pi: Marginals = np.nan_to_num(expit(log_odds))  # labels that did not occur: 0
    return pi


def _tuned_cv(estimator: Any, train: Samples, test: Samples) -> dict[str, float]:
    """scikit-learn's own tuning of thresholds for F1, label by label: five fits and one more for each."""
    tuned = TunedThresholdClassifierCV(estimator, scoring="f1")
    model = FoldModel(tuned).fit(train.X, train.Y.astype(np.int64))
    labels = np.zeros(test.Y.shape, dtype=bool)
    labels[:, model.varying_] = np.stack([one.predict(test.X) for one in model.models_], axis=1)
    return _scores(dict.fromkeys(AVERAGES, labels), _probabilities(model.log_odds(test.X)), test.Y)


def _scores(labels: Mapping[Any, Labels], pi: Marginals, Y: Labels) -> dict[str, float]:
    """Each F1 of the labels predicted for it, in per cent; Brier score and calibration error of the marginals."""
    f1 = {average: scores(Y, labels[average])[average] for average in AVERAGES}
    curve = calibration_curve(torch.from_numpy(pi), torch.from_numpy(Y))
    return f1 | {"brier": round(100 * curve.brier, 4), "ece": round(100 * curve.error_of_labels, 4)}


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


def title(predictor: Predictor) -> str:
    """Its name in tables and figures."""
    return f"{METHODS[predictor.method].title}, {RULES[predictor.rule]}"


def goals(comparison: Comparison) -> list[Claim]:
    """The goals, with a number for each dataset."""
    sets = comparison.points()

    def claim(predictor: Predictor, rival: Predictor, average: str, text: str, least: float) -> Claim:
        leads = [comparison.lead(predictor, [rival], [point], "test", average) for point in sets]
        high = [lead.value >= least for lead in leads if lead is not None]
        holds = sum(high) >= len(sets) - 1 or (None if sum(not one for one in high) <= 1 else False)
        return Claim(
            f"{title(predictor)}: {text} thresholds {RULES[rival.rule]} in {average}-F1, on all but one dataset",
            list(map(signed, leads)),
            holds,
        )

    against = [
        (TUNED, "micro", "within 0.5 of", -0.5),
        (TUNED, "macro", "above", 0.0),
        (TUNED, "samples", "above", 0.0),
    ]
    against += [(HALF, average, "a point above", 1.0) for average in AVERAGES]
    return [
        claim(Predictor(model, DERIVED), Predictor(model, rule), average, text, least)
        for model in MODELS
        for rule, average, text, least in against
    ]


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """Tables, goals and a figure."""
    trials = read_trials(results / "users.jsonl", Run, notice)
    if not trials:
        return None
    comparison = Comparison.of(trials.alike(notice))
    figure(comparison, out / "users.png")
    seeds = ", ".join(
        f"{escape(point)}: {count_of(len(comparison.records[point]), 'seed')}" for point in comparison.points()
    )
    text = paragraphs(
        "## Real datasets, default settings",
        f"""
            Only the seed is set. All three ways to decide use the same fitted models and all training samples: five
            fold models, or one forest with its out-of-bag scores ("one fit"). "at .5": the mean of their probabilities.
            "tuned on labels": thresholds with the best F1 on held-out scores of these models, one for micro-F1, one for
            samples-F1 and one per label for macro-F1. "derived": `SparseLabelClassifier(average=...)`,
            `ExpectedF1Classifier(average=...)` and, for one fit, `cv="oob"`. "TunedThresholdClassifierCV":
            scikit-learn's tuning of each label's threshold for F1. Each F1 is computed for the labels that were
            predicted to maximize it. {comparison.describe()} {seeds}.
        """,
        "![F1 on test, three ways to decide](users.png)",
        "### Goals",
        "Leads on test samples: differences of means over seeds.",
        claims_table(goals(comparison), comparison.points()),
        *(part for average in AVERAGES for part in (f"### Test, {average}-F1", _table(comparison, average))),
        *(
            part
            for measure, name in CALIBRATION.items()
            for part in (f"### {name.capitalize()} of the marginals", _table(comparison, measure))
        ),
    )
    summary = _table(comparison, "micro").rich("Micro-F1 on test, default settings")
    return Section(text, summary, [out / "users.png"])


def _table(comparison: Comparison, measure: str) -> Table:
    """A line for each predictor, a column for each dataset; rules with the same marginals share a line."""
    named = {title(p): p for p in PREDICTORS if measure in AVERAGES or p.rule in (HALF, DERIVED)}
    means = {
        name: [comparison.mean(predictor, [point], "test", measure) for point in comparison.points()]
        for name, predictor in named.items()
    }
    heading = f"{measure}-F1" if measure in AVERAGES else f"{CALIBRATION[measure]}, per cent"
    return Table([heading, *comparison.points()], best_in_bold(means, lowest=measure not in AVERAGES))


STYLES = {HALF: ("#8a8a8a", "o"), TUNED: ("#1d4e89", "D"), DERIVED: ("#c1121f", "o")}


def mean_f1(comparison: Comparison, rule: str, average: str, point: str) -> float | None:
    """The mean F1 of the models with five folds on a dataset; None if one that was run on others is missing."""
    predictors = [Predictor(name, rule) for name in MODELS if METHODS[name].cv == FOLDS]
    run = [one for one in predictors if any(comparison.mean(one, [p], "test", average) for p in comparison.points())]
    means = [comparison.mean(predictor, [point], "test", average) for predictor in run]
    return statistics.fmean(mean.value for mean in means if mean) if all(means) else None


def figure(comparison: Comparison, path: Path) -> None:
    """F1 by dataset with each way to decide, mean over the models."""
    points = comparison.points()
    drawn, (axes,) = panels(1, len(AVERAGES), width=3.7, height=1.3 + 0.42 * len(points))
    for axis, average in zip(axes, AVERAGES, strict=True):
        for line, point in enumerate(points):
            f1 = {rule: mean_f1(comparison, rule, average, point) for rule in STYLES}
            known = {rule: value for rule, value in f1.items() if value is not None}
            axis.plot([*known.values()], [line] * len(known), color="#cccccc", linewidth=3)
            for rule, value in known.items():
                colour, marker = STYLES[rule]
                axis.plot(value, line, marker, color=colour, markersize=8, label=f"thresholds {RULES[rule]}", zorder=3)
        axis.set(yticks=range(len(points)), yticklabels=points if axis is axes[0] else [], title=f"{average}-F1, %")
        axis.margins(y=0.15)
        axis.invert_yaxis()
        tidy(axis)
    legend(drawn, axes, columns=len(STYLES))
    save_figure(drawn, path)
