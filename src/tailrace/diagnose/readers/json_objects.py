"""JSON objects of a file that holds one a line, a list of them, or one document; what is none of it is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.diagnose.observed import Understood
from tailrace.diagnose.readers.foreign_json import lines
from tailrace.diagnose.readers.lenient_json import decode_json
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

__all__ = ["BEFORE", "Objects", "shown"]

BEFORE: Final = "_before"
"""Under this key an object has the words that stood before it on its line."""

_MOST_WHOLE: Final = 64 << 20
"""A document that is no list of lines is decoded as one: so large at most."""
_EXAMPLES: Final = 3
_SHOWN: Final = 80


def shown(number: int, line: bytes | str) -> str:
    """A line as an example of what was not understood."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    text = text.strip()
    return f"{number}: {text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}"


class Objects:
    """Iterates over (line, object). What was no object stands in `understood` afterwards."""

    def __init__(self, path: Path, name: str, form: str) -> None:
        self._path = path
        self._name = name
        self._form = form
        self._taken = 0
        self._total = 0
        self._examples: list[str] = []

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Lines first; a file whose lines are none is read as one document. InputError where nothing is JSON."""
        first, objects = True, 0
        for number, line in lines(self._path):
            if first and line.lstrip()[:1] in (b"[", b"{") and _opens_more(line):
                yield from self._document()
                return
            first = False
            self._total += 1
            found = _object(line)
            if found is None:
                self.miss(number, line)
                continue
            objects += 1
            self._taken += 1
            yield number, found
        if not objects:
            raise InputError("there is no JSON object in it", place=str(self._path), remedy="Give one event a line.")

    def miss(self, number: int, line: bytes | str) -> None:
        """Note what is no object; a caller may add an object that is no event of his, which then does not count."""
        if len(self._examples) < _EXAMPLES:
            self._examples.append(shown(number, line))

    def refuse(self, number: int, found: dict[str, Any]) -> None:
        """An object that is nothing of what the caller reads."""
        self._taken -= 1
        self.miss(number, msgspec.json.encode(found, enc_hook=str))

    def understood(self, what: str = "lines") -> Understood:
        """How much was."""
        return Understood(
            source=self._name,
            format=self._form,
            understood=max(self._taken, 0),
            total=self._total,
            what=what,
            examples=self._examples,
        )

    def _document(self) -> Iterator[tuple[int, dict[str, Any]]]:
        with self._path.open("rb") as file:
            whole = file.read(_MOST_WHOLE + 1)
        if len(whole) > _MOST_WHOLE:
            raise InputError(
                f"one JSON document of more than {_MOST_WHOLE >> 20} MiB",
                place=str(self._path),
                remedy="Give one event a line.",
            )
        try:
            said = decode_json(whole.removeprefix(b"\xef\xbb\xbf"))
        except UNREADABLE as error:
            raise InputError(
                f"this JSON cannot be read: {error}", place=str(self._path), remedy="Give it whole, as it was written."
            ) from None
        for found in said if isinstance(said, list) else [said]:
            self._total += 1
            if isinstance(found, dict):
                self._taken += 1
                yield 1, found
            else:
                self.miss(1, str(found))


def _opens_more(line: bytes) -> bool:
    """Whether the first line is the beginning of a document over several lines, or a list in one."""
    text = line.strip()
    if text.startswith(b"["):
        return not text.startswith(b"[2")  # a log's stamp: `[2026-…`
    try:
        decode_json(text)
    except UNREADABLE:
        return text in (b"{", b"[") or text.endswith((b",", b"{", b"["))
    return False


def _object(line: bytes) -> dict[str, Any] | None:
    """The object that a line is, or that stands in it behind a log's own words."""
    text = line.strip()
    start = text.find(b"{")
    if start < 0:
        return None
    try:
        found = decode_json(text[start : text.rfind(b"}") + 1])
    except UNREADABLE:
        return None
    if not isinstance(found, dict):
        return None
    if start:
        found.setdefault(BEFORE, text[:start].decode("utf-8", "replace")[-200:])
    return found
