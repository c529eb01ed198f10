"""Access lines of load balancers: HAProxy's HTTP format, and AWS' application load balancer (and the classic one)."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.logs.accesses import Access
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.stamps import nginx_stamp, stamp_in

__all__ = ["Balancers"]

_NAN: Final = float("nan")
# [accept date] frontend backend/server TR/Tw/Tc/Tr/Ta status bytes cookies state actconn/feconn/beconn/srv_conn/retries
# srv_queue/backend_queue {headers} "request"
_HAPROXY: Final = re.compile(
    rb"\[([^\]]+)\] (\S+) (\S+?)/(\S+) (-?\d+)/(-?\d+)/(-?\d+)/(-?\d+)/\+?(-?\d+) (-?\d{1,3}) \+?(\d+) \S+ \S+ "
    rb"([\w-]{4}) (\d+)/(\d+)/(\d+)/(\d+)/\+?(\d+) (\d+)/(\d+)(?: \{[^}]*\})* \"(\S+)(?: (\S+))?"
)
_WHEN: Final = re.compile(rb"(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?")
# [type] time elb client target request_processing target_processing response_processing elb_status target_status
# received sent "request" … creation time …
_ALB: Final = re.compile(
    rb"^(?:(?:http|https|h2|ws|wss|grpcs?) )?(\d{4}-\d\d-\d\dT[\d:.]+Z) (\S+) \S+:\d+ (\S+) (-?[\d.]+) (-?[\d.]+) "
    rb"(-?[\d.]+) (\d{3}|-) (\d{3}|-) (-?\d+) (-?\d+) \"(\S+) (\S+)[^\"]*\"(.*)$"
)
_CREATED: Final = re.compile(rb"(?<=\s)\d{4}-\d\d-\d\dT[\d:.]+Z(?=\s)")
_TIMERS: Final = {b"s": "UT", b"S": "UC", b"c": "DC", b"C": "DC"}
"""The first letter of HAProxy's state at the end -> Envoy's flag: the server's timer, its end, the client's."""


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return _NAN


class Balancers:
    """What such lines say."""

    def __init__(self, context: Context) -> None:
        """`context` gets the rows."""
        self.context = context

    def line(self, text: bytes) -> bool:
        """A line of one of them; False where it is none."""
        return self._haproxy(text) or self._alb(text)

    def _haproxy(self, text: bytes) -> bool:
        found = _HAPROXY.search(text)
        if found is None:
            return False
        when, _, backend, server, _, waited, connect, header, total, status, size, state, *rest = found.groups()
        servers, retries, queued = float(rest[3]), float(rest[4]), float(rest[5]) + float(rest[6])
        stamp = _WHEN.match(when)
        at = None if stamp is None else nginx_stamp(b"[" + stamp[1] + b" +0000]")
        answered = _number(header)
        row = Access(
            line=self.context.number,
            at=_NAN if at is None or stamp is None else at + float(b"0." + (stamp[2] or b"0")),
            method=rest[7].decode("utf-8", "replace"),
            path=(rest[8] or b"").decode("utf-8", "replace"),
            status=float(status),
            e2e=max(float(total), 0.0),
            hop_queue=max(float(waited), 0.0),
            server_conns=servers,
            queued=queued,
            upstream_connect=max(float(connect), 0.0),
            upstream_header=answered if answered >= 0 else _NAN,
            upstream_bytes=0.0 if answered < 0 else _NAN,
            bytes=float(size),
            attempts=1.0 + retries,
            upstream_address=(backend + b"/" + server).decode("utf-8", "replace")[-60:],
            flags=_TIMERS.get(state[:1], ""),
            reason="" if state == b"----" else f"state {state.decode('utf-8', 'replace')}",
        )
        # The stamp has no zone.
        self.context.accesses.add(row, Clock.NONE if at is None else Clock.LOCAL)
        return self.context.understood("haproxy access log")

    def _alb(self, text: bytes) -> bool:
        found = _ALB.match(text)
        if found is None:
            return False
        when, _, target, asked, served, answered, status, theirs, _, sent, method, url, rest = found.groups()
        end = stamp_in(when)
        created = _CREATED.search(b" " + rest)
        begin = stamp_in(created[0]) if created is not None else None
        parts = [_number(part) for part in (asked, served, answered)]
        known = all(part >= 0 for part in parts)
        whole = (
            sum(parts) * 1e3
            if known
            else (end[0] - begin[0]) * 1e3
            if end is not None and begin is not None and end[0] >= begin[0]
            else _NAN
        )
        row = Access(
            line=self.context.number,
            at=_NAN if end is None else end[0],
            method=method.decode("utf-8", "replace"),
            path=re.sub(r"^[a-z]+://[^/]+", "", url.decode("utf-8", "replace")),
            status=_number(status),
            e2e=whole,
            upstream=parts[1] * 1e3 if parts[1] >= 0 else _NAN,
            upstream_status=_number(theirs),
            # It answers by itself only where the target had not begun to.
            upstream_bytes=0.0 if parts[1] < 0 and theirs == b"-" else _NAN,
            bytes=float(sent),
            upstream_address="" if target == b"-" else target.decode("utf-8", "replace")[-60:],
        )
        if row.status == 460:
            row.flags = "DC"  # the client closed the connection before the idle timer ended
        self.context.accesses.add(row, Clock.NONE if end is None else end[1])
        return self.context.understood("aws load balancer log")
