"""What `tailrace bench` says of the work itself: lengths, sessions, prefixes, recordings, leaving clients."""

from __future__ import annotations

from tailrace.model.measurement import BenchSummary
from tailrace.model.work_done import LengthsDone

_MS = ".1f"


def work_lines(summary: BenchSummary) -> list[str]:
    """One line for each thing that the run had."""
    work = summary.work
    if work is None:
        return []
    out: list[str] = []
    if work.prompts is not None and work.prompts.planned_tokens:
        out.append(f"Prompts: {_lengths(work.prompts)}, exactly as planned in {work.prompts.exact} of {work.prompts.n}")
    if work.answers is not None and work.answers.planned_tokens:
        early = work.answers.ended_early or 0
        out.append(f"Answers: {_lengths(work.answers)}; {early} of {work.answers.n} ended early")
    if work.prefixes is not None:
        known = work.prefixes.planned_share
        found = work.prefixes.cached_share
        shares = [
            "" if known is None else f"{known:.1%} of the prompt tokens had been sent before",
            "" if found is None else f"the server found {found:.1%} in its cache",
        ]
        out.append("Prefixes: " + ", ".join(one for one in shares if one))
    sessions = work.sessions
    if sessions is not None:
        lost = f", {sessions.turns_not_sent} turns not sent" if sessions.turns_not_sent else ""
        out.append(
            f"Sessions: {sessions.n} with {sessions.turns} turns{lost}; "
            f"TTFT p50 of first turns {_ms(sessions.ttft_p50_first_ms)}, of later {_ms(sessions.ttft_p50_later_ms)}"
        )
    leaves = work.leaves
    if leaves is not None:
        out.append(
            f"Left as planned: {leaves.n}; TTFT p50 of the request sent next {_ms(leaves.ttft_p50_next_ms)}, "
            f"of all others {_ms(leaves.ttft_p50_others_ms)}"
        )
    rtf = summary.metrics.get("rtf")
    if work.audio is not None and rtf is not None:
        speed = work.audio.audio_seconds_per_s
        tail = "" if rtf.p99 is None else f", p99 {rtf.p99:.3f}"
        whole = "" if speed is None else f"; {speed:.1f} s of audio a second in all"
        middle = "too few for a median" if rtf.p50 is None else f"p50 {rtf.p50:.3f}"
        out.append(
            f"Audio: {work.audio.n} recordings, {work.audio.audio_seconds:.1f} s; real-time factor {middle}{tail}"
            f" (n = {rtf.n}){whole}"
        )
    return out


def _lengths(done: LengthsDone) -> str:
    share = done.share
    ratio = "" if share is None else f" ({share:.1%})"
    return f"{done.planned_tokens:,} tokens planned, {done.counted_tokens:,} counted{ratio}"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:{_MS}} ms"
