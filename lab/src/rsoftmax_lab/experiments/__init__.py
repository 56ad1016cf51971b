"""The experiments, a folder for each."""
