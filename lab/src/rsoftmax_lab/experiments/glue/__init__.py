"""The paper's Table 2: a pre-trained encoder, fine-tuned on GLUE with another mapping in its self-attention.

As in the paper: every mapping is tried with five learning rates, r-softmax also with five rates r, which grow linearly
from 0 during training; 5 epochs on MRPC and 3 on the others; the score after the last step, on GLUE's dev set, which
thus selects the learning rate and r. Ours, because the paper does not say: batches of 32, at most 128 tokens, AdamW
with a learning rate that falls linearly to 0, no warm-up and no weight decay. Ours too: a part of the training rows is
set aside, and selects the learning rate and r in the number that dev had no part in.
"""
