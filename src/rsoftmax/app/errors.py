"""Errors of the library as messages on the page."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import gradio as gr

P = ParamSpec("P")
T = TypeVar("T")


def told(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors the page shows in their own words."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (ImportError, OSError, TypeError, ValueError) as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from None

    return wrapped
