"""What the two connections of a request say about the network: TCP's own view of either hop.

A reading is one system call (2 to 3 us with its unpacking), so it is done once a request, at its end, and only for
requests whose timeline is kept. Linux only; elsewhere, and on sockets that are no TCP, it is absent.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Final, NamedTuple

# struct tcp_info of linux/tcp.h: eight bytes, then 32-bit numbers; rtt and its variance (us) are the 16th and 17th,
# total_retrans the 24th. Fields are only ever appended.
_UNPACK: Final = struct.Struct("<68xII24xI").unpack_from
_SIZE: Final = 104
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None


class TcpReading(NamedTuple):
    """One hop as TCP sees it."""

    rtt_ns: int
    rtt_var_ns: int
    retransmits: int
    """Of the whole connection so far."""


def read_tcp(transport: asyncio.Transport | None) -> TcpReading | None:
    """The reading of a connection that still has its socket; `None` where there is none to be had."""
    if transport is None or _TCP_INFO is None:
        return None
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    except (OSError, ValueError):  # no TCP, or closed already
        return None
    if len(raw) < _SIZE:
        return None
    rtt, variance, again = _UNPACK(raw)
    return TcpReading(rtt * 1000, variance * 1000, again)
