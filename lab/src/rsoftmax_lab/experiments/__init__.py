"""The paper's experiments: one folder for each, and the table of them.

Nothing heavy is imported here: the commands and the report's sections load an experiment's files when they need them.
"""

from rsoftmax_lab.experiments.experiment import Experiment

# In the order of the report and of `rsoftmax reproduce --help`.
EXPERIMENTS: dict[str, Experiment] = {
    "synthetic": Experiment("synthetic", commands=("synthetic",)),
    "tabular": Experiment("tabular", commands=("tabular",)),
    "users": Experiment("users", commands=("users",)),
    "images": Experiment("images", commands=("voc", "coco")),
    "glue": Experiment("glue", commands=("glue", "rates")),
    "text": Experiment("text", commands=("text",)),
}
