"""Experiments and benchmarks of rsoftmax: reproductions of the paper, sweeps and the report."""
