"""From the part run files of several processes to one run, exactly: every record once, in order of end, counts added.

A part's offsets count from its own begin. Open loops begin to measure together; the workers of closed ones when their
own warm-up is over, some milliseconds apart, and their offsets are moved by as much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tailrace.model.client_sample import ClientSample
from tailrace.model.errors import RunFileError
from tailrace.model.measurement import ClientHealth
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S
from tailrace.probe.generator import Share
from tailrace.store.run_file import Run, RunTrailer, RunWriter, read_run


class Part(msgspec.Struct, kw_only=True):
    """One process's part of a run."""

    number: int
    """From 0."""
    path: Path
    share: Share | None = None
    """`None`: it was lost before it could say how it ended."""
    lost: str = ""
    """Why it was lost: it was killed, it failed."""


def merge(parts: list[Part], file: RunWriter) -> RunTrailer:
    """Write all that the parts measured to `file`, which stays open; the trailer of the whole run.

    A lost part's records are kept as far as its file holds them, and the run then is client-limited: its load was not
    the one that was asked for.
    """
    begins = [part.share.began_ns for part in parts if part.share is not None and part.share.began_ns]
    began = min(begins, default=0)
    ends: list[tuple[int, int, int, RequestRecord]] = []
    samples: list[ClientSample] = []
    for part in parts:
        run = _read(part)
        if run is None:
            continue
        # A lost part did not say when it began: with the others, as far as anybody knows.
        own = part.share.began_ns if part.share is not None else 0
        moved = own - began if own else 0
        for place, record in enumerate(run.records):
            one = _moved(record, moved) if moved else record
            ends.append((_end_ns(one), part.number, place, one))
        samples += [msgspec.structs.replace(one, at_ns=one.at_ns + moved) for one in run.health]
    for *_, record in sorted(ends, key=lambda one: one[:3]):
        file.write(record)
    for sample in sorted(samples, key=lambda one: (one.at_ns, one.process)):
        file.write_sample(sample)
    shares = [part.share for part in parts if part.share is not None]
    last_end = max((share.last_end_ns for share in shares), default=0)
    counters: dict[str, float] = {"processes": float(len(parts))}
    for share in shares:
        for name, value in share.counters.items():
            counters[name] = counters.get(name, 0.0) + value
    lost = sum(part.share is None for part in parts)
    if lost:
        counters["parts_lost"] = float(lost)
    return RunTrailer(
        n=len(ends),
        client=joint_health(parts),
        duration_s=max(0, last_end - began) / S if ends and began else 0.0,
        interrupted=any(share.interrupted for share in shares),
        counters=counters,
    )


def joint_health(parts: list[Part]) -> ClientHealth:
    """The health of all processes as one: limited if any is, delays of the worst, counts and processor time added."""
    of = len(parts)
    each = [
        part.share.client
        if part.share is not None
        else ClientHealth(limited=True, why=f"it was lost ({part.lost}); its load was not sent to its end")
        for part in parts
    ]
    why = [f"process {i + 1} of {of}: {one.why}" for i, one in enumerate(each) if one.limited]
    return ClientHealth(
        limited=bool(why),
        why="; ".join(why),
        loop_lag_p50_ms=_worst(one.loop_lag_p50_ms for one in each),
        loop_lag_p99_ms=_worst(one.loop_lag_p99_ms for one in each),
        loop_lag_max_ms=_worst(one.loop_lag_max_ms for one in each),
        event_delay_p50_ms=_worst(one.event_delay_p50_ms for one in each),
        event_delay_p99_ms=_worst(one.event_delay_p99_ms for one in each),
        event_delay_max_ms=_worst(one.event_delay_max_ms for one in each),
        p99_moved_ms=_worst(one.p99_moved_ms for one in each),
        late_send_p99_ms=_worst(one.late_send_p99_ms for one in each),
        late_sends=sum(one.late_sends for one in each),
        schedule_kept=min((one.schedule_kept for one in each if one.schedule_kept is not None), default=None),
        cpu_share=_worst(one.cpu_share for one in each),
        cpu_s=sum(one.cpu_s or 0.0 for one in each),
        connections_opened=sum(one.connections_opened for one in each),
        open_files=max((one.open_files for one in each if one.open_files is not None), default=None),
        run_queue_wait_share=_worst(one.run_queue_wait_share for one in each),
        gc_pause_max_ms=_worst(one.gc_pause_max_ms for one in each),
        gc_pauses_ms=sum(one.gc_pauses_ms or 0.0 for one in each),
        processes=each,
    )


def remove(parts: list[Part]) -> None:
    """Take the part files away, once the merged one is whole."""
    for part in parts:
        with contextlib.suppress(OSError):
            part.path.unlink()


def _read(part: Part) -> Run | None:
    try:
        return read_run(part.path, allow_partial=True)
    except RunFileError:
        if part.share is None or not part.share.n:
            return None
        raise


def _moved(record: RequestRecord, by: int) -> RequestRecord:
    return msgspec.structs.replace(record, run_offset_ns=(record.run_offset_ns or 0) + by)


def _end_ns(record: RequestRecord) -> int:
    late = record.intended_to_sent_ns if record.intended_to_sent_ns is not None else record.connect_ns
    return (record.run_offset_ns or 0) + (late or 0) + record.e2e_ns


def _worst(values: Iterable[float | None]) -> float | None:
    return max((one for one in values if one is not None), default=None)
