"""Summaries of a load test and of a comparison: the contracts that `bench` and `compare` print."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from tailrace.model.work_done import WorkDone


class MetricSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over a run, milliseconds (`rtf`: no unit). Percentiles that `n` cannot support are `None`."""

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
    ci: dict[str, list[float | None]] = {}
    """95 % interval `[lo, hi]` of every percentile that is given (`p50`, ... `p999`); `None` where it is unbounded."""
    ci_method: str = ""
    """`order_statistics` of independent requests, or, where many values belong to one request (gaps),
    `effective_sample`: order statistics for as many independent values as those are worth."""
    failed: int = 0
    """Requests that should have had a value and did not complete: they are in no percentile but `adjusted`."""
    adjusted: dict[str, float | None] = {}
    """Percentiles in which each of the `failed` is slower than every value; `None` is infinite: the rank falls into
    them. Empty for what is not one value a request (gaps)."""
    reason: str | None = None
    """Why the metric cannot be known, when `n` is 0."""


class RateSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A rate of each request, where low is bad: the tail is at the low percentiles (`p1`: 99 of 100 are faster)."""

    n: int
    mean: float | None = None
    min: float | None = None
    p1: float | None = None
    p5: float | None = None
    p10: float | None = None
    p50: float | None = None
    max: float | None = None
    ci: dict[str, list[float | None]] = {}
    """95 % order-statistic interval `[lo, hi]` of every percentile that is given."""
    reason: str | None = None


class Attainment(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests met every objective. What did not complete missed it."""

    n: int
    met: int
    share: float | None
    """`met / n`; `None` without a request."""
    ci: list[float] | None
    """95 % Wilson score interval of `share`."""
    goodput_per_s: float
    objectives: dict[str, dict[str, float]] = {}
    """Metric -> percentile -> bound (ms) that bound these requests."""


class BucketSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Completed requests of one range of prompt lengths and one of output lengths (tokens)."""

    prompt: str
    output: str
    n: int
    metrics: dict[str, MetricSummary]


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


class ObjectiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """One objective against one run: a request that failed kept nothing."""

    n: int
    asked: float
    """The share that is to keep the bound: 0.99 of a p99."""
    share: float | None
    """The share that did."""
    ci: list[float] | None
    """95 % Wilson interval of `share`."""
    met: bool | None
    """`None`: enough kept it, of too few requests to say so of the quantile."""


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
    headline: str = "metrics"
    """Which of the two to read first: `from_schedule` where requests had an intended time, else `metrics`."""
    duration_s: float | None = None
    """The time that rates are counted over."""
    completed: int = 0
    failed: int = 0
    """Failed, refused, timed out, or cancelled by the server."""
    left: int = 0
    """Given up by their client: neither completed nor failed. Those that the plan let leave are not in `n`: `work`."""
    window: str = ""
    """The part of the run that this summarises, in words; empty for all of it."""
    classes: dict[str, dict[str, MetricSummary]] = {}
    """Class -> what `metrics` is for all; empty with a single class."""
    classes_from_schedule: dict[str, dict[str, MetricSummary]] = {}
    """Class -> what `from_schedule` is for all."""
    attainment: dict[str, Attainment] = {}
    """`all`, and each class of several: by its own objectives, by those for all where it has none on a metric."""
    objectives: dict[str, ObjectiveResult] = {}
    """`ttft p99 ≤ 500 ms` -> whether it was met, from the headline's origin; a class's own as `chat/ttft p99 ≤ …`."""
    buckets: list[BucketSummary] = []
    """By length, from the headline's origin; only where there are requests."""
    user_tokens_per_s: RateSummary | None = None
    """Output tokens a second that the reader of one request saw, after its first token: 1 / TPOT."""
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
    detectable_pct: float | None = None
    """The smallest change that would have been found with 80 % power."""
    note: str = ""
    """What to know before reading it: `rests on 2 samples`."""


class FailureDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended in one way without completing, in both arms."""

    outcome: str
    reason: str
    budget: str = ""
    a: int
    b: int
    limit_ms: float | None = None
    """The age at which they all ended, where it is one: the length of the timer."""


class RateDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A rate of both arms, a second."""

    a: float
    b: float
    delta_pct: float | None


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """One threshold of a rules file, applied."""

    rule: str
    """`short/ttft_ms.p99 max_increase 10%`."""
    passed: bool | None
    """`None`: it cannot be decided; `text` says why. It counts as not passed."""
    text: str
    measured: float | None = None
    limit: float | None = None
    unit: str = ""
    """Of `measured` and `limit`: `ms`, `%`, `/s`."""


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
    in_short: str = ""
    """The deciding metric in a few words: `p50 +33 %, p95 -40 %, p99 -76 %`."""
    equivalence_pct: float | None = None
    """With `no_difference`: no difference of a deciding metric is larger than this."""
    need_n: int | None = None
    """With `inconclusive`: requests a run that would decide it, from the measured spread."""
    need_more: int | None = None
    """The same less what the smaller arm has."""
    observed: Verdict | None = None
    """What the latencies alone say, where the verdict withholds it (another load, a stall that a closed loop hid)."""
    origin: str = "send"
    """From when latency is counted: `send`, or `intended` (the schedule), whose metrics are named `_from_schedule`."""
    not_comparable: dict[str, str] = {}
    """Metric -> why: an arm's tool does not report it, or defines it otherwise. Never shown as 0."""
    unknown: list[str] = []
    """Conditions that an arm does not tell, so that nobody can say whether they changed."""
    failures: list[FailureDelta] = []
    failed_share: list[float] = []
    """Of A and B."""
    failures_p: float | None = None
    """One-sided p-value of "B fails more often"."""
    rates: dict[str, RateDelta] = {}
    """`requests_per_s`, `tokens_per_s`, `goodput_per_s`."""
    runs_a: int = 1
    runs_b: int = 1
    """Runs that an arm is pooled from."""
    decided_by: str = ""
    """The metric that decided; `failures` where they did."""
    p_value: float | None = None
    """Of what decided, before any correction for several arms."""
    rules: list[RuleResult] = []
    name_a: str = ""
    name_b: str = ""


class RankedArm(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of a comparison of several."""

    name: str
    rank: int
    """1 is the best; arms that could not be told apart share a rank."""
    n: int
    verdict: Verdict | None
    """Against the baseline, after the correction for several arms; `None` for the baseline itself."""
    value_ms: float | None
    """The first deciding metric."""
    failed_share: float
    comparable: bool = True
    """False where no verdict was given: its place says nothing."""


class ComparisonSet(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace compare --json` prints for more than two arms: each against the baseline."""

    schema: int = 1
    verdict: Verdict
    """`regressed` if any arm is, else `inconclusive` if any is, else `improved` if any is, else `no_difference`."""
    summary: str
    baseline: str
    correction: str
    """How the verdicts allow for several arms: `holm`."""
    comparisons: dict[str, Comparison]
    """Arm -> its comparison with the baseline."""
    ranking: list[RankedArm]
    metric: str
    """What the ranking is by."""


class EngineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the engine view."""

    group: str
    """`conditions`, `work`, `throughput`, `latency`, `stages`, `resources`, `failures`."""
    name: str
    unit: str = ""
    values: list[float | str | None]
    """One an engine; `None` where it cannot report it: that is not 0."""
    comparable: bool = True
    """False where an engine does not report it, or the engines define it differently."""
    why: str = ""
    """Why it is not comparable, or what to know of the values."""


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace compare --view engines --json` prints: arms side by side, no verdict."""

    schema: int = 1
    engines: list[str]
    rows: list[EngineRow]
    checks: list[str] = []
    """What keeps the engines from being compared: other work, a client that was the limit."""
