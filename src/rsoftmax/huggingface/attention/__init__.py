"""Sparse attention in Transformers models.

Modules, each using only those before it:

* ``adapter``: everything assumed about the internals of transformers;
* ``parameters``: the mapping's parameter, one value per head;
* ``attend``: the attention function that transformers calls;
* ``probe``: which modules would stay dense;
* ``saving``: how a sparse model is saved and loaded;
* ``api``: the public functions, and the schedule of the rate during training;
* ``measure``: zeros, weights, and the map of one sentence;
* ``compare``: the outputs of a sparse model against those of the dense one;
* ``calibrate``: thresholds that keep the error within a limit.
"""
