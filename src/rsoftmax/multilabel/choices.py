"""The rule that a head's arguments ask for: "auto" resolved, and errors that list what goes together."""

from collections.abc import Iterable

from rsoftmax.mappings import MAPPINGS
from rsoftmax.multilabel.rules import RULES, Rule


def choose(mapping: str, loss: str, rate: str | None, r: float | None) -> Rule:
    """The rule, with its mapping and loss; the arguments are those of :class:`rsoftmax.multilabel.MultiLabelHead`."""
    _check_mapping(mapping)
    fitting = [name for name, rule in RULES.items() if mapping in ("auto", *rule.mappings)]
    if rate == "auto":
        rate = "fixed" if r is not None and "fixed" in fitting else fitting[0]
    if rate not in fitting:
        raise ValueError(_unknown_rate(rate) if mapping == "auto" else _misfit(rate, mapping, fitting))
    rule = RULES[rate]
    return rule(rule.mappings[0] if mapping == "auto" else mapping, loss, r)


def _check_mapping(mapping: str) -> None:
    usable = [name for name in MAPPINGS if any(name in rule.mappings for rule in RULES.values())]
    if mapping not in ("auto", *MAPPINGS):
        raise ValueError(f"MultiLabelHead: no mapping is called {mapping!r}; there are {', '.join(usable)}, and auto")
    if mapping not in ("auto", *usable):
        raise ValueError(
            f"MultiLabelHead: {mapping} does not keep the order of scores, on which the losses rest;"
            f" use one of {', '.join(usable)}, or auto"
        )


def _unknown_rate(rate: str | None) -> str:
    return f"MultiLabelHead: no rate is called {rate!r}; there are {_listed(RULES)}, and 'auto'"


def _misfit(rate: str | None, mapping: str, fitting: list[str | None]) -> str:
    others = [f"{name!r} with mapping={RULES[name].mappings[0]!r}" for name in RULES if name not in fitting]
    return (
        f"MultiLabelHead: rate={rate!r} does not go with mapping={mapping!r}, which takes {_listed(fitting)};"
        f" there are also {', '.join(others)}; mapping='auto' takes the one that fits"
    )


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(map(repr, names))
