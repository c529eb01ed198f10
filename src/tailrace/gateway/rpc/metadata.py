"""Metadata: what crosses the gateway in either direction, and what it adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.gateway.refusal import Refusal
from tailrace.measure.ledger import RequestLedger

Pair = tuple[str, str | bytes]

_HOP: Final = frozenset({"user-agent", "host", "te", "content-type", "x-request-id", "traceparent"})
"""Of one connection, or replaced by our own."""
_OURS: Final = frozenset({"x-request-id", "x-client-request-id", "x-tailrace-lane"})


def named_of(metadata: Iterable[Pair]) -> dict[bytes, bytes]:
    """Name -> first value, as the HTTP side keeps its headers."""
    out: dict[bytes, bytes] = {}
    for key, value in metadata:
        out.setdefault(key.encode("latin-1"), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
    return out


def onward(
    metadata: Iterable[Pair], *, request_id: str, traceparent: bytes, api_key: str | None
) -> tuple[tuple[str, str | bytes], ...]:
    """The client's metadata as the engine gets them: our id and span in the place of the client's."""
    kept: list[Pair] = [
        (key, value)
        for key, value in metadata
        if key not in _HOP and not key.startswith(("grpc-", ":")) and (api_key is None or key != "authorization")
    ]
    kept.append(("x-request-id", request_id))
    if traceparent:
        kept.append(("traceparent", traceparent.decode("ascii")))
    if api_key is not None:
        kept.append(("authorization", f"Bearer {api_key}"))
    return tuple(kept)


def back(metadata: Iterable[Pair] | None, ours: Iterable[Pair]) -> tuple[Pair, ...]:
    """The engine's metadata as the client gets them, with ours."""
    kept = [
        (key, value)
        for key, value in metadata or ()
        if key not in _OURS and (not key.startswith("grpc-") or key == "grpc-status-details-bin")
    ]
    return (*kept, *ours)


def own(ledger: RequestLedger, lane: str, now: int) -> list[Pair]:
    """What the gateway says of a request at its end: ids, lane, and the stages that are over by then."""
    parts = [f"ingress;dur={((ledger.parsed or now) - ledger.received) / 1e6:.3f}"]
    if ledger.admitted is not None and ledger.parsed is not None:
        parts.append(f"queue.gateway;dur={(ledger.admitted - ledger.parsed) / 1e6:.3f}")
    if ledger.sent is not None and ledger.upstream_end is not None:
        parts.append(f"upstream;dur={(ledger.upstream_end - ledger.sent) / 1e6:.3f}")
    out: list[Pair] = [
        ("x-request-id", ledger.request_id),
        ("x-tailrace-lane", plain(lane)),
        ("server-timing", ", ".join(parts)),
    ]
    if ledger.client_request_id:
        out.append(("x-client-request-id", plain(ledger.client_request_id)))
    return out


def plain(text: str) -> str:
    """`text` as metadata may carry it: anything but printable ASCII makes gRPC refuse the whole answer."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def of_refusal(refusal: Refusal, code: int) -> list[Pair]:
    """Why, and when to come back: readable, and as gRPC's own retry machinery reads it.

    `grpc-retry-pushback-ms` is obeyed by clients with a retry policy; `google.rpc.RetryInfo` in the status details is
    what client libraries look for.
    """
    out: list[Pair] = [("x-tailrace-reason", refusal.reason)]
    if refusal.stage:
        out.append(("x-tailrace-stage", refusal.stage))
    if refusal.position is not None:
        out.append(("x-tailrace-position", str(refusal.position)))
    seconds = refusal.retry_after_s
    if seconds is not None:
        out.append(("retry-after", str(seconds)))
        out.append(("grpc-retry-pushback-ms", str(seconds * 1000)))
        out.append(("grpc-status-details-bin", _status_details(code, refusal.message, seconds)))
    return out


def _status_details(code: int, message: str, seconds: int) -> bytes:
    """A `google.rpc.Status` with one `RetryInfo` in its details."""
    duration = _field(1, _varint(seconds))
    info = _sized(1, b"type.googleapis.com/google.rpc.RetryInfo") + _sized(2, _sized(1, duration))
    return _field(1, _varint(code)) + _sized(2, message.encode()) + _sized(3, info)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3]) + value


def _sized(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def lookup(metadata: Mapping[bytes, bytes], name: bytes, longest: int) -> str:
    """A value as text, cut to `longest` characters; empty where it is absent."""
    return metadata.get(name, b"")[:longest].decode("latin-1")
