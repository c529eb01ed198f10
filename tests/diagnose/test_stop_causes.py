"""FE_EVENTLOOP_BLOCK, FE_GC_PAUSE, COMPUTE_JIT, COMPUTE_STALL, ENGINE_STALL: streams that stop together."""

import msgspec
import numpy as np
import pytest

from tailrace.model.engine_state import EngineState
from tailrace.model.finding import Layer, Level
from tests.diagnose.altered import S, calm, origin, stamps, stopped
from tests.diagnose.simulated import MS, answer, codes, found

BLOCK, GC, JIT, STALL, WEDGE = (
    "FE_EVENTLOOP_BLOCK",
    "FE_GC_PAUSE",
    "COMPUTE_JIT",
    "COMPUTE_STALL",
    "ENGINE_STALL",
)
ALL = {BLOCK, GC, JIT, STALL, WEDGE}


def every(seconds, ms, records, *, jitter=0.0, grow=0.0, seed=0):
    rng = np.random.default_rng(seed)
    span = max(r.start_unix_ns for r in records) - origin(records)
    out, at = [], int(2.3 * S)
    while at < span:
        length = int(ms * MS * (1 + grow * at / S))
        out.append((at, at + length))
        at += int(seconds * S * (1 + jitter * rng.exponential())) if jitter else int(seconds * S)
    return out


@pytest.mark.parametrize(("period", "ms"), [(6.0, 700), (2.5, 900), (15.0, 3000)])
def test_stops_on_a_beat_are_the_collectors(period, ms):
    records = calm()
    first = answer(stopped(records, every(period, ms, records))).findings[0]
    assert (first.code, first.layer, first.level) == (GC, Layer.GATEWAY, Level.CONSISTENT)
    assert "beat" in first.statement


def test_a_beat_of_stops_that_arrivals_keep_is_no_collectors():
    """Clients of a closed loop come back at even times: each stop begins with one of them, and no timer made it."""
    records = calm()
    starts = np.array(sorted(r.start_unix_ns - origin(records) for r in records))
    beats = [starts[np.searchsorted(starts, begin)] for begin, _ in every(6.0, 700, records)]
    assert GC not in codes(answer(stopped(records, [(int(at), int(at) + 700 * MS) for at in beats])))


def test_a_few_stops_at_even_times_may_be_the_collectors():
    records = calm()
    stops = every(9.0, 1800, records)[:4]
    first = answer(stopped(records, stops)).findings[0]
    assert (first.code, first.level) == (GC, Level.SUSPECTED)
    assert "6 stops show a beat" in first.missing[0]
    uneven = [(begin + late * MS, end + late * MS) for (begin, end), late in zip(stops, (0, 2500, 0, 900), strict=True)]
    assert GC not in codes(answer(stopped(records, uneven)))


def test_stops_that_grow_with_the_age_are_a_leak():
    records = calm()
    stops = every(9.0, 300, records, grow=0.04, jitter=0.6)
    first = answer(stopped(records, stops)).findings[0]
    assert first.code == GC
    assert "leak" in first.advice


def test_stops_at_times_that_grow_by_a_quarter_are_the_collectors():
    records = calm()
    at = np.cumsum(3.0 * 1.24 ** np.arange(12)) * S
    stops = [(int(t), int(t) + 1200 * MS) for t in at if t < 140 * S]
    finding = found(answer(stopped(records, stops)), GC)
    assert finding is not None
    assert "1.2" in finding.relation


def test_stops_at_random_times_are_nobodys_yet():
    records = calm()
    result = answer(stopped(records, every(4.0, 900, records, jitter=1.5, seed=3)))
    assert GC not in codes(result)
    finding = found(result, STALL)
    assert finding.level is Level.SUSPECTED
    assert "stack dump" in finding.missing[0]


def triggered(records, *, each=25, scale=0.3, first_only=False):
    """Every so-many-th request is large, and the front end works on it before anything else goes on."""
    zero = origin(records)
    out, stops, seen = list(records), [], set()
    for place in range(each, len(records), each):
        record = records[place]
        tokens = 2000 + 500 * ((place * 7) % 9)
        out[place] = msgspec.structs.replace(record, prompt_tokens=tokens)
        begin = record.start_unix_ns - zero + 200_000
        bucket = int(np.log2(tokens))
        if not first_only or bucket not in seen:
            stops.append((begin, begin + int(tokens * scale * MS)))
        seen.add(bucket)
    return stopped(out, stops)


def test_stops_that_begin_with_large_requests_block_the_front_end():
    watched = [msgspec.structs.replace(r, loop_lag_ns=MS) for r in triggered(calm())]
    first = answer(watched).findings[0]
    assert (first.code, first.layer, first.level) == (BLOCK, Layer.GATEWAY, Level.CONSISTENT)
    assert "prompt tokens" in first.relation


def test_without_the_gateways_own_lag_it_is_suspected():
    finding = found(answer(triggered(calm())), BLOCK)
    assert finding.level is Level.SUSPECTED
    assert finding.missing == ["the gateway's own event-loop lag"]


def test_without_the_engines_prefill_times_a_blocked_front_end_is_suspected():
    records = [
        msgspec.structs.replace(
            r,
            prefill_ns=None,
            queue_ns=None,
            queue_engine_ns=None,
            unattributed_ns=(r.unattributed_ns or 0) + r.prefill_ns + r.queue_ns,
        )
        for r in triggered(calm())
    ]
    result = answer(records)
    finding = found(result, BLOCK) or found(result, "SCHED_PREFILL_STEALS_DECODE")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert finding.missing


def test_the_gateways_own_lag_is_not_the_engines():
    records = [msgspec.structs.replace(r, loop_lag_ns=2 * S) for r in triggered(calm())]
    assert not ALL & set(codes(answer(records)))


def test_stops_inside_prefills_are_not_the_front_ends():
    from tests.diagnose.simulated import UNCHUNKED, as_gateway, served

    assert not ALL & set(codes(answer(as_gateway(served(**UNCHUNKED)))))


def jitted(n=8):
    """The first prompts of a new length stop everybody; the later ones of that length do not."""
    records = calm()
    zero = origin(records)
    out, stops = list(records), []
    for k in range(n):
        for place in (40 + 45 * k, 60 + 45 * k, 75 + 45 * k):
            out[place] = msgspec.structs.replace(records[place], prompt_tokens=700 * 2 ** (k % 8))
        begin = records[40 + 45 * k].start_unix_ns - zero + 200_000
        stops.append((begin, begin + 1500 * MS))
    return stopped(out, stops)


def test_stops_at_first_uses_only_look_like_compiling():
    result = answer(jitted())
    finding = found(result, JIT)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "log" in finding.missing[0]
    assert BLOCK not in codes(result)


def states(records, still=(), *, running=6, kv=0.1, prompts_too=True):
    """A scrape a second; the counters stand in `still` (seconds)."""
    out, tokens, prompts = [], 0.0, 0.0
    for second in range(150):
        inside = any(low <= second < high for low, high in still)
        tokens += 0 if inside else 300
        prompts += 0 if inside and prompts_too else 800
        out.append(
            EngineState(
                at_ns=second * S,
                running=running,
                waiting=0,
                kv_usage=kv,
                generation_tokens_total=tokens,
                prompt_tokens_total=prompts,
            )
        )
    return out


def test_one_long_stop_with_counters_that_stand_is_an_engine_that_hangs():
    records = stopped(calm(), [(40 * S, 52 * S)])
    first = answer(records, states=states(records, [(40, 52)])).findings[0]
    assert (first.code, first.layer, first.level) == (WEDGE, Layer.SCHEDULER, Level.CONSISTENT)
    assert "tokens/s" in first.relation


def test_without_scrapes_the_hang_is_suspected():
    finding = found(answer(stopped(calm(), [(40 * S, 52 * S)])), WEDGE)
    assert finding.level is Level.SUSPECTED
    assert any("scrapes" in text for text in finding.missing)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"still": [(40, 52)], "prompts_too": False}, id="a prompt is in progress"),
        pytest.param({"still": [(40, 41)]}, id="one interval"),
        pytest.param({"still": [(40, 52)], "running": 0}, id="nothing runs"),
        pytest.param({"still": [(40, 52)], "kv": 0.99}, id="the cache is full"),
    ],
)
def test_counters_that_stand_for_another_reason(given):
    from tailrace.diagnose.causes.scheduler.engine_stall import EngineStall
    from tests.diagnose.simulated import evidence

    assert EngineStall().judge(evidence(calm(), states=states(calm(), **given))) is None


def test_a_stream_that_stops_alone_is_not_a_shared_stop():
    records = calm()
    out = []
    for place, record in enumerate(records):
        at = stamps(record)
        if place % 20 == 0 and at.size > 20:
            at = np.where(np.arange(at.size) > 10, at + 2 * S, at)
        from tests.diagnose.altered import restamped

        out.append(restamped(record, at))
    assert not (ALL - {WEDGE}) & set(codes(answer(out)))


def test_numbers_of_the_statement_are_in_the_evidence():
    import re

    records = calm()
    for made in (stopped(records, every(6.0, 700, records)), triggered(records)):
        first = answer(made).findings[0]
        told = " ".join(item.text for item in first.evidence)
        for number in re.findall(r"\d[\d,.]*\d|\d", first.statement):
            assert number.rstrip(".") in told, (number, first.statement, told)
