"""Conversations: recorded chats whose users' messages are asked again, turn by turn.

Two shapes, one conversation a line or all in one JSON array: ShareGPT's (`{"conversations": [{"from": "human",
"value": ...}, ...]}`) and that of chat requests (`{"messages": [{"role": "user", "content": ...}, ...]}`). The
recorded answers are not sent: the history grows with what the measured server says. They only tell how long an answer
was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

_USERS: Final = frozenset({"user", "human"})
_SYSTEM: Final = "system"
_REMEDY: Final = (
    'Give JSON lines like {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
)


class Asked(NamedTuple):
    """One user's message, and how many characters the recorded answer to it had (0: none was recorded)."""

    text: str
    answer_chars: int


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded conversation, from its first user's message on."""

    turns: list[Asked]
    system: str = ""


def read_conversations(lines: Iterable[str], *, place: str = "conversations") -> list[Conversation]:
    """All conversations that have at least one user's message. InputError, with the line, for what is none."""
    source = iter(lines)
    first = ""
    skipped = 0
    for line in source:
        skipped += 1
        if line.strip():
            first = line
            break
    if not first:
        raise InputError("the file is empty", place=place, remedy=_REMEDY)
    entries = (
        _array(chain([first], source), place)
        if first.lstrip().startswith("[")
        else _lines(chain([first], source), place, skipped)
    )
    out = [one for where, entry in entries if (one := _read(entry, where)) is not None]
    if not out:
        raise InputError("no conversation has a user's message", place=place, remedy=_REMEDY)
    return out


def _array(lines: Iterable[str], place: str) -> Iterator[tuple[str, Any]]:
    try:
        whole = msgspec.json.decode("".join(lines))
    except UNREADABLE as error:
        raise InputError(str(error), place=place, remedy=_REMEDY) from None
    for number, entry in enumerate(whole):
        yield f"{place}[{number}]", entry


def _lines(lines: Iterable[str], place: str, first: int) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        where = f"{place}:{number}"
        try:
            yield where, msgspec.json.decode(line)
        except UNREADABLE as error:
            raise InputError(str(error), place=where, remedy=_REMEDY) from None


def _read(entry: Any, place: str) -> Conversation | None:
    messages = None
    if isinstance(entry, dict):
        messages = entry.get("messages", entry.get("conversations", entry.get("conversation")))
    if not isinstance(messages, list):
        raise InputError("this is no conversation", place=place, remedy=_REMEDY)
    turns: list[Asked] = []
    system = ""
    for message in messages:
        if not isinstance(message, dict):
            raise InputError("a message is no JSON object", place=place, remedy=_REMEDY)
        who = str(message.get("role", message.get("from", ""))).lower()
        text = _text(message.get("content", message.get("value")))
        if who == _SYSTEM and not turns:
            system = text
        elif who in _USERS:
            if text:
                turns.append(Asked(text, 0))
        elif turns and not turns[-1].answer_chars:
            turns[-1] = turns[-1]._replace(answer_chars=len(text))
    return Conversation(turns=turns, system=system) if turns else None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""
