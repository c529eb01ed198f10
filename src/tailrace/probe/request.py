"""Requests: what is sent, for each of the APIs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from tailrace import __version__

_encode = msgspec.json.Encoder().encode

Message = dict[str, str]
"""`{"role": ..., "content": ...}`."""


class Api(StrEnum):
    """An API of a model server, by the end of its path."""

    CHAT = "/chat/completions"
    COMPLETIONS = "/completions"
    RESPONSES = "/responses"
    MESSAGES = "/messages"
    EMBEDDINGS = "/embeddings"
    TRANSCRIPTIONS = "/audio/transcriptions"


ENDPOINTS: Final[dict[str, Api]] = {
    "chat": Api.CHAT,
    "completions": Api.COMPLETIONS,
    "responses": Api.RESPONSES,
    "messages": Api.MESSAGES,
    "embeddings": Api.EMBEDDINGS,
    "transcriptions": Api.TRANSCRIPTIONS,
}
"""The APIs by the names that people give them."""
GENERATING: Final = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES})
"""Those whose answers are generated text with a length that can be asked for."""


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
    min_tokens: bool = False
    """Ask for at least the planned tokens: of servers that refuse `ignore_eos`. vLLM pays for it at every step."""
    state_prompt_tokens: bool = False
    """Tell a simulated engine how many tokens the prompt stands for."""
    extra_body: dict[str, Any] = {}


class Ask(NamedTuple):
    """One request, before it is put into the form of an API."""

    text: str
    """The new message; of an embeddings request its first input."""
    prompt_tokens: int
    output_tokens: int
    request_id: str = ""
    session_id: str = ""
    number: int = 0
    history: Sequence[Message] = ()
    """The messages before, the system's first."""
    inputs: Sequence[str] = ()
    """All inputs of an embeddings request."""
    audio_ms: int | None = None


Compose = Callable[[Ask], bytes]
"""Puts a request into the form of one API: the body."""


def messages_of(ask: Ask) -> list[Message]:
    """History and new message."""
    return [*ask.history, {"role": "user", "content": ask.text}]


def transcript_of(ask: Ask) -> str:
    """History and new message as one text, for APIs that know no roles."""
    return "\n\n".join([*(one["content"] for one in ask.history), ask.text])


def body(api: Api, options: Options, ask: Ask) -> bytes:
    """The JSON body of one request (of any API but transcriptions, which upload a file)."""
    out: dict[str, Any] = {"model": options.model}
    if api is Api.EMBEDDINGS:
        out["input"] = list(ask.inputs) if ask.inputs else ask.text
        out.update(options.extra_body)
        return _encode(out)
    if api is Api.COMPLETIONS:
        out["prompt"] = transcript_of(ask) if ask.history else ask.text
    elif api is Api.RESPONSES:
        out["input"] = messages_of(ask) if ask.history else ask.text
    elif api is Api.MESSAGES and ask.history and ask.history[0]["role"] == "system":
        out["system"] = ask.history[0]["content"]
        out["messages"] = messages_of(ask)[1:]
    else:
        out["messages"] = messages_of(ask)
    out["max_output_tokens" if api is Api.RESPONSES else "max_tokens"] = ask.output_tokens
    out["stream"] = options.stream
    if api in (Api.CHAT, Api.COMPLETIONS):
        if options.stream and options.include_usage:
            out["stream_options"] = {"include_usage": True}
        if options.ignore_eos:
            out["ignore_eos"] = True
        if options.min_tokens:
            out["min_tokens"] = ask.output_tokens
        if options.state_prompt_tokens:
            out["tailrace_prompt_tokens"] = ask.prompt_tokens
    out.update(options.extra_body)
    return _encode(out)


class Envelope:
    """The HTTP head of every request to one path; only the ids and the length change."""

    def __init__(
        self,
        host: str,
        path: str,
        *,
        api_key: str = "",
        headers: list[tuple[str, str]] | None = None,
        content_type: str = "application/json",
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
            "content-type": content_type,
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

    def post(self, content: bytes, request_id: str, session_id: str = "") -> bytes:
        """A whole POST request."""
        session = b"x-session-id: %b\r\n" % session_id.encode() if session_id else b""
        return b"%bx-request-id: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
            self._post,
            request_id.encode(),
            session,
            len(content),
            content,
        )

    def get(self, path: str) -> bytes:
        """A whole GET request of another path with the same headers."""
        return b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), self._lines)
