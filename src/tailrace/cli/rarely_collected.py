"""A command that reads, answers and ends makes millions of objects and hardly one cycle among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["rarely_collected"]


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Look for garbage after 50,000 new objects instead of 700, and hardly ever among old ones: looking took a quarter
    of the time in which a scrape of 10 MB was answered.
    """
    before = gc.get_threshold()
    gc.set_threshold(50_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
