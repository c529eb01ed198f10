"""A format of foreign evidence: how to tell it by its beginning, and how to read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from tailrace.diagnose.observed import Observed
from tailrace.model.errors import InputError

__all__ = ["Format", "UnknownFormatError"]


class UnknownFormatError(InputError):
    """Text of which nothing is known: alone an error, beside other evidence it is listed as not understood."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format. A reader's file defines one or more of them and `formats.FORMATS` names them."""

    name: str
    """As the documentation calls it: `vllm log`, `nginx access log`, `markdown table`."""
    matches: Callable[[str, str], bool]
    """(the first 64 KiB as text without a byte-order mark, the file's name) -> whether it is this."""
    read: Callable[[Path, str], Observed]
    """(the file, the name to show in places) -> what it says. It streams what can be large, and lists in `understood`
    what it did not understand; it raises InputError only when nothing of the file can be used.
    """
