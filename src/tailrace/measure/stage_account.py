"""The account of stages: stamps in, stages that add up to the end-to-end time exactly out.

The life of a request is cut at its stamps, in the order in which a life goes. A stamp out of order is moved to its
neighbour, never believed: no stage is negative and none overlaps another, whatever the stamps are. Time in which the
client held us up is taken out of the stage it fell into and becomes `response`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, SourceKind, Stage, source
from tailrace.model.thresholds import MS

_MEASURED: Final = source(SourceKind.MEASURED)
_REMAINDER: Final = source(SourceKind.INFERRED, "remainder")
_WAIT_PARTS: Final = ("queue", "preprocess", "encode", "prefill", "decode", "postprocess")
_MEASURED_WITH_TOKENS: Final = ("decode", "postprocess")
_STRENGTH: Final = {"inferred": 0, "reported": 1, "measured": 2}


class Passage(msgspec.Struct, frozen=True):
    """The engine was seen to enter a stage at `at_ns` (our clock): a status line, a progress frame, a report."""

    stage: str
    """`queue`, `preprocess`, `encode` or `prefill`."""
    at_ns: int
    source: str = _MEASURED


class Stamps(msgspec.Struct, kw_only=True):
    """Absolute stamps of one monotonic clock (ns); `None` where the event did not happen."""

    received: int
    queued: int | None = None
    """Classified and handed to admission; ends `ingress`."""
    admitted: int | None = None
    upload_start: int | None = None
    """A body that was not gathered began to go upstream: from here to `sent` it is `ingress` again."""
    sent: int | None = None
    """The last byte of the request was written upstream."""
    first_token: int | None = None
    last_token: int | None = None
    """The last token of a *finished* answer; `None` while more was to come."""
    upstream_end: int | None = None
    """The engine's answer was read to its end."""
    end: int
    """The last byte was taken by the client, or the request was given up."""


class StageAccount(msgspec.Struct, frozen=True):
    """Values (ns) by stage or part, and their sources."""

    values: dict[str, int]
    sources: dict[str, str]


def _union(intervals: Sequence[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Disjoint, ordered intervals inside [low, high]."""
    out: list[tuple[int, int]] = []
    for start, end in sorted((max(start, low), min(end, high)) for start, end in intervals):
        if end <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def _overlap(intervals: Sequence[tuple[int, int]], low: int, high: int) -> int:
    return sum(max(0, min(end, high) - max(start, low)) for start, end in intervals)


def _weakest(sources: Sequence[str]) -> str:
    return min(sources, key=lambda text: _STRENGTH.get(text.partition("(")[0], 0))


def _with_detail(text: str, note: str) -> str:
    kind, _, detail = text.partition("(")
    detail = detail.removesuffix(")")
    return f"{kind}({detail}; {note})" if detail else f"{kind}({note})"


class _Ledgering:
    """Adds durations to stages while the account is drawn up."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.origins: dict[str, list[str]] = {}

    def add(self, stage: str, value: int, origin: str) -> None:
        self.values[stage] = self.values.get(stage, 0) + value
        self.origins.setdefault(stage, []).append(origin)

    def close(self) -> StageAccount:
        return StageAccount(self.values, {stage: _weakest(origins) for stage, origins in self.origins.items()})


def account_for(
    stamps: Stamps,
    *,
    timings: EngineTimings = NO_TIMINGS,
    passages: Sequence[Passage] = (),
    blocked: Sequence[tuple[int, int]] = (),
) -> StageAccount:
    """The stages of one request; the sum of the top-level ones is `stamps.end - stamps.received` exactly.

    Between the send and the first token (or the end of the answer, where none was seen) only the engine knows what
    happened: its reported durations are taken in the order of a life, each cut to what is left, and the cut is said in
    the source. A stage that it did not report takes the time between the passages that we saw. The rest is
    `unattributed`.
    """
    if not passages and not blocked and stamps.upload_start is None:
        plain = _plain_account(stamps)
        if plain is not None:
            if timings is NO_TIMINGS:
                return plain
            return _split_plain(plain, timings, sees_tokens=stamps.first_token is not None)
    return _full_account(stamps, timings, passages, blocked)


def _plain_account(stamps: Stamps) -> StageAccount | None:  # noqa: PLR0911  (one return a shape)
    """The account of a whole life whose stamps are all there and in order, as nearly every one is; else `None`.

    Gives what `_full_account` gives, at a fifth of its cost.
    """
    received, queued, admitted, sent, end = stamps.received, stamps.queued, stamps.admitted, stamps.sent, stamps.end
    done = stamps.upstream_end
    if queued is None or admitted is None or sent is None or done is None:
        return None
    if not received <= queued <= admitted <= sent <= done <= end:
        return None
    first, last = stamps.first_token, stamps.last_token
    if first is None:
        values = {
            "ingress": queued - received,
            QUEUE_GATEWAY: admitted - queued,
            "queue": sent - queued,
            "response": end - done,
        }
        if done == sent:
            return StageAccount(values, _WHOLE_SOURCES)
        values["unattributed"] = done - sent
        return StageAccount(values, _WHOLE_UNSPLIT_SOURCES)
    if last is None or not sent <= first <= last <= done:
        return None
    values = {
        "ingress": queued - received,
        QUEUE_GATEWAY: admitted - queued,
        "queue": sent - queued,
        "decode": last - first,
        "postprocess": done - last,
        "response": end - done,
    }
    if first == sent:
        return StageAccount(values, _STREAM_SOURCES)
    values["unattributed"] = first - sent
    return StageAccount(values, _STREAM_UNSPLIT_SOURCES)


def _split_plain(plain: StageAccount, timings: EngineTimings, *, sees_tokens: bool) -> StageAccount:
    """With the engine's own stages in place of what is unattributed, as `_split_wait` puts them there."""
    values, sources = plain.values, plain.sources.copy()
    left = values.pop("unattributed", 0)
    sources.pop("unattributed", None)
    for stage in _WAIT_PARTS:
        if stage == "decode" and sees_tokens:
            continue
        part = timings.part(stage)
        if part is None:
            continue
        value, origin = part
        if value > left:
            origin = _with_detail(origin, f"clamped from {value / MS:.3f} ms")
            value = left
        left -= value
        if stage == "queue":
            values[QUEUE_ENGINE] = value
            sources[QUEUE_ENGINE] = origin
            values["queue"] += value
            sources["queue"] = _weakest((_MEASURED, origin))
        else:
            values[stage] = value
            sources[stage] = origin
    if left:
        values["unattributed"] = left
        sources["unattributed"] = _REMAINDER
    return StageAccount(values, sources)


# Shared by all accounts of their shape: nobody changes the sources of a record.
_WHOLE_SOURCES: Final[dict[str, str]] = dict.fromkeys(("ingress", QUEUE_GATEWAY, "queue", "response"), _MEASURED)
_WHOLE_UNSPLIT_SOURCES: Final = {**_WHOLE_SOURCES, "unattributed": _REMAINDER}
_STREAM_SOURCES: Final = {**_WHOLE_SOURCES, "decode": _MEASURED, "postprocess": _MEASURED}
_STREAM_UNSPLIT_SOURCES: Final = {**_STREAM_SOURCES, "unattributed": _REMAINDER}


def parts_within(account: StageAccount, timings: EngineTimings) -> tuple[dict[str, int], dict[str, str]]:
    """(parts, their sources): those of `timings` whose stage is in the account, none longer than its stage."""
    parts: dict[str, int] = {}
    sources: dict[str, str] = {}
    for name, value in timings.parts_ns.items():
        whole = account.values.get(name.partition(".")[0])
        if whole is None or value < 0:
            continue
        origin = timings.sources.get(name, "reported")
        if value > whole:
            origin = _with_detail(origin, f"clamped from {value / MS:.3f} ms")
        parts[name] = min(value, whole)
        sources[name] = origin
    return parts, sources


def _full_account(
    stamps: Stamps, timings: EngineTimings, passages: Sequence[Passage], blocked: Sequence[tuple[int, int]]
) -> StageAccount:
    begin = stamps.received
    end = max(stamps.end, begin)
    held = _union(blocked, begin, end)
    out = _Ledgering()
    cuts: list[tuple[str, int | None]] = [
        ("ingress", begin),
        (QUEUE_GATEWAY, stamps.queued),
        ("handover", stamps.admitted),
        ("upload", stamps.upload_start),
        ("wait", stamps.sent),
        ("decode", stamps.first_token),
        ("postprocess", stamps.last_token if stamps.first_token is not None else None),
        ("response", stamps.upstream_end if stamps.sent is not None else None),
    ]
    known: list[tuple[str, int, str]] = []
    previous = begin
    for name, at in cuts:
        if at is None:
            continue
        placed = min(max(at, previous), end)
        known.append((name, placed, _MEASURED if placed == at else _with_detail(_MEASURED, "stamp out of order")))
        previous = placed
    for index, (name, start, origin) in enumerate(known):
        stop = known[index + 1][1] if index + 1 < len(known) else end
        lost = _overlap(held, start, stop)
        length = stop - start - (0 if name == "response" else lost)
        if lost and name != "response":
            out.add("response", lost, source(SourceKind.MEASURED, "client blocked"))
        if name == "wait":
            _split_wait(out, length, start, stop, timings, passages, sees_tokens=stamps.first_token is not None)
        elif name == QUEUE_GATEWAY:
            out.add(QUEUE_GATEWAY, length, origin)
            out.add(Stage.QUEUE, length, origin)
        elif name == "handover":
            # Connecting and sending: the engine has not begun, so it is queue where there is one.
            out.add(Stage.QUEUE if stamps.queued is not None else Stage.INGRESS, length, origin)
        elif name == "upload":
            out.add(Stage.INGRESS, length, origin)
        else:
            out.add(name, length, origin)
    return out.close()


def _split_wait(
    out: _Ledgering,
    length: int,
    start: int,
    stop: int,
    timings: EngineTimings,
    passages: Sequence[Passage],
    *,
    sees_tokens: bool,
) -> None:
    seen = _between(passages, start, stop)
    left = length
    for stage in _WAIT_PARTS:
        if sees_tokens and stage in _MEASURED_WITH_TOKENS:
            continue
        part = timings.part(stage) or seen.get(stage)
        if part is None:
            continue
        value, origin = part
        if value > left:
            origin = _with_detail(origin, f"clamped from {value / MS:.3f} ms")
            value = left
        left -= value
        if stage == "queue":
            out.add(QUEUE_ENGINE, value, origin)
        out.add(stage, value, origin)
    if left:
        out.add(Stage.UNATTRIBUTED, left, _REMAINDER)


def _between(passages: Sequence[Passage], start: int, stop: int) -> dict[str, tuple[int, str]]:
    """Stage -> (time spent in it, source), from the passages seen in [start, stop]."""
    ordered = sorted(passages, key=lambda passage: passage.at_ns)
    out: dict[str, tuple[int, str]] = {}
    for index, passage in enumerate(ordered):
        low = min(max(passage.at_ns, start), stop)
        high = min(max(ordered[index + 1].at_ns, start), stop) if index + 1 < len(ordered) else stop
        before, _ = out.get(passage.stage, (0, ""))
        out[passage.stage] = (before + high - low, passage.source)
    return out
