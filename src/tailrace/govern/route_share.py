"""Which requests a share takes: the same session always, and who is in 10 % is in 25 % too."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_SPAN: Final = 2.0**64


def place(key: str, salt: str) -> float:
    """Where `key` stands in [0, 1), the same in every process and after every restart.

    `salt` is the experiment's own name, so that two experiments do not take the same sessions. Taken are the keys below
    the share: a share that grows keeps those that it had.
    """
    digest = blake2b(key.encode("utf-8", "replace"), digest_size=8, key=salt.encode()[:64]).digest()
    return int.from_bytes(digest, "big") / _SPAN
