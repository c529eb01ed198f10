"""What the engine lets others see: per-request times, statistics, logs, the size of a chunk, and how it stops."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.engines.advice.case import Case
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence


def judge_visibility(case: Case) -> Iterator[CheckFinding]:
    """For vLLM: what is switched off, what costs too much, and what misleads."""
    if not case.vllm:
        return
    facts = case.facts
    if facts.flag("disable_log_stats"):
        yield case.finding(
            "STATS_OFF",
            Weight.WARNING,
            "Statistics are off: /metrics has no queue, no KV cache usage and no histograms, and a diagnosis lacks "
            "its evidence.",
            subject="--disable-log-stats",
            evidence=case.shown("disable_log_stats"),
            advice="Leave --disable-log-stats out.",
            effect="Waiting, running, KV cache usage and preemptions can be read.",
            price="A few microseconds a step.",
            verify=f"tailrace check {case.url or 'URL'}",
        )
    if facts.flag("enable_log_outputs") and facts.flag("enable_log_deltas") is not False:
        yield case.finding(
            "LOG_PER_TOKEN",
            Weight.WARNING,
            "Every streamed token is a line of the log, written by the process that also streams to clients.",
            subject="--enable-log-outputs",
            evidence=case.shown("enable_log_outputs", "enable_log_deltas"),
            advice="--no-enable-log-deltas, or leave --enable-log-outputs out.",
            effect="Less CPU in the API process: smoother gaps at many streams.",
            price="The log has only whole answers.",
            verify=case.compare_runs(),
        )
    if facts.flag("enable_logging_iteration_details"):
        yield case.finding(
            "LOG_PER_STEP",
            Weight.INFO,
            "Every step is a line of the log: the only view of what was in a batch, at the cost of a line a token.",
            subject="--enable-logging-iteration-details",
            evidence=case.shown("enable_logging_iteration_details"),
        )
    started_by = case.command is not None or facts.get("enable_per_request_metrics") is not None
    if started_by and not facts.flag("enable_per_request_metrics") and case.at_least("0.32.0"):
        yield case.finding(
            "PER_REQUEST_TIMES_OFF",
            Weight.ADVICE,
            "Answers carry no times: which part of a first token was queue and which prefill must be inferred.",
            subject="--enable-per-request-metrics",
            evidence=[Evidence("no --enable-per-request-metrics", "command line", "enable_per_request_metrics")],
            advice="--enable-per-request-metrics",
            effect="Queue, prefill and decode of every request, reported by the engine, in the gateway's records.",
            price="Some CPU in the API process at high concurrency; streams need usage, which the gateway asks for "
            "and strips.",
            verify="tailrace records query: stages with source `reported`",
        )
    interval = case.number("stream_interval")
    if interval is not None and interval > 1:
        yield case.finding(
            "CHUNKS_OF_TOKENS",
            Weight.INFO,
            f"{interval:.0f} tokens go into one chunk: gaps between chunks grow as much, and a tool that counts "
            "chunks as tokens is wrong by that factor.",
            subject="--stream-interval",
            evidence=case.shown("stream_interval"),
        )
    if case.command is not None and not case.number("shutdown_timeout") and case.at_least("0.32.0"):
        yield case.finding(
            "SHUTDOWN_CUTS_STREAMS",
            Weight.ADVICE,
            "On SIGTERM the engine ends at once (shutdown-timeout 0): streams get an error frame followed by "
            "`[DONE]`, and under load some hang silently until the client gives up.",
            subject="--shutdown-timeout",
            evidence=[
                *case.shown("shutdown_timeout"),
                Evidence("2 of 3 streams an error frame, 1 of 3 silent for 60 s", "vLLM 0.32.0 run, loaded", "sigterm"),
            ],
            advice="--shutdown-timeout 30, and take the engine out of the gateway first: /health says 200 while it "
            "drains.",
            effect="Streams end as they should in a rollout.",
            price="A rollout takes up to that long.",
            verify="Stop the engine under load: tailrace bench counts no failures",
        )


def known_traps(case: Case) -> Iterator[CheckFinding]:
    """What is true of every engine of this kind and misleads whoever reads its numbers."""
    if case.vllm:
        yield case.finding(
            "TRAP_SURVIVORS",
            Weight.INFO,
            "Requests that clients gave up on are counted nowhere (finished_reason=abort stays 0): the slowest are "
            "missing from every percentile of the engine.",
            subject="vllm:request_success_total",
            evidence=[Evidence("3 disconnects, abort counter 0", "vLLM 0.32.0 run", "abort")],
        )
        yield case.finding(
            "TRAP_HEALTH",
            Weight.INFO,
            "/health says 200 while the engine hangs, drains, or has just lost its worker: watch that generated "
            "tokens rise while requests run.",
            subject="/health",
            evidence=[Evidence("worker frozen for 4.3 s: 200 throughout", "vLLM 0.32.0 run", "health")],
        )
        yield case.finding(
            "TRAP_PREEMPTION",
            Weight.INFO,
            "Time lost to preemption is in no queue time, and the counter rises only when the request resumes: "
            "waiting above 0 with a full KV cache is the sign.",
            subject="vllm:num_preemptions_total",
            evidence=[
                Evidence("5 preemptions, streams still up to 1.05 s, queue sum 0.0002 s", "vLLM 0.32.0 run", "wait")
            ],
        )
