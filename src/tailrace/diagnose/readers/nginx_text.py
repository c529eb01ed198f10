"""nginx's configuration language: directives, nested blocks, comments, quotes; what is inside Lua blocks is skipped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

__all__ = ["Directive", "duration_ms", "parse_nginx"]

_DEEPEST: Final = 64
_TOKEN: Final = re.compile(
    r"""[ \t\r\n]+|\#[^\n]*
    |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')(?=[\s;{}]|$)
    |(?P<mark>[;{}])
    |(?P<word>(?:[^\s;{}\\$]+|\\.|\$\{[^}\s]*\}|\$|\\$)+)""",
    re.VERBOSE | re.DOTALL,
)
_LUA: Final = re.compile(r"\w+_by_lua_block|\w+_by_njs_block")
_TIME: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d|w|M|y)?", re.ASCII)
_MS: Final = {
    "ms": 1.0,
    "s": 1e3,
    "": 1e3,
    "m": 6e4,
    "h": 3.6e6,
    "d": 8.64e7,
    "w": 6.048e8,
    "M": 2.592e9,
    "y": 3.1536e10,
}


class Directive(msgspec.Struct, frozen=True):
    """One directive with its block, if it has one."""

    name: str
    arguments: tuple[str, ...]
    line: int
    block: list[Directive] | None = None

    @property
    def value(self) -> str:
        """Its arguments as they stood, with one blank between them."""
        return " ".join(self.arguments)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int
    end: int


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:  # a quote that does not close is a word's letter
            yield _Token("word", text[at], line, at + 1)
            at += 1
            continue
        piece = found[0]
        if found.lastgroup is not None:
            yield _Token(found.lastgroup, piece, line, found.end())
        line += piece.count("\n")
        at = found.end()


def parse_nginx(text: str) -> tuple[list[Directive], list[str]]:
    """(directives at the top, what was damaged: `12: a block does not close`). It never fails."""
    reader = _Reader(text)
    for token in _tokens(text):
        if token.end <= reader.skip_until:
            continue
        if not reader.take(token):
            break
    reader.close()
    return reader.top, reader.wrong


class _Reader:
    """Takes tokens one by one."""

    def __init__(self, text: str) -> None:
        self.top: list[Directive] = []
        self.wrong: list[str] = []
        self.skip_until = 0
        self._text = text
        self._stack: list[tuple[list[Directive], int]] = [(self.top, 0)]
        self._words: list[str] = []
        self._begun = 0

    def take(self, token: _Token) -> bool:
        """Whether to go on."""
        if token.kind != "mark":
            self._begun = self._begun if self._words else token.line
            self._words.append(_unquoted(token.text) if token.kind == "quoted" else token.text)
            return True
        if token.text == ";":
            self._put()
        elif token.text == "{":
            if len(self._stack) > _DEEPEST:
                self.wrong.append(f"{token.line}: blocks are nested deeper than {_DEEPEST}")
                self._words = []
                return False
            self._open(token)
        else:
            self._unfinished()
            if len(self._stack) > 1:
                self._stack.pop()
            else:
                self.wrong.append(f"{token.line}: a brace closes nothing")
        self._words = []
        return True

    def close(self) -> None:
        """What the end of the text leaves open."""
        self._unfinished()
        self.wrong += [f"{line}: a block does not close" for _, line in self._stack[1:]]

    def _put(self, block: list[Directive] | None = None) -> None:
        if self._words or block is not None:
            name, *arguments = self._words or [""]
            self._stack[-1][0].append(Directive(name, tuple(arguments), self._begun, block))

    def _open(self, token: _Token) -> None:
        self._begun = self._begun if self._words else token.line
        if self._words and _LUA.fullmatch(self._words[0]):
            self.skip_until = _after_block(self._text, token.end)
            self._put()
            return
        block: list[Directive] = []
        self._put(block)
        self._stack.append((block, token.line))

    def _unfinished(self) -> None:
        """The last directive of a block without its semicolon: nginx refuses it, people paste it."""
        if self._words:
            self._put()
            self.wrong.append(f"{self._begun}: `{self._words[0]}` has no semicolon")
            self._words = []


def _after_block(text: str, at: int) -> int:
    """Behind the brace that closes the one before `at`, quotes and comments of Lua left out as far as they matter."""
    depth = 1
    for found in re.compile(r"""--[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}]""").finditer(text, at):
        if found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
            if not depth:
                return found.end()
    return len(text)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def duration_ms(text: str) -> float | None:
    """A time as nginx writes it (`60s`, `1h30m`, `500ms`, a bare number of seconds); `None` for anything else."""
    plain = text.strip().strip("'\"")
    if not plain or len(plain) > 64 or _TIME.sub("", plain).strip():
        return None
    return sum(float(number) * _MS[unit] for number, unit in _TIME.findall(plain))
