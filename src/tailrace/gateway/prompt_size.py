"""How large a request's prompt is, read from its body as typed fields; nothing of it is copied."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.govern.text_size import TextSize, measure
from tailrace.measure.dialect import UNREADABLE

ABSENT: Final = msgspec.Raw()


class Part(msgspec.Struct):
    """A part of a message's content, of whichever API."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    content: msgspec.Raw = ABSENT
    """Anthropic's result of a tool: a text, or parts again."""
    input: msgspec.Raw = ABSENT
    """Anthropic's call of a tool: its arguments."""


class Message(msgspec.Struct):
    """A message of a chat."""

    content: str | list[Part] | None = None
    tool_calls: msgspec.Raw = ABSENT


class _Item(msgspec.Struct):
    """An item of `/v1/responses`: a message, a call of a function, or its output."""

    content: str | list[Part] | None = None
    text: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Tally:
    """Adds up what a prompt is made of."""

    __slots__ = ("ids", "messages", "narrow", "unseen", "wide")

    def __init__(self) -> None:
        self.narrow = self.wide = self.messages = self.ids = self.unseen = 0

    def size(self) -> TextSize:
        """What was added."""
        return TextSize(self.narrow, self.wide, self.messages, self.ids, self.unseen)

    def text(self, text: str | None) -> None:
        """A text of the prompt."""
        if text:
            if text.isascii():
                self.narrow += len(text)
            else:
                narrow, wide = measure(text)
                self.narrow += narrow
                self.wide += wide

    def raw(self, raw: msgspec.Raw) -> None:
        """JSON that the chat template renders as it is, or nearly so."""
        if raw is not ABSENT:
            data = bytes(raw)
            if data not in (b"null", b"[]", b"{}"):
                self.narrow += len(data)

    def content(self, content: str | list[Part] | None) -> None:
        """What a message says."""
        if content is None:
            return
        if isinstance(content, str):
            self.text(content)
            return
        for part in content:
            if part.text is not None or part.thinking is not None:
                self.text(part.text)
                self.text(part.thinking)
            elif part.content is not ABSENT or part.input is not ABSENT:
                self._result(part.content)
                self.raw(part.input)
            elif part.type is not None and part.type not in _NOT_SEEN_EITHER:
                self.unseen += 1

    def _result(self, raw: msgspec.Raw) -> None:
        if raw is not ABSENT:
            try:
                self.content(_content.decode(raw))
            except UNREADABLE:
                self.raw(raw)

    def message(self, message: Message) -> None:
        """One message of a chat."""
        self.messages += 1
        self.content(message.content)
        self.raw(message.tool_calls)

    def members(self, source: str | list[Any] | None) -> None:
        """A prompt, or several: texts, token ids, lists of token ids."""
        if source is None or isinstance(source, str):
            self.text(source)
            return
        for member in source:
            if isinstance(member, str):
                self.text(member)
            elif isinstance(member, int):
                self.ids += 1
            elif isinstance(member, list):
                self.ids += len(member)
            else:
                self._item(member)

    def _item(self, raw: msgspec.Raw) -> None:
        data = bytes(raw)
        try:
            if data[:1] == b"{":
                item = _an_item.decode(data)
                self.messages += 1
                self.content(item.content)
                self.content(item.output)
                self.text(item.text)
                self.text(item.arguments)
                return
            member = msgspec.json.decode(data)
            if isinstance(member, (str, int, list)):
                self.members([member])
        except UNREADABLE:
            self.raw(raw)


_NOT_SEEN_EITHER: Final = frozenset({"refusal", "redacted_thinking", "item_reference", "reasoning"})
"""Parts without text that take no tokens that anybody could know of, or none at all."""
_content = msgspec.json.Decoder(str | list[Part] | None)
_an_item = msgspec.json.Decoder(_Item)
