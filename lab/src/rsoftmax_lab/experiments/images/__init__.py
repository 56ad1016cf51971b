"""The paper's Table 1 and Figure 3: multi-label image classification with a pretrained network, frozen or trained.

Each run has two protocols. ``selection_share=0`` is the paper's: train on all training images, and select epoch and
learning rate on val, which is also reported. Otherwise a random fraction of the training images is held out for
selection, and val is used only for the report.
"""
