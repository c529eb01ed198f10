"""First the numbers, then the system: values that cannot be, records that are missing, a client that was the limit."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.analyze.bench_summary import completed
from tailrace.analyze.labels import among
from tailrace.analyze.timebase import starts_ns
from tailrace.diagnose.cause import layer_of
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Action, Evidence, Finding, Level, Proof
from tailrace.model.stage import STAGES
from tailrace.store.table import RecordTable

__all__ = ["Checked", "check", "impossible_rows"]

MAX_DROPPED: Final = 0.01
MAX_IMPOSSIBLE: Final = 0.05
LATE_MS: Final = 50.0
LEAST_STREAMS: Final = 5
LONGEST_NS: Final = 7 * 86_400 * 1_000_000_000
"""No request takes a week; a value above it is a missing stamp read as the epoch."""


class Checked(NamedTuple):
    """What the checks said."""

    findings: list[Finding]
    blocks: bool
    """Nothing may be concluded about the system."""
    sound: RecordTable
    """The records without those that cannot be."""


def impossible_rows(table: RecordTable) -> dict[str, np.ndarray]:
    """Rule -> mask of the rows that break it."""
    total = np.zeros(len(table))
    negative = np.zeros(len(table), dtype=bool)
    for stage in STAGES:
        value = table.column(f"{stage}_ns")
        negative |= np.nan_to_num(value, nan=0.0) < 0
        total += np.nan_to_num(value, nan=0.0)
    e2e = table.column("e2e_ns").astype(np.float64)
    ttft, last = table.column("ttft_ns"), table.column("e2e_last_token_ns")
    longest = table.column("chunk_gap_max_ns")
    has_stage = total != 0
    with np.errstate(invalid="ignore"):
        return {
            "a stage is negative": negative,
            "the stages do not add up to the end-to-end time": has_stage & (np.abs(total - e2e) >= 1.0),
            "the end-to-end time is negative or longer than a week": (e2e < 0) | (e2e > LONGEST_NS),
            "the first token comes before the start or after the end": (ttft < 0) | (ttft > e2e),
            "the last token comes before the first": last < ttft,
            "TTFT and every gap are 0 although the request took time": (ttft == 0) & (longest == 0) & (e2e > 0),
        }


def check(evidence: EvidenceSet) -> Checked:
    """Every check. An impossible row is left out and counted; above 5 % of them nothing is concluded."""
    table = evidence.table
    findings: list[Finding] = []
    broken = impossible_rows(table)
    bad = np.zeros(len(table), dtype=bool)
    for mask in broken.values():
        bad |= mask
    sound = table.where(~bad) if bad.any() else table
    blocks = False
    if bad.any():
        share = float(bad.mean())
        blocks = share > MAX_IMPOSSIBLE
        findings.append(
            _finding(
                "METRIC_BUG",
                Level.PROVEN,
                f"{int(bad.sum())} of {len(table)} records hold values that cannot be; they were left out.",
                [
                    Evidence(text=f"{int(mask.sum())} records: {rule}", source="record", value=float(mask.sum()))
                    for rule, mask in broken.items()
                    if mask.any()
                ],
                "Repair the source of these stamps before reading anything else from them.",
                action=Action.FIX,
            )
        )
    if evidence.dropped > MAX_DROPPED:
        blocks = True
        findings.append(
            _insufficient(f"all records: {evidence.dropped:.1%} of them were dropped, above 1 % nothing is concluded")
        )
    if evidence.client.limited:
        blocks = True
        findings.append(
            _finding(
                "BENCH_CLIENT_QUEUE",
                Level.CONSISTENT,
                f"The load generator itself was the limit: {evidence.client.why or 'it says so'}.",
                [Evidence(text=evidence.client.why or "client limited", source="trailer:client")],
                "Measure again with less load on the client's machine or from several machines.",
                action=Action.COLLECT,
            )
        )
    doubled = _first_token_among_gaps(sound)
    blocks = blocks or bool(doubled)
    findings += doubled
    findings += _coordinated_omission(sound)
    findings += _token_unit(sound)
    findings += _little(evidence, sound)
    return Checked(findings, blocks, sound)


def _first_token_among_gaps(table: RecordTable) -> list[Finding]:
    """Clients that list the first token as the first gap, too: the longest gap of each stream is its TTFT."""
    ttft = table.column("ttft_ns")
    same = seen = 0
    for row, timeline in enumerate(table.timelines):
        if timeline is None or len(timeline.at_ns) < 3 or not ttft[row] > 0:
            continue
        gaps = np.diff(np.asarray(timeline.at_ns, dtype=np.float64))
        seen += 1
        same += int(np.argmax(gaps)) == 0 and abs(float(gaps[0]) - float(ttft[row])) <= 1e-3 * float(ttft[row])
    if seen < LEAST_STREAMS or same < 0.9 * seen:
        return []
    return [
        _finding(
            "METRIC_BUG",
            Level.PROVEN,
            f"The longest gap (ITL) of a stream is its TTFT in {same} of {seen} streams: the client counts the first "
            "token among the gaps, so ITL's mean and p99 are not the engine's.",
            [
                Evidence(
                    text=f"first gap = TTFT, and the longest of its stream, in {same} of {seen} streams",
                    source="timeline + record:ttft_ns",
                    name="same",
                    value=float(same),
                )
            ],
            "Drop the first gap of each stream and compute ITL again; repair the client (an `else` that is missing "
            "between the first chunk and the others).",
            action=Action.FIX,
        )
    ]


def _coordinated_omission(table: RecordTable) -> list[Finding]:
    late = table.column("intended_to_sent_ns") / 1e6
    keep = completed(table) & ~np.isnan(late)
    late = late[keep]
    if late.size < 20:
        return []
    p99, from_send = float(np.quantile(late, 0.99)), float(np.quantile(table.ms("e2e")[keep], 0.99))
    if p99 < max(LATE_MS, 0.1 * from_send):
        return []
    return [
        _finding(
            "BENCH_COORDINATED_OMISSION",
            Level.CONSISTENT,
            f"Requests were sent late: p99 {p99:.0f} ms after their intended time (n = {late.size}); latencies from "
            "the send hide that wait.",
            [
                Evidence(
                    text=f"p99 of intended -> sent is {p99:.0f} ms (n = {late.size})",
                    source="record:intended_to_sent_ns",
                    value=p99,
                    unit="ms",
                )
            ],
            "Read the latencies from the schedule (from_schedule).",
            action=Action.COLLECT,
        )
    ]


def _token_unit(table: RecordTable) -> list[Finding]:
    totals = table.column("output_tokens")
    with np.errstate(invalid="ignore"):
        counted = np.flatnonzero(
            table.timelines.kept & among(table.column("output_tokens_source"), {"usage"}) & (totals > 0)
        )
    if counted.size < 20:
        return []
    seen = table.timelines.events(counted)
    of = np.repeat(np.arange(seen.rows.size), seen.sizes)
    said, carrying = (np.bincount(of[mask], minlength=seen.rows.size) for mask in (seen.tokens > 0, seen.kind <= 3))
    brought = np.bincount(of, weights=np.maximum(seen.tokens, 0), minlength=seen.rows.size)
    whole = (said > 0) & (said == carrying)
    ratios = brought[whole] / totals[seen.rows[whole]]
    if ratios.size < 20:
        return []
    ratio = float(np.median(ratios))
    if 0.9 <= ratio <= 1.1:
        return []
    return [
        _finding(
            "METRIC_UNIT",
            Level.CONSISTENT,
            f"The tokens of the events add up to {ratio:.2f} x the engine's own count: ITL per token is off by that "
            "factor.",
            [
                Evidence(
                    text=f"event tokens / usage = {ratio:.2f} (median of {len(ratios)} requests)",
                    source="timeline + record:output_tokens",
                    value=ratio,
                )
            ],
            "Use gaps per chunk, or TPOT, which counts by usage.",
            action=Action.FIX,
        )
    ]


def _little(evidence: EvidenceSet, table: RecordTable) -> list[Finding]:
    """L = lambda W: what the engine holds against what our records account for."""
    held = table.column("running_at_admission") + table.column("waiting_at_admission")
    held = held[~np.isnan(held)]
    if held.size < 100 or evidence.vantage != "gateway":
        return []
    span = float(starts_ns(table).max()) / 1e9
    if span <= 0:
        return []
    ours = float(table.column("e2e_ns").sum()) / 1e9 / span
    seen = float(held.mean())
    if seen <= 1.5 * ours + 3.0:
        return []
    return [
        _finding(
            "METRIC_GAP",
            Level.SUSPECTED,
            f"The engine holds {seen:.1f} requests on average, our records account for {ours:.1f} (Little's law): "
            "others use this engine too, or records are missing.",
            [
                Evidence(text=f"running + waiting at admission: {seen:.1f} on average", source="record", value=seen),
                Evidence(text=f"arrival rate x time in system = {ours:.1f}", source="record", value=ours),
            ],
            "Route all clients of this engine through the gateway, or give it an engine of its own.",
            action=Action.COLLECT,
        )
    ]


def _finding(
    code: str, level: Level, statement: str, evidence: list[Evidence], advice: str, *, action: Action
) -> Finding:
    return Finding(
        code=code,
        layer=layer_of(code),
        stage="",
        level=level,
        statement=statement,
        evidence=evidence,
        advice=advice,
        disproof="A second, independent clock that shows the same values.",
        action=action,
        proof=Proof.IMPOSSIBLE if level is Level.PROVEN else None,
    )


def _insufficient(missing: str) -> Finding:
    return Finding(
        code="INSUFFICIENT_EVIDENCE",
        layer=layer_of("INSUFFICIENT_EVIDENCE"),
        stage="",
        level=Level.INSUFFICIENT,
        statement="",
        missing=[missing],
        action=Action.COLLECT,
    )
