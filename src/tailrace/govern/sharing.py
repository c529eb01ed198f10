"""What several lanes share: one engine's places and tokens, and by which rule they take turns at them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

STRICT_AGEING_NS: Final = 1_000_000_000
"""A waiting request gains one step of priority a second, so that a low lane is late but never starved."""
WEIGHTED_AGEING_NS: Final = 60_000_000_000
"""A lane's weight counts double after a minute's wait. Weights alone starve nobody; this bounds how late a light one
comes."""


class Between(StrEnum):
    """How lanes take turns at a total limit."""

    STRICT = "strict"
    """By priority, aged: who has waited one `ageing` longer counts one step of priority higher."""
    WEIGHTED = "weighted"
    """By weight: tokens are started in proportion to it."""


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Total limits over all lanes, and the turns at them. Every limit that is `None` does not exist."""

    running: int | None = None
    running_tokens: int | None = None
    running_kv_tokens: int | None = None
    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    between: Between = Between.STRICT
    ageing_ns: int | None = None
    """`None`: `STRICT_AGEING_NS` or `WEIGHTED_AGEING_NS`, by the rule."""
    tenant_weights: Mapping[str, float] = {}
    """Tenant -> its part of every lane, above 0; 1 for whoever is not named."""

    @property
    def age_ns(self) -> int:
        """`ageing_ns`, with its default; at least 1."""
        if self.ageing_ns is not None:
            return max(1, self.ageing_ns)
        return STRICT_AGEING_NS if self.between is Between.STRICT else WEIGHTED_AGEING_NS
