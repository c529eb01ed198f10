"""Composing: from a request to the body of the API that a target speaks."""

from __future__ import annotations

from functools import partial

from tailrace.probe.request import Api, Ask, Compose, Options, body, messages_of
from tailrace.probe.spec import BenchSpec
from tailrace.probe.upload import Uploads, read_recordings
from tailrace.workload.template import Template


class Filled:
    """Composes requests from a template, whose shape the user gave."""

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


def composer(spec: BenchSpec, api: Api | None, options: Options) -> Compose:
    """What makes the bodies for one target of `spec`. InputError for a template or recordings that cannot be used."""
    if api is None:
        return Filled(options, Template(spec.template))
    if api is Api.TRANSCRIPTIONS:
        return Uploads(options, read_recordings(spec.audio_files), seed=spec.seed, nonce=spec.nonce)
    return partial(body, api, options)
