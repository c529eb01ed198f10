"""What is noticed of a fault, and what a healthy system promises."""

import numpy as np
import pytest

from tailrace.simulate.incidents.faults import FAULTS
from tailrace.simulate.incidents.machine import gpu_states, host_states
from tailrace.simulate.incidents.measures import Measures, breaks, differs, keeps, objectives
from tailrace.simulate.incidents.setting import capacity, draw_setting, settled
from tailrace.simulate.incidents.site import Site, Wear
from tailrace.simulate.incidents.world import Sample

S = 1_000_000_000


def seen(factor=1.0, n=1000, seed=1, stalled=0, failed=0, **only):
    rng = np.random.default_rng(seed)
    names = ("ttft", "tpot", "gap", "e2e")
    middle = {"ttft": 100.0, "tpot": 15.0, "gap": 60.0, "e2e": 3000.0}
    values = [
        middle[name] * np.exp(0.5 * rng.standard_normal(n)) * (only.get(name, 1.0) if only else factor)
        for name in names
    ]
    stops, fails = np.zeros(n), np.zeros(n + failed)
    stops[rng.permutation(n)[:stalled]] = fails[rng.permutation(n)[:failed]] = 1.0
    return Measures(*values, stops, fails)


def test_two_windows_of_one_system_do_not_differ():
    assert sum(differs(seen(seed=i), seen(seed=100 + i)) for i in range(60)) <= 1


def test_a_large_effect_on_one_measure_is_noticed_and_a_small_one_is_not():
    assert differs(seen(), seen(ttft=1.8))
    assert differs(seen(), seen(e2e=1.8))
    assert not differs(seen(), seen(ttft=1.05))
    # Intervals of 20,000 are narrow; a change of less than a tenth is noticed by nobody all the same.
    assert not differs(seen(n=20_000), seen(n=20_000, tpot=1.09))
    assert differs(seen(n=20_000), seen(n=20_000, tpot=1.2))


def test_gaps_that_no_reader_sees_are_not_noticed():
    assert not differs(seen(gap=0.2), seen(gap=0.6))
    assert differs(seen(gap=1.0), seen(gap=4.0))


def test_one_event_that_many_requests_share_is_no_difference_between_windows():
    usual, once, often = seen(n=1000), seen(n=1000, seed=2), seen(n=1000, seed=2)
    once.ttft[400:460] *= 20.0
    often.ttft[::16] *= 20.0
    assert differs(usual, once)
    assert not differs(usual, once, by_blocks=True), "sixty that waited for one thing"
    assert differs(usual, often, by_blocks=True), "sixty over the whole window"
    for ill in ("stops", "fails"):
        at_once, over_all = (np.zeros(1000) for _ in range(2))
        at_once[400:440] = over_all[::25] = 1.0
        once, often = (usual._replace(**{ill: flags}) for flags in (at_once, over_all))
        assert differs(usual, once)
        assert not differs(usual, once, by_blocks=True), "forty at once"
        assert differs(usual, often, by_blocks=True)


def test_more_failures_or_stalls_are_noticed():
    assert differs(seen(failed=2), seen(failed=30))
    assert differs(seen(stalled=2), seen(stalled=40))
    assert not differs(seen(failed=3), seen(failed=6))


def test_a_promise_is_kept_by_the_system_that_gives_it_and_broken_by_a_slower_one():
    bounds = objectives(seen(n=3000), 1.2, with_e2e=True)
    assert set(bounds) == {"ttft", "tpot", "e2e"}
    assert "e2e" not in objectives(seen(), 1.2, with_e2e=False)
    assert keeps(bounds, seen(seed=5))
    assert not breaks(bounds, seen(seed=5))
    assert breaks(bounds, seen(2.0, seed=5))
    assert not keeps(bounds, seen(2.0, seed=5))
    assert breaks(bounds, seen(seed=5, failed=60))
    # Whoever leaves without the fault too is no sign of it.
    assert not breaks(bounds, seen(seed=5, failed=60), usual=seen(failed=60))
    assert breaks(bounds, seen(seed=5, failed=150), usual=seen(failed=60))
    assert not breaks(bounds, seen(2.0, seed=5), seen(seed=5)), "documents have no reader that waits"
    assert not keeps(bounds, seen(seed=5, stalled=40))


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.kind for fault in FAULTS])
def test_a_fault_changes_a_healthy_setting_and_the_more_the_stronger_it_is(fault):
    grows = []
    for seed in range(6):
        rng = np.random.default_rng([seed, len(fault.kind)])
        setting = settled(fault.prepare(draw_setting(rng), rng))
        assert 0 < setting.traffic.rate <= 1.2 * capacity(setting.site, setting.traffic) * setting.site.replicas
        assert 200 <= setting.traffic.n <= 5000
        weak, strong = (fault.change(setting, strength, np.random.default_rng(seed)) for strength in (0.0, 1.0))
        assert strong != setting
        grows.append(strong != weak)
        # A fault is a change of the system or its traffic; what is at hand of it stays as it was.
        for changed in (weak, strong):
            assert (changed.before, changed.margin, changed.gpu_signals, changed.host_signals) == (
                setting.before,
                setting.margin,
                setting.gpu_signals,
                setting.host_signals,
            )
    # Some are sometimes a switch (chunks off, the cache off).
    assert any(grows)


def samples(busy=0.6, worn=True, n=60):
    return [Sample(i * S, round(i * busy * 1e12), 40 * i, worn) for i in range(n)]


def test_signals_say_what_wears_the_machine_and_nothing_where_nothing_does():
    def readings(cause, **wear):
        site = Site(wear=Wear(cause=cause, **wear))
        rng = np.random.default_rng(3)
        return host_states(site, samples(), rng, wall_ns=10**18), gpu_states(site, samples(), rng, wall_ns=10**18)

    _, gpus = readings("thermal", compute=0.6)
    assert all({"sw_thermal", "hw_thermal"} & set(state.reasons) for state in gpus)
    assert np.median([state.sm_clock_mhz for state in gpus]) < 0.65 * gpus[0].max_sm_clock_mhz
    assert gpus[-1].temperature_c > 80
    _, gpus = readings("power", compute=0.6)
    assert all(state.power_w > 0.95 * state.power_limit_w for state in gpus)
    _, gpus = readings("neighbour", compute=0.6)
    assert all(len(state.processes) == 2 for state in gpus)
    hosts, _ = readings("quota", host=15.0)
    assert all(state.processes[0].cgroup.throttled_periods > 0 for state in hosts)
    hosts, _ = readings("contention", host=15.0)
    assert all(state.processes[0].worst_thread_wait > 0.3 for state in hosts)
    hosts, gpus = readings("")
    assert all(state.processes[0].worst_thread_wait < 0.05 for state in hosts)
    assert all(len(state.processes) == 1 and "sw_thermal" not in state.reasons for state in gpus)
