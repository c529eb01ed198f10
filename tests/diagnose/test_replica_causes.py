"""LB_SKEW, LB_HOTSPOT, LB_CACHE_AFFINITY_LOST, MIX_CACHE_MISS: who serves whom, and what is in whose cache."""

import msgspec
import numpy as np

from tailrace.diagnose.causes.gateway.lb_cache_affinity_lost import CacheAffinityLost
from tailrace.diagnose.causes.gateway.lb_hotspot import LbHotspot
from tailrace.diagnose.causes.gateway.lb_skew import LbSkew
from tailrace.diagnose.causes.mix.cache_miss import CacheMiss
from tailrace.model.finding import Layer, Level
from tests.diagnose.altered import calm, restamped, stamps
from tests.diagnose.simulated import MS, as_client, evidence, served


def over(records, weights, *, slow_ms=3000, seed=0, **extra):
    """Replicas by weight; the requests of the first one wait."""
    rng = np.random.default_rng(seed)
    out = []
    for record in records:
        place = int(rng.choice(len(weights), p=np.array(weights) / sum(weights)))
        late = int(rng.uniform(0.3, 1.5) * slow_ms * MS) if place == 0 else 0
        out.append(msgspec.structs.replace(restamped(record, stamps(record) + late), backend=f"r{place}", **extra))
    return out


def test_a_replica_that_gets_most():
    seen = evidence(over(calm(), [8, 1, 1, 1]))
    finding = LbSkew().judge(seen)
    assert (finding.code, finding.layer, finding.level) == ("LB_SKEW", Layer.GATEWAY, Level.CONSISTENT)
    assert "'r0'" in finding.statement
    assert LbSkew().judge(evidence(over(calm(), [1, 1, 1, 1], slow_ms=0))) is None
    assert LbSkew().cannot_run(evidence(calm()))


def test_a_full_replica_with_equal_work_may_be_slow_itself():
    finding = LbSkew().judge(evidence(over(calm(), [1, 1, 1, 1], slow_ms=40_000)))
    assert finding.level is Level.SUSPECTED
    assert finding.rivals == ["DECODE_SLOWDOWN"]


def test_one_group_that_is_bound_to_one_replica():
    records = over(calm(), [8, 1, 1, 1])
    grouped = [
        msgspec.structs.replace(r, tenant="big" if r.backend == "r0" else f"t{i % 9}", cached_tokens=20)
        for i, r in enumerate(records)
    ]
    finding = LbHotspot().judge(evidence(grouped))
    assert (finding.code, finding.level) == ("LB_HOTSPOT", Level.CONSISTENT)
    spread = [msgspec.structs.replace(r, tenant=f"t{i % 9}") for i, r in enumerate(records)]
    assert LbHotspot().judge(evidence(spread)) is None
    blind = LbHotspot().judge(evidence([msgspec.structs.replace(r, cached_tokens=None) for r in grouped]))
    assert blind.level is Level.SUSPECTED


def sessions(*, stay=0.98, hit=0.9, moved_hit=0.02, ms_per_token=0.4, seed=0, base=None):
    """Five turns each over two replicas; history that is not found is computed again."""
    rng = np.random.default_rng(seed)
    out, place = [], {}
    for i, record in enumerate(base or calm(rate=2.0)):
        session, turn = f"s{i % 90}", i // 90
        last = place.get(session, i % 2)
        here = last if turn == 0 or rng.random() < stay else 1 - last
        place[session] = here
        prompt = 300 + 600 * turn
        found = 0 if turn == 0 else int((hit if here == last else moved_hit) * (prompt - 600))
        late = int((prompt - found) * ms_per_token * MS)
        made = restamped(record, stamps(record) + late)
        out.append(
            msgspec.structs.replace(
                made,
                session_id=session,
                turn=turn,
                backend=f"r{here}",
                prompt_tokens=prompt,
                cached_tokens=found,
                prefill_ns=record.prefill_ns + late,
                unattributed_ns=record.unattributed_ns,
                output_tokens=record.output_tokens,
            )
        )
    return out


def test_sessions_that_lost_their_replica():
    finding = CacheAffinityLost().judge(evidence(sessions(stay=0.5), before=sessions()))
    assert (finding.code, finding.level) == ("LB_CACHE_AFFINITY_LOST", Level.CONSISTENT)
    assert CacheMiss().judge(evidence(sessions(stay=0.5), before=sessions())) is None, "the balancer's, not the cache's"
    assert CacheAffinityLost().judge(evidence(sessions(stay=0.5))).level is Level.SUSPECTED
    assert CacheAffinityLost().judge(evidence(sessions(), before=sessions(seed=1))) is None


def test_a_cache_that_forgets():
    lost = sessions(hit=0.02)
    finding = CacheMiss().judge(evidence(lost, before=sessions()))
    assert (finding.code, finding.level) == ("MIX_CACHE_MISS", Level.CONSISTENT)
    assert CacheMiss().judge(evidence(lost)).level is Level.SUSPECTED, "nothing to compare with"
    assert CacheMiss().judge(evidence(sessions(), before=sessions(seed=1))) is None
    assert CacheMiss().cannot_run(evidence(as_client(served(rate=4.0, long_share=0.0, n=100))))


def one_prompt(n, *, every, seed=0):
    """The same long prompt again and again; the cache finds it but for the given share of the requests."""
    rng = np.random.default_rng(seed)
    out = []
    for record in calm(n=max(n, 60))[:n]:
        found = 990 if rng.random() < every else 0
        late = int((1000 - found) * 2 * MS)
        made = restamped(record, stamps(record) + late)
        out.append(
            msgspec.structs.replace(
                made, prompt_tokens=1000, cached_tokens=found, prefill_ns=record.prefill_ns + late, session_id=""
            )
        )
    return out


def test_two_dozen_requests_show_a_cache_that_is_off():
    """It takes no fifty requests to see that none of them finds anything."""
    finding = CacheMiss().judge(evidence(one_prompt(24, every=0.0), before=one_prompt(30, every=0.97)))
    assert (finding.code, finding.level) == ("MIX_CACHE_MISS", Level.SUSPECTED)
    assert any("repeat" in item for item in finding.missing)


def test_two_dozen_requests_with_a_cache_that_finds_half_show_nothing():
    """Shares of single requests that differ this much differ by chance."""
    now, before = one_prompt(20, every=0.45, seed=4), one_prompt(20, every=0.55, seed=2)
    shares = [np.mean([record.cached_tokens for record in side]) / 1000 for side in (before, now)]
    assert shares[0] - shares[1] > 0.15
    assert CacheMiss().judge(evidence(now, before=before)) is None
    assert CacheMiss().judge(evidence(one_prompt(15, every=0.0), before=one_prompt(15, every=1.0))) is None
