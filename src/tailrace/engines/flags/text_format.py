"""Protocol buffers' text format, as Triton's `config.pbtxt` is written in it: fields, messages, lists, comments.

Without the schema a field that stands once may still be a list; readers ask for what they expect (`as_list`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tailrace.model.errors import InputError

_DEEPEST: Final = 64
_TOKEN: Final = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?(?![\w.]))
    |(?P<word>[A-Za-z_][\w.]*)
    |(?P<mark>[{}\[\]<>:,;])""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def _tokens(text: str, place: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise InputError(
                f"{text[at : at + 20]!r} is no text format of protocol buffers",
                place=f"{place}:{line}",
                remedy="Give a Triton model's config.pbtxt.",
            )
        if found.lastgroup is not None:
            yield _Token(found.lastgroup, found[0], line)
        line += found[0].count("\n")
        at = found.end()


class _Reader:
    def __init__(self, tokens: Iterator[_Token], place: str) -> None:
        self.tokens = list(tokens)
        self.place = place
        self.at = 0

    def peek(self) -> _Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def fail(self, wanted: str) -> InputError:
        token = self.peek()
        line = token.line if token is not None else (self.tokens[-1].line if self.tokens else 1)
        seen = repr(token.text) if token is not None else "the end of the file"
        return InputError(f"{wanted} is missing before {seen}", place=f"{self.place}:{line}", remedy="")

    def take(self, text: str) -> bool:
        token = self.peek()
        if token is not None and token.kind == "mark" and token.text == text:
            self.at += 1
            return True
        return False

    def message(self, end: str, depth: int) -> dict[str, Any]:
        if depth > _DEEPEST:
            raise InputError(f"messages are nested deeper than {_DEEPEST}", place=self.place)
        out: dict[str, Any] = {}
        while not (end and self.take(end)):
            token = self.peek()
            if token is None:
                if end:
                    raise self.fail(f"'{end}'")
                return out
            if token.kind != "word":
                raise self.fail("a field's name")
            self.at += 1
            self.take(":")
            for value in self.values(depth):
                _put(out, token.text, value)
            while self.take(",") or self.take(";"):
                pass
        return out

    def values(self, depth: int) -> list[Any]:
        if not self.take("["):
            return [self.value(depth)]
        out: list[Any] = []
        while not self.take("]"):
            out.append(self.value(depth))
            self.take(",")
        return [out]

    def value(self, depth: int) -> Any:
        for begin, end in (("{", "}"), ("<", ">")):
            if self.take(begin):
                return self.message(end, depth + 1)
        token = self.peek()
        if token is None or token.kind == "mark":
            raise self.fail("a value")
        self.at += 1
        if token.kind == "number":
            return _number(token.text)
        if token.kind == "word":
            return {"true": True, "false": False}.get(token.text.lower(), token.text)
        said = _unquote(token.text)
        while (following := self.peek()) is not None and following.kind == "text":
            said += _unquote(following.text)
            self.at += 1
        return said


def _number(text: str) -> int | float:
    try:
        return int(text, 0)
    except ValueError:
        return float(text.rstrip("fF"))


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])


def _put(out: dict[str, Any], name: str, value: Any) -> None:
    if name not in out:
        out[name] = value
        return
    before = out[name] if isinstance(out[name], list) else [out[name]]
    out[name] = before + (value if isinstance(value, list) else [value])


def parse_text_format(text: str, *, place: str = "config.pbtxt") -> dict[str, Any]:
    """The message in `text`: plain dictionaries, lists, numbers, text. InputError names the line."""
    return _Reader(_tokens(text, place), place).message("", 0)


def as_list(value: Any) -> list[Any]:
    """A repeated field, whether it stood not at all, once, or several times."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
