"""Processes: the kind of arrivals and who sends, without the rate, as one line."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Final, NamedTuple

from tailrace.model.errors import InputError
from tailrace.workload.clients import Clients, Spread
from tailrace.workload.shape import number_text
from tailrace.workload.shape_text import span_ns


class ArrivalKind(StrEnum):
    """The name says what it does: `constant` is evenly spaced, `poisson` has exponential gaps."""

    CLOSED = "closed"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    TRACE = "trace"


_PROCESS = re.compile(r"(poisson|constant|gamma)(?:\s+(\S+))?")
_CLIENTS = re.compile(
    r"(\d+)\s+clients?"
    r"(?:\s+(zipf|lognormal)\s+(\S+)|\s+(even))?"
    r"(?:\s+every\s+([\d.]+\s*[a-z]*?))?"
    r"(?:\s+starting\s+over\s+([\d.]+\s*[a-z]*?))?"
    r"(?:\s+own\s+mix(?:\s+(\S+))?)?"
)
_EXAMPLES: Final = "poisson, constant, 'gamma 0.3' or '50 clients zipf 1.1, gamma 0.3'"


class Process(NamedTuple):
    """A kind of arrivals without its rate. `str` gives what `parse_process` reads."""

    kind: ArrivalKind
    burstiness: float = 1.0
    clients: Clients | None = None

    def __str__(self) -> str:
        text = str(self.kind)
        if self.kind is ArrivalKind.GAMMA:
            text += f" {number_text(self.burstiness)}"
        return text if self.clients is None else f"{self.clients}, {text}"


def parse_process(text: str, *, place: str = "--arrival") -> Process:
    """Read `poisson`, `constant`, `gamma 0.3`, or clients before any of them: `50 clients zipf 1.1, gamma 0.3`.

    Of clients: `zipf X` or `lognormal X` (how unequal they are), `every 20s` (the mean time between two requests of
    one: gives the rate), `starting over 30s` (they come in over time), `own mix 0.5` (each has a mix of its own).
    Raises `InputError` that names `place` and the part that cannot be read.
    """
    kind, burstiness, clients = ArrivalKind.POISSON, 1.0, None
    parts = [part.strip() for part in text.split(",")]
    try:
        if "client" in parts[0]:
            clients = _clients(parts.pop(0))
        if clients is None or parts:
            kind, burstiness = _process(", ".join(parts))
    except InputError as error:
        raise InputError(error.message, place=place, remedy=error.remedy or f"Write {_EXAMPLES}") from None
    return Process(kind, burstiness, clients)


def _process(part: str) -> tuple[ArrivalKind, float]:
    found = _PROCESS.fullmatch(part)
    if found is None:
        raise InputError(f"there are no {part!r} arrivals")
    kind = ArrivalKind(found[1])
    if found[2] is None:
        return kind, 1.0
    if kind is not ArrivalKind.GAMMA:
        raise InputError(f"{kind} arrivals have no burstiness: {part!r}", remedy="Write 'gamma 0.3'")
    burstiness = _positive(found[2], "burstiness")
    return kind, burstiness


def _clients(part: str) -> Clients:
    found = _CLIENTS.fullmatch(part)
    if found is None:
        raise InputError(
            f"cannot read {part!r}",
            remedy="Write '50 clients zipf 1.1', then, in this order, if you want them: every 20s, starting over 30s, "
            "own mix 0.5",
        )
    spread = found[2] or found[4] or "even"
    return Clients(
        count=int(found[1]),
        spread=Spread(spread),
        skew=_positive(found[3], spread) if found[3] else 0.0,
        every_ns=_time(found[5], part),
        start_over_ns=_time(found[6], part) or 0,
        own_mix=(_positive(found[7], "own mix") if found[7] else 1.0) if "own" in part else None,
    )


def _time(text: str | None, part: str) -> int | None:
    if text is None:
        return None
    try:
        return span_ns(text)
    except (ValueError, ArithmeticError, KeyError):
        raise InputError(f"{text!r} in {part!r} is no time", remedy="Write 20s, 5m or 250ms") from None


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"the {what} {text!r} is no number above 0")
    return value
