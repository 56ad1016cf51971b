"""The paper's Figure 2: synthetic documents, with more and more labels (a), and longer and longer (b).

``make_multilabel_classification`` draws a document's labels, then its words; features are counts of 128 words. As in
the paper: 5000 documents, 80 % to train and 20 % to select on, and a network of two layers. Ours, because the paper
does not say: the points of both axes, that documents may have no label, as is the function's default, and that
features are standardised. Ours too: 1000 more documents of the same draw, which leave the 5000 as they are, for test.
"""
