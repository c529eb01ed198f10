"""Whether a request that was written has reached the other machine, as the kernel knows it.

A keep-alive connection may be closed by its engine at the very moment when a request is on its way to it. Whether that
request may be sent again depends on one question: can the engine have read it? The kernel's counters answer it. Bytes
that were never acknowledged were never read; and a connection that was reset had, at its end, bytes that nobody read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

# struct tcp_info of Linux: tcpi_bytes_acked, tcpi_bytes_sent and tcpi_bytes_retrans lie at these offsets (4.19 on).
_ACKED: Final = struct.Struct("=Q")
_ACKED_AT: Final = 120
_SENT: Final = struct.Struct("=QQ")
_SENT_AT: Final = 200
_SIZE: Final = 232


def acknowledged_in_full(transport: asyncio.Transport | None) -> bool:
    """Whether the peer's kernel has taken every byte that was written; true also where nobody can tell."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6) or not hasattr(socket, "TCP_INFO"):
        return True
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
        return True
    if len(info) < _SENT_AT + _SENT.size:
        return True
    sent, again = _SENT.unpack_from(info, _SENT_AT)
    (acked,) = _ACKED.unpack_from(info, _ACKED_AT)
    # The first acknowledged byte is the connection's opening, not one of ours.
    return bool(acked - 1 >= sent - again)
