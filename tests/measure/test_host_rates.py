import msgspec
import pytest

from tailrace.measure.host_files import CpuTicks
from tailrace.measure.host_rates import CgroupReading, HostReading, ProcessReading, host_state
from tailrace.model.host_state import Role

S = 1_000_000_000


def process(*, ticks, threads, cgroups=(), role=Role.ENGINE):
    return ProcessReading(
        role=role, ticks=ticks, threads=threads, thread_count=len(threads), rss_bytes=10, cgroups=list(cgroups)
    )


def group(periods, throttled, throttled_ns, *, path="/a", quota=0.5):
    return CgroupReading(
        path=path,
        version=2,
        quota_cores=quota,
        periods=periods,
        throttled_periods=throttled,
        throttled_ns=throttled_ns,
    )


def state(before, now, **extra):
    first = HostReading(at_ns=0, at_unix_ns=5, **before)
    found = host_state(first, HostReading(at_ns=S, at_unix_ns=6, **now), ticks_per_s=100, **extra)
    assert found is not None
    return found


def of_engine(before, now):
    return state({"processes": [before]}, {"processes": [now]}).processes[0]


def test_shares_of_the_cpus_are_differences():
    found = state({"cpu": CpuTicks(1000, 500, 100, 0, 2)}, {"cpu": CpuTicks(1200, 550, 110, 20, 2)})
    assert (found.busy, found.iowait, found.steal, found.cpus) == (pytest.approx(0.7), 0.05, 0.1, 2)


def test_what_was_not_read_is_absent():
    found = state({}, {})
    plain = msgspec.to_builtins(found)
    assert set(plain) == {"at_ns", "at_unix_ns", "interval_ns"}


def test_a_counter_that_falls_gives_no_negative_share():
    found = state({"cpu": CpuTicks(1000, 500, 100, 50, 2)}, {"cpu": CpuTicks(1100, 590, 110, 20, 2)})
    assert found.steal == 0


def test_no_time_no_state():
    reading = HostReading(at_ns=5, at_unix_ns=5)
    assert host_state(reading, reading, ticks_per_s=100) is None


def test_pressure_is_a_share_of_the_interval():
    found = state({"pressure_us": {"cpu.some": 1000}}, {"pressure_us": {"cpu.some": 251_000, "io.some": 9}})
    assert found.pressure == {"cpu.some": 0.25}


def test_a_process_is_the_sum_and_the_worst_of_its_threads():
    before = process(ticks={10: 100, 11: 50}, threads={10: (0, 0), 11: (0, 0)})
    now = process(ticks={10: 150, 11: 75}, threads={10: (S // 2, S // 4), 11: (S // 4, S // 2)})
    found = of_engine(before, now)
    assert (found.cpu_cores, found.busiest_thread) == (0.75, 0.5)
    assert (found.waiting_cores, found.worst_thread_wait, found.wait_share) == (0.75, 0.5, 0.5)
    assert found.pids == [10, 11]


def test_what_is_new_does_not_bring_its_past_into_the_interval():
    before = process(ticks={10: 100}, threads={10: (0, 0)})
    now = process(ticks={10: 110, 99: 5000}, threads={10: (S // 10, 0), 99: (50 * S, 9 * S)})
    found = of_engine(before, now)
    assert (found.cpu_cores, found.worst_thread_wait) == (0.1, 0)


def test_the_first_sight_of_a_role_has_no_rates():
    found = state({}, {"processes": [process(ticks={1: 5}, threads={1: (5, 5)})]}).processes[0]
    assert (found.pids, found.rss_bytes) == ([1], 10)
    assert found.cpu_cores is found.worst_thread_wait is found.wait_share is found.cgroup is None


def test_a_kernel_without_run_queue_times_gives_none():
    found = of_engine(process(ticks={1: 5}, threads={}), process(ticks={1: 6}, threads={}))
    assert found.cpu_cores == 0.01
    assert found.worst_thread_wait is found.busiest_thread is found.wait_share is None


def test_throttling_is_the_difference_of_the_group_that_was_stopped_longest():
    before = process(ticks={1: 0}, threads={}, cgroups=[group(5, 0, 0), group(100, 10, S, path="/")])
    now = process(ticks={1: 0}, threads={}, cgroups=[group(15, 1, 1000), group(110, 16, S + S // 2, path="/")])
    found = of_engine(before, now).cgroup
    assert found is not None
    assert (found.path, found.periods, found.throttled_periods, found.throttled_ns) == ("/", 10, 6, S // 2)
    assert found.throttled_share == 0.6


def test_without_a_limit_zeros_say_nothing():
    same = process(ticks={1: 0}, threads={}, cgroups=[group(0, 0, 0, quota=None)])
    found = of_engine(same, same).cgroup
    assert found is not None
    assert found.throttled_share is None


def test_the_run_queues_of_the_machine():
    assert state({"queue_wait_ns": 5}, {"queue_wait_ns": 5 + 3 * S}).waiting_cores == 3
    assert state({}, {"queue_wait_ns": 5}).waiting_cores is None
