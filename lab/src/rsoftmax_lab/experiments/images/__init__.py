"""The paper's Table 1 and Figure 3: labels of pictures, from a pre-trained network, frozen or trained as a whole.

Each run comes in two ways. ``selection_share=0`` is the paper's: all training pictures, and the epoch and the learning
rate are those that are best on the pictures of val, which are the ones reported. Otherwise that share of the training
pictures, drawn by the seed, is held out to choose them, and val is asked only afterwards.
"""
