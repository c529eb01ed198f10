"""Traits: everything about a class of requests beside its lengths."""

from __future__ import annotations

import msgspec

from tailrace.workload.call import Call
from tailrace.workload.leave import Leave
from tailrace.workload.length import Length
from tailrace.workload.prefix import Prefixes
from tailrace.workload.session import Sessions


class Traits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the requests of a class do; the defaults are those of a plain request."""

    sessions: Sessions | None = None
    leaves: list[Leave] = []
    prefixes: Prefixes | None = None
    audio: Length | None = None
    """Length of what is to be transcribed (milliseconds)."""
    batch: int = 1
    """Inputs in one request for embeddings, each with a prompt's length."""
    call: Call = Call()

    @property
    def plain(self) -> bool:
        """Whether there is nothing to draw for a request beside its lengths."""
        return self.sessions is None and not self.leaves and self.prefixes is None and self.audio is None


PLAIN = Traits()
