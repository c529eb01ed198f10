"""A request while its body comes: kept whole, or handed on, or refused before it has all come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.gateway.answer import Answer
from tailrace.gateway.head import HeadError
from tailrace.gateway.refusal import Refusal
from tailrace.model.outcome import Reason

if TYPE_CHECKING:
    from tailrace.gateway.gateway import Gateway
    from tailrace.gateway.upload import Upload

SMALL_UPLOAD: Final = 64 * 1024
"""A refused request's body up to this size is read to its end, which keeps the connection; a larger one costs it."""


class Gathering:
    """What the client's connection drives until the request is whole."""

    gateway: Gateway
    answer: Answer
    _parts: list[bytes]
    _size = 0
    expects_continue = False
    uploaded = False
    refusal: Refusal | None = None
    upload: Upload | None = None
    """The body, where it goes upstream as it comes."""

    @property
    def keep_alive(self) -> bool:
        """Whether the client's connection outlives this request."""
        return self.answer.keep_alive

    @keep_alive.setter
    def keep_alive(self, value: bool) -> None:
        self.answer.keep_alive = value

    def refused_early(self) -> bool:
        """Refused before its body was read to the end."""
        return self.refusal is not None and not self.keep_alive

    def refuse_head(self, refusal: Refusal, *, close: bool) -> None:
        """The head alone decides: nothing of the body matters. `close`: the body is not worth waiting for."""
        self.refusal = refusal
        self._parts.clear()
        if close:
            self.keep_alive = False

    def spoil(self, error: HeadError) -> None:
        """The body stopped being HTTP."""
        self.refuse_head(Refusal(status=error.status, message=str(error), reason=Reason.BAD_REQUEST), close=True)

    def add_body(self, data: bytes) -> None:
        """A piece of the request's body."""
        if self.upload is not None:
            self.upload.add(data)
            return
        self._size += len(data)
        if self.refusal is None:
            if self._size > self.gateway.max_body_bytes:
                limit = self.gateway.max_body_bytes
                self.refuse_head(
                    Refusal(status=413, message=f"the body is larger than {limit} bytes", reason=Reason.BAD_REQUEST),
                    close=True,
                )
            else:
                self._parts.append(data)
        elif self._size > SMALL_UPLOAD:
            self.keep_alive = False

    def gathered(self, parts: list[bytes], size: int) -> None:
        """The body was to go upstream as it comes, and was here at once."""
        self.upload = None
        self._parts, self._size = parts, size

    def upload_complete(self) -> None:
        """The request is whole."""
        self.uploaded = True

    def _whole(self) -> bytes:
        """The body, in one piece; it is here no longer."""
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return body
