"""What a scripted stream really did, and whether a record says so.

Truth is what the server stamped right before each write, never what it had planned: a busy machine makes the server
late, not the truth wrong. Definitions are those of the glossary: a token event carries content or reasoning text;
TPOT is (last token - first token) / (tokens - 1), and absent for a single token.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.model.thresholds import MS
from tailrace.simserve.scenarios import TOKEN_STEPS, StepKind

COMPLETE: Final = "complete"
REJECTED: Final = "rejected"
CUT: Final = "cut"
ERROR: Final = "error"
CLIENT_GONE: Final = "client_gone"


class SentEvent(msgspec.Struct, frozen=True):
    """One event that left. Offsets in nanoseconds from the arrival of the request's last body byte."""

    kind: StepKind
    tokens: int
    planned_ns: int
    sent_ns: int


class Truth(msgspec.Struct, kw_only=True):
    """One request, as the scripted upstream saw and served it."""

    index: int
    scenario: str = ""
    request_id: str = ""
    """The `x-request-id` header that arrived."""
    model: str = ""
    stream: bool = True
    status: int = 200
    ending: str = COMPLETE
    """`complete`, `rejected`, `cut`, `error` or `client_gone`."""
    origin_ns: int = 0
    """Monotonic clock when the last body byte had arrived; comparable between the processes of one machine."""
    said_tokens: int | None = None
    """Completion tokens in a usage object; `None` where none was sent."""
    events: list[SentEvent] = []

    def token_events(self) -> list[SentEvent]:
        """The events that carry tokens, in order."""
        return [event for event in self.events if event.kind in TOKEN_STEPS]

    @property
    def tokens(self) -> int:
        """Tokens that left."""
        return sum(event.tokens for event in self.events)

    @property
    def ttft_ns(self) -> int | None:
        """Offset of the first token event; `None` where there was none."""
        return next((event.sent_ns for event in self.events if event.kind in TOKEN_STEPS), None)

    @property
    def ttft_content_ns(self) -> int | None:
        """Offset of the first event with answer text."""
        return next((event.sent_ns for event in self.events if event.kind is StepKind.CONTENT), None)

    @property
    def last_token_ns(self) -> int | None:
        """Offset of the last token event."""
        events = self.token_events()
        return events[-1].sent_ns if events else None

    @property
    def last_byte_ns(self) -> int | None:
        """Offset of the last event of any kind."""
        return self.events[-1].sent_ns if self.events else None

    def gaps_ns(self) -> list[int]:
        """Times between token events."""
        stamps = [event.sent_ns for event in self.token_events()]
        return [later - earlier for earlier, later in pairwise(stamps)]

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first (ns); `None` below two tokens."""
        first, last = self.ttft_ns, self.last_token_ns
        if first is None or last is None or self.tokens < 2:
            return None
        return (last - first) / (self.tokens - 1)


class Tolerance(msgspec.Struct, frozen=True):
    """How far the *median* over a scenario's requests may be off (ns). Counts and outcomes must be exact.

    A busy machine reads late, never early: what is early is wrong.
    """

    ttft_ns: int = 5 * MS
    """Also for the last token and the end: the client's origin is its send, earlier than the server's receipt."""
    gap_ns: int = 3 * MS
    tpot_ns: int = 2 * MS
    early_ns: int = 1 * MS
    """The client's origin is before the server's, so its latencies cannot be shorter than the truth."""
    gap_p99_ns: int = 5 * MS
    """How much *smaller* than the truth the pooled p99 gap may be: stalls must not be averaged away."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario's records got right and wrong."""

    scenario: str
    vantage: str
    n: int
    wrong: list[str]
    """Counts, outcomes and absences that differ, one sentence each; no machine load excuses them."""
    late: list[str]
    """Times that are off by more than the tolerance; a busy machine can cause these."""
    median_error_ms: dict[str, float]

    @property
    def ok(self) -> bool:
        """Nothing wrong, nothing late."""
        return not self.wrong and not self.late


EXPECTED_OUTCOME: Final = {
    COMPLETE: OutcomeKind.COMPLETED,
    REJECTED: OutcomeKind.REJECTED,
    CUT: OutcomeKind.FAILED,
    ERROR: OutcomeKind.FAILED,
    CLIENT_GONE: OutcomeKind.CANCELLED,
}


def expected_output_tokens(truth: Truth) -> tuple[int, str]:
    """How many tokens a record must show, and from which source: usage where it was sent, else events counted."""
    if truth.said_tokens is not None:
        return truth.said_tokens, "usage"
    return len(truth.token_events()), "chunks"


def wrong_facts(record: RequestRecord, truth: Truth, *, behind_gateway: bool = False) -> list[str]:
    """Everything that is not a time and must be exact, one sentence a difference.

    `behind_gateway`: the record is of a client behind a gateway, which may tell a cut with an error event.
    """
    out = [f"request {truth.index}: {text}" for text in broken_invariants(record)]

    def expect(name: str, said: object, true: object) -> None:
        if said != true:
            out.append(f"request {truth.index}: {name} is {said!r}, truth {true!r}")

    expect("outcome", record.outcome.value, EXPECTED_OUTCOME[truth.ending].value)
    expect("http_status", record.http_status, truth.status)
    if truth.ending == CUT and not behind_gateway:
        expect("reason", record.reason.value, Reason.STREAM_CUT.value)
    if truth.status != 200:
        expect("ttft_ns", record.ttft_ns, None)
        expect("tpot_ns", record.tpot_ns, None)
        return out
    if not truth.stream:
        expect("output_tokens", record.output_tokens, truth.said_tokens)
        return out
    tokens, source = expected_output_tokens(truth)
    expect("output_tokens", record.output_tokens, tokens)
    if truth.said_tokens is None or record.output_tokens_source != "chunk_usage":
        expect("output_tokens_source", record.output_tokens_source, source)
    expect("chunk_gap_count", record.chunk_gap_count, len(truth.gaps_ns()))
    if truth.tokens < 2:
        expect("tpot_ns", record.tpot_ns, None)
    elif record.tpot_ns is None:
        expect("tpot_ns", None, truth.tpot_ns)
    if record.timeline is not None and not record.timeline.thinned:
        expect("token events kept", len(record.timeline.token_stamps()), len(truth.token_events()))
    return out


def time_errors(record: RequestRecord, truth: Truth) -> dict[str, list[float]]:
    """Differences in nanoseconds (said - true) by metric; absent values leave no entry."""
    out: dict[str, list[float]] = {}

    def differ(name: str, said: float | None, true: float | None) -> None:
        if said is not None and true is not None:
            out.setdefault(name, []).append(said - true)

    if truth.status != 200 or not truth.stream:
        return out
    differ("ttft", record.ttft_ns, truth.ttft_ns)
    differ("ttft_upstream", record.ttft_upstream_ns, truth.ttft_ns)
    if truth.ttft_content_ns != truth.ttft_ns:
        differ("ttft_content", record.ttft_content_ns, truth.ttft_content_ns)
    differ("e2e_last_token", record.e2e_last_token_ns, truth.last_token_ns)
    if truth.ending == COMPLETE:
        differ("e2e", record.e2e_ns, truth.last_byte_ns)
    differ("tpot", record.tpot_ns, truth.tpot_ns)
    gaps = truth.gaps_ns()
    kept = record.timeline.token_stamps() if record.timeline is not None and not record.timeline.thinned else []
    if gaps and len(kept) == len(gaps) + 1:
        said = [later - earlier for earlier, later in pairwise(kept)]
        out["gap"] = [a - b for a, b in zip(said, gaps, strict=True)]
    elif gaps:
        differ("gap", record.chunk_gap_p50_ns, statistics.median(gaps))
    return out


EARLY_IS_WRONG: Final = frozenset({"ttft", "ttft_upstream", "ttft_content", "e2e_last_token", "e2e"})


def judge(
    scenario: str,
    pairs: Sequence[tuple[RequestRecord, Truth]],
    *,
    vantage: str,
    tolerance: Tolerance | None = None,
    missing: int = 0,
    behind_gateway: bool = False,
) -> Judgement:
    """Compare the records of one scenario with the truth. `missing` requests were served but left no record."""
    limit = tolerance or Tolerance()
    wrong = [f"{missing} requests left no record"] if missing else []
    if not pairs and not missing:
        wrong.append("no request was served")
    errors: dict[str, list[float]] = {}
    for record, truth in pairs:
        wrong += wrong_facts(record, truth, behind_gateway=behind_gateway)
        for name, values in time_errors(record, truth).items():
            errors.setdefault(name, []).extend(values)
    limits = {"gap": limit.gap_ns, "tpot": limit.tpot_ns}
    late: list[str] = []
    medians: dict[str, float] = {}
    for name, values in errors.items():
        signed = statistics.median(values)
        size = statistics.median(map(abs, values))
        medians[name] = round(size / MS, 3)
        allowed = limits.get(name, limit.ttft_ns)
        if name in EARLY_IS_WRONG and signed < -limit.early_ns:
            wrong.append(f"{name} is {-signed / MS:.1f} ms shorter than the truth (median)")
        elif size > allowed:
            late.append(f"{name}: median error {size / MS:.1f} ms > {allowed / MS:g} ms")
    said_p99, true_p99 = _p99(_kept_gaps(record for record, _ in pairs)), _p99(_true_gaps(pairs))
    if said_p99 is not None and true_p99 is not None:
        medians["gap_p99"] = round(abs(said_p99 - true_p99) / MS, 3)
        if said_p99 < true_p99 - limit.gap_p99_ns:
            wrong.append(f"p99 gap is {said_p99 / MS:.1f} ms, truth {true_p99 / MS:.1f} ms")
    return Judgement(scenario=scenario, vantage=vantage, n=len(pairs), wrong=wrong, late=late, median_error_ms=medians)


def _kept_gaps(records: Iterable[RequestRecord]) -> list[int]:
    gaps: list[int] = []
    for record in records:
        if record.timeline is not None and not record.timeline.thinned:
            stamps = record.timeline.token_stamps()
            gaps += [later - earlier for earlier, later in pairwise(stamps)]
    return gaps


def _true_gaps(pairs: Sequence[tuple[RequestRecord, Truth]]) -> list[int]:
    """Gaps of the requests whose records kept a timeline, so that both sides pool the same requests."""
    return [
        gap
        for record, truth in pairs
        if record.timeline is not None and not record.timeline.thinned
        for gap in truth.gaps_ns()
    ]


def _p99(values: list[int]) -> float | None:
    if len(values) < 100:
        return None
    return statistics.quantiles(values, n=100, method="inclusive")[98]
