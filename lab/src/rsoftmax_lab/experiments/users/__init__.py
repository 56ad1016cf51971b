"""Classifiers with default settings on real datasets, including strong baselines from scikit-learn.

A run is one model on one dataset. One fit is evaluated with several decision rules: a threshold of one half,
thresholds tuned on validation rows, and the expected F1 under calibrated marginals. Scores are measured on the
predefined test rows, which are not used for any selection.
"""
