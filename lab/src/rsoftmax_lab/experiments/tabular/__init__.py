"""The same contest on real sets."""
