"""The paper's experiments, one folder each, and their table.

The commands and the report's sections import an experiment's files when they need them.
"""

from rsoftmax_lab.experiments.experiment import Experiment

GLUE = Experiment("glue", commands=("glue",))
PRETRAINED = Experiment("pretrained", commands=("pretrained",))

# In the order of the report and of `rsoftmax reproduce --help`.
EXPERIMENTS: dict[str, Experiment] = {
    "synthetic": Experiment("synthetic", commands=("synthetic",)),
    "tabular": Experiment("tabular", commands=("tabular",)),
    "users": Experiment("users", commands=("users",)),
    "guarantees": Experiment("guarantees", commands=("guarantees",)),
    "images": Experiment("images", commands=("voc", "coco")),
    "glue": GLUE,
    "pretrained": PRETRAINED,
    "rates": Experiment("rates", commands=("rates",), shows=(GLUE, PRETRAINED)),
    "lengths": Experiment("lengths", commands=("lengths",)),
    "text": Experiment("text", commands=("text",)),
}
