"""Sparse probability mappings with a controllable rate of zeros: softmax that can say "zero", and how often."""

from rsoftmax import kernels, losses
from rsoftmax.attention import sparse_attention
from rsoftmax.kernels import use_kernels
from rsoftmax.mappings import (
    MAPPINGS,
    Mapping,
    entmax15,
    r_softmax,
    softmax,
    sparsegen_exp,
    sparsegen_lin,
    sparsehourglass,
    sparsemax,
    spherical_softmax,
    t_softmax,
    weighted_softmax,
)
from rsoftmax.modules import (
    MODULES,
    Entmax15,
    MappingModule,
    RSoftmax,
    Softmax,
    SparsegenExp,
    SparsegenLin,
    Sparsehourglass,
    Sparsemax,
    SphericalSoftmax,
    TSoftmax,
    WeightedSoftmax,
)

__version__ = "0.1.0"

__all__ = [
    "MAPPINGS",
    "MODULES",
    "Entmax15",
    "Mapping",
    "MappingModule",
    "RSoftmax",
    "Softmax",
    "SparsegenExp",
    "SparsegenLin",
    "Sparsehourglass",
    "Sparsemax",
    "SphericalSoftmax",
    "TSoftmax",
    "WeightedSoftmax",
    "entmax15",
    "kernels",
    "losses",
    "r_softmax",
    "softmax",
    "sparse_attention",
    "sparsegen_exp",
    "sparsegen_lin",
    "sparsehourglass",
    "sparsemax",
    "spherical_softmax",
    "t_softmax",
    "use_kernels",
    "weighted_softmax",
]
