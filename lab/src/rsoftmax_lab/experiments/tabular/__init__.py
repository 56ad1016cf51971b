"""The comparison on real data sets, which are not in the paper, with their predefined training and test rows."""
