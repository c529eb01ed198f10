"""The processes that are watched: which they are, and their counters."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from tailrace.gateway.address import EngineAddress
from tailrace.gateway.host.cgroups import read_cgroups
from tailrace.gateway.host.files import KernelFiles
from tailrace.measure.host_files import listening_inodes, parent_of, process_ticks, run_and_wait, unix_socket_inodes
from tailrace.measure.host_rates import ProcessReading
from tailrace.model.host_state import Role

MOST_PROCESSES: Final = 64
MOST_THREADS: Final = 512
"""Of one role, and one sample: 512 threads are read in some 6 ms."""
_MOST_LINKS: Final = 50_000
"""Descriptors that one search for a socket's owner looks at."""
_TABLE_BYTES: Final = 8 << 20
_FORWARDERS: Final = frozenset(
    {"docker-proxy", "rootlessport", "slirp4netns", "ssh", "sshd", "kubectl", "socat", "nginx"}
)
"""They listen where an engine does not: in a container, behind a tunnel."""


def read_processes(files: KernelFiles, role: Role, pids: Iterable[int], page_bytes: int) -> ProcessReading | None:
    """Counters of the processes that still live; nothing where none does."""
    ticks: dict[int, int] = {}
    threads: dict[int, tuple[int, int]] = {}
    thread_count = resident = 0
    for pid in pids:
        found = process_ticks(files.text(f"{pid}/stat"))
        if found is None:
            continue
        ticks[pid] = found[0]
        thread_count += found[1]
        resident += found[2]
        for name in files.names(f"{pid}/task"):
            if len(threads) >= MOST_THREADS:
                break
            times = run_and_wait(files.text(f"{pid}/task/{name}/schedstat"))
            if times is not None:
                threads[int(name)] = times
    if not ticks:
        return None
    return ProcessReading(
        role=role,
        ticks=ticks,
        threads=threads,
        thread_count=thread_count,
        rss_bytes=resident * page_bytes,
        cgroups=read_cgroups(files, next(iter(ticks))),
    )


def with_descendants(files: KernelFiles, roots: Iterable[int]) -> list[int]:
    """The processes and all that they started, and these, …: an engine's workers are its children."""
    line = list(roots)
    # A kernel that lists the children of a thread spares us a walk over all processes of the machine.
    listed = any(os.path.exists(f"{files.proc}/{pid}/task/{pid}/children") for pid in line)  # noqa: PTH110  (cheaper)
    tree = None if listed else _children(files)
    out: list[int] = []
    while line and len(out) < MOST_PROCESSES:
        pid = line.pop(0)
        if pid not in out:
            out.append(pid)
            line += sorted(_listed(files, pid) if tree is None else tree.get(pid, []))
    return out


def _listed(files: KernelFiles, pid: int) -> list[int]:
    """Children of every thread of a process: a worker belongs to the thread that started it."""
    threads = files.names(f"{pid}/task")[:MOST_THREADS]
    words = (word for thread in threads for word in files.text(f"{pid}/task/{thread}/children").split())
    return [int(word) for word in words if word.isdigit()]


def _children(files: KernelFiles) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in files.pids():
        parent = parent_of(files.text(f"{pid}/stat"))
        if parent is not None:
            children.setdefault(parent, []).append(pid)
    return children


def find_listener(files: KernelFiles, address: EngineAddress) -> tuple[list[int], str]:
    """(processes that listen at the engine's address, why there is none)."""
    if address.socket:
        inodes = unix_socket_inodes(files.at(f"{files.proc}/net/unix", _TABLE_BYTES), address.socket)
    elif not is_here(address.host):
        return [], f"{address.host} is not this machine"
    else:
        inodes = set()
        for name in ("net/tcp", "net/tcp6"):
            inodes |= listening_inodes(files.at(f"{files.proc}/{name}", _TABLE_BYTES), address.port)
    if not inodes:
        return [], f"nobody is seen that listens at {address.place}"
    owners = _owners(files, {f"socket:[{inode}]" for inode in inodes})
    if not owners:
        return [], f"who listens at {address.place} is not ours to see: another user's process, or another container's"
    for pid in owners:
        name = files.text(f"{pid}/comm").strip()
        if name in _FORWARDERS:
            return [], f"{address.place} is held by {name}, which is not the engine; set signals.engine_pid"
    return owners, ""


def _owners(files: KernelFiles, wanted: set[str]) -> list[int]:
    owners, left = [], _MOST_LINKS
    for pid in files.pids():
        for name in files.names(f"{pid}/fd"):
            left -= 1
            if files.link(f"{pid}/fd/{name}") in wanted:
                owners.append(pid)
                break
        if left < 0:
            break
    return owners


def is_here(host: str) -> bool:
    """Whether an engine at `host` is on this machine: loopback, our name, or an address that one could listen at."""
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def alive(files: KernelFiles, pid: int) -> bool:
    """Whether a process is there that is no zombie."""
    stat = files.text(f"{pid}/stat").rpartition(")")[2].split()
    return bool(stat) and stat[0] not in ("Z", "X")
