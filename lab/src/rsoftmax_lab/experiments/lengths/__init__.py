"""Attention trained on short contexts, tested on contexts up to 256 times as long; only mapping and scale differ.

Not part of the paper. Softmax disperses as the context grows; the question is whether exact zeros prevent that, and how
much of it a scale that grows with log n (SSMax; Nakanishi 2025) does by itself. One attention layer with one head and
no positions, so that nothing but attention sees the length. Tasks: the class of the item with the highest priority
(Veličković et al., 2024), associative recall among distractors that match by half, and the mean of marked items.
"""
