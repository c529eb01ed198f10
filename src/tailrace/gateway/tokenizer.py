"""Models' own tokenizers, through the package `tokenizers`; loaded only where the configuration names one.

Texts are counted with `encode_batch_fast`: unlike `encode` it lets other threads run meanwhile (measured on 100,000
tokens: the longest pause of another thread 0.7 ms against 170 ms) and takes half the time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tailrace.gateway.token_keys import ANY, tokenizer_file
from tailrace.model.errors import ConfigError

_PIECE: Final = 16_384
"""Characters: a longer text is counted in pieces, cut before a space, so that no single call is long."""


class Tokenizer:
    """Counts one model's tokens. Special tokens are the template's, and not counted here."""

    def __init__(self, path: str, *, place: str = "") -> None:
        """Read it. ConfigError for a file that is none."""
        # Its own threads would take the cores from the relay, and warn in every process that was forked.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer as Model  # noqa: PLC0415  (an extra)

        try:
            self._model: Any = Model.from_file(str(tokenizer_file(path)))
        except Exception as error:  # noqa: BLE001  (what the library raises has no class of its own)
            raise ConfigError(
                f"the tokenizer at {path} cannot be read: {error}",
                place=place or path,
                remedy="Give the tokenizer.json that belongs to the model.",
            ) from None
        self._model.no_truncation()
        self._model.no_padding()

    def count(self, texts: Sequence[str]) -> list[float]:
        """Tokens of each text."""
        pieces: list[str] = []
        parts: list[int] = []
        for text in texts:
            mine = [text] if len(text) <= _PIECE else _pieces(text)
            parts.append(len(mine))
            pieces += mine
        sizes = iter([len(found) for found in self._model.encode_batch_fast(pieces, add_special_tokens=False)])
        return [float(sum(next(sizes) for _ in range(n))) for n in parts]


def _pieces(text: str) -> list[str]:
    out: list[str] = []
    start = 0
    while len(text) - start > _PIECE:
        space = text.rfind(" ", start + _PIECE // 2, start + _PIECE)
        end = space if space > start else start + _PIECE
        out.append(text[start:end])
        start = end
    out.append(text[start:])
    return out


class Tokenizers:
    """Model -> its tokenizer, each file read once."""

    def __init__(self) -> None:
        self._by_model: dict[str, Tokenizer] = {}
        self._by_path: dict[str, Tokenizer] = {}

    def apply(self, paths: Mapping[str, str]) -> None:
        """Know these from now on. ConfigError for a file that is no tokenizer; nothing has changed then."""
        loaded = {
            path: self._by_path.get(path) or Tokenizer(path, place=f"tokens.tokenizers.{model}")
            for model, path in paths.items()
        }
        self._by_path = loaded
        self._by_model = {model: loaded[path] for model, path in paths.items()}

    def of(self, model: str) -> tuple[str, Tokenizer] | None:
        """(the name that it is configured under, the tokenizer) of a model, where it has one."""
        name = model if model in self._by_model else ANY
        found = self._by_model.get(name)
        return None if found is None else (name, found)

    def __bool__(self) -> bool:
        """Whether any model has one."""
        return bool(self._by_model)
