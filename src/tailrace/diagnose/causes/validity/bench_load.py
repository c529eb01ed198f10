"""BENCH_CLIENT_QUEUE, BENCH_CLOSED_LOOP, BENCH_UNSTABLE: what a load test measured was its own load."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arm_evidence.paired_rounds import paired_rounds
from tailrace.diagnose.arms.again import MEASURE
from tailrace.diagnose.arms.as_written import name_of, seen, shown
from tailrace.diagnose.arms.asked import concurrency_of, given, number_stated
from tailrace.diagnose.arms.repeats import RUN, repeated
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Arm, Observed, Quoted, Rows
from tailrace.diagnose.observed.vocabulary import in_unit, unit_in_name
from tailrace.diagnose.readers.table_arms import CONDITIONS
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["BenchClientQueue", "BenchClosedLoop", "BenchUnstable", "waves_of"]

LEAST_ROWS: Final = 12
MORE_WAVES: Final = 2.0
TOGETHER: Final = 0.05
"""Of the longest request, within which all must have been sent."""


class BenchClientQueue(Cause):
    """TTFT is about (prompts / concurrency) x generation time: requests stand in a queue of the load test's making."""

    code: ClassVar[str] = "BENCH_CLIENT_QUEUE"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("t_intended and t_send of each request",)
    disproof: ClassVar[str] = "send = intended for every request: the queue is the server's."
    action: ClassVar[Action] = Action.COLLECT

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """A load generator that says that it was the limit itself."""
        if not evidence.client.limited:
            return None
        why = evidence.client.why or "it says so"
        return self.finding(
            statement=f"The load generator itself was the limit: {why}.",
            evidence=[Evidence(text=why, source="trailer:client", name="client_limited")],
            explains_ms=None,
            relation="the client's own health check failed",
            n=len(evidence.table),
            advice="Measure again with less load on the client's machine or from several machines.",
            price="A second machine for the load.",
            verify=evidence.verify_command,
        )

    def forbids(self, evidence: EvidenceSet) -> bool:
        """Always: what was measured is the client."""
        return evidence.client.limited

    def observe(self, observed: Observed) -> Finding | None:
        """Waves of requests; which side they wait on needs two stamps."""
        arms = [*observed.arms, *(arm for rows in observed.table("requests") if (arm := _all_at_once(rows)))]
        return next((found for arm in arms if (found := self._waves(arm, observed)) is not None), None)

    def _waves(self, arm: Arm, observed: Observed) -> Finding | None:
        found = waves_of(
            arm,
            arm.get("n") or observed.number("num_prompts", "n", "prompts", "requests"),
            concurrency_of(arm, observed),
            observed,
        )
        if found is None:
            return None
        n, limit, made, ttft = found
        waves = n / limit
        expected = waves * made
        inside = _more_than_allowed(arm, limit)
        mean_wait = _mean_of_waves(arm, waves, made, limit, observed)
        return self.finding(
            statement=f"TTFT {ttft.stat} {shown(ttft.value, 'ms')} is what a queue of the test's own gives: {n:g} "
            "prompts at "
            f"{limit:g} at once are {waves:.3g} waves of {shown(made, 'ms')}. Whether they wait in the client or in "
            "the server "
            "cannot be told from this."
            + (
                f" At {inside[0]:g}/s and {shown(inside[1], 'ms')} each, {inside[2]:.3g} were on the clock at once "
                f"(Little's law), where only {limit:g} may be in flight: the clock starts before the client's own gate."
                if inside
                else ""
            ),
            evidence=[
                seen(arm, ttft),
                Evidence(text=f"{n:g} prompts, {limit:g} at once", source=str(arm.place) or "facts", name="n", value=n),
                Evidence(
                    text=f"{waves:.3g} waves x {shown(made, 'ms')} a generation = {shown(expected, 'ms')}",
                    source=str(arm.place) or "facts", name="waves", value=waves,
                ),
                *([Evidence(mean_wait, str(arm.place) or "facts", "mean_wait")] if mean_wait else []),
                *(
                    [
                        Evidence(
                            text=f"{inside[0]:g}/s x {shown(inside[1], 'ms')} = {inside[2]:.3g} at once, {limit:g} "
                            "allowed",
                            source=str(arm.place) or "facts", name="in_system", value=inside[2],
                        )
                    ]
                    if inside
                    else []
                ),
            ],
            explains_ms=None,
            relation=f"{n:g}/{limit:g} x {shown(made)} = {shown(expected)} ms; seen {shown(ttft.value)} ms",
            n=int(n),
            advice="Send at a rate that the server can serve, and keep the intended and the send stamp of each "
            "request.",
            price="A run at a fixed rate takes as long as its duration says.",
            verify=MEASURE,
            missing=["the intended and the send stamp of each request: they tell client from server"],
            rivals=["SCHED_QUEUE_SATURATION"],
            level=Level.SUSPECTED,
        )  # fmt: skip


class Waves(NamedTuple):
    """A run whose TTFT is the queue of its own prompts."""

    n: float
    limit: float
    made_ms: float
    """One generation."""
    ttft: Quoted


def waves_of(arm: Arm, n: float | None, limit: float | None, observed: Observed | None = None) -> Waves | None:
    """The run as waves of `limit` requests, where the tail of TTFT is about as long as all of them take."""
    ttft = arm.quoted("ttft", "max", "p99", "p95")
    made = _generation_ms(arm) or (None if observed is None else _generation_stated(observed))
    if not n or not limit or ttft is None or ttft.unit != "ms" or ttft.relative or n < 3 * limit or not made:
        return None
    if made <= 0 or not 0.7 <= ttft.value / (n / limit * made) <= 1.3:
        return None
    return Waves(n, limit, made, ttft)


def _mean_of_waves(arm: Arm, waves: float, made_ms: float, limit: float, observed: Observed) -> str:
    """The mean TTFT that whole waves give, where a run without a queue tells what a first token takes by itself."""
    seen_mean = arm.get("ttft", "mean")
    alone = next(
        (
            ttft
            for other in observed.arms
            if other is not arm and (other.get("n") or limit + 1) <= limit
            and (ttft := other.get("ttft", "mean", "p50")) is not None
        ),
        None,
    )  # fmt: skip
    if seen_mean is None or alone is None or waves < MORE_WAVES:
        return ""
    each = (alone + made_ms) / 1e3
    mean = (waves - 1) / 2 * each + alone / 1e3
    return (
        f"one answer takes {alone / 1e3:.3g} + {made_ms / 1e3:.4g} = {each:.2f} s; waits of 0 to {waves - 1:.3g} of "
        f"them give a mean TTFT of {mean:.1f} s, seen {seen_mean / 1e3:.1f} s"
    )


def _more_than_allowed(arm: Arm, limit: float) -> tuple[float, float, float] | None:
    """(rate, mean time, requests on the clock) where Little's law gives more than the limit lets in flight."""
    rate, whole = arm.get("req_s"), arm.get("e2e", "mean")
    if rate is None or whole is None or rate * whole / 1e3 <= 1.3 * limit:
        return None
    return rate, whole, rate * whole / 1e3


def _all_at_once(rows: Rows) -> Arm | None:
    """Requests that were sent together, without an intended stamp, as one run; `None` where they came over time."""
    send, first, last = (rows.numbers(name) for name in ("t_send_ms", "t_first_ms", "t_last_ms"))
    done = np.isfinite(send) & np.isfinite(first) & np.isfinite(last)
    if rows.has("t_intended_ms") or done.sum() < LEAST_ROWS or len(set(rows.texts("arm"))) > 1:
        return None
    send, first, last = send[done], first[done], last[done]
    if np.ptp(send) > TOGETHER * max(float((last - send).max()), 1e-9):
        return None
    own = float(np.median(last - first)) + float((first - send).min())
    place = rows.place
    values = {
        "ttft.max": Quoted(quantity="ttft", stat="max", value=float((first - send).max()), unit="ms", place=place),
        "decode.p50": Quoted(quantity="decode", stat="p50", value=own, unit="ms", place=place),
        "n": Quoted(quantity="n", value=float(done.sum()), unit="count", place=place),
    }
    return Arm(name=place.source or "requests", label=place.source, values=values, place=place)


def _generation_ms(arm: Arm) -> float | None:
    tpot, tokens = arm.get("tpot", "mean", "p50", ""), arm.get("output_tokens")
    if tpot is not None and tokens is not None and tokens > 1:
        return tpot * (tokens - 1)
    whole, first = arm.get("e2e", "mean", "p50"), arm.get("ttft", "mean", "p50")
    if whole is not None and first is not None and whole > first:
        return whole - first
    return arm.get("decode", "mean", "p50")


def _generation_stated(observed: Observed) -> float | None:
    """`generation_time_s` of a form (ms)."""
    stated = number_stated(
        observed, r"^(?:mean |avg |median )?(?:generation|service|decode|one request)(?: (?:time|duration))?"
    )
    unit = "" if stated is None else stated.unit or unit_in_name(stated.name)[1]
    return None if stated is None or stated.number is None or not unit else in_unit(stated.number, unit, "ms")


class BenchClosedLoop(Cause):
    """A fixed number of requests at once, and other output lengths: TTFT moves with the rate of prefills."""

    code: ClassVar[str] = "BENCH_CLOSED_LOOP"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("two runs with equal concurrency, and their output lengths",)
    disproof: ClassVar[str] = "Output lengths are equal, or TTFT differs at an equal request rate as well."
    action: ClassVar[Action] = Action.COLLECT

    def observe(self, observed: Observed) -> Finding | None:
        """Longer outputs, shorter TTFT, equal concurrency, no request rate."""
        arms = [arm for arm in observed.arms if _output(arm, observed) and arm.quoted("ttft", "mean", "p50", "p99", "")]
        # The widest pair shows the whole fall; a sweep's neighbours only a step of it.
        by_output = sorted(arms, key=lambda arm: _output(arm, observed) or 0.0)
        for steps in range(len(by_output) - 1, 0, -1):
            for short, long in zip(by_output, by_output[steps:], strict=False):
                found = self._pair(short, long, observed)
                if found is not None:
                    return found
        return None

    def _pair(self, short: Arm, long: Arm, observed: Observed) -> Finding | None:
        outputs = (_output(short, observed) or 0.0, _output(long, observed) or 0.0)
        limits = (concurrency_of(short, observed), concurrency_of(long, observed))
        ttft = (short.quoted("ttft", "mean", "p50", "p99", ""), long.quoted("ttft", "mean", "p50", "p99", ""))
        if (
            ttft[0] is None
            or ttft[1] is None
            or ttft[0].stat != ttft[1].stat
            or limits[0] is None
            or limits[0] != limits[1]
            or limits[0] <= 1  # alone there is no other request whose prefill could be in the way
        ):
            return None
        if outputs[1] < 1.2 * outputs[0] or ttft[1].value > 0.9 * ttft[0].value:
            return None
        rated = observed.number("request_rate") or any(
            isinstance(arm.keys.get("offered_rps"), float) for arm in (short, long)
        )
        other = [
            name for name in ("prompt_tokens", "offered_rps")
            if short.keys.get(name) is not None and short.keys.get(name) != long.keys.get(name)
        ]  # fmt: skip
        missing = [f"runs that are equal in {name.replace('_', ' ')}" for name in other]
        if rated:
            missing.append("whether the rate or the limit held requests back")
        place = str(long.place) or "facts"
        rates = [arm.quoted("req_s", "") for arm in (short, long)]
        pace = ""
        shown_rates = []
        if rates[0] is not None and rates[1] is not None and rates[1].value > 0:
            fewer = rates[0].value / rates[1].value
            pace = f"; {rates[0].value:g} -> {rates[1].value:g} requests/s start, {fewer:.3g} x fewer prefills"
            shown_rates = [seen(short, rates[0]), seen(long, rates[1])]
        return self.finding(
            statement=f"With {limits[0]:g} at once in a closed loop, longer outputs ({outputs[0]:g} -> "
            f"{outputs[1]:g} tokens) "
            f"lower the rate of new prefills, so TTFT falls ({shown(ttft[0].value, 'ms')} -> "
            f"{shown(ttft[1].value, 'ms')}); the "
            "server did not become faster.",
            evidence=[
                seen(short, ttft[0]),
                seen(long, ttft[1]),
                Evidence(
                    text=f"output tokens {outputs[0]:g} -> {outputs[1]:g}",
                    source=place,
                    name="output_tokens",
                    value=outputs[1],
                ),
                Evidence(text=f"{limits[0]:g} at once in both", source=place, name="concurrency", value=limits[0]),
                *shown_rates,
            ],
            explains_ms=None,
            relation=f"output x {outputs[1] / outputs[0]:.3g}, TTFT x {ttft[1].value / ttft[0].value:.3g} at "
            f"concurrency {limits[0]:g}{pace}",
            n=int(long.get("n") or 0),
            advice="Compare at an equal request rate (open loop), never at equal concurrency when the output length "
            "differs.",
            price="An open loop queues without end where the rate is above what the server can do.",
            verify=MEASURE,
            missing=missing,
        )


def _output(arm: Arm, observed: Observed) -> float | None:
    return given(arm, "output_tokens", "", "mean", "p50") or observed.number(f"{arm.name}.output_tokens")


class BenchUnstable(Cause):
    """The same run again gives another TTFT, while the gaps are as before."""

    code: ClassVar[str] = "BENCH_UNSTABLE"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("three or more runs of the same load, with TTFT and ITL",)
    disproof: ClassVar[str] = "The coefficient of variation over more runs is small."
    action: ClassVar[Action] = Action.COLLECT
    CV: ClassVar[float] = 0.3

    def observe(self, observed: Observed) -> Finding | None:
        """CV of TTFT above 0.3 over runs that nothing tells apart but their number."""
        runs = [arm for arm in observed.arms if RUN.search(f"{arm.label} {' '.join((*arm.keys, *arm.values))}")]
        loads_ = {tuple(sorted((key, arm.keys[key]) for key in arm.keys if key in CONDITIONS)) for arm in runs}
        # Under other loads they are no repetitions, and neither are the runs of several arms.
        arms = sum(len(one.runs) > 1 for one in repeated(observed)) > 1
        if len(runs) < 3 or len(loads_) > 1 or arms:
            return self._listed(observed) or paired_rounds(self, observed)
        for stat in ("mean", "p50", "", "p99"):
            values = [(arm, arm.quoted("ttft", stat)) for arm in runs]
            known = [(arm, quoted) for arm, quoted in values if quoted is not None and not quoted.relative]
            if len(known) < 3:
                continue
            cv = _cv([quoted.value for _, quoted in known])
            if cv <= self.CV:
                return paired_rounds(self, observed)
            gaps = [arm.get("itl", "mean", "p50", "") or arm.get("tpot", "mean", "p50", "") for arm, _ in known]
            calm = [gap for gap in gaps if gap is not None]
            steady = _cv(calm) if len(calm) == len(known) else None
            if steady is not None and steady > self.CV:
                return None
            return self._found(known, cv, steady)
        return paired_rounds(self, observed)

    def _found(self, known: list[tuple[Arm, Quoted]], cv: float, steady: float | None) -> Finding:
        values = [quoted.value for _, quoted in known]
        first = values[0] == max(values) and _cv(values[1:]) < self.CV
        words = ", ".join(shown(value) for value in values)
        name = name_of(known[0][1])
        return self.finding(
            statement=f"{name} differs from run to run: {words} ms, a CV of {cv:.2f}"
            + (
                "; the first run is the slow one, so warm-up is in it." if first
                else ": one number of it says nothing, and no comparison holds."
            ),
            evidence=[
                *(seen(arm, quoted) for arm, quoted in known[:8]),
                Evidence(
                    text=f"CV of {name} over {len(values)} runs = {cv:.2f} ({words} ms)", source=str(known[0][1].place),
                    name="cv", value=round(cv, 3),
                ),
            ],
            explains_ms=None,
            relation=f"standard deviation / mean of {words} = {cv:.2f}, above {self.CV:g}"
            + ("" if steady is None else f"; ITL {steady:.2f}"),
            n=len(values),
            advice="Warm up before measuring, begin each run with an equal cache state, and make at least 5 runs.",
            price="Five runs take five times as long.",
            verify="tailrace ab --a http://localhost:8000 --b http://localhost:8000 --rounds 5 --rate 5 --duration 60",
            missing=[] if steady is not None else ["ITL of each run: where it is steady, the start of requests varies"],
        )  # fmt: skip

    def _listed(self, observed: Observed) -> Finding | None:
        """`ttft_runs_s: [1.0, 1.1, 4.0]` of a form."""
        for item in observed.settings:
            if "ttft" not in item.name.lower() or not isinstance(item.value, list) or len(item.value) < 3:
                continue
            values = [float(one) for one in item.value if isinstance(one, (int, float)) and not isinstance(one, bool)]
            if len(values) < 3 or _cv(values) <= self.CV:
                continue
            scale = in_unit(1.0, item.unit or unit_in_name(item.name)[1] or "ms", "ms") or 1.0
            known = [
                (
                    Arm(name=f"run {n}", label=f"run {n}", place=item.place),
                    Quoted(quantity="ttft", value=value * scale, unit="ms", label=item.name, place=item.place),
                )
                for n, value in enumerate(values, start=1)
            ]
            return self._found(known, _cv(values), None)
        return None


def _cv(values: list[float]) -> float:
    """Sample standard deviation / mean; 0 where there are less than two."""
    array = np.array(values, dtype=np.float64)
    if array.size < 2 or array.mean() <= 0:
        return 0.0
    return float(array.std(ddof=1) / array.mean())
