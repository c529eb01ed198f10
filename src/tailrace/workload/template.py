"""Templates: request bodies of any shape, with places for what differs between requests.

`{{prompt}}` is the text, `{{model}}`, `{{request_id}}` and `{{session_id}}` are what they say, `{{max_tokens}}`,
`{{prompt_tokens}}` and `{{number}}` are numbers, `{{messages}}` is the whole chat as a JSON array. Texts go into
quotes that are already there, escaped as JSON wants it: `"inputs": "{{prompt}}"`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

TEXTS: Final = ("prompt", "model", "request_id", "session_id")
VALUES: Final = ("max_tokens", "prompt_tokens", "number", "messages")
_PLACE: Final = re.compile(r"\{\{\s*([\w.-]*)\s*\}\}")
_SAMPLE: Final[dict[str, Any]] = {
    **dict.fromkeys(TEXTS, 'a "text"'),
    **dict.fromkeys(VALUES, 1),
    "messages": [{"role": "user", "content": 'a "text"'}],
}


class Template:
    """A body with places. Raises `InputError`, naming file and line, for a place that nothing fills."""

    def __init__(self, text: str, *, place: str = "--template") -> None:
        self.text = text
        parts = _PLACE.split(text)
        self.names: tuple[str, ...] = tuple(parts[1::2])
        at = 0
        for found in _PLACE.finditer(text):
            at = text.count("\n", 0, found.start()) + 1
            if found[1] not in TEXTS + VALUES:
                raise InputError(
                    f"nothing fills {found[0]}",
                    place=f"{place}:{at}",
                    remedy=f"Known places: {', '.join('{{' + name + '}}' for name in TEXTS + VALUES)}",
                )
        if not self.names:
            raise InputError(
                "the template has no place for anything, so every request would be the same",
                place=place,
                remedy='Put the text where it belongs: "prompt": "{{prompt}}"',
            )
        self._fixed = parts[0::2]
        self.json = text.lstrip()[:1] in ("{", "[")
        if self.json:
            try:
                msgspec.json.decode(self.fill(_SAMPLE))
            except UNREADABLE as error:
                raise InputError(
                    f"the body is no JSON once its places are filled ({error})",
                    place=place,
                    remedy='Texts belong into quotes, "{{prompt}}"; {{max_tokens}} and {{messages}} do not',
                ) from None

    def fill(self, values: Mapping[str, Any]) -> bytes:
        """The body with its places filled."""
        out = [self._fixed[0]]
        for name, fixed in zip(self.names, self._fixed[1:], strict=True):
            value = msgspec.json.encode(values[name]).decode()
            # A text stands in quotes already.
            out += [value[1:-1] if name in TEXTS else value, fixed]
        return "".join(out).encode()
