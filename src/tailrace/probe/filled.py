"""Filled templates: the bodies of requests whose shape the user gave."""

from __future__ import annotations

from tailrace.probe.request import Ask, Options, messages_of
from tailrace.workload.template import Template


class Filled:
    """Composes requests from a template."""

    def __init__(self, options: Options, template: Template) -> None:
        self.options = options
        self.template = template

    def __call__(self, ask: Ask) -> bytes:
        """The body."""
        return self.template.fill(
            {
                "prompt": ask.text,
                "model": self.options.model,
                "request_id": ask.request_id,
                "session_id": ask.session_id,
                "max_tokens": ask.output_tokens,
                "prompt_tokens": ask.prompt_tokens,
                "number": ask.number,
                "messages": messages_of(ask),
            }
        )
