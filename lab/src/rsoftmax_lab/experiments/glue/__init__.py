"""The paper's Table 2: a pretrained encoder, fine-tuned on GLUE with another mapping in its self-attention.

As in the paper: every mapping is tried with five learning rates, r-softmax also with five rates r, which grow linearly
from 0 during training; 5 epochs on MRPC and 3 on the others; the score after the last step on GLUE's dev set, which
thereby selects the learning rate and r. Not stated in the paper, and chosen here: batches of 32, at most 128 tokens,
AdamW with linear decay of the learning rate to 0, no warm-up, no weight decay. Added here: a held-out part of the
training rows, which selects the learning rate and r for the second number, independently of dev.
"""
