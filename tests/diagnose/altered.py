"""Records of the simulated engine with one thing done to them that some part of a system does to streams."""

from __future__ import annotations

import msgspec
import numpy as np

from tailrace.model.record import RequestRecord
from tailrace.model.timeline import EventKind, Timeline
from tests.diagnose.simulated import MS, as_gateway, served

S = 1_000_000_000


def calm(seed=1, *, rate=4.0, n=450, **extra):
    """A gateway before an engine with room: nothing is wrong."""
    return as_gateway(served(seed, rate=rate, n=n, long_share=0.0, **extra))


def origin(records):
    return min(record.start_unix_ns for record in records)


def restamped(record: RequestRecord, at: np.ndarray, **changes) -> RequestRecord:
    """The same request whose token events came at `at` (ns from its start); stages, gaps and ends follow."""
    at = np.maximum.accumulate(np.asarray(at, dtype=np.int64))
    gaps = np.diff(at)
    rest = record.e2e_ns - record.timeline.token_stamps()[-1]
    ttft, e2e = int(at[0]), int(at[-1]) + rest
    before = record.e2e_ns - (record.decode_ns or 0)
    late = ttft - record.ttft_ns
    unsplit = (record.unattributed_ns or 0) + max(late, 0)
    decode = e2e - (before + max(late, 0))
    kinds = record.timeline.kind
    tail = [int(at[-1])] * (len(kinds) - len(at))
    line = Timeline(at_ns=[*at.tolist(), *tail], kind=kinds, tokens=record.timeline.tokens)
    ordered = np.sort(gaps) if gaps.size else np.zeros(1)
    values = {
        "timeline": line,
        "ttft_ns": ttft,
        "ttft_upstream_ns": ttft,
        "ttft_content_ns": ttft,
        "e2e_ns": e2e,
        "e2e_last_token_ns": int(at[-1]),
        "decode_ns": decode,
        "unattributed_ns": unsplit or None,
        "stage_sources": {**record.stage_sources, "unattributed": "measured"},
        "tpot_ns": round((at[-1] - at[0]) / max(len(at) - 1, 1)),
        "chunk_gap_p50_ns": int(np.median(ordered)),
        "chunk_gap_p95_ns": int(np.quantile(ordered, 0.95)),
        "chunk_gap_max_ns": int(ordered[-1]),
    }
    return msgspec.structs.replace(record, **{**values, **changes})


def stamps(record) -> np.ndarray:
    return np.array(record.timeline.token_stamps(), dtype=np.int64)


def stopped(records, stops):
    """Nothing comes out of the engine in `stops` [(begin, end) in ns from the first start]; what waits comes then.

    All later tokens of a stream come later by as much, as if the engine itself had stood still.
    """
    zero = origin(records)
    out = []
    for record in records:
        start = record.start_unix_ns - zero
        at = stamps(record) + start
        for begin, end in sorted(stops):
            at = np.where(at > begin, at + (end - begin) * (at[0] <= end), at)
        out.append(restamped(record, at - start))
    return out


def buffered(records, events):
    """A hop passes events on in groups of so many, each when its last is there."""
    out = []
    for record in records:
        at = stamps(record)
        last = np.minimum((np.arange(at.size) // events + 1) * events - 1, at.size - 1)
        out.append(restamped(record, at[last] + np.arange(at.size) % events * 2000))
    return out


def merged_by_timer(records, ms):
    """A hop gathers text for so long and sends it as one event."""
    out = []
    for record in records:
        at = stamps(record)
        events, i = [], 0
        while i < at.size:
            flush = min(int(at[i]) + int(ms * MS), int(at[-1]))
            events.append(max(flush, int(at[i])))
            i = int(np.searchsorted(at, flush, side="right"))
        count = len(events)
        kinds = [int(EventKind.CONTENT)] * count + [int(EventKind.DONE)]
        line = Timeline(at_ns=[*events, events[-1]], kind=kinds, tokens=[-1] * (count + 1))
        new = restamped(msgspec.structs.replace(record, timeline=line), np.array(events))
        tpot = round((at[-1] - events[0]) / max(at.size - 1, 1))
        out.append(msgspec.structs.replace(new, chunk_gap_count=count - 1, tpot_ns=tpot))
    return out


def held_first(records, share, ms, seed=0):
    """Some answers are held until `ms` after their first token, and then come with what was made meanwhile."""
    rng = np.random.default_rng(seed)
    out = []
    for record in records:
        at = stamps(record)
        if rng.random() < share:
            at = np.maximum(at, at[0] + int(ms * MS)) + np.arange(at.size) * 1000
        out.append(restamped(record, at))
    return out


def failed(record, age_ms, *, reason="stream_cut", outcome="failed", tokens=False, **extra):
    """The same request, ended at an age."""
    age = int(age_ms * MS)
    changes = {
        "outcome": outcome,
        "reason": reason,
        "e2e_ns": age,
        "queue_ns": age,
        "queue_engine_ns": None,
        "stage_sources": {"queue": "measured"},
        "died_in": "prefill",
        **dict.fromkeys(
            [
                "ttft_ns",
                "ttft_upstream_ns",
                "ttft_content_ns",
                "prefill_ns",
                "decode_ns",
                "unattributed_ns",
                "e2e_last_token_ns",
                "tpot_ns",
                "chunk_gap_p50_ns",
                "chunk_gap_p95_ns",
                "chunk_gap_max_ns",
                "output_tokens",
                "timeline",
            ]
        ),
        "chunk_gap_count": 0,
    }
    if tokens:
        at = stamps(record)
        at = at[at <= age]
        kept = max(int(at.size), 1)
        changes |= {
            "ttft_ns": record.ttft_ns if record.ttft_ns <= age else age // 2,
            "e2e_last_token_ns": int(at[-1]) if at.size else age // 2,
            "output_tokens": kept,
            "tpot_ns": record.tpot_ns,
            "died_in": "decode",
        }
    return msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(record, **{**changes, **extra})), RequestRecord)
