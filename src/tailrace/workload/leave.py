"""Leaving: clients that go before their answer is whole, on purpose and by plan."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from tailrace.model.errors import InputError
from tailrace.workload.span import LONGEST_NS, read_span

_RULE = re.compile(r"after\s+(?:(\d+)\s+tokens?|([^\s:]+))\s*(?::\s*(\S+))?")
_REMEDY = "Write 'after 5 tokens:0.2' or 'after 2s:0.1': when they leave, and which share of the requests does"


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """When a client leaves: after so many token events, or so long after its send; exactly one of the two is set."""

    share: float = 1.0
    """Of the requests that this rule is for."""
    tokens: int | None = None
    """Events that carry tokens; engines send one token an event unless they speculate or are overtaken."""
    after_ns: int | None = None

    def __str__(self) -> str:
        when = f"{self.tokens} tokens" if self.tokens is not None else f"{(self.after_ns or 0) / 1e9:g}s"
        return f"after {when}:{self.share:g}"


def parse_leave(text: str, *, place: str = "--cancel") -> Leave:
    """Read `after 5 tokens:0.2` or `after 2s:0.1`; without a share, all leave. Raises `InputError`."""
    found = _RULE.fullmatch(text.strip())
    share = 1.0
    out: Leave | None = None
    if found:
        try:
            share = float(found[3] or "1")
        except ValueError:
            share = math.nan
        span = read_span(found[2]) if found[2] else None
        if found[1] and int(found[1]) > 0:
            out = Leave(share=share, tokens=int(found[1]))
        elif span is not None and 0 < span <= LONGEST_NS:
            out = Leave(share=share, after_ns=span)
    if out is None or not 0 < share <= 1:
        raise InputError(f"cannot read {text!r}", place=place, remedy=_REMEDY)
    return out


def check_leaves(rules: Sequence[Leave], *, place: str = "--cancel") -> None:
    """Refuse rules that together take more requests than there are."""
    whole = sum(rule.share for rule in rules)
    if whole > 1 + 1e-9:
        raise InputError(f"the shares add up to {whole:g}, above 1", place=place, remedy=_REMEDY)


def leave_at(rules: Sequence[Leave], u: float) -> Leave | None:
    """Which of the rules takes a request whose uniform draw is `u` (in [0, 1)), if any."""
    for rule in rules:
        if u < rule.share:
            return rule
        u -= rule.share
    return None
