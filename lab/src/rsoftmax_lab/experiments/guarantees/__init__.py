"""Guaranteed recall and precision over many random resplits, and the size of the label sets, next to MAPIE's.

A classifier is fitted on the training rows. The test rows, which it has not seen, are split at random into rows that
set the threshold and rows that measure what was promised. The classifier is fitted once; only the split changes.
"""
