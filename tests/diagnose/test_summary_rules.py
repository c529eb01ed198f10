"""Rules on what every record has, where hardly a timeline was kept: loops, pauses, text, timers, held events."""

from functools import cache

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.causes.gateway.holds_first_event import HoldsFirstEvent
from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.loop_work import loop_work
from tailrace.diagnose.position_load import position_load
from tailrace.diagnose.summary_stops import summary_stops
from tailrace.diagnose.timer_ends import timer_ends
from tailrace.model.finding import Level
from tailrace.simulate.incidents.incident import make_incident
from tailrace.testing.incident_trial import evidence_of
from tests.diagnose.altered import S, calm, origin, stopped
from tests.diagnose.simulated import MS, answer, codes, evidence, found

BLOCK, GROWTH, GC = "FE_EVENTLOOP_BLOCK", "FE_DETOKENIZE_GROWTH", "FE_GC_PAUSE"


@cache
def made(kind, index=0):
    return make_incident(kind, index, "test", longest=400)


def shuffled(records, field, seed=1):
    """The same records with this field of others: whatever it went with, it does no more."""
    order = np.random.default_rng(seed).permutation(len(records))
    return [
        msgspec.structs.replace(record, **{field: getattr(records[i], field)})
        for record, i in zip(records, order.tolist(), strict=True)
    ]


# -- work by the prompt token on one loop


def test_one_loop_explains_waits_and_gaps():
    incident = made("tokenising_on_loop")
    work = loop_work(evidence_of(incident).now)
    assert work.holds
    assert work.us_per_token == pytest.approx(incident.setting.site.front.token_us, rel=0.15)
    first = diagnose(evidence_of(incident)).findings[0]
    assert (first.code, first.level) == (BLOCK, Level.CONSISTENT)
    assert "prompt tokens" in first.relation


def test_prompts_of_others_explain_no_loop():
    records = shuffled(made("tokenising_on_loop").records, "prompt_tokens")
    work = loop_work(evidence(records).now)
    assert work is None or not work.holds


def test_without_reported_prefills_no_loop_is_fitted():
    records = [msgspec.structs.replace(r, prefill_ns=None) for r in made("tokenising_on_loop").records]
    assert loop_work(evidence(records).now) is None


def test_without_our_own_lag_the_loop_is_suspected():
    records = [msgspec.structs.replace(r, loop_lag_ns=None) for r in made("tokenising_on_loop").records]
    finding = found(answer(records), BLOCK)
    assert finding.level is Level.SUSPECTED
    assert finding.missing == ["the gateway's own event-loop lag"]


# -- work by the token that is written so far


def test_text_in_the_step_makes_tokens_slower():
    incident = made("detokenising", 2)
    load = position_load(evidence_of(incident).now)
    assert load.us_per_token == pytest.approx(incident.setting.site.wear.position_us, rel=0.5)
    finding = found(diagnose(evidence_of(incident)), GROWTH)
    assert finding.level is Level.CONSISTENT


def test_a_pace_that_goes_with_nothing_is_no_growth():
    records = shuffled(made("detokenising", 2).records, "tpot_ns")
    assert GROWTH not in codes(answer(records))


def test_few_answers_say_nothing_of_their_text():
    assert position_load(evidence(made("detokenising", 2).records[:40]).now) is None


# -- short pauses without timelines


def paused(seconds, ms, *, jitter=0.0, seed=0):
    """Streams that all stop now and then; timelines only of the first two."""
    rng = np.random.default_rng(seed)
    records = calm()
    span = max(r.start_unix_ns for r in records) - origin(records)
    stops, at = [], 2 * S
    while at < span:
        stops.append((at, at + ms * MS))
        at += int(seconds * S * (rng.exponential() + 0.1 if jitter else 1.0))
    return [
        msgspec.structs.replace(r, timeline=r.timeline if i < 2 else None)
        for i, r in enumerate(stopped(records, stops))
    ]


@pytest.mark.parametrize(("period", "ms"), [(8.0, 350), (12.0, 450)])
def test_short_pauses_on_a_beat(period, ms):
    finding = found(answer(paused(period, ms)), GC)
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    beat = next(item.value for item in finding.evidence if item.name == "period_s")
    assert beat == pytest.approx(period, rel=0.03)


def test_short_pauses_at_random_keep_no_beat():
    assert GC not in codes(answer(paused(9.0, 350, jitter=1.0, seed=4)))


def test_gaps_of_single_streams_are_no_shared_stops():
    records = shuffled(paused(8.0, 350), "chunk_gap_max_ns")
    stops = summary_stops(evidence(records).now)
    assert stops is None or stops.explained < 0.7


# -- timers


def test_streams_that_outlive_the_timer_make_it_one_for_silence():
    incident = made("idle_timer")
    ends = timer_ends(evidence_of(incident).now)
    assert ends.idle
    assert codes(diagnose(evidence_of(incident)))[0] == "GW_IDLE_TIMEOUT"


def test_a_timer_for_whole_requests_is_outlived_by_nobody():
    incident = made("upstream_timer")
    ends = timer_ends(evidence_of(incident).now)
    assert not ends.idle


# -- what holds the first event


def test_a_held_answer_is_over_as_soon_as_the_others():
    records = calm()
    held = [
        msgspec.structs.replace(
            r,
            timeline=None,
            **(
                {
                    "ttft_ns": r.ttft_ns + 400 * MS,
                    "tpot_ns": round(r.tpot_ns - 400 * MS / max(r.output_tokens - 1, 1)),
                }
                if i % 4 == 0 and r.output_tokens * r.tpot_ns > 700 * MS
                else {}
            ),
        )
        for i, r in enumerate(records)
    ]
    assert HoldsFirstEvent().judge(evidence(held)) is not None
    late = [
        msgspec.structs.replace(r, tpot_ns=one.tpot_ns, e2e_ns=r.e2e_ns + (r.ttft_ns - one.ttft_ns))
        for r, one in zip(held, records, strict=True)
    ]
    assert HoldsFirstEvent().judge(evidence(late)) is None
