"""The paper's Figure 2: synthetic documents with a growing number of labels (a) and growing length (b).

``make_multilabel_classification`` draws a document's labels, then its words; features are counts of 128 words. As in
the paper: 5000 documents, 80 % for training and 20 % for selection, and a network of two layers. Not stated in the
paper, and chosen here: the points of both axes, that documents may have no label (the function's default), and that
features are standardized. Added here: 1000 test documents of the same draw, which leave the 5000 unchanged.
"""
