"""A client of chat streams in a few lines of the standard library."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from tailrace.app.llamacpp_engine import MODEL_NAME

SAME_WORK = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
"""llama.cpp: exactly `max_tokens` tokens, and every prompt is worked through."""


def body(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    asked = {"model": MODEL_NAME, "messages": [message], "max_tokens": tokens, "stream": True}
    return {**asked, "stream_options": {"include_usage": True}, **SAME_WORK, **more}


def stream(url: str, asked: dict[str, Any], *, leave_after: int | None = None) -> dict[str, Any]:
    """Send one request and read its events; `leave_after` closes the connection after so many events with text."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    out: dict[str, Any] = {"events": 0, "usage": None, "done": False, "text": "", "id": ""}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"content-type": "application/json"})
        answer = connection.getresponse()
        out["status"], out["id"] = answer.status, answer.getheader("x-request-id")
        for line in answer:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                out["done"] = True
                continue
            event = json.loads(data)
            out["usage"] = event.get("usage") or out["usage"]
            text = "".join((choice["delta"].get("content") or "") for choice in event.get("choices", []))
            out["text"] += text
            out["events"] += bool(text)
            if leave_after is not None and out["events"] >= leave_after:
                break
    finally:
        connection.close()
    return out


def together(url: str, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All at once, a thread each: begun 20 ms apart, so that what is measured is no crowd of starting threads."""
    out: list[dict[str, Any]] = [{} for _ in asked]

    def one(number: int) -> None:
        out[number] = stream(url, asked[number])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    return out
