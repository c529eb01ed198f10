"""A request's body as it comes, unpacked to a bound: a small post must not become a large one in memory."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final

ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})
_PIECE: Final = 64 * 1024
"""What is unpacked in one turn of the loop: some 0.2 ms."""
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class UnpackError(ValueError):
    """The body is not what its `Content-Encoding` says."""


class TooLargeError(ValueError):
    """It is larger than the bound, unpacked."""


async def unpacked(parts: AsyncIterator[bytes], encoding: str, most: int, announced: int = 0) -> bytes:
    """The whole body. `encoding` is one of `ENCODINGS`. Raises `UnpackError` or `TooLargeError`.

    `announced`: its length as its head says, by which one that is too large is refused unread.
    """
    if announced > most:
        raise TooLargeError
    if encoding not in ("", "identity"):
        parts = _inflated(parts)
    out: list[bytes] = []
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise TooLargeError
        out.append(part)
    return b"".join(out)


async def _inflated(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
    async for part in parts:
        packed = part
        while packed and not inflate.eof:
            try:
                piece = inflate.decompress(packed, _PIECE)
            except zlib.error as error:
                raise UnpackError(str(error)) from None
            packed = inflate.unconsumed_tail
            if piece:
                yield piece
                await asyncio.sleep(0)
        if inflate.unused_data or (inflate.eof and packed):
            raise UnpackError("something follows the end of the packed body")
    if not inflate.eof:
        raise UnpackError("the packed body has no end")
