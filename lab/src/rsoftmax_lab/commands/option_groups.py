"""Groups of options: a dataclass whose fields are options of a command."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Any, get_type_hints


def flattened(function: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameters of a function that are dataclasses by their fields, as Typer expects.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Place:
        ...     folder: str = "here"
        >>> def show(place: Place, times: int = 1) -> None:
        ...     print(place, times)
        >>> flattened(show)(folder="there", times=2)
        Place(folder='there') 2
    """
    groups: dict[str, Any] = {name: kind for name, kind in get_type_hints(function).items() if is_dataclass(kind)}

    @wraps(function)
    def command(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        function(**given)

    own = inspect.signature(function).parameters.values()
    lists = [inspect.signature(groups[one.name]).parameters.values() if one.name in groups else [one] for one in own]
    parameters = [one.replace(kind=Parameter.KEYWORD_ONLY) for several in lists for one in several]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command
