"""Multi-label learning as scikit-learn estimators."""
