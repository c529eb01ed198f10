"""`--trim` as it is typed: `10s,5s`, `10s` for both ends, or `steady`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.cli.durations import parse_span

if TYPE_CHECKING:
    from tailrace.analyze.steady import Trim

HELP: Final = (
    "Summarise the steady part alone: 'UP,DOWN' leaves out so much of the beginning and the end of sending (10s,5s; "
    "one value: both), 'steady' all but the longest stretch at 80 % of the peak in flight or more. Off by default."
)


def parse_trim(text: str | None) -> Trim | None:
    """Read the option; `None` without it. Raises `InputError` that says how to write it."""
    from tailrace.analyze.steady import Trim

    if text is None:
        return None
    if text.strip() == "steady":
        return Trim(steady=True)
    up, comma, down = text.partition(",")
    first = _side(up)
    return Trim(up_ns=first, down_ns=_side(down) if comma else first)


def _side(text: str) -> int:
    """One end's time (ns); 0 leaves that end as it is."""
    return 0 if text.strip() == "0" else parse_span(text, place="--trim")
