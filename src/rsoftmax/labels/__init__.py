"""Multi-label learning without threshold tuning: heads, losses, calibration and decoding, with torch alone.

A head maps features to the scores of ``K`` labels and the scores to probabilities; the labels with a non-zero
probability are predicted. A rule decides which labels these are:

================= ============= ========================================================================
rule              mapping       predicted labels
================= ============= ========================================================================
``"expected_f1"`` ``r_softmax`` those that maximise the expected F1 under the predicted marginals
``"rate"``        ``r_softmax`` the best fraction ``1 - r``, with ``r`` predicted from the logits: the paper's head
``"threshold"``   ``t_softmax`` those above a threshold predicted from the features: the paper's version (1)
``"zero"``        ``t_softmax`` those with a positive logit, as with binary cross-entropy and ZLPR
``None``          any other     the support of the mapping
================= ============= ========================================================================

The default rule maximises the F1 selected by ``average``: "micro", "macro" or "samples". Its parts work on scores of
any origin: :class:`PlattScaling` turns scores into calibrated log-odds, :func:`expected_f1_count` and
:func:`expected_f1_threshold` find the number of labels and the decision threshold, and :class:`Decoder` combines them.
:func:`calibration_curve` compares predicted with observed frequencies.

The table ``RULES`` lists the rules, the default first, with their mappings and losses; a rule of your own is one class.
"""

from typing import TYPE_CHECKING

from rsoftmax._lazy import lazy_names

if TYPE_CHECKING:  # for type checkers and editors
    from rsoftmax.labels import losses as losses
    from rsoftmax.labels.calibration import *  # noqa: F403
    from rsoftmax.labels.decoding import *  # noqa: F403
    from rsoftmax.labels.estimators.classifier import *  # noqa: F403
    from rsoftmax.labels.estimators.expected_f1 import *  # noqa: F403
    from rsoftmax.labels.estimators.features import *  # noqa: F403
    from rsoftmax.labels.estimators.options import *  # noqa: F403
    from rsoftmax.labels.estimators.risk_control import *  # noqa: F403
    from rsoftmax.labels.estimators.splits import *  # noqa: F403
    from rsoftmax.labels.evaluation import *  # noqa: F403
    from rsoftmax.labels.head import *  # noqa: F403
    from rsoftmax.labels.models.base import *  # noqa: F403
    from rsoftmax.labels.models.encoder_model import *  # noqa: F403
    from rsoftmax.labels.models.explanation import *  # noqa: F403
    from rsoftmax.labels.models.forest import *  # noqa: F403
    from rsoftmax.labels.models.table import *  # noqa: F403
    from rsoftmax.labels.models.text_model import *  # noqa: F403
    from rsoftmax.labels.review import *  # noqa: F403
    from rsoftmax.labels.risk_control import *  # noqa: F403
    from rsoftmax.labels.rules import *  # noqa: F403
    from rsoftmax.labels.sparse import *  # noqa: F403
else:
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "calibration": "PlattScaling",
            "decoding": "AVERAGES Average Decoded Decoder DecoderOptions"
            " best_labels expected_f1 expected_f1_count expected_f1_threshold keep_above keep_count rate_of_count",
            "evaluation": "CalibrationCurve Evaluation LabelScores calibration_curve evaluate",
            "head": "MultiLabelHead resolve_rule",
            "review": "ReviewThresholds ReviewedItem review_thresholds",
            "risk_control": "TooFewSamplesError precision_threshold recall_threshold",
            "rules": "RULES Output RankingRule Rule Scores",
            "sparse": "decode_csr evaluate_csr",
            "models.base": "LabelNetwork BaseLabelModel indicator",
            "models.encoder_model": "EncoderModel EncoderModelConfig EncoderModelOutput",
            "models.explanation": "Explanation Passage",
            "models.forest": "ForestModel",
            "models.table": "TableModel",
            "models.text_model": "LabelModel",
            "estimators.classifier": "SparseLabelClassifier",
            "estimators.expected_f1": "ExpectedF1Classifier",
            "estimators.features": "Embedder",
            "estimators.options": "PLAIN HeadOptions TrainingOptions",
            "estimators.risk_control": "RiskControlledClassifier",
            "estimators.splits": "MultilabelStratifiedKFold MultilabelStratifiedShuffleSplit"
            " multilabel_train_test_split",
        },
        extra="labels",
    )

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
