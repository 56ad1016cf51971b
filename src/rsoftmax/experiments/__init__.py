"""The paper, run again: figures, tables and benchmarks."""
