"""Modules like those of :mod:`torch.nn`: one for each mapping, and attention with a mapping in place of softmax."""

from rsoftmax.nn import attention, mappings
from rsoftmax.nn.attention import *  # noqa: F403
from rsoftmax.nn.mappings import *  # noqa: F403

__all__ = [*mappings.__all__, *attention.__all__]
