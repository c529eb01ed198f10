"""WebSocket frames (RFC 6455) watched on their way: bytes in, the bytes that may go on out. No socket, no clock.

Nothing is re-framed: what goes on is what came, and what is held back is never more than an incomplete frame header or
one incomplete control frame (at most 138 bytes). So a fault is known before the first byte of its frame has left, and
whoever relays can put a Close frame of its own behind what has left: the other side is between two frames then.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
NO_CODE: Final = 1005
"""Never on the wire: a Close frame without a code."""
BAD_TEXT: Final = 1007
TOO_BIG: Final = 1009
SERVER_ERROR: Final = 1011
SERVICE_RESTART: Final = 1012

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_DATA: Final = frozenset({_CONTINUATION, _TEXT, _BINARY})
_CONTROL: Final = frozenset({_CLOSE, _PING, _PONG})
_RSV: Final = 0x70
_RSV1: Final = 0x40
_LONGEST_CONTROL: Final = 125
_LONGEST_REASON: Final = _LONGEST_CONTROL - 2
_NEVER_SENT: Final = frozenset({1004, 1005, 1006, 1015})
"""Codes that RFC 6455 §7.4.1 keeps off the wire."""


class Close(NamedTuple):
    """What a Close frame said."""

    code: int
    """`NO_CODE` where it named none."""
    reason: str


class MessageObserver(Protocol):
    """Who listens to one direction of a session."""

    def text(self, message: bytes, now: int, *, compressed: bool) -> None:
        """One whole text message, unmasked; `now` is the read in which it ended (ns).

        `compressed`: permessage-deflate is on for it, and `message` is as it was on the wire.
        """


def close_frame(code: int, reason: str = "", *, mask: bytes = b"") -> bytes:
    """A Close frame. `NO_CODE` makes it empty; a long reason is cut to 123 bytes. `mask`: four bytes, from a client."""
    payload = b""
    if code != NO_CODE:
        said = reason.encode("utf-8", "replace")[:_LONGEST_REASON].decode("utf-8", "ignore")
        payload = code.to_bytes(2, "big") + said.encode("utf-8")
    if mask:
        return bytes((0x80 | _CLOSE, 0x80 | len(payload))) + mask + unmask(payload, mask)
    return bytes((0x80 | _CLOSE, len(payload))) + payload


def unmask(data: bytes, mask: bytes, offset: int = 0) -> bytes:
    """XOR with the four mask bytes; `offset` is where `data` lies in its payload. Masking is the same operation."""
    size = len(data)
    turn = offset & 3
    key = (mask[turn:] + mask[:turn]) * (size // 4 + 1)
    return (int.from_bytes(data, "big") ^ int.from_bytes(key[:size], "big")).to_bytes(size, "big")


def reserved_bits(extensions: bytes) -> int:
    """Which reserved bits the negotiated `Sec-WebSocket-Extensions` give a meaning to.

    permessage-deflate takes the first (RFC 7692 §6); an extension that we do not know may take any.
    """
    names = {member.partition(b";")[0].strip().lower() for member in extensions.split(b",")} - {b""}
    if not names:
        return 0
    return _RSV1 if names == {b"permessage-deflate"} else _RSV


class FrameWatcher:
    """One direction of a session. `feed` returns what may go on; it never raises, whatever the bytes are.

    `masked`: frames of this direction must be masked (client to server), or must not be. `reserved`: reserved bits that
    an extension gives a meaning to. `message_bytes` bounds a message, as large as it is on the wire; `observed_bytes`
    the text messages that `observer` gets to see.
    """

    __slots__ = (
        "_compressed",
        "_fragmented",
        "_frame_size",
        "_held",
        "_last",
        "_left",
        "_listening",
        "_mask",
        "_masked",
        "_message_bytes",
        "_observed_bytes",
        "_observer",
        "_parts",
        "_reserved",
        "_size",
        "bytes_seen",
        "close",
        "control_frames",
        "fault",
        "halted",
        "last_data_ns",
        "messages",
        "unobserved",
    )

    def __init__(
        self,
        *,
        masked: bool,
        message_bytes: int,
        reserved: int = 0,
        observer: MessageObserver | None = None,
        observed_bytes: int = 1 << 20,
    ) -> None:
        self._masked = masked
        self._message_bytes = message_bytes
        self._reserved = reserved
        self._observer = observer
        self._observed_bytes = observed_bytes
        self._held = b""
        self._left = 0
        """Payload of the data frame at hand that has not come yet."""
        self._frame_size = 0
        self._last = True
        self._fragmented = False
        """A message has begun and its last frame has not."""
        self._size = 0
        self._mask = b""
        self._compressed = False
        self._listening = False
        self._parts: list[bytes] = []
        self.close: Close | None = None
        """The Close frame of this side, once it has gone on. Nothing goes on behind it."""
        self.fault: Close | None = None
        """What this side did wrong, as the code and reason to close with."""
        self.halted = False
        self.messages = 0
        self.bytes_seen = 0
        """Payload of data frames."""
        self.control_frames = 0
        self.unobserved = 0
        """Text messages that were too large for the observer."""
        self.last_data_ns: int | None = None
        """The last read in which a data frame, or a piece of one, went on. Pings are no data."""

    @property
    def at_boundary(self) -> bool:
        """Whether what has gone on ends with a whole frame."""
        return self._left == 0

    def halt(self) -> None:
        """Let the frame at hand go on to its end, and no other."""
        self.halted = True

    def feed(self, data: bytes, now: int) -> bytes:
        """Bytes as they were read; returns the bytes that may go on, in order."""
        if self.fault is not None or self.close is not None:
            return b""
        if self._left > len(data):  # the middle of a large frame: it holds nothing back
            self._payload(data, now)
            return data
        whole = self._held + data if self._held else data
        at = 0
        while True:
            if self._left:
                piece = whole[at : at + self._left]
                self._payload(piece, now)
                at += len(piece)
                if self._left:
                    break
                self._frame_done(now)
            if self.halted or self.fault is not None or self.close is not None:
                break
            step = self._frame(whole, at, now)
            if not step:
                break
            at += step
        over = self.halted or self.fault is not None or self.close is not None
        self._held = b"" if over else whole[at:]
        return whole if at == len(whole) else whole[:at]

    def _frame(self, data: bytes, at: int, now: int) -> int:
        """Read the frame that begins at `at`. Returns the bytes of its header, of all of it where it is a control
        frame, or 0: more bytes are needed, or it must not go on.
        """
        there = len(data) - at
        first, second = (data[at], data[at + 1]) if there >= 2 else (0, 0)
        size = second & 0x7F
        head = 2 + (8 if size == 127 else 2 if size == 126 else 0) + (4 if second & 0x80 else 0)
        if there < head:
            return 0
        if size > _LONGEST_CONTROL:
            size = int.from_bytes(data[at + 2 : at + (4 if size == 126 else 10)], "big")
        opcode = first & 0x0F
        wrong = self._wrong(first, opcode, size, masked=bool(second & 0x80))
        if wrong:
            self.fault = Close(PROTOCOL_ERROR, wrong)
            return 0
        mask = data[at + head - 4 : at + head] if second & 0x80 else b""
        if opcode in _CONTROL:
            if there < head + size:
                return 0
            payload = data[at + head : at + head + size]
            return self._control(opcode, unmask(payload, mask) if mask else payload, head + size)
        if self._size + size > self._message_bytes:
            self.fault = Close(TOO_BIG, f"a message is larger than {self._message_bytes} bytes")
            return 0
        self._begin(first, opcode, size, mask, now)
        return head

    def _wrong(self, first: int, opcode: int, size: int, *, masked: bool) -> str:
        """What is wrong with a frame by its header, or nothing."""
        if masked is not self._masked:
            return "a frame is not masked" if self._masked else "a frame of the server is masked"
        allowed = self._reserved
        if allowed == _RSV1 and opcode not in (_TEXT, _BINARY):
            allowed = 0  # RFC 7692 §6: only a message's first frame says that it is compressed
        if first & _RSV & ~allowed:
            return "a reserved bit is set"
        if opcode in _CONTROL:
            return _wrong_control(size, last=bool(first & 0x80))
        if opcode not in _DATA:
            return f"opcode {opcode} is reserved"
        if (opcode == _CONTINUATION) is not self._fragmented:
            return "a message begins inside another" if self._fragmented else "a continuation continues nothing"
        return "a frame's length has its highest bit set" if size >> 63 else ""

    def _control(self, opcode: int, payload: bytes, length: int) -> int:
        if opcode == _CLOSE:
            said, sound = _read_close(payload)
            if not sound:
                self.fault = said
                return 0
            self.close = said
        self.control_frames += 1
        return length

    def _begin(self, first: int, opcode: int, size: int, mask: bytes, now: int) -> None:
        if opcode != _CONTINUATION:
            self._compressed = bool(first & _RSV1)
            self._listening = self._observer is not None and opcode == _TEXT
        self._last = bool(first & 0x80)
        self._fragmented = not self._last
        self._mask = mask
        self._frame_size = self._left = size
        self._size += size
        self.bytes_seen += size
        self.last_data_ns = now
        if self._listening and self._size > self._observed_bytes:
            self._listening = False
            self._parts.clear()
            self.unobserved += 1
        if not size:
            self._frame_done(now)

    def _payload(self, piece: bytes, now: int) -> None:
        if self._listening:
            offset = self._frame_size - self._left
            self._parts.append(unmask(piece, self._mask, offset) if self._mask else piece)
        self._left -= len(piece)
        self.last_data_ns = now

    def _frame_done(self, now: int) -> None:
        if not self._last:
            return
        self.messages += 1
        self._size = 0
        if self._listening and self._observer is not None:
            message, self._parts = b"".join(self._parts), []
            self._observer.text(message, now, compressed=self._compressed)


def _wrong_control(size: int, *, last: bool) -> str:
    if size > _LONGEST_CONTROL:
        return "a control frame is longer than 125 bytes"
    return "" if last else "a control frame is fragmented"


def _read_close(payload: bytes) -> tuple[Close, bool]:
    """What a Close frame says, and true; or what to answer to one that must not be sent, and false."""
    if not payload:
        return Close(NO_CODE, ""), True
    if len(payload) == 1:
        return Close(PROTOCOL_ERROR, "a Close frame has half a code"), False
    code = int.from_bytes(payload[:2], "big")
    if not 1000 <= code < 5000 or code in _NEVER_SENT:
        return Close(PROTOCOL_ERROR, f"close code {code} must not be sent"), False
    try:
        return Close(code, payload[2:].decode("utf-8")), True
    except UnicodeDecodeError:
        return Close(BAD_TEXT, "the reason of a Close frame is no UTF-8"), False
