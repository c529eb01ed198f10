"""The work of a run: what was planned of its requests beside what the server counted, and what sessions, prefixes,
recordings and leaving clients came to.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.timebase import starts_ns
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.work_done import AudioDone, LeavesDone, LengthsDone, PrefixDone, SessionsDone, WorkDone
from tailrace.store.table import RecordTable


def left_as_planned(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests a load test's own clients left because the plan said so."""
    mask: NDArray[np.bool_] = (table.column("reason") == Reason.LEFT_AS_PLANNED.value).astype(bool)
    return mask


def real_time_factors(done: RecordTable) -> NDArray[np.float64]:
    """Processing time / length of the recording, of each request that had one; below 1 is faster than real time."""
    seconds = done.column("audio_seconds")
    heard = seconds > 0
    out: NDArray[np.float64] = done.column("e2e_ns")[heard] / 1e9 / seconds[heard]
    return out


def work_done(table: RecordTable, counters: Mapping[str, float]) -> WorkDone:
    """The work of the measured requests of `table`; `counters` are those of the run's trailer."""
    done = (table.column("outcome") == OutcomeKind.COMPLETED.value).astype(bool)
    return WorkDone(
        prompts=_lengths(counters, "prompt", "prompts", "exact_prompts"),
        answers=_lengths(counters, "output", "answers", "early_answers"),
        prefixes=_prefixes(counters),
        sessions=_sessions(table, done, counters),
        leaves=_leaves(table, done),
        audio=_audio(table.where(done)),
    )


def _lengths(counters: Mapping[str, float], kind: str, plural: str, special: str) -> LengthsDone | None:
    n = int(counters.get(f"counted_{plural}", 0))
    if not n:
        return None
    return LengthsDone(
        n=n,
        planned_tokens=int(counters.get(f"planned_{kind}_tokens", 0)),
        counted_tokens=int(counters.get(f"counted_{kind}_tokens", 0)),
        exact=int(counters.get(special, 0)) if special == "exact_prompts" else None,
        ended_early=int(counters.get(special, 0)) if special == "early_answers" else None,
    )


def _prefixes(counters: Mapping[str, float]) -> PrefixDone | None:
    of, counted_of = counters.get("reusable_of_tokens", 0), counters.get("cached_of_tokens", 0)
    if not of and not counters.get("cached_prompt_tokens"):
        return None
    return PrefixDone(
        planned_share=counters["reusable_prompt_tokens"] / of if of else None,
        cached_share=counters["cached_prompt_tokens"] / counted_of if counted_of else None,
    )


def _sessions(table: RecordTable, done: NDArray[np.bool_], counters: Mapping[str, float]) -> SessionsDone | None:
    turns = table.column("turn")
    within = ~np.isnan(turns)
    if not within.any():
        return None
    ttft = table.ms("ttft")
    return SessionsDone(
        n=len(set(table.column("session_id")[within].tolist())),
        turns=int(within.sum()),
        turns_not_sent=int(counters.get("turns_not_sent", 0)),
        ttft_p50_first_ms=_median(ttft[done & (turns == 0)]),
        ttft_p50_later_ms=_median(ttft[done & (turns > 0)]),
    )


def _leaves(table: RecordTable, done: NDArray[np.bool_]) -> LeavesDone | None:
    left = left_as_planned(table)
    if not left.any():
        return None
    starts = starts_ns(table)
    ends = np.sort((starts + table.column("e2e_ns").astype(np.int64))[left])
    # For each leave the next request that was sent, by whichever client.
    order = np.argsort(starts, kind="stable")
    following = np.searchsorted(starts[order], ends, side="left")
    after = np.zeros(len(table), dtype=bool)
    after[order[following[following < len(order)]]] = True
    ttft = table.ms("ttft")
    return LeavesDone(
        n=int(left.sum()),
        ttft_p50_next_ms=_median(ttft[after & done]),
        ttft_p50_others_ms=_median(ttft[~after & done]),
    )


def _audio(done: RecordTable) -> AudioDone | None:
    seconds = done.column("audio_seconds")
    heard = seconds > 0
    if not heard.any():
        return None
    starts, lasting = starts_ns(done)[heard], done.column("e2e_ns").astype(np.int64)[heard]
    span = int((starts + lasting).max() - starts.min()) / 1e9
    total = float(seconds[heard].sum())
    return AudioDone(n=int(heard.sum()), audio_seconds=total, audio_seconds_per_s=total / span if span else None)


def _median(values: NDArray[np.float64]) -> float | None:
    values = values[~np.isnan(values)]
    return float(np.median(values)) if values.size else None
