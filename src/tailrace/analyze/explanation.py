"""Why one request was slow: its stages and waits, who was being served meanwhile, and a normal request like it."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.timebase import starts_ns
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.stage import STAGES
from tailrace.store.table import RecordTable

__all__ = ["Alike", "Explanation", "Neighbour", "StageLine", "Wait", "explain", "worst_row"]

Floats = NDArray[np.float64]

STALL_MS: Final = 150.0
STALL_FACTOR: Final = 5.0
"""A gap is worth explaining above max(150 ms, 5 x the stream's own median gap)."""
MOST_WAITS: Final = 5
MOST_NEIGHBOURS: Final = 3
NAMED_SHARE: Final = 0.2
"""A neighbour is named if its prefill covers at least so much of a wait."""
STOOD_SHARE: Final = 0.5
"""A stream stood still during a wait if one gap of its own covers so much of it."""
NOTICED_SHARE: Final = 0.05
"""A stage that took longer than beside it is told from this share of the request's time on."""
LIKE: Final = 2.0
"""Prompt and answer of a request that is alike are within this factor, where one is that near."""


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose prompt was being computed during a wait."""

    request_id: str
    lane: str
    tenant: str = ""
    prompt_tokens: float | None
    """Without those that were cached."""
    begin_ms: float
    """Of its prefill, from the start of the explained request."""
    end_ms: float
    inside_ms: float
    """How much of the wait lies in it."""
    source: str
    """How the prefill is known: as the record says, or `first token` where only the wait for that is known."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the reader waited: for the first token, or in a gap."""

    kind: str
    """`first token` or `gap`."""
    begin_ms: float
    length_ms: float
    usual_ms: float | None
    """The stream's median gap; for a first token, what the request that is alike took."""
    covered_ms: float
    """How much of it lies in prefills of others."""
    in_lane_ms: float = 0.0
    """How much of a first token's wait passed in its lane, before the engine had the request."""
    neighbours: list[Neighbour] = []
    """The largest, at most three."""
    prefills: int = 0
    """Of how many requests a prefill lies in it."""
    streams: int = 0
    """Other streams with a kept timeline that were under way."""
    stood_still: int = 0
    """Those of them that stood still in the same time."""


class StageLine(msgspec.Struct, frozen=True, kw_only=True):
    """A stage beside that of the request that is alike."""

    stage: str
    ms: float
    source: str
    alike_ms: float | None = None


class Alike(msgspec.Struct, frozen=True, kw_only=True):
    """The most alike request that was normal."""

    request_id: str
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    ttft_ms: float | None
    e2e_ms: float
    chunk_gap_max_ms: float | None
    seconds_away: float
    """Between the starts of both; positive where it came later."""
    near: bool
    """Whether prompt and answer are within a factor of two."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace explain --json` prints."""

    schema: int = 1
    request_id: str
    client_request_id: str = ""
    vantage: str
    lane: str
    tenant: str = ""
    model: str = ""
    backend: str = ""
    engine: str = ""
    start_unix_ms: float
    outcome: str
    reason: str = ""
    slow: list[str] = []
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float
    longest_gap_ms: float | None = None
    stages: list[StageLine]
    waits: list[Wait]
    """The longest first."""
    marks: list[tuple[float, str]] = []
    """Of its timeline: token stamps (ms) and kinds of events, for drawing; empty where none was kept."""
    timeline_kept: bool
    engine_state: dict[str, float] = {}
    """At admission and at the first token, as far as it was seen."""
    others_under_way: int
    """Requests that were under way when it began."""
    alike: Alike | None
    sentences: list[str]
    missing: list[str] = []
    """What would say more, and is not there."""

    def work_ratio(self, stage: str) -> float:
        """How many times the tokens of the request that is alike a stage had to go through; 1 where it had fewer."""
        if self.alike is None or stage not in ("prefill", "decode"):
            return 1.0
        own, other = (
            (self.output_tokens, self.alike.output_tokens)
            if stage == "decode"
            else tuple(
                None if one.prompt_tokens is None else one.prompt_tokens - (one.cached_tokens or 0)
                for one in (self, self.alike)
            )
        )
        return max(1.0, own / other) if own and other and other > 0 else 1.0

    def more_than_its_work(self, line: StageLine) -> float:
        """How much longer (ms) a stage took than beside it, where a longer prompt or answer accounts for its part."""
        return line.ms - (line.alike_ms or 0.0) * self.work_ratio(line.stage)


def _first_tokens(table: RecordTable, prefill: Floats) -> Floats:
    """When each request's first token came (ms from its start); NaN where nothing tells.

    The wait for the engine's answer counts from when the request was sent to it, so what it waited in its lane comes
    before. One that does not stream has no first token, but its prompt was computed all the same: its stages tell when.
    """
    own = table.ms("ttft")
    sent = np.nan_to_num(table.ms("queue_gateway"), nan=0.0) + table.ms("ttft_upstream")
    before = sum(
        (np.nan_to_num(table.ms(stage), nan=0.0) for stage in ("ingress", "queue", "preprocess", "encode")),
        np.zeros(len(table)),
    )
    first = np.where(np.isnan(own), sent, own)
    return np.where(np.isnan(first), before + prefill, first)


class _Others:
    """All requests of the table on the axis of the one that is explained (ms from its start)."""

    def __init__(self, table: RecordTable, row: int) -> None:
        self.table, self.row = table, row
        start = starts_ns(table).astype(np.float64)
        self.start: Floats = (start - start[row]) / 1e6
        prefill = table.ms("prefill")
        waited = np.nan_to_num(table.ms("queue"), nan=0.0)
        self.first: Floats = self.start + _first_tokens(table, prefill)
        self.end: Floats = self.start + table.ms("e2e")
        self.known = ~np.isnan(prefill)
        self.prefill_begin: Floats = np.where(self.known, self.first - prefill, self.start + waited)
        tokens = table.column("prompt_tokens") - np.nan_to_num(table.column("cached_tokens"), nan=0.0)
        self.tokens: Floats = tokens.astype(np.float64)

    def prefills(self, begin: float, end: float) -> tuple[list[Neighbour], int, float]:
        """(the largest prefills of others inside [begin, end], how many there are, how much they cover together)."""
        with np.errstate(invalid="ignore"):
            inside = np.minimum(self.first, end) - np.maximum(self.prefill_begin, begin)
        inside = np.nan_to_num(inside, nan=0.0)
        inside[self.row] = 0.0
        rows = np.flatnonzero(inside > 0.0)
        if not rows.size:
            return [], 0, 0.0
        # A short prompt that waited as long as we did explains nothing: of two that cover the same, the longer prompt.
        weight = inside[rows] * np.nan_to_num(self.tokens[rows], nan=1.0)
        order = rows[np.argsort(-weight, kind="stable")]
        covered = _union(np.maximum(self.prefill_begin[rows], begin), np.minimum(self.first[rows], end))
        named = [row for row in order if inside[row] >= NAMED_SHARE * (end - begin)][:MOST_NEIGHBOURS]
        return [self._neighbour(int(row), float(inside[row])) for row in named], int(rows.size), covered

    def _neighbour(self, row: int, inside: float) -> Neighbour:
        table = self.table
        sources = table.column("stage_sources")[row] or {}
        return Neighbour(
            request_id=str(table.column("request_id")[row]),
            lane=str(table.column("lane")[row]),
            tenant=str(table.column("tenant")[row]),
            prompt_tokens=_number(self.tokens[row]),
            begin_ms=round(float(self.prefill_begin[row]), 3),
            end_ms=round(float(self.first[row]), 3),
            inside_ms=round(inside, 3),
            source=str(sources.get("prefill", "prefill")) if self.known[row] else "first token",
        )

    def stood_still(self, begin: float, end: float) -> tuple[int, int]:
        """(other streams with a timeline under way in [begin, end], those that stood still in most of it)."""
        streams = still = 0
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero((self.first < begin) & (self.end > end))
        for row in rows.tolist():
            timeline = self.table.timelines[row]
            if row == self.row or timeline is None:
                continue
            streams += 1
            stamps = np.asarray(timeline.token_stamps(), dtype=np.float64) / 1e6 + self.start[row]
            inside = np.concatenate([[begin], stamps[(stamps > begin) & (stamps < end)], [end]])
            still += bool(np.diff(inside).max() >= STOOD_SHARE * (end - begin))
        return streams, still


def worst_row(table: RecordTable) -> int:
    """The row of the completed request whose reader waited longest at one time: for a token, or in a gap.

    ValueError without one.
    """
    done = table.column("outcome").astype(str) == OutcomeKind.COMPLETED.value
    waits = np.fmax(table.ms("ttft"), table.ms("chunk_gap_max"))
    waits = np.where(done, np.nan_to_num(waits, nan=-1.0), -1.0)
    if not waits.size or waits.max() < 0:
        raise ValueError("no request has completed")
    return int(np.argmax(waits))


def explain(table: RecordTable, row: int) -> Explanation:
    """Explain one row of a table that holds the requests around it. The order of the rows does not matter."""
    record = next(iter(table.where([row]).records()))
    others = _Others(table, row)
    alike_row = _most_alike(table, row, others)
    alike = None if alike_row is None else _alike(table, alike_row, row, others)
    waits = _waits(record, others, alike)
    missing = []
    if record.timeline is None and record.stream:
        missing.append(
            "its timeline was not kept (those of slow and failed requests are, and of 1 % of the rest): only its "
            "longest gap is known, and not when it was"
        )
    if not others.known.any():
        missing.append("when prompts were computed: this engine does not report it, so waits for first tokens stand in")
    if len(table) == 1:
        missing.append("the requests around it")
    with np.errstate(invalid="ignore"):
        under_way = int(((others.start < 0.0) & (others.end > 0.0)).sum())
    out = Explanation(
        request_id=record.request_id,
        client_request_id=record.client_request_id,
        vantage=record.vantage,
        lane=record.lane,
        tenant=record.tenant,
        model=record.model,
        backend=record.backend,
        engine=record.engine,
        start_unix_ms=record.start_unix_ns / 1e6,
        outcome=record.outcome.value,
        reason=record.reason.value,
        slow=list(record.slow),
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        ttft_ms=_ms(record.ttft_ns),
        tpot_ms=_ms(record.tpot_ns),
        e2e_ms=record.e2e_ns / 1e6,
        longest_gap_ms=_ms(record.chunk_gap_max_ns),
        stages=_stages(record, None if alike_row is None else next(iter(table.where([alike_row]).records()))),
        waits=waits,
        marks=_marks(record),
        timeline_kept=record.timeline is not None,
        engine_state=_state(record),
        others_under_way=under_way,
        alike=alike,
        sentences=[],
        missing=missing,
    )
    return msgspec.structs.replace(out, sentences=_sentences(out))


def _waits(record: RequestRecord, others: _Others, alike: Alike | None) -> list[Wait]:
    found: list[tuple[str, float, float, float | None]] = []
    first = _ms(record.ttft_ns)
    if first is None and record.ttft_upstream_ns is not None:
        first = ((record.queue_gateway_ns or 0) + record.ttft_upstream_ns) / 1e6
    if first is not None:
        found.append(("first token", 0.0, first, None if alike is None else alike.ttft_ms))
    elif record.outcome is not OutcomeKind.COMPLETED and record.stream:
        found.append(("first token", 0.0, record.e2e_ns / 1e6, None if alike is None else alike.ttft_ms))
    timeline = record.timeline
    if timeline is not None:
        stamps = np.asarray(timeline.token_stamps(), dtype=np.float64) / 1e6
        gaps = np.diff(stamps)
        if gaps.size:
            usual = float(np.median(gaps))
            found += [
                ("gap", float(stamps[at]), float(gaps[at]), usual)
                for at in np.flatnonzero(gaps >= max(STALL_MS, STALL_FACTOR * usual))
            ]
    found.sort(key=lambda one: (-(one[2] - (one[3] or 0.0)), one[1]))
    in_lane = (record.queue_gateway_ns or 0) / 1e6
    return [_wait(others, *one, in_lane if one[0] == "first token" else 0.0) for one in found[:MOST_WAITS]]


def _wait(others: _Others, kind: str, begin: float, length: float, usual: float | None, in_lane: float) -> Wait:
    neighbours, count, covered = others.prefills(begin, begin + length)
    streams, still = others.stood_still(begin, begin + length) if kind == "gap" else (0, 0)
    return Wait(
        kind=kind,
        begin_ms=round(begin, 3),
        length_ms=round(length, 3),
        usual_ms=None if usual is None else round(usual, 3),
        covered_ms=round(covered, 3),
        in_lane_ms=round(min(in_lane, length), 3),
        neighbours=neighbours,
        prefills=count,
        streams=streams,
        stood_still=still,
    )


def _most_alike(table: RecordTable, row: int, others: _Others) -> int | None:
    """A completed request that crossed no threshold, of the same lane, model and kind, nearest in lengths, then time.

    Distance: |log2 of the ratio| of prompt and answer, plus the difference of the cached shares.
    """
    done = table.column("outcome").astype(str) == OutcomeKind.COMPLETED.value
    normal = np.array([not one for one in table.column("slow")], dtype=bool)
    can = done & normal
    can[row] = False
    for name in ("lane", "model", "stream"):
        same = table.column(name) == table.column(name)[row]
        if (can & same).any():
            can &= same.astype(bool)
    rows = np.flatnonzero(can)
    if not rows.size:
        return None
    distance = np.zeros(rows.size)
    for name in ("prompt_tokens", "output_tokens"):
        values = table.column(name).astype(np.float64)
        if np.isnan(values[row]):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            away = np.abs(np.log2(np.maximum(values[rows], 1.0) / max(values[row], 1.0)))
        distance += np.nan_to_num(away, nan=8.0)
    prompt = np.maximum(table.column("prompt_tokens").astype(np.float64), 1.0)
    cached = np.nan_to_num(table.column("cached_tokens").astype(np.float64) / prompt, nan=0.0)
    distance += np.abs(cached[rows] - cached[row])
    apart = np.abs(others.start[rows])
    return int(rows[np.lexsort((apart, np.round(distance, 3)))[0]])


def _alike(table: RecordTable, chosen: int, row: int, others: _Others) -> Alike:
    record = next(iter(table.where([chosen]).records()))
    near = True
    for name in ("prompt_tokens", "output_tokens"):
        a, b = table.column(name)[chosen], table.column(name)[row]
        near &= bool(np.isnan(a) or np.isnan(b) or max(a, b, 1.0) <= LIKE * max(min(a, b), 1.0))
    return Alike(
        request_id=record.request_id,
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        cached_tokens=record.cached_tokens,
        ttft_ms=_ms(record.ttft_ns),
        e2e_ms=record.e2e_ns / 1e6,
        chunk_gap_max_ms=_ms(record.chunk_gap_max_ns),
        seconds_away=round(float(others.start[chosen]) / 1e3, 3),
        near=near,
    )


def _stages(record: RequestRecord, alike: RequestRecord | None) -> list[StageLine]:
    lines = []
    for stage, value in record.stages().items():
        other = None if alike is None else alike.stage_ns(stage)
        source = record.stage_sources.get(stage, "")
        if value or other:
            lines.append(StageLine(stage=stage, ms=value / 1e6, source=source, alike_ms=_ms(other)))
    order = {str(stage): at for at, stage in enumerate(STAGES)}
    return sorted(lines, key=lambda line: order[line.stage])


def _marks(record: RequestRecord) -> list[tuple[float, str]]:
    timeline = record.timeline
    if timeline is None:
        return []
    return [
        (at / 1e6, "token" if kind <= 3 else "event") for at, kind in zip(timeline.at_ns, timeline.kind, strict=True)
    ]


def _state(record: RequestRecord) -> dict[str, float]:
    out = {}
    for name in ("running", "waiting", "kv_usage"):
        for when in ("admission", "first_token"):
            value = getattr(record, f"{name}_at_{when}")
            if value is not None:
                out[f"{name}_at_{when}"] = float(value)
    return out


def _sentences(told: Explanation) -> list[str]:
    out = []
    for wait in told.waits:
        if wait.kind == "first token" and not _long_wait(wait):
            continue
        out.append(_of_wait(wait, told.lane))
    gap = told.longest_gap_ms
    if not told.timeline_kept and gap is not None and gap >= STALL_MS:
        out.append(f"Its stream stood still for up to {gap:,.0f} ms at one time; when, nobody kept.")
    if told.alike is not None:
        worse = [(line, told.more_than_its_work(line)) for line in told.stages if line.alike_ms is not None]
        line, more = max(worse, key=lambda one: one[1], default=(None, 0.0))
        if line is not None and more > NOTICED_SHARE * told.e2e_ms:
            longer = told.work_ratio(line.stage)
            out.append(
                f"Beside {told.alike.request_id}, a normal request "
                f"{'much like it' if told.alike.near else 'that is the nearest there is'}, {line.stage} took "
                f"{more:,.0f} ms more"
                + (f" than {longer:.1f} times the tokens account for" if longer > 1.05 else "")
                + f" ({line.ms:,.0f} against {line.alike_ms or 0.0:,.0f} ms)."
            )
    return out or [_nothing_unusual(told)]


def _nothing_unusual(told: Explanation) -> str:
    longest = max(told.waits, key=lambda wait: wait.length_ms, default=None)
    if longest is None or longest.usual_ms is None or longest.length_ms <= STALL_MS:
        return "Nothing in it waited noticeably."
    return (
        f"Its longest wait, {longest.length_ms:,.0f} ms for the first token, is what a request like it takes "
        f"({longest.usual_ms:,.0f} ms)."
    )


def _long_wait(wait: Wait) -> bool:
    return wait.length_ms > max(STALL_MS, 1.5 * (wait.usual_ms or 0.0))


def _of_wait(wait: Wait, lane: str) -> str:
    if wait.kind == "gap":
        usual = "" if wait.usual_ms is None else f" (usual {wait.usual_ms:,.0f} ms)"
        text = f"At {wait.begin_ms:,.0f} ms the stream stood still for {wait.length_ms:,.0f} ms{usual}"
        if wait.streams:
            text += f", and {wait.stood_still} of {wait.streams} other streams with it"
    else:
        usual = "" if wait.usual_ms is None else f" (a normal request like it: {wait.usual_ms:,.0f} ms)"
        text = f"The first token took {wait.length_ms:,.0f} ms{usual}"
    parts = []
    if wait.in_lane_ms >= NAMED_SHARE * wait.length_ms > 0.0:
        parts.append(f"{wait.in_lane_ms:,.0f} ms of that it waited for its turn in lane {lane}")
    if wait.neighbours:
        one = wait.neighbours[0]
        tokens = "" if one.prompt_tokens is None else f" of {one.prompt_tokens:,.0f} tokens"
        others = wait.prefills - 1
        more = f", and {'that' if others == 1 else 'those'} of {_count(others)}" if others else ""
        parts.append(
            f"{wait.covered_ms:,.0f} ms of that the prompt{tokens} of {one.request_id} (lane {one.lane}) was being "
            f"computed{more}"
        )
    elif wait.streams and wait.stood_still >= 0.5 * wait.streams:
        parts.append("nobody's prompt was being computed, so the engine or its host paused")
    elif wait.streams:
        parts.append("the others went on, so look at its own hop and reader")
    return f"{text}{': ' if parts else ''}{'; '.join(parts)}."


def _count(others: int) -> str:
    return "one other" if others == 1 else f"{others} others"


def _union(begin: Floats, end: Floats) -> float:
    order = np.argsort(begin)
    total, reach = 0.0, -np.inf
    for low, high in zip(begin[order], end[order], strict=True):
        total += max(0.0, high - max(low, reach))
        reach = max(reach, high)
    return float(total)


def _ms(value: int | None) -> float | None:
    return None if value is None else value / 1e6


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
