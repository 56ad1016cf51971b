"""MAPIE's thresholds for the same guarantees, if it is installed: ``pip install mapie``."""

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rsoftmax_lab.experiments.guarantees.grid import HOEFFDING, Guarantee

AT_ONCE = 200  # rows: MAPIE makes a copy of their scores for each of its 100 thresholds


def thresholds_of_mapie(pi: Tensor, y: Tensor, one: Guarantee, name: str) -> Callable[[Tensor], Tensor] | None:
    """A function from the rows that set the threshold, bool [rows], to MAPIE's threshold; None without MAPIE.

    MAPIE tests 100 thresholds from 0 to .99. The risk of each row at each of them does not depend on the split: it is
    computed once.
    """
    try:
        from mapie.risk_control import MultiLabelClassificationController
    except ImportError:
        return None
    method = "ltt" if one.what == "precision" else "crc" if one.confidence is None else "rcps"
    bound = "hoeffding" if name == HOEFFDING else None
    controller = MultiLabelClassificationController(
        lambda rows: rows, one.what, method, one.level, confidence_level=one.confidence, rcps_bound=bound
    )
    for first in range(0, len(y), AT_ONCE):
        controller.compute_risks(pi[first : first + AT_ONCE].numpy(), y[first : first + AT_ONCE].numpy().astype(int))
    risks = controller._risks

    def threshold(half: Tensor) -> Tensor:
        controller._risks = risks[half.numpy()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no threshold is valid
            controller.compute_best_predict_param()
        found = np.asarray(controller.best_predict_param, dtype=np.float64).ravel()[:1]
        none = torch.inf if one.what == "precision" else -torch.inf
        return torch.nextafter(torch.from_numpy(found), torch.tensor(torch.inf).double()).nan_to_num(nan=none)

    return threshold
