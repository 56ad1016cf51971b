"""The line styles of the contestants in all figures."""

from typing import NamedTuple

from rsoftmax_lab.contest.contestants import LITERAL, OURS, PAPERS, Contestant


class Look(NamedTuple):
    """A line style; related contestants share a colour."""

    color: str
    style: str
    marker: str
    width: float = 1.3


LOOKS = {
    Contestant("r_softmax_expected_f1"): Look("#c1121f", "-", "o", 2.4),
    Contestant("t_softmax_threshold"): Look("#f08a24", "-", "s", 1.8),
    Contestant("r_softmax_rate"): Look("#7b2d8e", "-", "h", 2.0),
    Contestant("r_softmax_count"): Look("#1d4e89", "-", "D", 2.0),
    Contestant("sparsemax_huber"): Look("#6fa8dc", "--", "v"),
    Contestant("sparsemax_hinge"): Look("#6fa8dc", ":", "^"),
    Contestant("sparsehourglass"): Look("#6fa8dc", "-.", "x"),
    Contestant("bce"): Look("#2d8659", "--", "P"),
    Contestant("zlpr"): Look("#2d8659", ":", "*"),
    Contestant("softmax", "tuned"): Look("#555555", "-", ".", 1.6),
    Contestant("softmax", "p0=0.02"): Look("#8a8a8a", "--", "1"),
    Contestant("softmax", "p0=0.05"): Look("#8a8a8a", "-.", "2"),
    Contestant("softmax", "p0=0.1"): Look("#8a8a8a", ":", "3"),
}


def label(one: Contestant) -> str:
    """The name in legends, with its origin."""
    whose = " (ours)" if one in OURS else " (the paper's)" if one in (LITERAL, PAPERS) else ""
    return one.title + whose
