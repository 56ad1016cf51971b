"""Multi-label learning without threshold tuning: heads, losses, calibration and decoding, with torch alone.

A head maps features to the scores of ``K`` labels and the scores to probabilities; the labels with a non-zero
probability are predicted. A rule decides which labels these are:

================= ============= ========================================================================
rule              mapping       predicted labels
================= ============= ========================================================================
``"expected_f1"`` ``r_softmax`` those that maximise the expected F1 under the predicted marginals
``"rate"``        ``r_softmax`` the best fraction ``1 - r``, with ``r`` predicted from the logits: the paper's head
``"count"``       ``r_softmax`` the k best, with k predicted from the features
``"fixed"``       ``r_softmax`` the best fraction ``1 - r``, with a given ``r``
``"threshold"``   ``t_softmax`` those above a threshold predicted from the features: the paper's version (1)
``"zero"``        ``t_softmax`` those with a positive logit, as with binary cross-entropy and ZLPR
``None``          any other     the support of the mapping
================= ============= ========================================================================

The default rule maximises the F1 selected by ``average``: "micro", "macro" or "samples". Its parts work on scores of
any origin: :class:`PlattScaling` turns scores into calibrated log-odds, :func:`expected_f1_count` and
:func:`expected_f1_threshold` find the number of labels and the decision threshold, and :class:`Decoder` combines them.
:func:`calibration_curve` compares predicted with observed frequencies.

The table ``RULES`` holds the rules, the default first; each lists its mappings and losses.
"""

from rsoftmax.multilabel.calibration import PlattScaling
from rsoftmax.multilabel.decoding import (
    AVERAGES,
    Average,
    Decoded,
    Decoder,
    DecoderOptions,
    best_labels,
    expected_f1,
    expected_f1_count,
    expected_f1_threshold,
    keep_above,
    keep_count,
)
from rsoftmax.multilabel.evaluation import CalibrationCurve, Evaluation, LabelScores, calibration_curve, evaluate
from rsoftmax.multilabel.head import MultiLabelHead
from rsoftmax.multilabel.labeller import Labeller, LabelNetwork, indicator
from rsoftmax.multilabel.risk_control import precision_threshold, recall_threshold
from rsoftmax.multilabel.rules import RULES, Output, Rule, Scores
from rsoftmax.multilabel.sparse import decode_csr

__all__ = [
    "AVERAGES",
    "RULES",
    "Average",
    "CalibrationCurve",
    "Decoded",
    "Decoder",
    "DecoderOptions",
    "Evaluation",
    "LabelNetwork",
    "LabelScores",
    "Labeller",
    "MultiLabelHead",
    "Output",
    "PlattScaling",
    "Rule",
    "Scores",
    "best_labels",
    "calibration_curve",
    "decode_csr",
    "evaluate",
    "expected_f1",
    "expected_f1_count",
    "expected_f1_threshold",
    "indicator",
    "keep_above",
    "keep_count",
    "precision_threshold",
    "recall_threshold",
]
