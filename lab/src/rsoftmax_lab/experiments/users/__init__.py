"""The real sets again, with every method as a user would call it: defaults only, and outsiders that win elsewhere.

A run is one model on one set. One fit serves several ways to its labels: a cut at one half, cuts tuned on validation
rows, and the expected F1 under calibrated marginals. Scores are those of the sets' own test rows, on which nothing is
chosen.
"""
