"""Model aliases: clients ask for a public name, the engine is asked for its own.

The name is spliced into the body as it came: a long prompt is neither decoded nor written anew, and no spelling of it
changes. The answer is relayed as it is, and names the engine's model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from tailrace.measure.ledger import RequestLedger

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
"""Strings as a whole, so that no bracket inside one counts; and what nests."""
_COLON: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


class Aliases:
    """Public name -> the engine's name. An alias of an alias is none: one name, one step."""

    __slots__ = ("_names",)

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)

    def applied(self, body: bytes, ledger: RequestLedger) -> bytes:
        """`body` as the engine gets it. The ledger, which has the client's name, keeps both."""
        name = self._names.get(ledger.model)
        if name is None:
            return body
        ledger.requested_model, ledger.model = ledger.model, name
        return with_model(body, name)


def with_model(body: bytes, name: str) -> bytes:
    """`body`, a JSON object, with `name` as the value of its top-level `model`; every other byte stays.

    Where the key is there twice all of them are replaced: readers differ on which one counts.
    """
    value = msgspec.json.encode(name)
    out: list[bytes] = []
    done = depth = 0
    wanted = -1
    for token in _TOKEN.finditer(body):
        start, end = token.span()
        first = body[start]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif start == wanted:
            out += (body[done:start], value)
            done = end
        elif depth == 1 and (colon := _COLON.match(body, end)) and msgspec.json.decode(token[0]) == "model":
            wanted = colon.end()
    out.append(body[done:])
    return b"".join(out)
