"""Requests: what is sent, for each of the APIs that stream tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from tailrace import __version__

_encode = msgspec.json.Encoder().encode


class Api(StrEnum):
    """An API of a model server, by the end of its path."""

    CHAT = "/chat/completions"
    COMPLETIONS = "/completions"
    RESPONSES = "/responses"
    MESSAGES = "/messages"


def api_of(path: str) -> Api | None:
    """The API that a path names, or `None` where it ends in none of them."""
    path = path.partition("?")[0].rstrip("/")
    return next((api for api in Api if path.endswith(api)), None)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the server beside the prompt; the look before the run drops what the server refuses."""

    model: str
    stream: bool = True
    include_usage: bool = True
    ignore_eos: bool = True
    state_prompt_tokens: bool = False
    """Tell a simulated engine how many tokens the prompt stands for."""
    extra_body: dict[str, Any] = {}


def body(api: Api, options: Options, text: str, *, prompt_tokens: int, output_tokens: int) -> bytes:
    """The JSON body of one request."""
    out: dict[str, Any] = {"model": options.model}
    if api is Api.COMPLETIONS:
        out["prompt"] = text
    elif api is Api.RESPONSES:
        out["input"] = text
    else:
        out["messages"] = [{"role": "user", "content": text}]
    out["max_output_tokens" if api is Api.RESPONSES else "max_tokens"] = output_tokens
    out["stream"] = options.stream
    if api in (Api.CHAT, Api.COMPLETIONS):
        if options.stream and options.include_usage:
            out["stream_options"] = {"include_usage": True}
        if options.ignore_eos:
            out["ignore_eos"] = True
        if options.state_prompt_tokens:
            out["tailrace_prompt_tokens"] = prompt_tokens
    out.update(options.extra_body)
    return _encode(out)


class Envelope:
    """The HTTP head of every request to one path; only the id and the length change."""

    def __init__(
        self, host: str, path: str, *, api_key: str = "", headers: list[tuple[str, str]] | None = None
    ) -> None:
        self.host = host
        self.path = path
        api = api_of(path)
        lines = {
            "host": host,
            "user-agent": f"tailrace/{__version__}",
            "accept": "text/event-stream, application/json",
            # A compressed stream would be stamped by the compressor's flushes.
            "accept-encoding": "identity",
            "content-type": "application/json",
        }
        if api_key:
            lines["authorization"] = f"Bearer {api_key}"
        if api is Api.MESSAGES:
            lines["anthropic-version"] = "2023-06-01"
            if api_key:
                lines["x-api-key"] = api_key
        lines.update({name.lower(): value for name, value in headers or []})
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1", "replace")
        self._post = b"POST " + path.encode() + b" HTTP/1.1\r\n" + self._lines

    def post(self, content: bytes, request_id: str) -> bytes:
        """A whole POST request."""
        return b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            self._post,
            request_id.encode(),
            len(content),
            content,
        )

    def get(self, path: str) -> bytes:
        """A whole GET request of another path with the same headers."""
        return b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), self._lines)
