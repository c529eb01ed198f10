"""Summaries of a load test and of a comparison: the contracts that `bench` and `compare` print."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from tailrace.model.work_done import WorkDone


class MetricSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over a run, milliseconds. Percentiles that `n` cannot support are `None`."""

    n: int
    mean: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    p99_ci: list[float | None] | None = None
    """95 % order-statistic interval of p99, `[lo, hi]`; `None` in a place where it is unbounded."""
    reason: str | None = None
    """Why the metric cannot be known, when `n` is 0."""


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator says about itself. `limited` forbids a verdict."""

    limited: bool = False
    why: str = ""
    loop_lag_p50_ms: float | None = None
    loop_lag_p99_ms: float | None = None
    loop_lag_max_ms: float | None = None
    """How late the event loop's own timers fired (they count in milliseconds)."""
    event_delay_p50_ms: float | None = None
    event_delay_p99_ms: float | None = None
    event_delay_max_ms: float | None = None
    """A descriptor became readable -> the loop stamped it, sampled by a kernel timer; `None` where there is none."""
    p99_moved_ms: float | None = None
    """By how much those delays, at the requests' own first tokens, moved the TTFT p99 (of answers that are not
    streamed, the end's)."""
    late_send_p99_ms: float | None = None
    late_sends: int = 0
    schedule_kept: float | None = None
    """Open loop: rate at which requests were taken up, as a share of the planned rate."""
    cpu_share: float | None = None
    """Cores used; 1.0 is all that one process can use. Of several processes, the busiest one's."""
    cpu_s: float | None = None
    """Processor time of all processes while the load ran."""
    connections_opened: int = 0
    open_files: int | None = None
    """The most at once; of several processes, the largest."""
    run_queue_wait_share: float | None = None
    """Share of the run in which it was runnable and had no processor."""
    gc_pause_max_ms: float | None = None
    gc_pauses_ms: float | None = None
    """All garbage collections together."""
    processes: list[ClientHealth] = []
    """Each process's own health, where there were several; limited if any is."""


class BenchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace bench --json` prints. `metrics` count from the send, `from_schedule` from the intended time."""

    schema: int = 1
    run: str
    n: int
    requests_per_s: float
    tokens_per_s: float
    goodput_per_s: float
    errors: dict[str, int]
    client: ClientHealth
    metrics: dict[str, MetricSummary]
    from_schedule: dict[str, MetricSummary] = {}
    mix: dict[str, int] = {}
    """Requests by class."""
    work: WorkDone | None = None
    """Of a load test: lengths as planned and as counted, sessions, prefixes, recordings, leaving clients."""


class Verdict(StrEnum):
    """The four answers that a comparison may give."""

    IMPROVED = "improved"
    REGRESSED = "regressed"
    NO_DIFFERENCE = "no_difference"
    INCONCLUSIVE = "inconclusive"


class MetricDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of one metric in both arms (ms), its change in percent with a 95 % interval."""

    a: float | None
    b: float | None
    delta_pct: float | None
    ci_pct: list[float | None]
    n_a: int = 0
    n_b: int = 0
    verdict: Verdict = Verdict.INCONCLUSIVE


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace compare --json` prints."""

    schema: int = 1
    verdict: Verdict
    summary: str = ""
    metrics: dict[str, MetricDelta]
    same_work: dict[str, Any]
    trade_offs: list[str]
    min_detectable_pct: float | None
    n_a: int = 0
    n_b: int = 0
    refused: list[str] = []
    """Why no verdict was given, where none was: client limited, too few requests, drops."""
    headline: list[str] = []
    """The names in `metrics` on which the verdict rests, the first one first."""
    interactive: list[str] = []
    """The classes whose readers wait for tokens; the others (long prompts) may pay for them, and that is named."""
    mix_within: dict[str, dict[str, float | None]] = {}
    """Headline metric -> `{mix_ms, within_ms, total_ms}`: what the change of traffic did, and what the system did."""
    per_stage: dict[str, dict[str, float]] = {}
    """Stage -> `{a, b, delta, low, high}` (ms) among the requests near the p99 of E2E."""
    checks: list[str] = []
    """What a reader should know about the comparison: short arms, pairing, failures left out of percentiles."""
