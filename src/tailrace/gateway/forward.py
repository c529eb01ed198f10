"""The request as the engine gets it, and the head of the answer as the client gets it."""

from __future__ import annotations

from typing import Final

from tailrace.gateway.date import date_line
from tailrace.gateway.head import Header, end_to_end, render_head, status_line
from tailrace.measure.ledger import RequestLedger

_REPLACED: Final = frozenset({b"host", b"content-length", b"expect", b"x-request-id", b"traceparent"})
_READ_REPLACED: Final = _REPLACED | {b"accept-encoding"}
"""An answer that is read must come uncompressed; engines do not compress, a proxy in front of one may."""
_ANSWER_REPLACED: Final = frozenset(
    {b"content-length", b"x-request-id", b"x-client-request-id", b"x-tailrace-lane", b"alt-svc"}
)


def forward_request(
    method: bytes,
    target: bytes,
    headers: list[Header],
    body: bytes,
    *,
    authority: bytes,
    request_id: bytes,
    traceparent: bytes,
    read: bool,
    api_key: str | None,
    framing: bytes | None = None,
) -> bytes:
    """Head and body in one piece: one write, one segment for a short prompt.

    `framing`: the header line that says where the body ends, when it follows by itself.
    """
    drop = _READ_REPLACED if read else _REPLACED
    extra = [
        # RFC 9110 §7.6.3: a gateway names itself to the engine. Ours comes behind those of the proxies before us.
        b"x-request-id: %b\r\ntraceparent: %b\r\nvia: 1.1 tailrace\r\n" % (request_id, traceparent),
    ]
    if api_key is not None:
        drop = drop | {b"authorization"}
        extra.append(b"authorization: Bearer %b\r\n" % api_key.encode("utf-8"))
    if framing is not None:
        extra.append(framing)
    elif body or method not in (b"GET", b"HEAD", b"DELETE", b"OPTIONS"):
        extra.append(b"content-length: %d\r\n" % len(body))
    kept = end_to_end(headers, drop)
    head = render_head(b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, authority), kept, extra)
    return head + body


def answer_headers(ledger: RequestLedger, lane: str, now: int) -> list[bytes]:
    """The header lines that the gateway adds to an answer: ids, lane, and the stages that are over by then."""
    parts = [f"ingress;dur={((ledger.parsed or now) - ledger.received) / 1e6:.3f}"]
    if ledger.admitted is not None and ledger.parsed is not None:
        parts.append(f"queue.gateway;dur={(ledger.admitted - ledger.parsed) / 1e6:.3f}")
    if ledger.sent is not None and ledger.headers is not None:
        parts.append(f"upstream;dur={(ledger.headers - ledger.sent) / 1e6:.3f}")
    lines = [
        f"x-request-id: {ledger.request_id}",
        f"x-tailrace-lane: {lane}",
        f"server-timing: {', '.join(parts)}",
    ]
    if ledger.client_request_id:
        lines.append(f"x-client-request-id: {ledger.client_request_id}")
    return [("\r\n".join(lines) + "\r\n").encode("latin-1", "replace")]


class AnswerHead:
    """The engine's head, ready to be written once its framing is known."""

    __slots__ = ("content_length", "dated", "headers", "status")

    def __init__(self, status: int, headers: list[Header]) -> None:
        self.status = status
        self.content_length: bytes | None = None
        self.dated = False
        for name, value in headers:
            size = len(name)
            if size == 14 and name.lower() == b"content-length":
                self.content_length = value
            elif size == 4 and name.lower() == b"date":
                self.dated = True
        self.headers = end_to_end(headers, _ANSWER_REPLACED)

    def value(self, wanted: bytes) -> bytes:
        """The first value of a header by its lower-case name, empty where there is none."""
        for name, value in self.headers:
            if name.lower() == wanted:
                return value
        return b""

    def render(self, ours: list[bytes], *, framing: bytes, keep_alive: bool) -> bytes:
        """`ours`: ready-made header lines; `framing`: the line that says where the body ends, or empty."""
        extra = [*ours, framing]
        if not self.dated:
            extra.append(date_line())
        if not keep_alive:
            extra.append(b"connection: close\r\n")
        return render_head(status_line(self.status), self.headers, extra)


def own_head(status: int, length: int, ours: list[bytes], *, keep_alive: bool, retry_after_s: int | None) -> bytes:
    """The head of an answer that the gateway gives itself; its body is JSON."""
    extra = [b"content-type: application/json\r\ncontent-length: %d\r\n" % length, date_line(), *ours]
    if retry_after_s is not None:
        extra.append(b"retry-after: %d\r\n" % retry_after_s)
    if not keep_alive:
        extra.append(b"connection: close\r\n")
    return render_head(status_line(status), [], extra)
