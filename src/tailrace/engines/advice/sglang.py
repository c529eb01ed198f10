"""SGLang's options: read in the source of 0.5.23, not run."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.engines.advice.case import Case, percent
from tailrace.engines.advice.lengths import Of
from tailrace.model.check import CheckFinding, Weight


def judge_sglang(case: Case) -> Iterator[CheckFinding]:
    """What hurts under load, and what reads otherwise than in vLLM."""
    if case.engine != "sglang":
        return
    yield from _steps(case)
    yield from _order(case)
    yield from _bounds(case)
    yield from _numbers(case)


def _steps(case: Case) -> Iterator[CheckFinding]:
    piece = case.number("chunked_prefill_size")
    if piece is not None and piece <= 0:
        yield case.finding(
            "CHUNKED_PREFILL_OFF",
            Weight.WARNING,
            "Chunked prefill is off (-1): a prompt is computed in one piece, and every stream stands still meanwhile.",
            subject="--chunked-prefill-size",
            evidence=[*case.shown("chunked_prefill_size"), *case.length_evidence(Of.PROMPT)],
            advice="--chunked-prefill-size 4096 (2048 where gaps matter most)",
            effect="p99 and the largest gap fall; streams beside a long prompt go on.",
            price="Middling gaps become more frequent, and long prompts take somewhat longer.",
            verify=case.compare_runs(),
        )
    elif piece and case.lengths is not None and (share := case.lengths.share_above(piece)) is not None:
        yield case.finding(
            "BATCH_TOKENS",
            Weight.INFO,
            f"{percent(share)} of prompts are longer than one piece of {piece:.0f} tokens.",
            subject="--chunked-prefill-size",
            evidence=[*case.shown("chunked_prefill_size"), *case.length_evidence(Of.PROMPT)],
        )
    steps = case.number("num_continuous_decode_steps")
    interval = case.number("stream_interval")
    if (steps or 1) > 1 or (interval or 1) > 1:
        yield case.finding(
            "CHUNKS_OF_TOKENS",
            Weight.WARNING,
            "Several tokens come at once (num_continuous_decode_steps, stream_interval), and the engine's inter-token "
            "latency spreads each gap evenly over them: stalls do not show in it.",
            subject="--stream-interval",
            evidence=case.shown("num_continuous_decode_steps", "stream_interval"),
            advice="Judge gaps at the gateway; 1 and 1 where gaps matter.",
            effect="The gaps that are shown are those that clients see.",
            price="A little CPU a token.",
            verify=case.compare_runs(),
        )


def _order(case: Case) -> Iterator[CheckFinding]:
    policy = case.facts.text("scheduling_policy")
    low_first = case.facts.flag("schedule_low_priority_values_first")
    if case.facts.flag("enable_priority_scheduling") or policy == "priority":
        yield case.finding(
            "PRIORITY_SIGN",
            Weight.INFO,
            f"The {'lower' if low_first else 'higher'} number goes first"
            + ("." if low_first else ", the opposite of vLLM: a client that speaks to both must turn the sign."),
            subject="--enable-priority-scheduling",
            evidence=case.shown(
                "enable_priority_scheduling", "schedule_low_priority_values_first", "scheduling_policy"
            ),
        )
    elif case.command is not None and not case.facts.flag("abort_on_priority_when_disabled"):
        yield case.finding(
            "PRIORITY_IGNORED",
            Weight.INFO,
            "Priority scheduling is off, so a request's `priority` is ignored without a word.",
            subject="--enable-priority-scheduling",
            evidence=case.shown("enable_priority_scheduling"),
        )
    if policy in {"lpm", "dfs-weight"}:
        yield case.finding(
            "POLICY_PREFERS_HITS",
            Weight.ADVICE,
            f"The policy {policy} takes requests with a long cached prefix first: a request without one can wait very "
            "long under load.",
            subject="--schedule-policy",
            evidence=case.shown("scheduling_policy"),
            advice="--schedule-policy fcfs, or a lane in the gateway with a bound on the wait.",
            effect="p99 of the time to first token falls for prompts without a shared prefix.",
            price="Fewer prefix hits: the median may rise.",
        )


def _bounds(case: Case) -> Iterator[CheckFinding]:
    if case.command is not None and not case.number("max_queued"):
        yield case.finding(
            "QUEUE_UNBOUNDED",
            Weight.ADVICE,
            "The engine's waiting line has no bound: under overload every request waits longer and longer.",
            subject="--max-queued-requests",
            evidence=case.shown("max_queued"),
            advice="A bounded lane in the gateway; or --max-queued-requests N (ignored with disaggregation), which "
            "answers 503.",
            effect="Overload shows as refusals that can be retried.",
            price="Some requests are refused; in a stream the refusal may come as finish_reason `abort` without a "
            "reason.",
            verify="tailrace bench URL --rate (twice what it carries)",
        )
    if case.facts.flag("allow_auto_truncate"):
        yield case.finding(
            "SILENT_TRUNCATION",
            Weight.WARNING,
            "Prompts that are too long are cut without a word: the answer is to another question.",
            subject="--allow-auto-truncate",
            evidence=case.shown("allow_auto_truncate"),
            advice="Leave it out; cut where it can be told to the user.",
            effect="Too long inputs are refused with 400.",
            price="These requests fail until callers shorten them.",
            verify="A prompt above the context length gets 400",
        )
    if case.load is not None and case.load.preemptions:
        return  # capacity says it
    careful = case.number("schedule_conservativeness")
    if careful is not None and careful < 0.3:
        yield case.finding(
            "ADMITS_TOO_EAGERLY",
            Weight.ADVICE,
            f"schedule_conservativeness {careful:g} admits requests as if answers stayed short; when they do not, "
            "running ones are retracted.",
            subject="--schedule-conservativeness",
            evidence=case.shown("schedule_conservativeness"),
            advice="--schedule-conservativeness 1.0",
            effect="Fewer retractions: no stream stops in its middle.",
            price="A somewhat smaller batch.",
        )


def _numbers(case: Case) -> Iterator[CheckFinding]:
    if case.command is not None and not case.facts.flag("enable_metrics") and case.scrape is None:
        yield case.finding(
            "STATS_OFF",
            Weight.WARNING,
            "Metrics are off unless --enable-metrics is given, and so are the times in meta_info.",
            subject="--enable-metrics",
            evidence=case.shown("enable_metrics"),
            advice="--enable-metrics",
            effect="Queue, KV usage, retractions and per-request queue times can be read.",
            price="A little CPU.",
            verify=f"tailrace check {case.url or 'URL'}",
        )
    yield case.finding(
        "TRAP_PREFILL_INCLUDES_QUEUE",
        Weight.INFO,
        "The trace attribute gen_ai.latency.time_in_model_prefill includes the scheduler's queue here, unlike vLLM's "
        "of the same name; time_in_queue is never set. Read in the source of 0.5.23.",
        subject="gen_ai.latency.time_in_model_prefill",
    )
