"""The request as the engine gets it, and the head of the answer as the client gets it."""

from __future__ import annotations

from typing import Final

from tailrace.gateway.date import date_line
from tailrace.gateway.head import Header, end_to_end, render_head, status_line
from tailrace.measure.ledger import RequestLedger

KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
"""Where clients present keys: as OpenAI's do, as Anthropic's, as Azure's."""
_REPLACED: Final = frozenset({b"host", b"content-length", b"expect", b"x-request-id", b"traceparent"})
_BODILESS: Final = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS"})
_READ_REPLACED: Final = _REPLACED | {b"accept-encoding"}
"""An answer that is read must come uncompressed; engines do not compress, a proxy in front of one may."""


def onward_head(
    method: bytes,
    target: bytes,
    headers: list[Header],
    *,
    authority: bytes,
    read: bool,
    api_key: str | None,
    secret: bool = False,
    without: bytes | None = None,
) -> bytes:
    """The request's head as the engine gets it, up to the lines that are its own.

    `secret`: the client's key is one of ours, which is no engine's to know. `without`: a header that is not passed on.
    """
    drop = _READ_REPLACED if read else _REPLACED
    if secret:
        drop = drop | KEY_HEADERS
    if without is not None:
        drop = drop | {without}
    # RFC 9110 §7.6.3: a gateway names itself to the engine. Ours comes behind those of the proxies before us.
    extra = [b"via: 1.1 tailrace\r\n"]
    if api_key is not None:
        drop = drop | {b"authorization"}
        extra.append(b"authorization: Bearer %b\r\n" % api_key.encode("utf-8"))
    start = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, authority)
    return render_head(start, end_to_end(headers, drop), extra)[:-2]


def forward_request(onward: bytes, body: bytes, *, request_id: str, traceparent: bytes, framing: bytes) -> bytes:
    """Head and body in one piece: one write, one segment for a short prompt.

    `framing`: the header line that says where the body ends, or nothing where there is none. An empty `traceparent` is
    not sent.
    """
    return b"%bx-request-id: %b\r\n%b%b\r\n%b" % (
        onward,
        request_id.encode("latin-1"),
        b"traceparent: %b\r\n" % traceparent if traceparent else b"",
        framing,
        body,
    )


def length_line(method: bytes, body: bytes) -> bytes:
    """How a body that is all here is framed."""
    if body or method not in _BODILESS:
        return b"content-length: %d\r\n" % len(body)
    return b""


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
    if ledger.truncated_from is not None:
        count = f"{ledger.truncated_from}->{ledger.prompt_tokens}; source={ledger.prompt_tokens_source}"
        lines.append(f"x-tailrace-truncated: {count}")
    if ledger.capped_to is not None:
        asked = "unset" if ledger.max_tokens is None else ledger.max_tokens
        lines.append(f"x-tailrace-capped: {asked}->{ledger.capped_to}")
    if ledger.client_request_id:
        lines.append(f"x-client-request-id: {ledger.client_request_id}")
    return [("\r\n".join(lines) + "\r\n").encode("latin-1", "replace")]


def own_head(status: int, length: int, ours: list[bytes], *, keep_alive: bool, retry_after_s: int | None) -> bytes:
    """The head of an answer that the gateway gives itself; its body is JSON."""
    extra = [b"content-type: application/json\r\ncontent-length: %d\r\n" % length, date_line(), *ours]
    if retry_after_s is not None:
        extra.append(b"retry-after: %d\r\n" % retry_after_s)
    if not keep_alive:
        extra.append(b"connection: close\r\n")
    return render_head(status_line(status), [], extra)
