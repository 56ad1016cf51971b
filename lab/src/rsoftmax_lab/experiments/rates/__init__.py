"""Speed and quality in one picture: models fine-tuned with growing sparsity, and pretrained models without training.

The fine-tuned models are runs of Table 2 and share its rows; the pretrained models are those of ``pretrained``.
"""
