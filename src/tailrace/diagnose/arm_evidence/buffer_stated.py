"""GW_PROXY_BUFFERING from a form: a buffer's size, a chunk's size and its period give the period of the bursts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import number_stated
from tailrace.diagnose.arms.shown import evidence_of_setting
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.vocabulary import in_unit, unit_in_name
from tailrace.diagnose.series_evidence.proxy_bursts import ADVICE, PRICE, VERIFY
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["buffer_stated"]

NEAR: Final = 0.1
USUAL: Final = (4096, 8192, 16384, 32768, 65536)
_CHUNK: Final = (
    r"(?:chunk|event|message|delta)s?(?: size)? (?:bytes|size)|bytes per (?:chunk|event)|(?:chunk|event) bytes"
)
_PERIOD: Final = (
    r"(?:chunk|event|token)s? (?:period|interval|gap|every)|"
    r"(?:itl|gap)(?: direct| upstream| engine)?(?: p50| mean)?(?: ms| s)?$|(?:upstream|engine|direct) (?:itl|gap)"
)
_BURST: Final = (
    r"(?:burst|clump|batch|flush)e?s? (?:period|interval|every|gap)|between bursts|(?:stall|pause) (?:s|ms)$"
)
_MANY: Final = r"(?:chunks|events|tokens|messages) (?:per|in (?:a|each)) (?:burst|clump|flush)|burst (?:chunks|size)"
_BUFFER: Final = r"buffer(?:s)?(?: size)?(?: bytes| size)?$|buffer (?:bytes|size)"


def buffer_stated(cause: Cause, observed: Observed) -> Finding | None:
    """Buffer / chunk x period is the period that was seen; a usual buffer's size will do where none is stated."""
    chunk, period = number_stated(observed, _CHUNK), number_stated(observed, _PERIOD)
    burst, many = number_stated(observed, _BURST), number_stated(observed, _MANY)
    if chunk is None or not chunk.number or chunk.number <= 0 or (many is None and (period is None or burst is None)):
        return None
    each, seen = _ms(period), _ms(burst)
    counted = many.number if many is not None and many.number else seen / each if seen and each else None
    if counted is None or counted < 2:
        return None
    stated = number_stated(observed, _BUFFER)
    sizes = [int(stated.number)] if stated is not None and stated.number else list(USUAL)
    each_bytes = chunk.number
    size = min(sizes, key=lambda one: abs(one / each_bytes - counted))
    expected = size / each_bytes
    if abs(expected - counted) > NEAR * counted:
        return None
    relation = f"{size} / {chunk.number:g} bytes = {expected:.1f} chunks"
    relation += f" x {each / 1e3:.4g} s = {expected * each / 1e3:.2f} s" if each else ""
    relation += f"; seen {f'{counted:.3g} chunks' if many is not None else ''}"
    relation += f" every {seen / 1e3:.4g} s" if seen else ""
    shown = [item for item in (stated, chunk, period, burst, many) if item is not None]
    missing = [] if stated is not None else ["the buffer's size of the hop: a usual one fits"]
    return cause.finding(
        statement=f"A hop buffers the stream: a buffer of {size} bytes holds {expected:.1f} chunks of {chunk.number:g} "
        f"bytes, and chunks come in bursts of {counted:.3g}.",
        evidence=[*(evidence_of_setting(item) for item in shown), Evidence(relation, str(chunk.place) or "form")],
        explains_ms=seen,
        relation=relation,
        n=int(counted),
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        missing=missing,
        disproof_checked=["whether every stream of that path comes so is not stated"],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _ms(item: Setting | None) -> float | None:
    if item is None or item.number is None or item.number <= 0:
        return None
    return in_unit(item.number, item.unit or unit_in_name(item.name)[1] or "s", "ms")
