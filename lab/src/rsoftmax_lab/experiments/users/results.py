"""The predictors of the comparison with default settings, and whether the goals are reached."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from rsoftmax_lab.comparison import Comparison, Predictor
from rsoftmax_lab.experiments.users.methods import (
    EXPECTED_F1,
    HALF,
    METHODS,
    ONE_FIT,
    OUT_OF_BAG,
    RULES,
    TUNED,
    TUNED_CV,
)
from rsoftmax_lab.report.mean import Mean, signed
from rsoftmax_lab.report.mean_ranks import Ranks, mean_ranks
from rsoftmax_lab.report.table import Claim

PREDICTORS = tuple(Predictor(name, rule) for name, method in METHODS.items() for rule in method.rules)
UNRANKED = (ONE_FIT, OUT_OF_BAG, TUNED_CV)  # variants; TunedThresholdClassifierCV takes hours on some sets
RANKED = tuple(one for one in PREDICTORS if one.rule not in UNRANKED)
NETWORK, BOTH = Predictor("net", EXPECTED_F1), Predictor("net_forest", EXPECTED_F1)
BCE = Predictor("bce", TUNED)
LEADS = {"micro": 0.5, "macro": 1.0, "samples": 2.0}  # the required median over datasets
WORST = -0.3  # on any dataset


def title(one: Predictor) -> str:
    """Its name in tables and figures."""
    model = METHODS[one.method]
    return model.title if one == NETWORK else f"{model.title}, {RULES[one.rule]}"


def ranks(comparison: Comparison, average: str) -> Ranks | None:
    """Mean ranks over the datasets on which all predictors have a score."""
    means = {one: [comparison.mean(one, [point], "test", average) for point in comparison.points()] for one in RANKED}
    whole = [place for place, column in enumerate(zip(*means.values(), strict=True)) if all(column)]
    table = {title(one): [mean.value for i in whole if (mean := row[i])] for one, row in means.items()}
    return mean_ranks(table) if len(whole) > 1 else None


class _Goal(NamedTuple):
    """A goal for a number that each dataset has.

    Attributes:
        text: the goal in words.
        number: the number of a dataset.
        holds: whether the goal is reached, given the known numbers and the number of datasets.
    """

    text: str
    number: Callable[[str], Mean | None]
    holds: Callable[[list[float], int], bool | None]


def goals(comparison: Comparison) -> list[Claim]:
    """The goals, with a number for each dataset."""
    found = [
        *_of_network(comparison),
        *_of_any_model(comparison),
        *_of_one_fit(comparison),
        *_of_both(comparison),
        *_of_calibration(comparison),
    ]
    return [_weighed(goal, comparison.points()) for goal in found]


def _of_network(comparison: Comparison) -> list[_Goal]:
    return [
        _Goal(
            f"{title(NETWORK)} is ahead of {title(BCE)} in {average}-F1 by {least} in the median, and never behind by"
            f" more than {-WORST}",
            _ahead(comparison, NETWORK, [BCE], average),
            _median_and_worst(least),
        )
        for average, least in LEADS.items()
    ]


def _of_any_model(comparison: Comparison) -> list[_Goal]:
    """Goals for ExpectedF1Classifier on top of a forest and of logistic regression."""
    tuned = [("micro", "within 0.2 of", -0.2), ("macro", "above", 0.0), ("samples", "above", 0.0)]
    against = [(TUNED, average, f"{where} the same with tuned thresholds", least) for average, where, least in tuned]
    against += [(HALF, "micro", "a point above the same at threshold .5", 1.0)]
    against += [(TUNED_CV, "macro", "above the same with TunedThresholdClassifierCV", 0.0)]
    return [
        _Goal(
            f"{title(Predictor(model, EXPECTED_F1))} is {where} in {average}-F1, on all but one dataset",
            _ahead(comparison, Predictor(model, EXPECTED_F1), [_with_rule(model, rule)], average),
            _on_all_but(1, least),
        )
        for model in ("forest", "logistic")
        for rule, average, where, least in against
    ]


def _with_rule(model: str, rule: str) -> Predictor:
    return Predictor(f"{model}_tuned" if rule == TUNED_CV else model, rule)


def _of_one_fit(comparison: Comparison) -> list[_Goal]:
    """Goals for a single fit: with a fifth of the rows held out, or with out-of-bag scores of all rows."""
    once = {Predictor(model, ONE_FIT): model for model in ("forest", "logistic")}
    return [
        _Goal(
            f"{title(one)} is within 0.5 of five fits in {average}-F1, on all but one dataset",
            _ahead(comparison, one, [Predictor(model, EXPECTED_F1)], average),
            _on_all_but(1, -0.5),
        )
        for one, model in {Predictor("forest_oob", OUT_OF_BAG): "forest", **once}.items()
        for average in LEADS
    ]


def _of_both(comparison: Comparison) -> list[_Goal]:
    others = [other for other in RANKED if other != BOTH]
    return [
        _Goal(
            f"{title(BOTH)} is within 1.0 of the best in micro-F1, on all datasets",
            _ahead(comparison, BOTH, others, "micro"),
            _on_all_but(0, -1.0),
        ),
        _Goal(
            f"{title(BOTH)} is the best in samples-F1, on all but two datasets",
            _ahead(comparison, BOTH, others, "samples"),
            _on_all_but(2, 0.0),
        ),
    ]


def _of_calibration(comparison: Comparison) -> list[_Goal]:
    return [
        _Goal(
            f"the {name} of {title(NETWORK)}'s marginals is at most that of BCE, on all but one dataset (here: BCE's"
            " minus ours, in per cent)",
            _ahead(comparison, BCE, [NETWORK], measure),
            _on_all_but(1, 0.0),
        )
        for measure, name in (("brier", "Brier score"), ("ece", "expected calibration error"))
    ]


def _ahead(
    comparison: Comparison, one: Predictor, rivals: list[Predictor], measure: str
) -> Callable[[str], Mean | None]:
    return lambda point: comparison.lead(one, rivals, [point], "test", measure)


def _weighed(goal: _Goal, points: list[str]) -> Claim:
    numbers = [goal.number(point) for point in points]
    known = [mean.value for mean in numbers if mean is not None]
    return Claim(goal.text, [signed(mean) for mean in numbers], goal.holds(known, len(points)))


def _on_all_but(exceptions: int, least: float) -> Callable[[list[float], int], bool | None]:
    """Whether the numbers are high enough; None if that depends on missing datasets."""

    def holds(numbers: list[float], sets: int) -> bool | None:
        high = sum(number >= least for number in numbers)
        if high >= sets - exceptions:
            return True
        return False if len(numbers) - high > exceptions else None

    return holds


def _median_and_worst(least: float) -> Callable[[list[float], int], bool | None]:
    def holds(numbers: list[float], sets: int) -> bool | None:
        if len(numbers) < sets:
            return None
        return statistics.median(numbers) >= least and min(numbers) >= WORST

    return holds
