"""The multi-label comparison of the paper's section 4.1, which three experiments run on different data."""
