"""The machine that runs the tests, read: CPU time that is really withheld is seen."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailrace.gateway.address import read_address
from tailrace.gateway.host.files import KernelFiles
from tailrace.gateway.host.host_reader import HostReader
from tailrace.gateway.host.processes import find_listener, is_here, with_descendants
from tailrace.model.host_state import Role

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="these files are Linux'")
pytestmark = LINUX
BUSY = """
import os, sys
if len(sys.argv) > 1:
    os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True:
    pass
"""


@contextlib.contextmanager
def children(*commands: list[str]):
    """Processes that have said that they run; ended whatever happens."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    try:
        for child in running:
            assert child.stdout is not None
            child.stdout.readline()
        yield running
    finally:
        for child in running:
            child.kill()
            child.wait()
            child.stdout.close()


def busy(cpu: int | None = None) -> list[str]:
    return [sys.executable, "-c", BUSY, *([] if cpu is None else [str(cpu)])]


def watched(reader: HostReader, seconds: float = 0.6):
    reader.read()
    time.sleep(seconds)
    state = reader.read()
    assert state is not None
    return state


def test_two_busy_processes_on_one_cpu_wait_for_each_other():
    cpu = min(os.sched_getaffinity(0))
    with children(busy(cpu), busy(cpu)) as (one, _):
        state = watched(HostReader(engine=None, engine_pid=one.pid))
    engine = state.of(Role.ENGINE)
    assert engine is not None
    assert engine.pids == [one.pid]
    if engine.worst_thread_wait is None:
        pytest.skip("this kernel does not count run-queue time")
    assert engine.worst_thread_wait > 0.2
    assert engine.wait_share is not None
    assert engine.wait_share > 0.2
    assert engine.busiest_thread is not None
    assert engine.busiest_thread < 0.8


def test_a_process_that_sleeps_does_not_wait():
    sleeper = [sys.executable, "-c", "import time\nprint(flush=True)\ntime.sleep(60)"]
    with children(sleeper) as (one,):
        engine = watched(HostReader(engine=None, engine_pid=one.pid), 0.3).of(Role.ENGINE)
    assert engine is not None
    assert (engine.worst_thread_wait or 0) < 0.2
    assert (engine.cpu_cores or 0) < 0.2


@contextlib.contextmanager
def limited_group(cores: float):
    """A control group of our own with a CPU limit; nothing where this process may not make one."""
    name = f"tailrace-test-{os.getpid()}"
    for root, version in (("/sys/fs/cgroup/cpu", 1), ("/sys/fs/cgroup/cpu,cpuacct", 1), ("/sys/fs/cgroup", 2)):
        group = Path(root) / name
        try:
            if version == 2 and "cpu" not in Path(root, "cgroup.subtree_control").read_text().split():
                continue
            group.mkdir()
        except OSError:
            continue
        try:
            if version == 1:
                (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
            else:
                (group / "cpu.max").write_text(f"{int(cores * 100_000)} 100000")
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.02)
        return
    yield None


def test_a_cpu_limit_that_stops_a_process_is_seen():
    with limited_group(0.2) as group:
        if group is None:
            # Where no group may be made, the counters of the one that we are in are read all the same.
            own = watched(HostReader(engine=None), 0.1).of(Role.GATEWAY)
            assert own is not None
            return
        with children(busy()) as (one,):
            (group / "cgroup.procs").write_text(str(one.pid))
            engine = watched(HostReader(engine=None, engine_pid=one.pid), 1.0).of(Role.ENGINE)
    assert engine is not None
    limit = engine.cgroup
    assert limit is not None
    assert limit.quota_cores == 0.2
    assert limit.path == f"/{group.name}"
    assert limit.throttled_share is not None
    assert limit.throttled_share > 0.5
    assert limit.throttled_ns is not None
    assert limit.throttled_ns > 100_000_000
    assert engine.cpu_cores is not None
    assert engine.cpu_cores < 0.6


def test_an_engine_is_found_by_its_port_and_its_workers_belong_to_it():
    code = (
        "import socket, subprocess, sys\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(s.getsockname()[1], child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert engine.stdout is not None
    assert engine.stdin is not None
    try:
        port, worker = engine.stdout.readline().split()
        reader = HostReader(engine=read_address(f"http://127.0.0.1:{int(port)}"))
        reader.read()
        assert reader.engine_pids == [engine.pid, int(worker)]
        assert "engine" not in reader.absent
    finally:
        engine.stdin.close()
        engine.wait(10)
        engine.stdout.close()
    time.sleep(0.05)
    reader.read()
    assert reader.engine_pids == []
    assert "nobody is seen that listens" in reader.absent["engine"]


def test_children_are_found_with_and_without_the_kernels_list_of_them(tmp_path):
    with_list, without = tmp_path / "a", tmp_path / "b"
    for root in (with_list, without):
        for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
            (root / str(pid) / "task" / str(pid)).mkdir(parents=True)
            (root / str(pid) / "stat").write_text(f"{pid} (python) S {parent} 0 0")
    (with_list / "10" / "task" / "10" / "children").write_text("")
    (with_list / "10" / "task" / "99").mkdir()
    (with_list / "10" / "task" / "99" / "children").write_text("11 ")  # started by another thread than the first
    (with_list / "11" / "task" / "11" / "children").write_text("12 ")
    for root in (with_list, without):
        assert with_descendants(KernelFiles(str(root)), [10]) == [10, 11, 12]


def test_an_engine_elsewhere_is_absent_with_the_reason():
    reader = HostReader(engine=read_address("http://engine.example:8000"))
    reader.read()
    assert reader.absent["engine"] == "engine.example is not this machine"
    assert is_here("127.0.0.1")
    assert is_here("localhost")
    assert not is_here("192.0.2.1")


def test_a_process_that_is_not_there_is_absent_with_the_reason():
    reader = HostReader(engine=None, engine_pid=2**22 + 5)
    state = watched(reader, 0.05)
    assert state.of(Role.ENGINE) is None
    assert "signals.engine_pid" in reader.absent["engine"]


def test_a_unix_socket_has_an_owner_too(tmp_path):
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert find_listener(KernelFiles(), read_address(f"unix:{path}")) == ([os.getpid()], "")


def test_a_port_held_by_a_forwarder_is_not_the_engine(tmp_path):
    """A tree that looks like /proc: the port of a container is held by Docker's proxy on this side."""
    (tmp_path / "net").mkdir()
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    (tmp_path / "net" / "tcp").write_text(
        head + "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0\n"
    )
    (tmp_path / "77" / "fd").mkdir(parents=True)
    (tmp_path / "77" / "fd" / "4").symlink_to("socket:[4242]")
    (tmp_path / "77" / "comm").write_text("docker-proxy\n")
    pids, why = find_listener(KernelFiles(str(tmp_path)), read_address("http://127.0.0.1:8000"))
    assert pids == []
    assert "docker-proxy" in why
    assert "signals.engine_pid" in why


def test_a_machine_without_these_files_gives_absences_and_no_zeros(tmp_path):
    reader = HostReader(engine=None, files=KernelFiles(str(tmp_path)))
    state = watched(reader, 0.02)
    assert state.busy is state.steal is state.load_1m is state.memory_available_bytes is None
    assert state.pressure == {}
    assert state.processes == []
    assert set(reader.absent) >= {"cpu", "memory", "pressure.cpu", "gateway", "engine"}


def test_the_group_of_a_container_is_found_where_its_mount_shows_it_as_the_root(tmp_path):
    from tailrace.gateway.host.cgroups import read_cgroups

    (tmp_path / "self").mkdir()
    (tmp_path / "9").mkdir()
    root = tmp_path / "cg"
    (root / "inner").mkdir(parents=True)
    (tmp_path / "self" / "mountinfo").write_text(f"30 23 0:26 /pod/c1 {root} rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "9" / "cgroup").write_text("0::/pod/c1/inner\n")
    (root / "inner" / "cpu.stat").write_text("nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    (root / "inner" / "cpu.max").write_text("max 100000\n")
    (root / "cpu.stat").write_text("nr_periods 50\nnr_throttled 20\nthrottled_usec 1000\n")
    (root / "cpu.max").write_text("200000 100000\n")
    inner, outer = read_cgroups(KernelFiles(str(tmp_path)), 9)
    assert (inner.path, inner.quota_cores) == ("/inner", None)
    assert (outer.path, outer.quota_cores, outer.throttled_periods, outer.throttled_ns) == ("/", 2.0, 20, 1_000_000)


def test_what_a_sample_costs():
    """Half a millisecond on a quiet machine; a tenth of a second would be a fault of ours on any."""
    reader = HostReader(engine=None)
    reader.read()
    began = time.thread_time_ns()
    for _ in range(20):
        reader.read()
    assert (time.thread_time_ns() - began) / 20 < 20e6
