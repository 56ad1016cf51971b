"""Multi-label learning without a tuned threshold: from features to scores of K labels, and to the labels of a row.

A head scores ``K`` labels and maps the scores to probabilities; the labels of a row are those with a non-zero one. A
rule decides which labels these are; the argument ``rate`` names it:

================= ============= ===========================================================================
rate              mapping       the labels are
================= ============= ===========================================================================
``"expected_f1"`` ``r_softmax`` the k best, k maximising the expected F1 under the predicted marginals
``"count"``       ``r_softmax`` the k best, k predicted by a layer of its own: the paper's head
``"fixed"``       ``r_softmax`` the share ``1 - r`` of best ones, ``r`` given
``"threshold"``   ``t_softmax`` those above a threshold predicted from the features: the paper's version (1)
``"zero"``        ``t_softmax`` those above 0, which is what binary cross-entropy and ZLPR mean by a label
``None``          any other     those that the mapping itself leaves non-zero
================= ============= ===========================================================================

Which F1 the default rule maximises is a choice too: ``average="samples"``, ``"micro"`` or ``"macro"``. Its parts can be
used alone, behind scores of any origin: :class:`PlattScaling` makes log-odds of scores, :func:`expected_f1_count` and
:func:`expected_f1_cut` say how many labels the log-odds ask for, and :class:`Decoder` is all of that as one module.
:func:`calibration_curve` says whether marginals can be trusted.

The table ``RULES`` holds the rules. ``LOSSES`` and ``RATES`` are extracts from it, made at import: the losses that
teach each rate, and the rates of r_softmax and t_softmax; the default comes first.
"""

from rsoftmax.multilabel.calibration import PlattScaling
from rsoftmax.multilabel.decoder import Decoded, Decoder
from rsoftmax.multilabel.decoding import best_labels, keep_above, keep_count
from rsoftmax.multilabel.evaluation import Evaluation, evaluated
from rsoftmax.multilabel.expected_f1 import AVERAGES, Average, expected_f1_count, expected_f1_cut
from rsoftmax.multilabel.head import MultiLabelHead
from rsoftmax.multilabel.labeller import Labeller, indicator
from rsoftmax.multilabel.network import LabelNetwork
from rsoftmax.multilabel.reliability import CalibrationCurve, calibration_curve
from rsoftmax.multilabel.rules import LOSSES, RATES, RULES, Rule
from rsoftmax.multilabel.scores import Output, Scores

__all__ = [
    "AVERAGES",
    "LOSSES",
    "RATES",
    "RULES",
    "Average",
    "CalibrationCurve",
    "Decoded",
    "Decoder",
    "Evaluation",
    "LabelNetwork",
    "Labeller",
    "MultiLabelHead",
    "Output",
    "PlattScaling",
    "Rule",
    "Scores",
    "best_labels",
    "calibration_curve",
    "evaluated",
    "expected_f1_count",
    "expected_f1_cut",
    "indicator",
    "keep_above",
    "keep_count",
]
