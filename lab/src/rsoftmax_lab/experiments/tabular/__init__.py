"""The contest on real sets, which the paper does not use, each with its own split into training and test rows."""
