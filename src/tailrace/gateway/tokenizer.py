"""Models' own tokenizers, loaded only where the configuration names one."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tailrace.gateway.token_keys import ANY, tokenizer_file
from tailrace.measure.token_counter import TokenCounter
from tailrace.model.errors import ConfigError


class Tokenizer(TokenCounter):
    """Counts one model's tokens. Special tokens are the template's, and not counted here."""

    def __init__(self, path: str, *, place: str = "") -> None:
        """Read it. ConfigError for a file that is none."""
        # Its own threads would take the cores from the relay, and warn in every process that was forked.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            super().__init__(tokenizer_file(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the tokenizer at {path} cannot be read: {error}",
                place=place or path,
                remedy="Give the tokenizer.json that belongs to the model.",
            ) from None


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
