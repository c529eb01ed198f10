"""A server of which nothing is known but that it speaks OpenAI."""

from __future__ import annotations

from tailrace.engines.base import EngineAdapter


class OpenAICompatible(EngineAdapter):
    """The base class as it is: usage is asked for, everything else is measured from outside."""
