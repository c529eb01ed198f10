"""Triton's models: batching, queue policies, priorities, copies. Each model of a server is judged for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.engines.advice.case import Case
from tailrace.engines.flags.triton_model import DynamicBatching, TritonModel
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

_STALLS: Final = Evidence(
    "24 at once, 15 bursts: plain batching 112-141 ms, no stall; priority_levels 2: two of 575 ms; max_queue_size 16: "
    "six of 576-614 ms",
    "Triton 2.51.0 run",
    "stall",
)


def judge_triton(case: Case) -> Iterator[CheckFinding]:
    """Every model's configuration."""
    if case.engine != "triton":
        return
    if not case.models and not case.not_ready:
        case.need("batching and queues of the models: give a config.pbtxt, or the server's HTTP address")
    for name, reason in case.not_ready:
        yield case.finding(
            "MODEL_NOT_READY",
            Weight.ERROR,
            f"{name} is not ready" + (f": {reason}." if reason else "."),
            subject=name,
            evidence=[Evidence(reason or "no reason is given", "/v2/repository/index", "reason")],
            advice="The server's log has the cause; a configuration that it refuses is named there with the field.",
            effect="The model answers.",
            price="None.",
            verify="POST /v2/repository/index says READY",
        )
    for model in case.models:
        yield from _judge(case, model)


def _subject(model: TritonModel, field: str) -> str:
    return f"{model.name}: {field}"


def _said(model: TritonModel, field: str, value: object) -> Evidence:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Evidence(f"{field}: {value}", model.source, field, number)


def _judge(case: Case, model: TritonModel) -> Iterator[CheckFinding]:
    batching = model.batching
    if batching is None:
        if model.max_batch_size > 1 and not model.sequence_batching and not model.ensemble:
            yield case.finding(
                "BATCHING_OFF",
                Weight.ADVICE,
                f"{model.name} takes batches of {model.max_batch_size}, and no batcher joins requests: each runs "
                "alone unless a client sends batches.",
                subject=_subject(model, "dynamic_batching"),
                evidence=[_said(model, "max_batch_size", model.max_batch_size)],
                advice="dynamic_batching { }",
                effect="Requests that wait run together: more throughput, a shorter queue under load.",
                price="A batch takes longer than one request.",
            )
    else:
        yield from _sizes(case, model, batching)
        yield from _delay(case, model, batching)
        yield from _queue(case, model, batching)
    yield from _copies(case, model)
    if model.decoupled:
        yield case.finding(
            "TRAP_STREAM_DURATIONS",
            Weight.INFO,
            f"{model.name} is decoupled: the server's durations end when execute() returns, not when the last piece "
            "is sent. Only stamps at the gateway tell how long a stream took; a stream has no [DONE].",
            subject=_subject(model, "model_transaction_policy"),
            evidence=[
                _said(model, "decoupled", "true"),
                Evidence("streams of 1+3+4+12 tokens at 30 ms: 258 ms in all", "Triton 2.51.0 run", "success_ns"),
            ],
        )


def _sizes(case: Case, model: TritonModel, batching: DynamicBatching) -> Iterator[CheckFinding]:
    over = [size for size in batching.preferred if size > model.max_batch_size]
    if over:
        yield case.finding(
            "PREFERRED_ABOVE_MAX",
            Weight.ERROR,
            f"{model.name} prefers batches of {', '.join(map(str, over))} and takes {model.max_batch_size} at most: "
            "it does not load.",
            subject=_subject(model, "preferred_batch_size"),
            evidence=[
                _said(model, "preferred_batch_size", list(batching.preferred)),
                _said(model, "max_batch_size", model.max_batch_size),
                Evidence("preferred size must be <= max batch size", "Triton 2.51.0 run", "refusal"),
            ],
            advice="Leave preferred_batch_size out: the batcher then takes what waits, up to max_batch_size.",
            effect="The model loads.",
            price="None, unless some sizes are much faster than others.",
            verify="The server's log: the model is READY",
        )
    elif batching.preferred:
        delay = f" for up to {batching.delay_us / 1000:g} ms" if batching.delay_us else ""
        yield case.finding(
            "PREFERRED_SIZES",
            Weight.ADVICE,
            f"{model.name} waits{delay} for batches of {', '.join(map(str, batching.preferred))}: other numbers of "
            "requests are held back or run as two batches.",
            subject=_subject(model, "preferred_batch_size"),
            evidence=[_said(model, "preferred_batch_size", list(batching.preferred))],
            advice="Leave preferred_batch_size out, unless a measurement shows that these sizes are much faster.",
            effect="A batch starts with whatever waits: less queueing at low load.",
            price="Batches of odd sizes; for engines built for some sizes only, less throughput.",
        )
    if model.max_batch_size <= 1:
        yield case.finding(
            "BATCHER_WITHOUT_BATCHES",
            Weight.WARNING,
            f"{model.name} has a batcher and max_batch_size {model.max_batch_size}: nothing can be joined, and its "
            "delay only adds.",
            subject=_subject(model, "max_batch_size"),
            evidence=[_said(model, "max_batch_size", model.max_batch_size)],
            advice="max_batch_size above 1, or no dynamic_batching.",
            effect="Batches, or no wait for them.",
            price="The model's code must take a batch dimension.",
            verify=case.compare_runs(),
        )


def _delay(case: Case, model: TritonModel, batching: DynamicBatching) -> Iterator[CheckFinding]:
    bounds = case.objectives.bounds.get("ttft") or case.objectives.bounds.get("e2e") or {}
    tightest = min(bounds.values(), default=None)
    delay_ns = batching.delay_us * 1000
    if tightest is not None and delay_ns > tightest / 5:
        yield case.finding(
            "BATCH_DELAY_LONG",
            Weight.WARNING,
            f"{model.name} may hold a request back for {batching.delay_us / 1000:g} ms to fill a batch; the objective "
            f"is {tightest / 1e6:g} ms in all.",
            subject=_subject(model, "max_queue_delay_microseconds"),
            evidence=[_said(model, "max_queue_delay_microseconds", batching.delay_us)],
            advice=f"max_queue_delay_microseconds: {int(tightest / 1000 / 50)}",
            effect="At low load a request no longer waits for others that do not come.",
            price="Smaller batches at middling load: less throughput.",
            verify=case.compare_runs(),
        )


def _queue(case: Case, model: TritonModel, batching: DynamicBatching) -> Iterator[CheckFinding]:
    policy = batching.policy
    if batching.priority_levels or policy or batching.level_policies:
        fields = []
        if batching.priority_levels:
            fields.append(_said(model, "priority_levels", batching.priority_levels))
        if policy.max_queue_size:
            fields.append(_said(model, "max_queue_size", policy.max_queue_size))
        if policy.default_timeout_us:
            fields.append(_said(model, "default_timeout_microseconds", policy.default_timeout_us))
        yield case.finding(
            "QUEUE_POLICY_STALLS",
            Weight.WARNING,
            f"{model.name} has a queue policy or priority levels: the batcher then sometimes leaves a ready batch "
            "idle for about half a second (stage queue, engine idle)."
            + (
                f" With a timeout of {policy.default_timeout_us / 1000:g} ms such leftovers expire instead."
                if 0 < policy.default_timeout_us <= 600_000
                else ""
            ),
            subject=_subject(model, "default_queue_policy"),
            evidence=[*fields, _STALLS],
            advice="Bound and order the line in the gateway (lanes), and leave queue policy and priority levels out "
            "of the model.",
            effect="No half-second stalls at bursts.",
            price="Requests that do not come through the gateway are neither bounded nor ordered.",
            verify="tailrace bench URL with bursts of three batches: the largest queue time, engine idle",
        )
    levels, level = batching.priority_levels, batching.default_priority
    if levels and not 1 <= level <= levels:
        said = f"is {level}" if level else "is missing"
        yield case.finding(
            "PRIORITY_WITHOUT_DEFAULT",
            Weight.ERROR,
            f"{model.name} has {levels} priority levels and its default_priority_level {said}: it does not load.",
            subject=_subject(model, "default_priority_level"),
            evidence=[
                _said(model, "priority_levels", levels),
                _said(model, "default_priority_level", level),
                Evidence("default priority level must be in range [1, levels]", "Triton 2.51.0 run", "refusal"),
            ],
            advice=f"default_priority_level: {levels} (1 is the highest)",
            effect="The model loads, and requests without a priority have one.",
            price="None.",
            verify="The server's log: the model is READY",
        )
    if policy.max_queue_size:
        yield case.finding(
            "QUEUE_BOUND_SHAPE",
            Weight.INFO,
            f"{model.name} refuses above {policy.max_queue_size} waiting requests with 503 (`Exceeds maximum queue "
            "size`), which no counter shows; a queue timeout is the same 503 with other words (`Request timeout "
            "expired`) and counts as REJECTED.",
            subject=_subject(model, "max_queue_size"),
            evidence=[
                _said(model, "max_queue_size", policy.max_queue_size),
                Evidence("60 at once, limit 16: 36 x 503, failure counter 0", "Triton 2.51.0 run", "rejected"),
            ],
        )
    else:
        yield case.finding(
            "QUEUE_UNBOUNDED",
            Weight.ADVICE,
            f"{model.name}'s waiting line has no bound.",
            subject=_subject(model, "max_queue_size"),
            evidence=[_said(model, "max_queue_size", 0)],
            advice="A bounded lane in the gateway (a bound in the model brings the stalls of QUEUE_POLICY_STALLS).",
            effect="Overload shows as 429 with Retry-After.",
            price="Some requests are refused.",
            verify="tailrace bench URL --rate (twice what it carries)",
        )


def _copies(case: Case, model: TritonModel) -> Iterator[CheckFinding]:
    count = model.instances
    if model.ensemble:
        yield case.finding(
            "ENSEMBLE",
            Weight.INFO,
            f"{model.name} runs {len(model.ensemble)} models in turn ({', '.join(model.ensemble)}); each has its own "
            "queue, and the slowest with the fewest copies decides.",
            subject=_subject(model, "ensemble_scheduling"),
        )
        return
    if count == 1 or count is None:
        yield case.finding(
            "ONE_INSTANCE",
            Weight.ADVICE if model.batching is None and model.max_batch_size <= 1 else Weight.INFO,
            f"{model.name} has {'one copy' if count == 1 else 'one copy a device (none is configured)'}: one batch at "
            "a time, the next waits even where the device has room.",
            subject=_subject(model, "instance_group"),
            evidence=[_said(model, "instance_group", "count 1" if count == 1 else "absent")],
            advice="instance_group [ { count: 2 } ]",
            effect="Reading the next batch overlaps computing this one; queueing falls while the device is not full.",
            price="The model's memory once more; on a device that is full already, both copies get slower.",
            verify=case.compare_runs(),
        )
