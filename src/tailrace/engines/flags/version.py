"""Versions as engines spell them, made comparable: `v0.32.0`, `0.32.0+cpu`, `0.11.1rc2`, `b6730-a1b2c3d`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_NUMBERS: Final = re.compile(r"(?<![\w.])v?(\d+)\.(\d+)(?:\.(\d+))?")


class Version(msgspec.Struct, frozen=True, order=True):
    """A release; what follows the three numbers (a build, a pre-release) does not count."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse_version(text: str) -> Version | None:
    """The first release number in `text`; `None` where there is none (llama.cpp counts builds and has no releases)."""
    found = _NUMBERS.search(text)
    return None if found is None else Version(int(found[1]), int(found[2]), int(found[3] or 0))
