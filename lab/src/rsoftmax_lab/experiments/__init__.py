"""The paper's experiments and more, one file each, and their table.

An experiment is a module here with

- ``Run``, one run with the paper's numbers as defaults, a :class:`~rsoftmax_lab.records.BaseRun`;
- ``run``, which does a run and returns its results;
- ``report(results, out, notice)``, the section of the report from the records of a results folder;
- ``main``, whose parameters are the options of its command, and which returns the results folder;

and a line of the table below. This file does not import them, so that the commands can be listed without torch.
"""

from importlib import import_module
from types import ModuleType

# In the order of the report.
COMMANDS = {
    "synthetic": "Figure 2: synthetic documents with varying numbers of labels and lengths.",
    "tabular": "The comparison of Figure 2 on real datasets.",
    "users": "Classifiers with default settings on real datasets.",
    "guarantees": "Label sets with a guaranteed recall or precision, over random resplits, next to MAPIE's.",
    "voc": "Table 1 and Figure 3 on VOC: DATA/VOC2007/JPEGImages and ImageSets/Main.",
    "coco": "Table 1 and Figure 3 on COCO: DATA/annotations/instances_*.json and the images.",
    "glue": "Table 2: an encoder fine-tuned on GLUE with every mapping.",
    "pretrained": "Pretrained models without training: error, zeros and time for distances, rates, counts and edges.",
    "rates": "Accuracy against the time of a training step: r-softmax at growing rates, t- and k-softmax with an edge.",
    "lengths": "Attention trained on short contexts and tested on contexts up to 256 times as long.",
    "text": "Multi-label text classification: GoEmotions, with a frozen and a fine-tuned encoder, and with TF-IDF.",
    "eurlex": "Thousands of labels: EURLEX57K, with label trees on TF-IDF.",
    "windows": "Long texts: windows pooled for each label, truncation, and words; F1 and where the evidence is.",
}
"""The commands ``rsoftmax reproduce NAME``, which write NAME.jsonl, and what they do."""

MODULES = {"voc": "images", "coco": "images"}
"""The module of a command, if it has another name."""


def load(command: str) -> ModuleType:
    """The module of a command."""
    return import_module(f"{__name__}.{MODULES.get(command, command)}")


def load_all() -> dict[str, ModuleType]:
    """All experiments by the names of their modules, in the order of the report."""
    return {MODULES.get(name, name): load(name) for name in COMMANDS}
