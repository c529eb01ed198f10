"""One answer on its way out: the bytes of its events, in vLLM's form."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from tailrace.simserve.ask import Ask
from tailrace.simserve.words import text, word
from tailrace.simulate.cost import PS_PER_S
from tailrace.simulate.request import SimRequest

DONE: Final = b"data: [DONE]\n\n"
_PS_PER_MS: Final = PS_PER_S / 1000
_BACKLOG: Final = 262_144
"""Bytes unsent on a connection above which tokens are held back and merged into one event, as vLLM's collector does."""


class Answer:
    """The answer to one request: how many tokens are out, and where they are written.

    `write` takes bytes without waiting (a transport's `write`); `backlog` says how many bytes are still unsent. A
    non-streamed answer has neither, and only counts. `done` resolves to True when the answer is complete, to False
    when the engine refused or dropped it.
    """

    def __init__(self, ask: Ask, request: SimRequest, response_id: str, created: int, fingerprint: str) -> None:
        self.ask = ask
        self.request = request
        self.id = response_id
        self.created = created
        self.system = fingerprint
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self.chunked = True
        self.tokens = 0
        self.sent = 0
        self.last_at = 0
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        head = msgspec.json.encode({"id": response_id, "object": kind, "created": created, "model": ask.model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        delta = b'"delta":{"content":"' if ask.chat else b'"text":"'
        close = b'"}' if ask.chat else b'"'
        self._open = self._head + b'{"index":0,' + delta
        self._close = close + b',"logprobs":null,"finish_reason":null,"token_ids":null}]'
        self._last = close + b',"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}]' % (
            ask.finish_reason.encode()
        )

    def token(self, at: int, interval: int) -> None:
        """One more token at `at` (ps): write its event, unless it is held back for the next one."""
        self.tokens += 1
        self.last_at = at
        transport = self.transport
        if transport is None:
            return
        tokens = self.tokens
        last = tokens == self.ask.output_tokens
        held = tokens - self.sent
        if not last and tokens > 1 and (held < interval or transport.get_write_buffer_size() > _BACKLOG):
            return
        out = self._event(last=last)
        if self.sent == 0 and self.ask.chat:
            out = self._role() + out
        if last:
            if self.ask.include_usage:
                out += self._usage_event()
            out += DONE
        self.sent = tokens
        self.write(out)

    def write(self, data: bytes) -> None:
        """Put whole events on the wire, as one HTTP chunk."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def body(self, *, metrics: bool) -> bytes:
        """The whole answer of a non-streamed call."""
        ask = self.ask
        words = text(ask.fingerprint, self._visible(self.tokens))
        choice: dict[str, Any] = {"index": 0}
        if ask.chat:
            choice["message"] = {"role": "assistant", "content": words, "refusal": None, "reasoning": None}
        else:
            choice["text"] = words
        choice |= {"logprobs": None, "finish_reason": ask.finish_reason, "stop_reason": None, "token_ids": None}
        out: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": self.created,
            "model": ask.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self.system,
            "usage": self._usage(details=True),
        }
        if metrics:
            out["metrics"] = self.metrics()
        return msgspec.json.encode(out)

    with_metrics = True
    """Whether the final usage event carries `metrics`; the server sets it."""

    def metrics(self) -> dict[str, float | None]:
        """Per-request timings in vLLM's form: `time_to_first_token_ms` counts from the schedule, without the queue."""
        request = self.request
        scheduled = request.scheduled_at or request.arrival
        first = request.first_at or scheduled
        prefill = (first - scheduled) / _PS_PER_MS
        generation = (self.last_at - first) / _PS_PER_MS
        total = prefill + generation
        return {
            "time_to_first_token_ms": prefill,
            "generation_time_ms": generation,
            "queue_time_ms": (scheduled - request.arrival) / _PS_PER_MS,
            "mean_itl_ms": generation / (self.tokens - 1) if self.tokens > 1 else None,
            "tokens_per_second": self.tokens / total * 1000 if total else None,
        }

    def _visible(self, tokens: int) -> int:
        """Tokens with text: the one that ends a sentence of its own accord (`stop`) has none."""
        ends = tokens == self.ask.output_tokens and self.ask.finish_reason == "stop"
        return tokens - 1 if ends else tokens

    def _event(self, *, last: bool) -> bytes:
        mark = self.ask.fingerprint
        words = "".join([word(mark, i) for i in range(self.sent, self._visible(self.tokens))])
        out = self._open + words.encode() + (self._last if last else self._close)
        if self.ask.continuous_usage:
            out += b',"usage":' + msgspec.json.encode(self._usage(details=False))
        return out + b"}\n\n"

    def _role(self) -> bytes:
        out = (
            self._head + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        )
        if self.ask.continuous_usage:
            prompt = self.ask.prompt_tokens
            out += b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0}' % (prompt, prompt)
        return out + b',"prompt_token_ids":null}\n\n'

    def _usage_event(self) -> bytes:
        tail: dict[str, Any] = {"usage": self._usage(details=True), "system_fingerprint": self.system}
        if self.with_metrics:
            tail["metrics"] = self.metrics()
        return self._head + b"]," + msgspec.json.encode(tail)[1:] + b"\n\n"

    def _usage(self, *, details: bool) -> dict[str, Any]:
        prompt = self.ask.prompt_tokens
        out: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self.tokens,
            "completion_tokens": self.tokens,
        }
        if details:
            out["prompt_tokens_details"] = {"cached_tokens": self.request.cached or 0}
        return out
