"""Estimators in files without pickle: skops writes arrays and JSON, and loading builds only types that are trusted."""

from collections.abc import Collection
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED

from rsoftmax.labels.models.folders import replacing

__all__ = ["TRUSTED", "load", "save"]

LABELS = "rsoftmax.labels"
TRUSTED = frozenset(
    [
        f"{LABELS}.estimators.expected_f1.ExpectedF1Classifier",
        f"{LABELS}.estimators.risk_control.RiskControlledClassifier",
        f"{LABELS}.estimators.meta.FoldModel",
        f"{LABELS}.estimators.targets.Targets",
        f"{LABELS}.estimators.splits.MultilabelStratifiedKFold",
        f"{LABELS}.estimators.splits.MultilabelStratifiedShuffleSplit",
        f"{LABELS}.evaluation.CalibrationCurve",
        f"{LABELS}.evaluation.Evaluation",
        f"{LABELS}.evaluation.LabelScores",
        "pandas.DataFrame",  # the format of predictions
        "pandas.core.frame.DataFrame",  # its name before pandas 3
        "sklearn.tree._tree.Tree",  # of forests
    ]
)
"""The types that are loaded besides those that skops trusts: estimators of scikit-learn, arrays, numbers and texts."""


def save(estimator: Any, path: str | Path) -> None:
    """Save an estimator in a file, which appears when it is complete.

    Raises:
        ValueError: it contains what skops cannot save, such as a lambda or a torch model.
    """
    from skops.io import dumps, get_untrusted_types, loads

    try:
        data = dumps(estimator, compression=ZIP_DEFLATED)
        loads(data, trusted=get_untrusted_types(data=data))  # a lambda is only found to be missing when it is loaded
    except Exception as error:  # of many kinds
        reason = str(error).splitlines()[0]
        raise ValueError(f"{type(estimator).__name__} contains what skops cannot save: {reason}") from error
    with replacing(Path(path)) as unfinished:
        unfinished.write_bytes(data)


def load(path: str | Path, trusted: Collection[str] = ()) -> Any:
    """Load an estimator.

    Args:
        path: the file.
        trusted: further types that may be loaded, such as "xgboost.sklearn.XGBClassifier".

    Raises:
        ValueError: the file is damaged, or contains a type that is not trusted; nothing of it was loaded.
    """
    from skops.io import get_untrusted_types, loads

    data = Path(path).read_bytes()
    try:
        types = get_untrusted_types(data=data)
    except Exception as error:  # for damaged files, of many kinds
        raise ValueError(f"{path} is damaged, or no file of an estimator: {error}") from None
    if unknown := sorted(set(types) - TRUSTED - set(trusted)):
        raise ValueError(f"{path} contains types that are not trusted; if you trust them, pass trusted={unknown}")
    return loads(data, trusted=types)
