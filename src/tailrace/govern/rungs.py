"""The rungs of the degradation ladder: what is given up at each, and what that means for a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec


class Rung(StrEnum):
    """One thing that is given up. Its name stands in the record of every request that it touched."""

    BATCH = "batch"
    """The lanes run fewer requests at once: smaller batches, less time for each token."""
    CAP = "cap"
    """Answers are capped."""
    LOW_WAITS = "low_waits"
    """Lanes of low priority get a place only while nobody else waits for one."""
    REFUSE = "refuse"
    """Lanes of low priority are refused, and whoever else would have to wait."""
    SHRINK = "shrink"
    """Long prompts lose their middle."""
    CACHED = "cached"
    """A cached answer is given though it is past its time."""
    SMALLER_MODEL = "smaller_model"
    """A smaller model answers."""


DEFAULT_RUNGS: Final = (Rung.BATCH, Rung.CAP, Rung.LOW_WAITS, Rung.REFUSE)


class RungSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much each rung gives up."""

    limit_factor: float = 0.75
    """Of a lane's running limit, what is left on `batch`; never less than one request."""
    cap_tokens: int = 512
    """The longest answer on `cap`."""
    shrink_tokens: int = 4096
    """The longest prompt on `shrink`."""
    models: Mapping[str, str] = {}
    """Model -> the smaller one that answers on `smaller_model`."""


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """What the rungs in force mean, all together. The default gives nothing up."""

    rungs: tuple[Rung, ...] = ()
    limit_factor: float = 1.0
    cap_tokens: int | None = None
    low_waits: bool = False
    refuse: bool = False
    shrink_tokens: int | None = None
    stale_answers: bool = False
    models: Mapping[str, str] = {}

    def refuses(self, priority: int) -> bool:
        """Whether a lane of this priority (above 0 is low) takes nobody at the moment."""
        return self.refuse and priority > 0

    def for_everybody(self) -> tuple[Rung, ...]:
        """Those that touch every request; the others touch those that they change."""
        return tuple(rung for rung in self.rungs if rung in _FOR_EVERYBODY)


_FOR_EVERYBODY: Final = frozenset({Rung.BATCH, Rung.LOW_WAITS, Rung.REFUSE})
NOTHING_GIVEN_UP: Final = Effects()


def effects_of(rungs: Sequence[Rung], settings: RungSettings) -> Effects:
    """The first rungs of a ladder, taken together."""
    taken = frozenset(rungs)
    return Effects(
        rungs=tuple(rungs),
        limit_factor=settings.limit_factor if Rung.BATCH in taken else 1.0,
        cap_tokens=settings.cap_tokens if Rung.CAP in taken else None,
        low_waits=Rung.LOW_WAITS in taken,
        refuse=Rung.REFUSE in taken,
        shrink_tokens=settings.shrink_tokens if Rung.SHRINK in taken else None,
        stale_answers=Rung.CACHED in taken,
        models=settings.models if Rung.SMALLER_MODEL in taken else {},
    )
