"""The laboratory of rsoftmax: the paper's experiments run again, benchmarks, sweeps and the report."""
