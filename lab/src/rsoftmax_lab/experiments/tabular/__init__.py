"""The comparison on real datasets, which are not in the paper, with their predefined training and test rows."""
