"""A contest of labels for texts: GoEmotions, with an encoder that stays as it is, one that is fine-tuned, and without.

Every training gives scores of the dev and test rows. The answers are then found in several ways from the same scores,
with what the dev rows say: by the decoder of :mod:`rsoftmax.multilabel` for each F1, and by thresholds.
"""
