"""Buffers, timers that group, held events, timeouts, pools, retries: the way between the two ends."""

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.causes.gateway.chunk_coalescing import ChunkCoalescing
from tailrace.diagnose.causes.gateway.conn_pool_cap import ConnPoolCap
from tailrace.diagnose.causes.gateway.holds_first_event import HoldsFirstEvent
from tailrace.diagnose.causes.gateway.idle_timeout import IdleTimeout
from tailrace.diagnose.causes.gateway.proxy_buffering import ProxyBuffering
from tailrace.diagnose.causes.gateway.retry_storm import RetryStorm
from tailrace.diagnose.causes.gateway.upstream_timeout import UpstreamTimeout
from tailrace.model.finding import Layer, Level
from tests.diagnose.altered import S, buffered, calm, failed, held_first, merged_by_timer, restamped, stamps
from tests.diagnose.simulated import MS, answer, as_client, evidence, served


def few():
    return calm(n=150)


@pytest.mark.parametrize("events", [30, 64, 10_000])
def test_a_buffer_makes_bursts_of_all_streams(events):
    first = answer(buffered(few(), events)).findings[0]
    assert (first.code, first.layer) == ("GW_PROXY_BUFFERING", Layer.GATEWAY)
    assert "proxy_buffering off" in first.advice
    if events < 100:
        assert first.level is Level.CONSISTENT
        assert f"{events:.0f} events" in first.statement or "at one instant" in first.statement


def test_only_some_streams_in_bursts_are_no_buffer():
    plain = few()
    mixed = [b if i % 3 == 0 else r for i, (r, b) in enumerate(zip(plain, buffered(plain, 40), strict=True))]
    assert ProxyBuffering().judge(evidence(mixed)) is None


def test_from_a_client_the_hop_is_suspected():
    records = buffered(as_client(served(rate=4.0, long_share=0.0, n=150)), 40)
    finding = ProxyBuffering().judge(evidence(records))
    assert finding.level is Level.SUSPECTED
    assert "direct path" in finding.missing[0]


def test_few_timelines_leave_the_gaps_that_every_record_sums_up():
    def without(records):
        return [r if i < 3 else msgspec.structs.replace(r, timeline=None) for i, r in enumerate(records)]

    finding = ProxyBuffering().judge(evidence(without(buffered(few(), 30))))
    assert finding.code == "GW_PROXY_BUFFERING"
    assert finding.evidence[0].source == "record:chunk_gap_p50_ns, record:chunk_gap_max_ns"
    assert ProxyBuffering().judge(evidence(without(few()))) is None


def test_bursts_that_the_gateway_or_lost_segments_make_are_no_buffer():
    bursty = buffered(few(), 30)
    assert ProxyBuffering().judge(evidence(bursty)) is not None
    stood = [msgspec.structs.replace(r, loop_lag_ns=r.chunk_gap_max_ns) for r in bursty]
    assert ProxyBuffering().judge(evidence(stood)) is None
    again = [msgspec.structs.replace(r, upstream_retransmits=2) for r in bursty]
    assert ProxyBuffering().judge(evidence(again)) is None


@pytest.mark.parametrize("ms", [50, 120])
def test_a_timer_groups_tokens(ms):
    finding = ChunkCoalescing().judge(evidence(merged_by_timer(few(), ms), before=few()))
    assert (finding.code, finding.level) == ("GW_CHUNK_COALESCING", Level.CONSISTENT)


def test_without_a_window_before_the_timer_is_suspected():
    finding = ChunkCoalescing().judge(evidence(merged_by_timer(few(), 80)))
    assert finding.level is Level.SUSPECTED
    assert "speculates" in finding.missing[0]
    # No draft is as long as what a third of a second brings together.
    assert ChunkCoalescing().judge(evidence(merged_by_timer(few(), 330))).level is Level.CONSISTENT


def test_tokens_one_by_one_are_not_grouped():
    assert ChunkCoalescing().judge(evidence(few())) is None
    assert ChunkCoalescing().judge(evidence(few(), before=few())) is None


@pytest.mark.parametrize("ms", [900, 4000])
def test_a_first_event_that_is_held_and_let_go_with_others(ms):
    finding = HoldsFirstEvent().judge(evidence(held_first(few(), 0.2, ms)))
    assert finding.code == "GW_HOLDS_FIRST_EVENT"
    assert finding.level is Level.SUSPECTED, "the direct path was not tried"
    assert "direct path" in finding.missing[0]


def test_a_late_first_token_without_a_burst_is_not_held():
    rng = np.random.default_rng(0)
    late = [restamped(r, stamps(r) + (2 * S if rng.random() < 0.2 else 0)) for r in few()]
    assert HoldsFirstEvent().judge(evidence(late)) is None


def cut(ages, *, every=10, **extra):
    out = list(few())
    for place in range(0, len(out), every):
        out[place] = failed(out[place], ages(place), **extra)
    return out


def test_streams_that_are_cut_at_one_age_before_any_byte():
    finding = IdleTimeout().judge(evidence(cut(lambda i: 15_003 + i % 7)))
    assert (finding.code, finding.level) == ("GW_IDLE_TIMEOUT", Level.SUSPECTED)
    sharp = IdleTimeout().judge(evidence(cut(lambda i: 15_003 + i % 3)))
    assert sharp.level is Level.SUSPECTED
    assert "15" in sharp.missing[0]


def test_cuts_at_all_ages_are_no_timer():
    rng = np.random.default_rng(1)
    assert IdleTimeout().judge(evidence(cut(lambda _: rng.uniform(500, 60_000)))) is None
    assert UpstreamTimeout().judge(evidence(cut(lambda _: rng.uniform(500, 60_000), http_status=504))) is None


def test_a_gateway_timeout_at_sixty_seconds():
    finding = UpstreamTimeout().judge(evidence(cut(lambda _: 60_000, reason="engine_error", http_status=504)))
    assert finding.code == "GW_UPSTREAM_TIMEOUT"
    assert "60,000" in finding.statement
    own = cut(lambda _: 5000, reason="first_token_timeout", outcome="timed_out", budget="first_token")
    assert UpstreamTimeout().judge(evidence(own)).level is Level.CONSISTENT
    assert IdleTimeout().judge(evidence(own)) is None


def pooled(records, *, waiting=0, ms=900):
    rng = np.random.default_rng(0)
    out = []
    for record in records:
        wait = int(rng.uniform(0.5, 1.5) * ms * MS) if rng.random() < 0.3 else 0
        late = restamped(record, stamps(record) + wait)
        out.append(
            msgspec.structs.replace(
                late,
                pool_wait_ns=wait or None,
                waiting_at_admission=waiting,
                queue_ns=record.queue_ns + wait,
                unattributed_ns=record.unattributed_ns,
            )
        )
    return out


def test_a_full_pool_of_connections():
    finding = ConnPoolCap().judge(evidence(pooled(few())))
    assert (finding.code, finding.level) == ("GW_CONN_POOL_CAP", Level.CONSISTENT)
    assert ConnPoolCap().judge(evidence(pooled(few(), waiting=9))) is None
    blind = ConnPoolCap().judge(evidence(pooled(few(), waiting=None)))
    assert blind.level is Level.SUSPECTED
    assert ConnPoolCap().judge(evidence(pooled(few(), ms=3))) is None


def retried(records, share, *, later=1.0):
    rng = np.random.default_rng(0)
    out = []
    for place, record in enumerate(records):
        late = place > len(records) // 2
        again = rng.random() < share * (later if late else 1.0)
        out.append(
            msgspec.structs.replace(
                record, attempts=3 if again else 1, retries=2 if again else 0, retry_wait_ns=800 * MS if again else 0
            )
        )
    return out


def test_retries_that_multiply():
    grown = retried(few(), 0.15, later=4.0)
    finding = RetryStorm().judge(evidence(grown))
    assert finding.code == "RETRY_STORM"
    assert finding.level is Level.CONSISTENT
    assert RetryStorm().judge(evidence(retried(few(), 0.05))) is None
    assert RetryStorm().judge(evidence(grown, before=grown)) is None
    steady = [msgspec.structs.replace(r, attempts=2, retries=1) for r in few()]
    assert RetryStorm().judge(evidence(steady)).level is Level.SUSPECTED
