"""``rsoftmax reproduce synthetic``."""

from rsoftmax_lab.running.options import Seeds, Sweep


def synthetic(seeds: Seeds = 3, *, sweep: Sweep) -> None:
    """Figure 2: synthetic documents with varying numbers of labels and lengths."""
    from rsoftmax_lab.experiments.synthetic import grid
    from rsoftmax_lab.experiments.synthetic.run import run

    runs = grid.quick_grid() if sweep.quick else [*grid.grid(seeds), *grid.users_grid(seeds)]
    sweep.do("synthetic", runs, run)
