"""transformers, without its bars and notes."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import logging


@contextmanager
def quiet() -> Iterator[None]:
    """No bars and no notes: a classifier that is new, or left behind, is meant to be. Also a decorator."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
