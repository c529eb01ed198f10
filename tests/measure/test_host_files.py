import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.measure import host_files
from tailrace.measure.host_files import (
    CgroupMount,
    cgroup_paths,
    cpu_stat,
    cpu_ticks,
    listening_inodes,
    load_and_runnable,
    mounts_of_cgroups,
    numbered_lines,
    parent_of,
    pressure_totals,
    process_ticks,
    queue_waits,
    quota_v1,
    quota_v2,
    run_and_wait,
    unix_socket_inodes,
)

STAT = """cpu  100 1 50 800 20 0 9 5 3 0
cpu0 60 1 30 400 10 0 5 3 1 0
cpu1 40 0 20 400 10 0 4 2 2 0
intr 12345 0
"""
PROCESS = "4242 (a) b (c) S 17 4242 4242 0 -1 4194560 10 0 0 0 700 300 1 2 20 0 9 0 55 1000000 2500 1844 1 1 0 0 0 0\n"


def test_the_ticks_of_all_cpus_without_counting_guests_twice():
    ticks = cpu_ticks(STAT)
    assert ticks is not None
    assert (ticks.total, ticks.idle, ticks.iowait, ticks.steal, ticks.cpus) == (985, 800, 20, 5, 2)


@pytest.mark.parametrize("text", ["", "cpu", "cpu 1 2 3", "cpu  a b c d e f g h", "intr 1 2 3 4 5 6 7 8 9"])
def test_a_damaged_stat_is_nothing(text):
    assert cpu_ticks(text) is None


def test_a_process_whose_name_holds_brackets_and_spaces():
    assert process_ticks(PROCESS) == (1000, 9, 2500)
    assert parent_of(PROCESS) == 17
    assert process_ticks("1 (x) S 1 2") is None


def test_time_on_a_cpu_and_in_a_run_queue():
    assert run_and_wait("216407270 27793172 903\n") == (216407270, 27793172)
    assert run_and_wait("") is None


def test_the_run_queues_of_all_cpus():
    text = """version 17
timestamp 4294937296
cpu0 0 0 0 0 0 0 5000000 1000 77
domain0 MC 3 0 0 0
cpu1 0 0 0 0 0 0 6000000 500 70
"""
    assert queue_waits(text) == 1500
    assert queue_waits("version 15\ntimestamp 1\ncpu0 0 0 0 0 0 0 0 0 0\n") is None
    assert queue_waits("") is None


def test_pressure_of_kernels_with_and_without_the_full_line():
    text = "some avg10=1.31 avg60=1.14 avg300=1.28 total=7791140788\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    assert pressure_totals(text) == {"some": 7791140788, "full": 0}
    assert pressure_totals(text.splitlines()[0]) == {"some": 7791140788}
    assert pressure_totals("some avg10=1") == {}


def test_throttling_is_counted_in_microseconds_and_in_nanoseconds():
    version_2 = "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 300\nnr_throttled 60\nthrottled_usec 5000\n"
    version_1 = "nr_periods 300\nnr_throttled 60\nthrottled_time 5000000\nnr_bursts 0\nburst_time 0\n"
    assert cpu_stat(version_2) == cpu_stat(version_1) == (300, 60, 5_000_000)


def test_a_group_without_the_cpu_controller_tells_nothing():
    assert cpu_stat("usage_usec 9\nuser_usec 5\nsystem_usec 4\n") is None


@pytest.mark.needs("shared")
def test_the_shared_cpu_stat(shared):
    assert cpu_stat((shared / "data" / "cases" / "inputs" / "FE-09.cpu.stat").read_text()) == (0, 0, 0)


def test_quotas():
    assert quota_v2("150000 100000\n") == 1.5
    assert quota_v2("max 100000\n") is None
    assert quota_v1("20000\n", "100000\n") == 0.2
    assert quota_v1("-1\n", "100000\n") is None
    assert quota_v1("", "") is None


def test_memory_in_bytes_and_counts_as_they_are():
    assert numbered_lines("MemTotal:       24683652 kB\nHugePages_Total:       3\n") == {
        "MemTotal": 24683652 * 1024,
        "HugePages_Total": 3,
    }


def test_load():
    assert load_and_runnable("1.02 0.62 0.67 2/103 11402\n") == (1.02, 2)
    assert load_and_runnable("") == (None, None)


def test_control_groups_of_both_versions():
    hybrid = "9:name=systemd:/\n4:memory:/a\n2:cpu,cpuacct:/pod/c1\n0::/unified.slice\n"
    assert cgroup_paths(hybrid) == {1: "/pod/c1", 2: "/unified.slice"}
    assert cgroup_paths("2:cpuset:/a\n3:cpuacct:/b\n") == {}


def test_mounts_of_control_groups():
    text = (
        "30 23 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
        "31 23 0:27 /docker/c1 /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "32 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "nonsense\n"
    )
    assert mounts_of_cgroups(text) == [
        CgroupMount(2, "/sys/fs/cgroup", "/"),
        CgroupMount(1, "/sys/fs/cgroup/cpu", "/docker/c1"),
    ]


def test_who_listens():
    table = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0
   1: 0100007F:1F40 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 12346 1 0 100 0 0 10 0
   2: 00000000:01BB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12347 1 0 100 0 0 10 0
"""
    assert listening_inodes(table, 8000) == {12345}
    assert listening_inodes(table, 443) == {12347}
    assert listening_inodes(table, 80) == set()
    unix = "Num RefCount Protocol Flags Type St Inode Path\n0: 00000002 00000000 00010000 0001 01 777 /run/e 1.sock\n"
    assert unix_socket_inodes(unix, "/run/e 1.sock") == {777}


@settings(max_examples=40)
@given(st.text() | st.lists(st.sampled_from((STAT + PROCESS).split())).map(" ".join))
def test_no_text_breaks_a_parser(text):
    for name in host_files.__all__:
        parser = getattr(host_files, name)
        if name in ("listening_inodes", "unix_socket_inodes", "quota_v1"):
            parser(text, 80 if name == "listening_inodes" else "x")
        elif not isinstance(parser, type):
            parser(text)
