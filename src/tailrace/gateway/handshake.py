"""The opening handshake of a WebSocket (RFC 6455 §4), as a relay sees it.

Key, subprotocols and extensions are the client's and the engine's business and cross us untouched; what is checked here
is that both speak of the same handshake.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final
from urllib.parse import parse_qs

from tailrace.gateway.head import Header, connection_tokens
from tailrace.gateway.refusal import Refusal
from tailrace.model.outcome import Reason

VERSION: Final = b"13"
UPGRADE_REQUIRED: Final = b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
"""Header lines of a 426: what would be accepted (RFC 6455 §4.4, RFC 9110 §15.5.22)."""
SWITCHING: Final = b"connection: Upgrade\r\nupgrade: websocket\r\n"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def offers_websocket(headers: list[Header]) -> bool:
    """Whether a request offers to become a WebSocket: `Upgrade` names it, `Connection` names `Upgrade`."""
    upgrade = connection = False
    for name, value in headers:
        key = name.lower()
        if key == b"upgrade":
            upgrade = upgrade or b"websocket" in connection_tokens(value)
        elif key == b"connection":
            connection = connection or b"upgrade" in connection_tokens(value)
    return upgrade and connection


def refuse_offer(headers: list[Header], named: dict[bytes, bytes]) -> Refusal | None:
    """Why an offer cannot be taken up: 426 for another version, 400 for a handshake that is none."""
    if named.get(b"content-length", b"0").strip(b"0") or b"transfer-encoding" in named:
        return _bad("a WebSocket handshake has no body")
    keys = [value.strip() for name, value in headers if name.lower() == b"sec-websocket-key"]
    versions = [value.strip() for name, value in headers if name.lower() == b"sec-websocket-version"]
    if versions != [VERSION]:
        if len(versions) > 1:
            return _bad("Sec-WebSocket-Version is given twice")
        asked = versions[0][:20].decode("latin-1") if versions else "none"
        return upgrade_required(f"WebSocket version 13 is spoken here, asked for was {asked}")
    if len(keys) != 1:
        return _bad("Sec-WebSocket-Key is given twice" if keys else "Sec-WebSocket-Key is missing")
    try:
        sound = len(base64.b64decode(keys[0], validate=True)) == 16
    except binascii.Error:
        sound = False
    return None if sound else _bad("Sec-WebSocket-Key is not 16 bytes in base64")


def upgrade_required(message: str) -> Refusal:
    """426: this path or version needs another handshake."""
    return Refusal(status=426, message=message, reason=Reason.BAD_REQUEST)


def _bad(message: str) -> Refusal:
    return Refusal(status=400, message=message, reason=Reason.BAD_REQUEST)


def with_offer(request: bytes) -> bytes:
    """A request's head without a body, with the offer: `Connection` and `Upgrade` never cross us by themselves."""
    return b"%b%b\r\n" % (request[:-2], SWITCHING)


def accept_of(key: bytes) -> bytes:
    """What a server that understood the handshake answers to a key (RFC 6455 §4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def wrong_answer(key: bytes, headers: list[Header]) -> str:
    """What is wrong with an engine's 101, or nothing."""
    accepts = [value.strip() for name, value in headers if name.lower() == b"sec-websocket-accept"]
    upgrades = [value for name, value in headers if name.lower() == b"upgrade"]
    if not any(b"websocket" in connection_tokens(value) for value in upgrades):
        return "the engine switched to another protocol"
    if accepts != [accept_of(key)]:
        return (
            "the engine's Sec-WebSocket-Accept does not answer the key"
            if accepts
            else "Sec-WebSocket-Accept is missing"
        )
    return ""


def all_values(headers: list[Header], wanted: bytes) -> bytes:
    """A list-valued header that may be spread over several lines, as one."""
    return b", ".join(value for name, value in headers if name.lower() == wanted)


def model_of(target: bytes) -> str:
    """The `model` of a target's query, where realtime APIs name it; empty where there is none."""
    query = target.partition(b"?")[2]
    try:
        found = parse_qs(query.decode("ascii"), max_num_fields=100).get("model")
    except ValueError:  # no ASCII, or too many fields
        return ""
    return found[0] if found else ""
