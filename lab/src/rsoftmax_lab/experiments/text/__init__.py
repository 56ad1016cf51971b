"""Multi-label text classification: GoEmotions, with a frozen encoder, a fine-tuned one, and TF-IDF.

Each training gives logits for the dev and test rows. Several decision rules, fitted on the dev rows, are then applied
to the same logits: the decoder of :mod:`rsoftmax.labels` for each F1, and thresholds.
"""
