"""Sweeps: many runs distributed over processes or a cluster, restartable, with their results in a file of rows."""
