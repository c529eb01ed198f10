"""A queue before the scheduler, from printed benchmarks, tables and forms.

Three relations: more is offered than completed, and all of it together takes n / rate; in a closed loop the time in the
system is concurrency / rate (Little's law), and most of it is spent before the first token; the engine's own queue time
is most of TTFT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace.diagnose.arm_evidence.at_once import all_at_once
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import ANY, CENTRAL, TAIL_FIRST, condition, figure, number_stated, per_request
from tailrace.diagnose.arms.moments import middle
from tailrace.diagnose.arms.pairs import sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.limits import LATE_MS
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.diagnose.scale import Ruling, rule_on
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["saturation_on_arms"]

OVERLOAD: Final = 1.1
"""Offered / completed from which a queue must grow."""
FITS: Final = 0.15
"""Relative error within which Little's law holds between figures of one run."""
FIRST: Final = 0.5
"""Of the time in the system, before the first token."""
BACKLOG: Final = 0.10
QUEUED: Final = 0.5
LEAST_QUEUE_MS: Final = 500.0
BUSY: Final = 10.0
FLAT: Final = 0.15
"""Of the load's own growth; what throughput gains less is no gain."""
ROOM: Final = 0.7
"""KV usage below which more requests fit."""
LEAST_OF_WORK_MS: Final = 20.0
"""A shorter queue counts as well where it is so many times the work itself."""


def saturation_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The surest of the three relations."""
    ruling = rule_on(observed)
    return surest(
        [
            *(_overload(cause, observed, arm, ruling) for arm in observed.arms),
            _overload(cause, observed, None, ruling),
            *(_overload(cause, observed, arm, ruling) for arm in middle(observed)),
            *(_closed_loop(cause, observed, arm, ruling) for arm in observed.arms),
            *(all_at_once(cause, observed, arm) for arm in observed.arms),
            *(_queued(cause, observed, arm, ruling) for arm in observed.arms),
            _full(cause, observed, ruling),
            _plateau(cause, observed, ruling),
        ]
    )


class _Known(NamedTuple):
    """A number of an arm or a statement, with its evidence."""

    value: float
    evidence: Evidence


def _of(observed: Observed, arm: Arm | None, quantity_: tuple[str, ...], stated: str) -> _Known | None:
    found = None if arm is None else figure(arm, *quantity_)
    if found is not None and arm is not None:
        return _Known(found.value, evidence_of(arm, found))
    item: Setting | None = number_stated(observed, stated)
    return None if item is None or item.number is None else _Known(item.number, evidence_of_setting(item))


def _advice(ruling: Ruling) -> str:
    words = (
        "Shed what cannot be served (a queued limit and 429 at the gateway) or shorten outputs first; a longer timeout "
        "only hides the queue. "
    )
    return words + ruling.advice


def _overload(cause: Cause, observed: Observed, arm: Arm | None, ruling: Ruling) -> Finding | None:
    """Offered above completed; where the count and the span are known, span = n / rate: a pure backlog."""
    offered = _of(
        observed, arm, ("offered_rps",), r"^(?:bench )?(?:request rate|offered rps|offered rate|rate)$|request rate"
    )
    done = _of(observed, arm, ("completed_rps", "req_s"), r"^(?:completed rps|req s|service rate|completed rate)$")
    if offered is None or done is None or done.value <= 0 or offered.value < OVERLOAD * done.value:
        return None
    if offered.value == float("inf"):
        return None
    n = _of(observed, arm, ("n",), r"^(?:bench )?(?:num prompts|n|requests|number of requests)$|num prompts")
    span = _of(observed, arm, ("duration",), r"^(?:duration s|total s|duration|benchmark duration s)$")
    relation = f"offered {offered.value:g}/s > completed {done.value:g}/s ({offered.value / done.value:.3g} x)"
    evidence = [offered.evidence, done.evidence]
    missing = []
    backlog = False
    if n is not None and span is not None:
        drained = n.value / done.value
        backlog = abs(drained / span.value - 1.0) <= BACKLOG
        relation += f"; {n.value:g} / {done.value:g} = {drained:.0f} s, {span.value:g} s seen" + (
            ": a pure backlog" if backlog else ""
        )
        evidence += [n.evidence, span.evidence]
        evidence.append(
            Evidence(
                f"{n.value:g} requests at {done.value:g}/s take {drained:.0f} s",
                done.evidence.source,
                "drain_s",
                round(drained, 1),
                "s",
            )
        )
    elif n is None and span is None:
        missing.append("n and duration of the run (n / rate = duration shows a pure backlog)")
    rivals, checked = _disproof(observed, arm)
    wait = _ttft(arm)
    if wait is not None and arm is not None:
        evidence.append(evidence_of(arm, wait))
    if not backlog and wait is None:
        missing.append("TTFT or queue time over the run: they grow while more is offered than served")
    # A run of a few seconds ends late by its last request: no overload.
    if n is not None and span is not None and not backlog and offered.value < 2 * OVERLOAD * done.value:
        missing.append("a run that is long against one request: its end stretches the span")
    lead = f"{offered.value:g} requests/s are offered and {done.value:g}/s completed" + (
        f": {n.value:g} requests take {n.value / done.value:.0f} s, as the run did ({span.value:g} s)"
        if backlog and n and span
        else ""
    )
    return cause.finding(
        statement=f"{lead}. More arrives than the engine serves, and what waits is backlog.",
        evidence=evidence,
        explains_ms=None if wait is None else wait.value,
        relation=relation,
        n=int(n.value) if n is not None else 0,
        advice=_advice(ruling),
        price="Refused requests must be retried by their clients; a replica costs its GPU and minutes to load.",
        verify=again(arm),
        missing=[*missing, *ruling.missing_for_scale] if missing else missing,
        rivals=rivals,
        disproof_checked=[*checked, *ruling.words],
        action=ruling.action,
    )


def _closed_loop(cause: Cause, observed: Observed, arm: Arm, ruling: Ruling) -> Finding | None:
    held = condition(arm, r"\bconcurrency\b|in flight|\busers\b|\bclients\b")
    if held is None:
        stated = number_stated(observed, r"^(?:bench )?(?:max )?concurrency$|max concurrency")
        held = stated.number if stated is not None and len(observed.arms) == 1 else None
    rate = figure(arm, "req_s", "completed_rps")
    ttft = figure(arm, "ttft", stats=("mean", "p50", ""))
    if held is None or held < 2 or rate is None or rate.value <= 0 or ttft is None:
        return None
    spent = held / rate.value
    whole = _whole(arm, ttft)
    if whole is None:
        return None
    seen, words, inputs = whole
    if ttft.value < max(FIRST * seen, LATE_MS) or abs(seen / 1000.0 / spent - 1.0) > FITS:
        return None
    rivals, checked = _disproof(observed, arm)
    alone = _unloaded(observed, arm)
    evidence = [
        Evidence(f"{arm.name}: concurrency {held:g}", str(arm.place) or "form", "concurrency", held),
        evidence_of(arm, rate),
        evidence_of(arm, ttft),
        *(evidence_of(arm, item) for item in inputs),
        Evidence(
            f"time in the system by Little's law: {held:g} / {rate.value:g} = {spent:.2f} s",
            str(rate.place) or "form",
            "residence_s",
            round(spent, 3),
            "s",
        ),
        Evidence(
            f"TTFT is {ttft.value / seen:.0%} of {words}",
            str(ttft.place) or "form",
            "first_token_share",
            round(ttft.value / seen, 4),
        ),
    ]
    gaps = _itl_split(arm)
    if gaps is not None:
        evidence += [evidence_of(arm, gaps[0]), evidence_of(arm, gaps[1])]
        checked.append(
            f"ITL median {number(gaps[0].value, 'ms')} against mean {number(gaps[1].value, 'ms')}: prefills interrupt "
            "decoding as well"
        )
    if alone is not None:
        checked.append(f"TTFT at concurrency {alone[0]:g} is {number(alone[1].value, 'ms')}")
        evidence.append(
            Evidence(
                f"TTFT at concurrency {alone[0]:g}: {number(alone[1].value, 'ms')}",
                str(alone[1].place) or "form",
                "ttft_alone",
                alone[1].value,
                "ms",
            )
        )
    n = figure(arm, "n")
    return cause.finding(
        statement=f"{held:g} clients in a closed loop at {rate.value:g} requests/s spend {spent:.2f} s in the "
        "system, of "
        f"which {number(ttft.value, 'ms')} pass before the first token ({ttft.value / seen:.0%}): the engine is at its "
        "limit and requests wait for it.",
        evidence=evidence,
        explains_ms=ttft.value - (alone[1].value if alone is not None else 0.0),
        relation=f"Little's law: {held:g} / {rate.value:g} = {spent:.2f} s; {words} = {seen / 1000.0:.2f} s "
        f"({abs(seen / 1000.0 / spent - 1.0):.0%} apart)",
        n=int(n.value) if n is not None else 0,
        advice=_advice(ruling),
        price="Refused requests must be retried by their clients; a replica costs its GPU and minutes to load.",
        verify=again(arm),
        rivals=rivals,
        disproof_checked=[*checked, *ruling.words],
        action=ruling.action,
    )


def _whole(arm: Arm, ttft: Quoted) -> tuple[float, str, list[Quoted]] | None:
    """(ms of a whole request, in words, what it is made of): TTFT + TPOT x (out - 1), else E2E."""
    tpot = figure(arm, "tpot", stats=(ttft.stat, "mean", "p50", ""))
    out = per_request(arm, "output_tokens", ("mean", "p50", ""))
    if tpot is not None and out is not None and out[0] >= 1:
        seen = ttft.value + tpot.value * (out[0] - 1)
        return (
            seen,
            f"TTFT + TPOT x (out - 1) = {ttft.value / 1000:.2f} + {out[0] - 1:.2f} x {tpot.value / 1000:.3f}",
            [tpot, out[1]],
        )
    whole = figure(arm, "e2e", stats=("mean", "p50", ""))
    return None if whole is None else (whole.value, quantity(whole), [whole])


def _unloaded(observed: Observed, arm: Arm) -> tuple[float, Quoted] | None:
    """The TTFT of the least loaded other arm of the same source."""
    found = [
        (load, value)
        for other in observed.arms
        if other is not arm
        and other.place.source == arm.place.source
        and (load := condition(other, r"\bconcurrency\b")) is not None
        and load <= 2
        and (value := figure(other, "ttft", stats=CENTRAL)) is not None
    ]
    return min(found, key=lambda item: item[0]) if found else None


def _itl_split(arm: Arm) -> tuple[Quoted, Quoted] | None:
    median, mean = figure(arm, "itl", stats=("p50",)), figure(arm, "itl", stats=("mean",))
    return (median, mean) if median is not None and mean is not None and mean.value > 5 * median.value else None


def _queued(cause: Cause, observed: Observed, arm: Arm, ruling: Ruling) -> Finding | None:
    """The engine's own queue time against TTFT of the same statistic."""
    for stat in TAIL_FIRST:
        queue = figure(arm, "queue", stats=(stat,))
        # Where an answer comes in one piece (a classifier, an encoder) its whole time is the time to its first byte.
        ttft = figure(arm, "ttft", stats=(stat,)) or (
            figure(arm, "e2e", stats=(stat,)) if figure(arm, "ttft", stats=ANY) is None else None
        )
        if queue is not None and ttft is None and figure(arm, "ttft", "e2e", stats=ANY) is None:
            ttft = _queue_and_work(arm, queue)
        if queue is None or ttft is None or ttft.value <= 0:
            continue
        share = queue.value / ttft.value
        compute = figure(arm, "compute", stats=(stat,))
        work = queue.value >= BUSY * compute.value and queue.value >= LEAST_OF_WORK_MS if compute is not None else False
        if share <= QUEUED or (queue.value < LEAST_QUEUE_MS and not work):
            return None
        running, limit = figure(arm, "running"), number_stated(observed, r"^max num seqs$|max running requests")
        waiting = figure(arm, "waiting") or None
        full = waiting is not None and waiting.value > 0
        at_cap = running is not None and limit is not None and limit.number and running.value >= 0.95 * limit.number
        whole = ttft.quantity == "e2e"
        little = _little(observed, arm, ttft) if whole else None
        missing = (
            []
            if full or at_cap or little is not None
            else ["running and waiting requests of the engine (is it at its cap?)"]
        )
        rivals, checked = _disproof(observed, arm)
        return cause.finding(
            statement=f"{arm.name}: {number(queue.value, 'ms')} of the {number(ttft.value, 'ms')} "
            f"{'of a request' if whole else 'to the first token'} ({quantity(ttft)}) are queue, {share:.0%}.",
            evidence=[
                evidence_of(arm, queue),
                evidence_of(arm, ttft),
                *([evidence_of(arm, running)] if running is not None else []),
                *([evidence_of(arm, waiting)] if waiting is not None else []),
                *([evidence_of_setting(limit)] if limit is not None else []),
                *([evidence_of(arm, compute)] if compute is not None else []),
                *([little[1]] if little is not None else []),
                Evidence(f"queue share {share:.0%}", str(queue.place) or "form", "queue_share", round(share, 4)),
            ],
            explains_ms=queue.value,
            relation=f"queue / {'E2E' if whole else 'TTFT'} = {number(queue.value)} / "
            f"{number(ttft.value)} = {share:.0%} > {QUEUED:.0%}" + (f"; {little[0]}" if little is not None else ""),
            n=int(value.value) if (value := figure(arm, "n")) is not None else 0,
            advice=_advice(ruling),
            price="Refused requests must be retried by their clients; a replica costs its GPU and minutes to load.",
            verify=again(arm),
            missing=missing,
            rivals=rivals,
            disproof_checked=[*checked, *ruling.words],
            action=ruling.action,
        )
    return None


def _queue_and_work(arm: Arm, queue: Quoted) -> Quoted | None:
    """Of a server that tells both parts (TGI: queue_time, inference_time), the whole of a request."""
    work = figure(arm, "compute", stats=(queue.stat,))
    if work is None or work.unit != queue.unit:
        return None
    return msgspec.structs.replace(work, quantity="e2e", value=queue.value + work.value, label="queue + inference")


def _plateau(cause: Cause, observed: Observed, ruling: Ruling) -> Finding | None:
    """A sweep over what is asked for: throughput no longer rises with it, and the first token waits."""
    for axis in (r"\bconcurrency\b|in flight|\busers\b|\bclients\b", r"offered rps|request rate|\brate\b|\bqps\b"):
        points = sweep(observed, axis, lambda arm: figure(arm, "ttft", "e2e", stats=ANY) is not None)
        rates = [figure(point.arm, "req_s", "output_tok_s", "total_tok_s") for point in points]
        if len(points) < 3 or any(item is None for item in rates) or len({r.quantity for r in rates if r}) > 1:
            continue
        first, last, before = points[0], points[-1], points[-2]
        made = [item.value for item in rates if item is not None]
        late, earlier, soon = (
            figure(point.arm, "ttft", "e2e", stats=("p50", "mean", "p99", "")) for point in (last, before, first)
        )
        if late is None or earlier is None or soon is None or late.key != soon.key or late.key != earlier.key:
            continue
        flat = made[-1] < made[-2] * (1 + FLAT * (last.x / before.x - 1)) and last.x >= OVERLOAD * before.x
        rose = made[-2] > OVERLOAD * made[0]
        little = _little(observed, last.arm, late) if late.quantity == "e2e" else None
        # Where Little's law closes, the time is the line's own, however short the requests are.
        least = 0.9 * last.x / before.x * earlier.value if little is not None else max(2 * earlier.value, LATE_MS)
        if not flat or not rose or late.value < least:
            continue
        rivals, checked = _disproof(observed, last.arm)
        pace = [figure(point.arm, "tpot", "itl", stats=CENTRAL) for point in (before, last)]
        if pace[0] is not None and pace[1] is not None:
            checked.append(f"{quantity(pace[1])} {number(pace[0].value, 'ms')} -> {number(pace[1].value, 'ms')}")
        shown = [item for item in (rates[-2], rates[-1]) if item is not None]
        return cause.finding(
            statement=f"Above {before.arm.name} {quantity(shown[1])} no longer rises ({number(made[-2])} -> "
            f"{number(made[-1], shown[1].unit)} in {last.arm.name}), and {quantity(late)} goes from "
            f"{number(earlier.value, 'ms')} to {number(late.value, 'ms')}: what is asked for beyond it waits.",
            evidence=[
                *(evidence_of(point.arm, item) for point, item in zip((before, last), shown, strict=True)),
                evidence_of(first.arm, soon),
                evidence_of(before.arm, earlier),
                evidence_of(last.arm, late),
                *(evidence_of(point.arm, item) for point, item in zip((before, last), pace, strict=True) if item),
                *([little[1]] if little is not None else []),
            ],
            explains_ms=late.value - soon.value,
            relation=f"load x {last.x / before.x:.3g}, throughput x {made[-1] / made[-2]:.3g}, {quantity(late)} x "
            f"{late.value / max(earlier.value, 1e-9):.3g}" + (f"; {little[0]}" if little is not None else ""),
            n=len(points),
            advice=_advice(ruling),
            price="Refused requests must be retried by their clients; a replica costs its GPU and minutes to load.",
            verify=again(before.arm),
            missing=["running and waiting requests of the engine at both loads (is it at its cap?)"],
            rivals=rivals,
            disproof_checked=[*checked, *ruling.words],
            action=ruling.action,
        )
    return None


def _full(cause: Cause, observed: Observed, ruling: Ruling) -> Finding | None:
    """Rows in which as many run as ever while others wait, beside rows in which nobody waits and TTFT is short."""
    loads = [
        (arm, running, waiting, ttft)
        for arm in observed.arms
        if (running := figure(arm, "running")) is not None
        and (waiting := figure(arm, "waiting")) is not None
        and (ttft := figure(arm, "ttft", stats=("p50", "mean", "p95", "p99", ""))) is not None
    ]
    queued = [item for item in loads if item[2].value > 0]
    free = [item for item in loads if item[2].value == 0]
    if not queued or not free:
        return None
    arm, running, waiting, late = max(queued, key=lambda item: item[2].value)
    calm, _, _, soon = min(free, key=lambda item: item[3].value)
    limit = number_stated(observed, r"^max num seqs$|max running requests")
    at_cap = limit is not None and bool(limit.number) and running.value >= 0.95 * (limit.number or 0.0)
    flat = all(abs(item[1].value / running.value - 1.0) <= 0.05 for item in queued) and running.value >= max(
        item[1].value for item in free
    )
    if late.key != soon.key or late.value < 2 * soon.value or waiting.value < 0.1 * running.value or not flat:
        return None
    missing = [] if at_cap or len(queued) > 1 else ["the engine's cap (max_num_seqs), or a second row with a queue"]
    rivals, checked = _disproof(observed, arm)
    kv = figure(arm, "kv_usage")
    room = kv is not None and kv.value < ROOM
    cap = f", its cap (max_num_seqs {limit.number:g})" if at_cap and limit is not None and limit.number else ""
    why = ", while the KV cache has room" if room and kv is not None else ""
    if kv is not None:
        checked.append(f"KV usage {number(kv.value, 'share')}")
    return cause.finding(
        statement=f"{running.value:g} run{cap} and {waiting.value:g} wait in {arm.name}{why}: "
        f"{quantity(late)} is {number(late.value, 'ms')} there and {number(soon.value, 'ms')} in {calm.name}, where "
        "nobody waits.",
        evidence=[
            evidence_of(arm, running),
            evidence_of(arm, waiting),
            evidence_of(arm, late),
            evidence_of(calm, soon),
            *([evidence_of(arm, kv)] if kv is not None else []),
            *([evidence_of_setting(limit)] if limit is not None else []),
        ],
        explains_ms=late.value - soon.value,
        relation=f"running {running.value:g}" + (f" = max_num_seqs {limit.number:g}" if cap and limit else "")
        + f", waiting {waiting.value:g}; {quantity(late)} {late.value:.4g} against {soon.value:.4g} ms",
        n=len(loads),
        advice=("Raise the cap first (vLLM --max-num-seqs, SGLang --max-running-requests): the KV cache has room. "
                if room else "") + _advice(ruling),
        price="Refused requests must be retried by their clients; a larger batch makes each token a little later.",
        verify=again(arm),
        missing=missing,
        rivals=rivals,
        disproof_checked=[*checked, *ruling.words],
        action=Action.TUNE if room else ruling.action,
    )  # fmt: skip


def _little(observed: Observed, arm: Arm, whole: Quoted) -> tuple[str, Evidence] | None:
    """(the relation, as evidence) where the load test's own concurrency explains the time: its clients queue."""
    held = condition(arm, r"\bconcurrency\b")
    if held is None and len(observed.arms) == 1:
        stated = number_stated(observed, r"^(?:bench )?(?:max )?concurrency$")
        held = stated.number if stated is not None else None
    rate = figure(arm, "req_s", "completed_rps")
    if held is None or held < 2 or rate is None or rate.value <= 0:
        return None
    spent = held / rate.value * 1e3
    if abs(whole.value / spent - 1.0) > FITS:
        return None
    words = f"{held:g} at once / {rate.value:g}/s = "
    words += f"{spent / 1e3:.4g} s" if spent >= 1e3 else number(spent, "ms")
    return words, Evidence(words, str(rate.place) or "form", "residence_ms", round(spent, 3), "ms")


def _disproof(observed: Observed, arm: Arm | None) -> tuple[list[str], list[str]]:
    """(rivals that fit as well, what was checked): preemptions make a queue, and a cap below the engine's reach too."""
    rivals, checked = [], []
    preempted = None if arm is None else figure(arm, "preemptions")
    count = preempted.value if preempted is not None else observed.delta("preemptions")
    if count is not None:
        checked.append(f"preemptions {count:g}")
        if count > 0:
            rivals.append("SCHED_KV_PREEMPTION")
    return rivals, checked


def _ttft(arm: Arm | None) -> Quoted | None:
    return None if arm is None else figure(arm, "ttft", stats=("p99", "mean", "p50", ""))
