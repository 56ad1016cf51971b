"""The mappings as modules, like :class:`torch.nn.Softmax`: one class for each mapping of the table.

A parameter is a setting of the module, an argument of each call, or learned:

>>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
>>> RSoftmax(r=0.5)(x)
tensor([0.0000, 0.0000, 0.1092, 0.8908])
>>> RSoftmax()(x, 0.75)
tensor([0., 0., 0., 1.])
>>> per_head = RSoftmax(r=torch.full((12, 1, 1), 0.2), learnable=True)
>>> per_head(torch.randn(2, 12, 5, 5)).shape, per_head.r.shape
(torch.Size([2, 12, 5, 5]), torch.Size([12, 1, 1]))

``learnable=True`` trains the parameter from this value (a tensor may have one for each head) or from the table's
example. What is trained, ``raw_value``, is unconstrained and mapped into the parameter's domain, so the parameter can
never leave it. It is used in at least float32: half precision cannot separate neighbouring rates. A tensor that is not
learned is a buffer, ``value``: it is moved and saved with the module, and a schedule can change it (``module.r = 0.3``)
without recompiling. Changing a number causes one recompilation, because torch treats it as a constant at first.

The classes below show editors and type checkers their arguments. A mapping that is registered elsewhere has a module,
too: ``MODULES`` has them all, by class name. :class:`SparsePooling` uses any of them to pool a set of instances, and
:class:`Router` to choose the experts of a token.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from inspect import signature
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from rsoftmax._rows import ParamSpec, inside_domain
from rsoftmax._tensors import Value, at_least_float32, copy_into, is_eager_cpu, mask_to_neg_inf
from rsoftmax.mappings import MAPPINGS, MappingSpec, softmax

__all__ = [
    "MODULES",
    "Budget",
    "Entmax",
    "Entmax15",
    "KSoftmax",
    "Lapsum",
    "MappingModule",
    "Normmax",
    "Pooled",
    "RSoftmax",
    "Router",
    "Routing",
    "SinkSoftmax",
    "Softmax",
    "Softpick",
    "SparsePooling",
    "SparsegenExp",
    "SparsegenLin",
    "Sparsehourglass",
    "Sparsemax",
    "SphericalSoftmax",
    "TSoftmax",
]


class MappingModule(nn.Module):
    """A mapping without a parameter, applied along ``dim``; the base class of all modules here."""

    mapping: ClassVar[MappingSpec]

    def __init_subclass__(cls, mapping: MappingSpec | None = None) -> None:
        super().__init_subclass__()
        if mapping is not None:
            cls.mapping = mapping

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Map ``x`` to probabilities."""
        return self.mapping.function(x, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        """The arguments shown by ``repr``."""
        return f"dim={self.dim}"

    def __prepare_scriptable__(self) -> NoReturn:
        """Called by ``torch.jit.script`` for this module and those that contain it."""
        raise NotImplementedError(
            f"{type(self).__name__}: torch.jit.script is not supported, and deprecated in torch; use torch.compile or"
            " torch.export"
        )


class ParametricModule(MappingModule):
    """A mapping with a parameter: a setting of the module, an argument of each call, or learned.

    Args:
        value: the parameter, by position or by its name; None to pass it at each call.
        dim: the dimension that sums to one.
        learnable: whether to train it.
        options: further keyword arguments of the function.

    Attributes:
        value: the parameter, a number or a buffer; None if it is passed at each call, or learned.
        raw_value: what is trained, on the real line; [1] for a number. None if the parameter is not learned.
    """

    value: Value | None
    raw_value: nn.Parameter | None

    def __init_subclass__(cls, mapping: MappingSpec | None = None) -> None:
        super().__init_subclass__(mapping)
        if mapping is not None:
            setattr(cls, cls._parameter().name, cls.current_value)  # module.r, to read and to set

    def __init__(self, value: Value | None = None, dim: int = -1, learnable: bool = False, **options: Any) -> None:
        super().__init__(dim)
        parameter, name = self._parameter(), type(self).__name__
        value = options.pop(parameter.name, value)
        value = parameter.default if value is None else value
        if isinstance(value, nn.Parameter):
            raise TypeError(f"{name} creates its own nn.Parameter; pass a tensor and learnable=True")
        if unknown := options.keys() - signature(self.mapping.function).parameters.keys():
            raise TypeError(f"{name}: {self.mapping.name} got an unexpected keyword argument {unknown.pop()!r}")
        self.options = options | self.mapping.bind_options(name, options)
        self.value = None
        self.raw_value = None
        if learnable:  # of at least one dimension: fully_shard divides the first
            start = self._unconstrain(parameter.example if value is None else value)
            self.raw_value = nn.Parameter(torch.atleast_1d(start))
        if value is not None and not learnable:
            self.current_value = value

    def forward(self, x: Tensor, value: Value | None = None, *, mask: Tensor | None = None, **named: Value) -> Tensor:
        """Map ``x`` to probabilities, with the parameter of the call, by position or by its name, or of the module."""
        kind, name = type(self).__name__, self._parameter().name
        value = named.pop(name, value)
        if named:
            raise TypeError(f"{kind} got an unexpected keyword argument {next(iter(named))!r}")
        value = self.current_value if value is None else value
        if value is None:
            raise ValueError(f"{kind} has no {name}: pass it to the module, {kind}({name}=...), or to the call")
        return self.mapping.function(x, value, dim=self.dim, mask=mask, **self.options)

    @property
    def current_value(self) -> Value | None:
        """The parameter, learned or not, to read and to set; also an attribute under its name, such as ``r``."""
        if self.raw_value is None:
            return self.value
        return self._parameter().domain.constrain(self.raw_value.to(at_least_float32(self.raw_value.dtype)))

    @current_value.setter
    def current_value(self, value: Value) -> None:
        value = inside_domain(type(self).__name__, self._parameter(), value)
        if self.raw_value is not None:
            with torch.no_grad():
                copy_into(self.raw_value, self._unconstrain(value))
        elif isinstance(self.value, Tensor):
            self.value.copy_(value if isinstance(value, Tensor) else torch.tensor(value))
        elif isinstance(value, Tensor):
            del self.value
            self.register_buffer("value", value.detach().clone())
        else:
            self.value = value

    def extra_repr(self) -> str:
        """The arguments shown by ``repr``."""
        value = self.current_value
        if isinstance(value, Tensor):
            value = value.detach()
            is_number = value.numel() == 1 and is_eager_cpu(value)
            shown = f"{value.item():.4g}" if is_number else f"tensor{tuple(value.shape)}"
        else:
            shown = "None" if value is None else f"{value:.4g}"
        items = {"learnable": self.raw_value is not None, "dim": self.dim, **self.options}
        return ", ".join(f"{key}={item}" for key, item in ({self._parameter().name: shown} | items).items())

    def _unconstrain(self, value: Value) -> Tensor:
        """The point of the real line that a value of the domain comes from."""
        value = inside_domain(type(self).__name__, self._parameter(), value)
        start = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.get_default_dtype())
        raw = self._parameter().domain.unconstrain(start)
        if is_eager_cpu(raw) and not raw.isfinite().all():
            raise ValueError(
                f"{type(self).__name__}: a learnable {self._parameter().name} has no gradient at the edge of its"
                f" domain, got {value}"
            )
        return raw

    @classmethod
    def _parameter(cls) -> ParamSpec:
        assert cls.mapping.parameter is not None
        return cls.mapping.parameter


class Softmax(MappingModule, mapping=MAPPINGS["softmax"]):
    """:func:`rsoftmax.softmax` as a module."""


class TSoftmax(ParametricModule, mapping=MAPPINGS["t_softmax"]):
    """:func:`rsoftmax.t_softmax` as a module; see :class:`RSoftmax`."""

    t: Value | None

    def __init__(
        self, t: Value | None = None, dim: int = -1, learnable: bool = False, *, edge: float = math.inf
    ) -> None:
        super().__init__(t, dim, learnable, edge=edge)


class KSoftmax(ParametricModule, mapping=MAPPINGS["k_softmax"]):
    """:func:`rsoftmax.k_softmax` as a module; see :class:`RSoftmax`."""

    k: Value | None

    def __init__(
        self, k: Value | None = None, dim: int = -1, learnable: bool = False, *, edge: float = math.inf
    ) -> None:
        super().__init__(k, dim, learnable, edge=edge)


class RSoftmax(ParametricModule, mapping=MAPPINGS["r_softmax"]):
    """:func:`rsoftmax.r_softmax` as a module.

    Args:
        r: the rate, in [0, 1]; a number, or a tensor that broadcasts against ``x`` with ``dim`` of size 1. None: pass
            it at each call.
        dim: the dimension that sums to one.
        learnable: train ``r``, from 0.5 if it is None; it stays above 0 and below 1.
        edge: the distance above the threshold over which weights rise.
        detach_threshold: treat the quantile as a constant in the backward pass.

    Example:
        >>> RSoftmax(r=0.5)(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([0.0000, 0.0000, 0.1092, 0.8908])
        >>> RSoftmax(r=torch.full((12, 1, 1), 0.2), learnable=True)
        RSoftmax(r=tensor(12, 1, 1), learnable=True, dim=-1, edge=inf, detach_threshold=False)
    """

    r: Value | None

    def __init__(
        self,
        r: Value | None = None,
        dim: int = -1,
        learnable: bool = False,
        *,
        edge: float = math.inf,
        detach_threshold: bool = False,
    ) -> None:
        super().__init__(r, dim, learnable, edge=edge, detach_threshold=detach_threshold)


class Sparsemax(MappingModule, mapping=MAPPINGS["sparsemax"]):
    """:func:`rsoftmax.sparsemax` as a module."""


class SparsegenLin(ParametricModule, mapping=MAPPINGS["sparsegen_lin"]):
    """:func:`rsoftmax.sparsegen_lin` as a module; see :class:`RSoftmax`."""

    lam: Value | None

    def __init__(self, lam: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(lam, dim, learnable)


class SparsegenExp(ParametricModule, mapping=MAPPINGS["sparsegen_exp"]):
    """:func:`rsoftmax.sparsegen_exp` as a module; see :class:`RSoftmax`."""

    lam: Value | None

    def __init__(self, lam: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(lam, dim, learnable)


class Sparsehourglass(ParametricModule, mapping=MAPPINGS["sparsehourglass"]):
    """:func:`rsoftmax.sparsehourglass` as a module; see :class:`RSoftmax`."""

    q: Value | None

    def __init__(self, q: Value | None = 10.0, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(q, dim, learnable)


class SphericalSoftmax(MappingModule, mapping=MAPPINGS["spherical_softmax"]):
    """:func:`rsoftmax.spherical_softmax` as a module."""


class Entmax15(MappingModule, mapping=MAPPINGS["entmax15"]):
    """:func:`rsoftmax.entmax15` as a module."""


class Entmax(ParametricModule, mapping=MAPPINGS["entmax"]):
    """:func:`rsoftmax.entmax` as a module; see :class:`RSoftmax`."""

    alpha: Value | None

    def __init__(self, alpha: Value | None = None, dim: int = -1, learnable: bool = False) -> None:
        super().__init__(alpha, dim, learnable)


class Normmax(ParametricModule, mapping=MAPPINGS["normmax"]):
    """:func:`rsoftmax.normmax` as a module, such as ``Normmax(alpha=2.0)``; see :class:`RSoftmax`."""


class Budget(ParametricModule, mapping=MAPPINGS["budget"]):
    """:func:`rsoftmax.budget` as a module, such as ``Budget(k=2.0)``; see :class:`RSoftmax`."""


class Lapsum(ParametricModule, mapping=MAPPINGS["lapsum"]):
    """:func:`rsoftmax.lapsum` as a module, such as ``Lapsum(k=2.0)``; see :class:`RSoftmax`."""


class SinkSoftmax(ParametricModule, mapping=MAPPINGS["sink_softmax"]):
    """:func:`rsoftmax.sink_softmax` as a module, such as ``SinkSoftmax(sink=0.0)``; see :class:`RSoftmax`."""


class Softpick(MappingModule, mapping=MAPPINGS["softpick"]):
    """:func:`rsoftmax.softpick` as a module."""


class Pooled(NamedTuple):
    """What :class:`SparsePooling` returns.

    Attributes:
        features: [..., K, d], a vector for each label; of :meth:`SparsePooling.scores`, a score: [..., K].
        weights: [..., K, n], the share of each instance in it: exactly zero for most of them.
    """

    features: Tensor
    weights: Tensor


class SparsePooling(nn.Module):
    r"""Pools a set of instances into one vector for each label: label-wise attention with exact zeros.

    .. math:: a_k = \mathrm{mapping}(s_k(x_1), \ldots, s_k(x_n)), \qquad h_k = \sum_i a_{ki} x_i

    Instances are what an item consists of: the windows of a long text, the patches of an image, the members of a bag in
    multiple-instance learning. Those with weight are the evidence for a label.

    Args:
        scorer: a module from instances [..., n, d] to scores [..., n, K]. ``nn.Linear(d, K, bias=False)`` has a query
            for each label; with a hidden layer it can tell apart more.
        mapping: a name in ``MAPPINGS``.
        parameter: the parameter and options of the mapping, and ``learnable``, as its module takes them: ``t=2.0``.

    Returns:
        From instances x [..., n, d] and a mask [..., n], True = keep: :class:`Pooled`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> pooling = SparsePooling(nn.Linear(16, 3, bias=False), "k_softmax", k=2)
        >>> x, mask = torch.randn(5, 4, 16), torch.arange(4) < 3  # five items, four instances; the last is padding
        >>> pooled = pooling(x, mask=mask)
        >>> pooled.features.shape
        torch.Size([5, 3, 16])
        >>> pooled.weights[0]
        tensor([[0.0000, 0.1093, 0.8907, 0.0000],
                [0.0000, 0.6404, 0.3596, 0.0000],
                [0.0000, 0.7422, 0.2578, 0.0000]], grad_fn=<SelectBackward0>)

    A masked instance has weight zero and no influence, whatever its features, which may be NaN. An item without
    instances gets zeros.

    A classifier of instances needs no queries: :meth:`scores` pools its own scores, so that the evidence is where they
    are high. On long texts that was better than learned queries.

    Reference: Ilse et al., Attention-based deep multiple instance learning (2018); Mullenbach et al., Explainable
    prediction of medical codes from clinical text (2018), for one query per label.
    """

    def __init__(self, scorer: nn.Module, mapping: str = "sparsemax", **parameter: Any) -> None:
        super().__init__()
        self.scorer = scorer
        self.mapping = _module("SparsePooling", mapping, parameter)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Pooled:
        """Pool instances [..., n, d] for each label."""
        x = _without_masked(x, mask)
        weights = self._weights(self.scorer(x), mask).to(x.dtype)
        return Pooled(weights @ x, weights)

    def scores(self, x: Tensor, *, mask: Tensor | None = None) -> Pooled:
        r"""Pool the scores of instances themselves, :math:`\sum_i a_{ki} s_k(x_i)`: [..., K]."""
        scores = self.scorer(_without_masked(x, mask))
        weights = self._weights(scores, mask).to(scores.dtype)
        return Pooled((weights * scores.transpose(-1, -2)).sum(-1), weights)

    def _weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        weights: Tensor = self.mapping(scores.transpose(-1, -2), mask=None if mask is None else mask.unsqueeze(-2))
        return weights


class Routing(NamedTuple):
    r"""What :class:`Router` returns.

    Attributes:
        weights: [..., E], the weight of each expert: exactly zero for most of them.
        logits: [..., E], in at least float32; -inf for a masked token.
        n_experts: [...], the number of experts of each token, with the gradient of its expected number. That is
            k for ``k_softmax`` and (1 - r) E for ``r_softmax``; where the data decide, the effective number
            :math:`(\sum p)^2 / \sum p^2`, which is m for m equal weights and less if some of them are small.
    """

    weights: Tensor
    logits: Tensor
    n_experts: Tensor

    def selected(self) -> tuple[Tensor, Tensor]:
        """Weights and indices [..., m] of the experts of each token, the highest weight first.

        m is the largest number of experts of a token; one with fewer has weights of zero at the end.
        """
        used = int(self.n_experts.max()) if self.n_experts.numel() else 0
        weights, indices = self.weights.topk(used)
        return weights, indices

    def budget_loss(self, budget: float) -> Tensor:
        """By how much the mean number of experts of a token exceeds the budget."""
        return (self.n_experts.sum() / self._tokens() - budget).clamp(min=0)

    def balance_loss(self) -> Tensor:
        r"""The loss of Switch Transformers, :math:`E \sum_e f_e P_e`: 1 if all experts are used equally, up to E.

        :math:`f_e` is the share of an expert in all choices, :math:`P_e` its mean in the softmax of the logits: it has
        a gradient for experts without a token, too.
        """
        chosen = (self.weights > 0).flatten(0, -2).sum(0)
        mean = softmax(self.logits).flatten(0, -2).sum(0) / self._tokens()
        return chosen.numel() * (chosen / chosen.sum().clamp(min=1) * mean).sum()

    def _tokens(self) -> Tensor:
        return (self.logits != -math.inf).any(-1).sum().clamp(min=1)


class Router(nn.Module):
    r"""Chooses the experts of each token in a mixture of experts, with exact zeros and a gradient through their number.

    .. math:: p = \mathrm{mapping}(W x), \qquad y = \sum_{e:\, p_e > 0} p_e \, \mathrm{expert}_e(x)

    Top-k gives every token the same number of experts, which has no gradient. The parameter of a mapping can be
    learned for the layer (``learnable=True``) or predicted for each token (``per_token=True``).

    Args:
        width: the width of a token.
        experts: their number E.
        mapping: a name in ``MAPPINGS``.
        per_token: predict the parameter for each token, by a linear layer on the real line that maps onto its domain.
            At first all tokens have the one given, or the table's example.
        parameter: the parameter and options of the mapping, and ``learnable``, as its module takes them: ``k=2.0``.

    Returns:
        From tokens x [..., width] and a mask [...], True = keep: :class:`Routing`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> router, x = Router(16, 8, "sparsegen_lin", lam=0.5, per_token=True), torch.randn(3, 16)
        >>> routing = router(x)
        >>> weights, indices = routing.selected()  # as mixtures of Transformers take them
        >>> weights.detach(), indices
        (tensor([[1.0000, 0.0000, 0.0000, 0.0000, 0.0000],
                [0.8834, 0.1166, 0.0000, 0.0000, 0.0000],
                [0.5644, 0.1969, 0.1306, 0.0903, 0.0178]]), tensor([[3, 6, 5, 4, 7],
                [4, 7, 5, 0, 6],
                [1, 0, 4, 5, 2]]))
        >>> routing.n_experts.detach()
        tensor([1., 2., 5.])
        >>> loss = 0.01 * routing.balance_loss() + 0.1 * routing.budget_loss(2.0)  # to be added to that of the task

    A masked token has no expert and does not count in the losses.

    References: Zhuang et al., LD-MoLE (2025), for sparsegen with a parameter for each token; Fedus et al., Switch
    Transformers (2022), for the balance.
    """

    def __init__(
        self, width: int, experts: int, mapping: str = "sparsemax", *, per_token: bool = False, **parameter: Any
    ) -> None:
        super().__init__()
        if per_token and mapping in MAPPINGS and MAPPINGS[mapping].parameter is None:
            raise ValueError(f"Router: {mapping} has no parameter to predict for each token")
        self.scorer = nn.Linear(width, experts, bias=False)
        self.mapping = _module("Router", mapping, parameter | ({"learnable": True} if per_token else {}))
        self.shift: nn.Linear | None = None
        if per_token:
            self.shift = nn.Linear(width, 1, bias=False)
            nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Routing:
        """Choose the experts of tokens [..., width]."""
        x, keep = _without_masked(x, mask), None if mask is None else mask.unsqueeze(-1)
        logits, value = self.scorer(x), self._value(x)
        weights = self.mapping(logits, *([] if value is None else [value]), mask=keep).to(logits.dtype)
        return Routing(weights, mask_to_neg_inf(logits, keep), self._number(weights, value))

    def _value(self, x: Tensor) -> Value | None:
        """The parameter, [..., 1] if it is predicted for each token."""
        if self.shift is None:
            return getattr(self.mapping, "current_value", None)
        raw = self.mapping.raw_value + self.shift(x)
        predicted: Tensor = self.mapping.mapping.parameter.domain.constrain(raw.to(at_least_float32(raw.dtype)))
        return predicted

    def _number(self, p: Tensor, value: Value | None) -> Tensor:
        """The number of weights that are not zero, with the gradient of its expected value."""
        p = p.to(at_least_float32(p.dtype))
        number, of_parameter = (p > 0).sum(-1), self.mapping.mapping.nonzeros
        if of_parameter is None:
            expected = p.sum(-1).square() / p.square().sum(-1).clamp(min=torch.finfo(p.dtype).tiny)
        else:
            expected = torch.as_tensor(of_parameter(value, p.shape[-1]), device=p.device)
            expected = expected.expand(*p.shape[:-1], 1).squeeze(-1).to(p.dtype)
        return number + torch.where(number > 0, expected - expected.detach(), 0)


def _module(caller: str, mapping: str, parameter: dict[str, Any]) -> Any:
    """The module of a mapping by its name."""
    if mapping not in MAPPINGS:
        raise ValueError(f"{caller}: unknown mapping {mapping!r}; choose one of {', '.join(MAPPINGS)}")
    return module_of(MAPPINGS[mapping])(**parameter)


def _without_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Instances with zeros in place of masked ones."""
    return x if mask is None else x.masked_fill(mask.logical_not().unsqueeze(-1), 0)


@cache
def module_of(mapping: MappingSpec) -> type[MappingModule]:
    """The class of a mapping: the one above, or a subclass made for it.

    Example:
        >>> module_of(MAPPINGS["r_softmax"])
        <class 'rsoftmax.nn.RSoftmax'>
    """
    name = _class_name(mapping.name)
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, MappingModule) and kind.mapping is mapping:
        return kind
    base = MappingModule if mapping.parameter is None else ParametricModule
    contents = {"__module__": __name__, "__doc__": f":func:`{mapping.name}` as a module."}
    return type(name, (base,), contents, mapping=mapping)


class _Modules(Mapping[str, type[MappingModule]]):
    """A live view of the classes of all mappings, by class name."""

    def __getitem__(self, name: str) -> type[MappingModule]:
        return module_of({_class_name(mapping): spec for mapping, spec in MAPPINGS.items()}[name])

    def __iter__(self) -> Iterator[str]:
        return map(_class_name, MAPPINGS)

    def __len__(self) -> int:
        return len(MAPPINGS)


MODULES = _Modules()


def __getattr__(name: str) -> Any:
    if name in MODULES:  # pickle looks for the other classes here
        return MODULES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
