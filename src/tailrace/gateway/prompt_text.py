"""The text of a prompt where an API keeps it, and the body again with some of it cut or left out.

Only the field that holds the prompt is decoded; every other field keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tailrace.govern.truncation import Kept, Turn
from tailrace.measure.dialect import UNREADABLE

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"
COMPLETIONS: Final = "/v1/completions"
CHATS: Final = frozenset({CHAT, MESSAGES, RESPONSES})
"""Where a prompt is a conversation, whose older part can be missed."""
_ONE_TEXT: Final[dict[str, tuple[str, ...]]] = {
    COMPLETIONS: ("prompt",),
    "/generate": ("text", "inputs"),
    "/generate_stream": ("inputs",),
    "/v2/models/{model}/generate": ("text_input",),
    "/v2/models/{model}/generate_stream": ("text_input",),
}
CAN_CUT: Final = CHATS | _ONE_TEXT.keys()
"""Endpoints whose prompts can be shortened. Not embeddings: a shortened text has another meaning, and nobody would see;
not tensors, audio, or whatever is only relayed."""
_SYSTEM: Final = frozenset({"system", "developer"})


class _Place:
    """Where a text stands in the decoded body: one field, or several parts in a row that are read as one text."""

    __slots__ = ("_among", "_holder", "_key", "_others", "text")

    def __init__(
        self,
        holder: dict[str, Any],
        key: str,
        others: list[dict[str, Any]] | None = None,
        among: list[Any] | None = None,
    ) -> None:
        """`others`: the parts behind the first one, in the list `among`."""
        self._holder, self._key = holder, key
        self._others, self._among = others or [], among
        self.text: str = "\n\n".join([holder[key], *(part["text"] for part in self._others)])

    def put(self, text: str) -> None:
        """Write it back. What was not changed keeps its parts; what was becomes one part."""
        if text == self.text:
            return
        self._holder[self._key] = text
        if self._others and self._among is not None:
            gone = {id(part) for part in self._others}
            self._among[:] = [part for part in self._among if id(part) not in gone]


class Prompt:
    """A request's prompt as turns, and how to write it back."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self._whole = whole
        self.turns: list[Turn] = []
        self.fixed: list[str] = []
        """Texts that are counted and never cut: the descriptions of tools."""
        self._places: list[list[_Place]] = []
        self._members: list[list[int]] = []
        self._list: tuple[str, list[Any]] | None = None
        """The field that holds the messages, and these."""
        self._fields: dict[str, Any] = {}
        """Decoded fields that go back into the body when something was cut."""
        self.messages = 0
        self.insists = bytes(whole.get("truncation", b"")) == b'"disabled"'
        """`/v1/responses`: the client itself says that it would rather be refused."""
        tools = whole.get("tools")
        if tools is not None and bytes(tools) not in (b"null", b"[]"):
            self.fixed.append(bytes(tools).decode("utf-8", "replace"))

    def texts(self) -> list[str]:
        """Everything that is counted."""
        return [*self.fixed, *(text for turn in self.turns for text in (*turn.texts, *turn.hidden))]

    def rewritten(self, kept: Kept) -> bytes:
        """The body with each turn's texts as `kept` has them, without the turns that are `None` there."""
        gone: set[int] = set()
        for texts, places, members in zip(kept, self._places, self._members, strict=True):
            if texts is None:
                gone.update(members)
                continue
            for text, place in zip(texts, places, strict=True):
                place.put(text)
        out = {**self._whole, **self._fields}
        if self._list is not None:
            name, messages = self._list
            out[name] = [message for i, message in enumerate(messages) if i not in gone]
        return msgspec.json.encode(out)

    # -- building

    def one_text(self, name: str, *, in_list: bool = False) -> bool:
        """The field `name` is the whole prompt; false where it holds something else."""
        value = msgspec.json.decode(self._whole[name])
        if in_list and isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str):
            return False
        self._fields[name] = value
        self._add(Turn([value], messages=0, asks=value), [_Place(self._fields, name)], [])
        return True

    def system(self, name: str) -> None:
        """The field `name` is the system text, where it is there."""
        if name not in self._whole:
            return
        value = msgspec.json.decode(self._whole[name])
        self._fields[name] = value
        turn = Turn([], messages=0, system=True)
        places: list[_Place] = []
        _content(self._fields, name, turn, places)
        self._add(turn, places, [])

    def conversation(self, name: str, read: Callable[[Any, Turn, list[_Place]], bool]) -> bool:
        """The field `name` is a list of messages; false where it holds something else.

        `read` adds a message's texts to a turn, and says whether it begins a turn of its own.
        """
        messages = msgspec.json.decode(self._whole[name])
        if not isinstance(messages, list) or not messages:
            return False
        self._list = (name, messages)
        current = -1
        for i, message in enumerate(messages):
            if not isinstance(message, dict):
                return False
            role = message.get("role")
            turn = Turn([], system=isinstance(role, str) and role in _SYSTEM)
            places: list[_Place] = []
            begins = read(message, turn, places)
            if role == "user":
                turn.asks = "\n".join(turn.texts)
            self.messages += 1
            if turn.system or begins or current < 0:
                self._add(turn, places, [i])
                current = current if turn.system else len(self.turns) - 1
            else:
                into = self.turns[current]
                into.texts += turn.texts
                into.hidden = [*into.hidden, *turn.hidden]
                into.messages += 1
                into.asks = into.asks or turn.asks
                self._places[current] += places
                self._members[current].append(i)
        return True

    def _add(self, turn: Turn, places: list[_Place], members: list[int]) -> None:
        self.turns.append(turn)
        self._places.append(places)
        self._members.append(members)


def open_prompt(endpoint: str, body: bytes) -> Prompt | None:
    """The prompt of a body; `None` where it has none that could be cut: token ids, several prompts, a foreign shape."""
    try:
        prompt = Prompt(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
        found = _open(endpoint, prompt, body)
    except (*UNREADABLE, KeyError):
        return None
    return prompt if found and prompt.turns else None


def _open(endpoint: str, prompt: Prompt, body: bytes) -> bool:
    if endpoint == CHAT:
        return prompt.conversation("messages", _chat_message)
    if endpoint == MESSAGES:
        prompt.system("system")
        return prompt.conversation("messages", _anthropic_message)
    if endpoint == RESPONSES:
        prompt.system("instructions")
        return prompt.one_text("input") or prompt.conversation("input", _item)
    names = [name for name in _ONE_TEXT.get(endpoint, ()) if b'"%b"' % name.encode() in body]
    return bool(names) and prompt.one_text(names[0], in_list=endpoint == COMPLETIONS)


def _content(holder: dict[str, Any], key: str, turn: Turn, places: list[_Place]) -> None:
    """A text, or parts of which some are text."""
    content = holder.get(key)
    if isinstance(content, str):
        if content:
            _place(_Place(holder, key), turn, places)
    elif isinstance(content, list):
        _parts(content, turn, places)


def _parts(content: list[Any], turn: Turn, places: list[_Place]) -> None:
    """Texts in a row are one: clients send passages as parts, and a cut of each would leave nothing of any."""
    run: list[dict[str, Any]] = []
    for part in [*content, None]:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            if part["text"]:
                run.append(part)
            continue
        if run:
            _place(_Place(run[0], "text", run[1:], content), turn, places)
            run = []


def _place(place: _Place, turn: Turn, places: list[_Place]) -> None:
    turn.texts.append(place.text)
    places.append(place)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8")


def _chat_message(message: dict[str, Any], turn: Turn, places: list[_Place]) -> bool:
    _content(message, "content", turn, places)
    if message.get("tool_calls"):
        turn.hidden.append(_json(message["tool_calls"]))
    return message.get("role") == "user"


def _anthropic_message(message: dict[str, Any], turn: Turn, places: list[_Place]) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        _content(message, "content", turn, places)
        return message.get("role") == "user"
    results = False
    _parts(content, turn, places)
    for part in content:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "tool_result":
            results = True
            _content(part, "content", turn, places)
        elif kind == "tool_use":
            turn.hidden.append(_json(part.get("input")))
        elif isinstance(part.get("thinking"), str):
            turn.hidden.append(part["thinking"])  # signed: it goes back as it came, or not at all
    # A user message with a tool's result answers the assistant's call before it.
    return message.get("role") == "user" and not results


def _item(item: dict[str, Any], turn: Turn, places: list[_Place]) -> bool:
    _content(item, "content", turn, places)
    _content(item, "output", turn, places)
    if isinstance(item.get("arguments"), str):
        turn.hidden.append(item["arguments"])
    return item.get("role") == "user"
