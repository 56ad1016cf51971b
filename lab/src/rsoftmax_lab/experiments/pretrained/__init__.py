"""Sparse attention in pretrained models without training: quality, zeros and time of every kind of setting.

A run is one model on texts of one kind and one length. Every setting replaces softmax in all layers; the errors of the
outputs, relative to the dense model, and the processor times are measured in the same runs, text by text. Zeros are
counted on the first batch. Thresholds that ``rsoftmax calibrate`` found on other texts take part as settings, too.
"""
