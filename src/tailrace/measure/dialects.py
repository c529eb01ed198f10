"""Which dialect a path speaks."""

from __future__ import annotations

from typing import Final

from tailrace.measure.anthropic import AnthropicMessages
from tailrace.measure.any_events import AnyEvents
from tailrace.measure.dialect import Dialect
from tailrace.measure.embeddings import Embeddings
from tailrace.measure.openai import OpenAIChat, OpenAIResponses
from tailrace.measure.transcription import Transcription

CHAT: Final[Dialect] = OpenAIChat("openai.chat")
COMPLETIONS: Final[Dialect] = OpenAIChat("openai.completions")
RESPONSES: Final[Dialect] = OpenAIResponses()
MESSAGES: Final[Dialect] = AnthropicMessages()
TRANSCRIPTION: Final[Dialect] = Transcription()
EMBEDDINGS: Final[Dialect] = Embeddings()
ANY: Final[Dialect] = AnyEvents()


def dialect_for(path: str) -> Dialect:  # noqa: PLR0911  (one a path)
    """The dialect of an API path (query allowed). Unknown paths are read as OpenAI chat, the most common shape."""
    path = path.partition("?")[0].rstrip("/")
    if path.endswith("/chat/completions"):
        return CHAT
    if path.endswith("/completions"):
        return COMPLETIONS
    if path.endswith("/responses"):
        return RESPONSES
    if path.endswith("/messages"):
        return MESSAGES
    if path.endswith(("/transcriptions", "/translations")):
        return TRANSCRIPTION
    if path.endswith("/embeddings"):
        return EMBEDDINGS
    return CHAT
